//! The store contract, one suite for every store: random calls against a naive map.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate::{
    Algorithm, Charge, ChargeMode, ChargeResult, ClientStates, Key, Limit, ManualClock,
    MemoryStore, Outcome, Outcomes, Quota, Refund, Span, State, Store, Timestamp,
};

/// A store and the time it goes by.
trait Testbed {
    type Store: Store;
    /// Whether nodes with different rules may share the store.
    const IS_SHARED: bool;
    fn store(&self) -> &Arc<Self::Store>;
    fn now(&self) -> Timestamp;
    fn advance(&self, span: Span);
    /// Drops what has expired, if the store does not do so by itself.
    fn sweep(&self) {}
    /// Runs what the store's futures need.
    fn block_on<F: Future>(&self, future: F) -> F::Output;
}

struct Memory {
    store: Arc<MemoryStore>,
    time: ManualClock,
}

impl Memory {
    fn new() -> Self {
        let time = ManualClock::default();
        let store = Arc::new(MemoryStore::new(time.clock()));
        Self { store, time }
    }
}

impl Testbed for Memory {
    type Store = MemoryStore;
    const IS_SHARED: bool = false;

    fn store(&self) -> &Arc<MemoryStore> {
        &self.store
    }

    fn now(&self) -> Timestamp {
        self.time.now()
    }

    fn advance(&self, span: Span) {
        self.time.advance(span);
    }

    fn sweep(&self) {
        self.store.sweep(self.store.shards());
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(future)
    }
}

/// The outcomes of a call that the store answered in full.
async fn charge<S: Store>(store: &S, charges: &[Charge<'_>]) -> Outcomes {
    let decided = |answer| match answer {
        ChargeResult::Outcome(outcome) => outcome,
        other => panic!("{other:?} to {charges:?}"),
    };
    let mode = ChargeMode::of_cost(charges[0].cost);
    store.charge(charges, mode).await.into_iter().map(decided).collect()
}

/// What the contract says, told by a map and the core.
#[derive(Default)]
struct Naive {
    kept: HashMap<Key, ClientStates>,
    /// Whether nodes with different rules share the store, which then keeps a state for each limit.
    is_shared: bool,
}

impl Naive {
    fn state(&mut self, key: Key, limit: &Arc<Limit>, now: Timestamp) -> &mut State {
        let states = self.kept.entry(key).or_default();
        states.enter(limit, now);
        if !self.is_shared {
            *states = states.iter().take(1).cloned().collect();
        }
        states.enter(limit, now)
    }

    fn charge(&mut self, charges: &[Charge<'_>], now: Timestamp) -> Vec<Outcome> {
        let mut all_fit = true;
        for charge in charges.iter().filter(|charge| !charge.independent) {
            let state = self.state(charge.key, charge.limit, now);
            all_fit &= charge.limit.admits(state, now, charge.cost);
        }
        let answer = |charge: &Charge<'_>| {
            let state = self.state(charge.key, charge.limit, now);
            match all_fit || charge.independent {
                true => charge.limit.charge(state, now, charge.cost),
                false => charge.limit.peek(state, now, charge.cost),
            }
        };
        let outcomes = charges.iter().map(answer).collect();
        for charge in charges.iter().filter(|_| self.is_shared) {
            self.kept.entry(charge.key).or_default().drop_expired(now);
        }
        outcomes
    }

    fn refund(&mut self, refund: &Refund, now: Timestamp) -> bool {
        self.begin_slots(refund);
        let states = self.kept.get_mut(&refund.key);
        let Some((limit, state)) = states.and_then(|states| states.find(&refund.limit)) else {
            return false;
        };
        refund.take_back(limit, state, now)
    }

    fn renew(&mut self, slots: &Refund, now: Timestamp) -> bool {
        self.begin_slots(slots);
        let states = self.kept.get_mut(&slots.key);
        let Some((limit, state)) = states.and_then(|states| states.find(&slots.limit)) else {
            return false;
        };
        slots.renew(limit, state, now)
    }

    /// Slots in flight of which nothing is kept start with a fresh state. A memory store has room for it
    /// if it keeps no other.
    fn begin_slots(&mut self, slots: &Refund) {
        if !slots.limit.is_concurrency() || slots.refund_token.is_none() {
            return;
        }
        let states = self.kept.entry(slots.key).or_default();
        let has_room = self.is_shared || states.iter().next().is_none();
        if has_room && states.find(&slots.limit).is_none() {
            let fresh = (Limit::clone(&slots.limit), slots.limit.fresh());
            *states = states.iter().cloned().chain([fresh]).collect();
        }
    }

    /// Whether the store may have dropped the state of slots in flight: what a renewal or a release finds
    /// is not determined then.
    fn may_be_dropped(&mut self, slots: &Refund, now: Timestamp) -> bool {
        let kept = self.kept.get_mut(&slots.key).filter(|_| slots.limit.is_concurrency());
        kept.is_some_and(|states| {
            states.iter().any(|(limit, state)| limit.expires_at(&mut state.clone()) <= now)
        })
    }
}

#[derive(Clone, Debug)]
enum Call {
    /// Charges of one call: key, limit, cost, alone.
    Charge(Vec<(usize, usize, u64, bool)>),
    Refund(usize),
    /// Renew what was spent, which only slots in flight are.
    Renew(usize),
    /// What was spent last: key, limit, cost.
    GiveBack(usize, usize, u64),
    Forget(usize),
    Advance(u64),
    Sweep,
}

const KEYS: usize = 6;

/// Limits of every algorithm, kept narrow and wide, with windows that make time matter.
fn limits() -> Vec<Arc<Limit>> {
    let second = Quota::per_second;
    let quotas = [
        (Algorithm::TokenBucket, second(5)),
        (Algorithm::TokenBucket, second(3).burst(9)),
        (Algorithm::TokenBucket, Quota::per(999_999_999_989, Span::from_secs(2_592_000))),
        (Algorithm::TokenBucket, second(0)),
        (Algorithm::LeakyBucket { queue: 3 }, second(4)),
        (Algorithm::FixedWindow, second(6)),
        (Algorithm::FixedWindow, Quota::per(4, Span::from_millis(700))),
        (Algorithm::SlidingWindow, second(6)),
        (Algorithm::SlidingLog, second(5)),
        (Algorithm::Concurrency { hold: Span::SECOND }, Quota::in_flight(5)),
        (Algorithm::Concurrency { hold: Span::from_secs(3) }, Quota::in_flight(2)),
    ];
    quotas.map(|(algorithm, quota)| Arc::new(Limit::new(algorithm, quota).unwrap())).to_vec()
}

fn calls() -> impl Strategy<Value = Vec<Call>> {
    let limits = limits().len();
    let charge = (0..KEYS, 0..limits, 0u64..5, prop::bool::weighted(0.2));
    let call = prop_oneof![
        6 => prop::collection::vec(charge, 1..4).prop_map(Call::Charge),
        2 => any::<usize>().prop_map(Call::Refund),
        2 => any::<usize>().prop_map(Call::Renew),
        2 => (0..KEYS, 0..limits, prop_oneof![1u64..5, Just(u64::MAX)])
            .prop_map(|(number, limit, cost)| Call::GiveBack(number, limit, cost)),
        1 => (0..KEYS).prop_map(Call::Forget),
        1 => Just(Call::Sweep),
        3 => prop_oneof![0u64..300_000, 0u64..3_000_000, Just(20_000_000)].prop_map(Call::Advance),
    ];
    prop::collection::vec(call, 1..80)
}

/// Spread over shards by their upper bits, or all in one.
fn key(number: usize, together: bool) -> Key {
    let upper = if together { 7 } else { number as u128 * 0x1357_9bdf_2468_ace1 };
    Key::from_u128((upper << 64) | (number as u128 + 1))
}

fn answers_like_a_map<T: Testbed>(
    bed: &T,
    calls: &[Call],
    together: bool,
) -> Result<(), TestCaseError> {
    let (limits, mut spent) = (limits(), Vec::new());
    let mut naive = Naive { is_shared: T::IS_SHARED, ..Naive::default() };
    let shared = Key::from_u128(u128::MAX / 3);
    for call in calls {
        match call {
            Call::Charge(asked) => {
                // One call names a key once; adding up has a test of its own. It spends or it looks.
                let looks = asked.iter().any(|(_, _, cost, _)| *cost == 0);
                let mut seen = [false; KEYS];
                let fresh = asked
                    .iter()
                    .filter(|(number, ..)| !std::mem::replace(&mut seen[*number], true));
                let charges: Vec<Charge<'_>> = fresh
                    .map(|&(number, limit, cost, alone)| {
                        let (key, limit) = (key(number, together), &limits[limit]);
                        let cost = if looks { 0 } else { cost };
                        Charge { key, overflow_key: shared, limit, cost, independent: alone }
                    })
                    .collect();
                let answered = bed.block_on(charge(&**bed.store(), &charges));
                let expected = naive.charge(&charges, bed.now());
                prop_assert_eq!(answered.as_slice(), expected.as_slice(), "{:?}", charges);
                for (charge, outcome) in charges.iter().zip(&expected) {
                    spent.extend(outcome.refund_token().map(|refund_token| Refund {
                        key: charge.key,
                        limit: Arc::clone(charge.limit),
                        cost: charge.cost,
                        refund_token: Some(refund_token),
                    }));
                }
            }
            Call::Refund(which) if !spent.is_empty() => {
                let refund = spent.remove(which % spent.len());
                if naive.may_be_dropped(&refund, bed.now()) {
                    continue;
                }
                let expected = usize::from(naive.refund(&refund, bed.now()));
                let given = bed.block_on(bed.store().refund(&[refund])).unwrap();
                prop_assert_eq!(given, expected);
            }
            Call::Refund(_) => {}
            Call::Renew(which) => {
                if let Some(which) = which.checked_rem(spent.len()) {
                    let slots: &Refund = &spent[which];
                    if naive.may_be_dropped(slots, bed.now()) {
                        continue;
                    }
                    let expected = usize::from(naive.renew(slots, bed.now()));
                    let held =
                        bed.block_on(bed.store().renew(std::slice::from_ref(slots))).unwrap();
                    prop_assert_eq!(held, expected);
                }
            }
            Call::GiveBack(number, limit, cost) => {
                let key = key(*number, together);
                // Most often under the limit that it was charged under.
                let known = naive.kept.get(&key).filter(|_| limit % 4 > 0);
                let known = known.and_then(|states| states.iter().next());
                let limit = known.map_or_else(
                    || Arc::clone(&limits[*limit]),
                    |(known, _)| Arc::new(known.clone()),
                );
                let refund = Refund { key, limit, cost: *cost, refund_token: None };
                let expected = usize::from(naive.refund(&refund, bed.now()));
                let given = bed.block_on(bed.store().refund(&[refund])).unwrap();
                prop_assert_eq!(given, expected);
            }
            Call::Forget(number) => {
                bed.block_on(bed.store().forget(key(*number, together))).unwrap();
                naive.kept.remove(&key(*number, together));
                // Slots in flight are renewed or released also after they were lost.
                let key = key(*number, together);
                spent.retain(|refund: &Refund| refund.key != key || refund.limit.is_concurrency());
            }
            Call::Sweep => bed.sweep(),
            Call::Advance(micros) => bed.advance(Span::from_micros(*micros)),
        }
    }
    Ok(())
}

/// Number of cases of each property; `make test-all` and `make soak` ask for more.
#[allow(clippy::disallowed_methods, reason = "a soak says how long it is")]
fn cases() -> u32 {
    std::env::var("TIDEGATE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_answers_like_a_map(calls in calls(), together: bool) {
        answers_like_a_map(&Memory::new(), &calls, together)?;
    }
}

async fn charges_of_one_key_add_up<T: Testbed>(bed: &T) {
    let limit = Arc::new(Limit::new(Algorithm::TokenBucket, Quota::per_minute(5)).unwrap());
    let (key, shared) = (Key::from_u128(1 << 80), Key::from_u128(1));
    let of = |cost| Charge { key, overflow_key: shared, limit: &limit, cost, independent: false };
    let outcomes = charge(&**bed.store(), &[of(3), of(3)]).await;
    assert!(outcomes.iter().any(|outcome| !outcome.is_allowed()), "{outcomes:?}");
    let outcomes = charge(&**bed.store(), &[of(3), of(2)]).await;
    assert!(outcomes.iter().all(|outcome| outcome.is_allowed()), "{outcomes:?}");
    assert_eq!(outcomes[1].remaining, 0);
}

#[test]
fn memory_adds_up_charges_of_one_key() {
    let bed = Memory::new();
    bed.block_on(charges_of_one_key_add_up(&bed));
}

/// One charge held back by another is not made, and says so.
async fn a_denied_request_consumes_nothing<T: Testbed>(bed: &T) {
    let roomy = Arc::new(Limit::new(Algorithm::FixedWindow, Quota::per_minute(100)).unwrap());
    let tight = Arc::new(Limit::new(Algorithm::TokenBucket, Quota::per_minute(1)).unwrap());
    let shared = Key::from_u128(1);
    let of = |number: u128, limit, alone| {
        let key = Key::from_u128((number * 0x1234_5678_9abc_def1) << 64);
        Charge { key, overflow_key: shared, limit, cost: 1, independent: alone }
    };
    let request = [of(1, &roomy, false), of(2, &tight, false), of(3, &roomy, true)];
    let first = charge(&**bed.store(), &request).await;
    assert_eq!(first.iter().map(|outcome| outcome.remaining).collect::<Vec<_>>(), [99, 0, 99]);
    for denied in 1..=50 {
        let outcomes = charge(&**bed.store(), &request).await;
        assert!(outcomes[0].is_allowed() && !outcomes[1].is_allowed());
        assert_eq!((outcomes[0].remaining, outcomes[0].refund_token()), (99, None));
        // What is charged for itself goes on being charged.
        assert_eq!(outcomes[2].remaining, 99 - denied);
    }
}

#[test]
fn in_memory_a_denied_request_consumes_nothing() {
    let bed = Memory::new();
    bed.block_on(a_denied_request_consumes_nothing(&bed));
}

/// A peek is answered for its cost, and changes nothing.
async fn a_peek_of_any_cost_spends_nothing<T: Testbed>(bed: &T) {
    let limit = Arc::new(Limit::new(Algorithm::FixedWindow, Quota::per_minute(10)).unwrap());
    let shared = Key::from_u128(1);
    let of = |number: u128, cost, alone| {
        let key = Key::from_u128((number * 0x1234_5678_9abc_def1) << 64);
        Charge { key, overflow_key: shared, limit: &limit, cost, independent: alone }
    };
    charge(&**bed.store(), &[of(1, 4, false)]).await;
    for (costs, allowed) in [([6, 10], [true, true]), ([1, 11], [true, false])] {
        let peeks = [of(1, costs[0], true), of(2, costs[1], false)];
        for _ in 0..3 {
            let answers = bed.store().charge(&peeks, ChargeMode::Peek).await;
            let outcomes: Vec<&Outcome> =
                answers.iter().filter_map(ChargeResult::outcome).collect();
            let told = |outcome: &&Outcome| (outcome.is_allowed(), outcome.refund_token());
            assert_eq!(
                outcomes.iter().map(told).collect::<Vec<_>>(),
                allowed.map(|allowed| (allowed, None))
            );
            assert_eq!([outcomes[0].remaining, outcomes[1].remaining], [6, 10]);
        }
    }
}

#[test]
fn in_memory_a_peek_of_any_cost_spends_nothing() {
    let bed = Memory::new();
    bed.block_on(a_peek_of_any_cost_spends_nothing(&bed));
}

#[cfg(feature = "redis")]
mod redis;
