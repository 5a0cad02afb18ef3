//! The contract of `Store`, one suite for every store: random calls, compared with a reference model.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;
use tidegate::store::{
    Charge, ChargeMode, ChargeResult, ClientStates, Key, Outcomes, Refund, State, Store,
};
use tidegate::{Algorithm, Limit, ManualClock, MemoryStore, Outcome, Quota, Span, Timestamp};

/// A store under test and its clock.
trait Testbed {
    type Store: Store;
    /// True if nodes with different rules may share the store.
    const IS_SHARED: bool;
    fn store(&self) -> &Arc<Self::Store>;
    fn now(&self) -> Timestamp;
    fn advance(&self, span: Span);
    /// Removes expired states, if the store does not do so on its own.
    fn sweep(&self) {}
    /// Runs a future on the runtime that the store needs.
    fn block_on<F: Future>(&self, future: F) -> F::Output;
}

struct MemoryTestbed {
    store: Arc<MemoryStore>,
    time: ManualClock,
}

impl MemoryTestbed {
    fn new() -> Self {
        let time = ManualClock::default();
        let store = Arc::new(MemoryStore::new(time.clock()));
        Self { store, time }
    }
}

impl Testbed for MemoryTestbed {
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

/// Charges, and returns the outcomes. Panics if the store skipped or failed one.
async fn charge<S: Store>(store: &S, charges: &[Charge<'_>]) -> Outcomes {
    let unwrap_outcome = |answer| match answer {
        ChargeResult::Outcome(outcome) => outcome,
        other => panic!("{other:?} to {charges:?}"),
    };
    let mode = ChargeMode::of_cost(charges[0].cost);
    store.charge(charges, mode).await.into_iter().map(unwrap_outcome).collect()
}

/// A reference model of the contract: a map of states that the core updates.
#[derive(Default)]
struct ReferenceModel {
    states_by_key: HashMap<Key, ClientStates>,
    /// True if nodes with different rules share the store. Such a store keeps one state per limit.
    is_shared: bool,
}

impl ReferenceModel {
    fn state(&mut self, key: Key, limit: &Arc<Limit>, now: Timestamp) -> &mut State {
        let states = self.states_by_key.entry(key).or_default();
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
            self.states_by_key.entry(charge.key).or_default().drop_expired(now);
        }
        outcomes
    }

    fn refund(&mut self, refund: &Refund, now: Timestamp) -> bool {
        self.ensure_slot_state(refund);
        let states = self.states_by_key.get_mut(&refund.key);
        let Some((limit, state)) = states.and_then(|states| states.find(&refund.limit)) else {
            return false;
        };
        refund.take_back(limit, state, now)
    }

    fn renew(&mut self, slots: &Refund, now: Timestamp) -> bool {
        self.ensure_slot_state(slots);
        let states = self.states_by_key.get_mut(&slots.key);
        let Some((limit, state)) = states.and_then(|states| states.find(&slots.limit)) else {
            return false;
        };
        slots.renew(limit, state, now)
    }

    /// Adds a fresh state for slots in flight that have none. A memory store has room for one state per key.
    fn ensure_slot_state(&mut self, slots: &Refund) {
        if !slots.limit.is_concurrency() || slots.refund_token.is_none() {
            return;
        }
        let states = self.states_by_key.entry(slots.key).or_default();
        let has_room = self.is_shared || states.iter().next().is_none();
        if has_room && states.find(&slots.limit).is_none() {
            let fresh = (Limit::clone(&slots.limit), slots.limit.fresh());
            // With the most limits that are stored, it replaces the one that was not used for longest.
            let others = states.iter().take(ClientStates::MAX_LIMITS - 1).cloned();
            *states = others.chain([fresh]).collect();
        }
    }

    /// Returns whether the store may have dropped the state of these slots. The result of a renewal or release is not
    /// determined then.
    fn may_be_dropped(&mut self, slots: &Refund, now: Timestamp) -> bool {
        let states_by_key =
            self.states_by_key.get_mut(&slots.key).filter(|_| slots.limit.is_concurrency());
        states_by_key.is_some_and(|states| {
            states.iter().any(|(limit, state)| limit.expires_at(&mut state.clone()) <= now)
        })
    }
}

#[derive(Clone, Debug)]
enum StoreCall {
    /// Charges of one call: key, limit, cost, independent.
    Charge(Vec<(usize, usize, u64, bool)>),
    Refund(usize),
    /// Renews an earlier charge. Only slots in flight can be renewed.
    Renew(usize),
    /// Refunds the latest usage: key, limit, cost.
    RefundLatest(usize, usize, u64),
    Reset(usize),
    Advance(u64),
    Sweep,
}

const KEY_COUNT: usize = 6;

/// Returns limits of every algorithm, stored compactly and in full, with windows short enough to end within a test.
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

fn calls() -> impl Strategy<Value = Vec<StoreCall>> {
    let limits = limits().len();
    let charge = (0..KEY_COUNT, 0..limits, 0u64..5, prop::bool::weighted(0.2));
    let call = prop_oneof![
        6 => prop::collection::vec(charge, 1..4).prop_map(StoreCall::Charge),
        2 => any::<usize>().prop_map(StoreCall::Refund),
        2 => any::<usize>().prop_map(StoreCall::Renew),
        2 => (0..KEY_COUNT, 0..limits, prop_oneof![1u64..5, Just(u64::MAX)])
            .prop_map(|(number, limit, cost)| StoreCall::RefundLatest(number, limit, cost)),
        1 => (0..KEY_COUNT).prop_map(StoreCall::Reset),
        1 => Just(StoreCall::Sweep),
        3 => prop_oneof![0u64..300_000, 0u64..3_000_000, Just(20_000_000)].prop_map(StoreCall::Advance),
    ];
    prop::collection::vec(call, 1..80)
}

/// Returns the key of a client. The upper bits select the shard; `together` puts all keys in one shard.
fn key(number: usize, together: bool) -> Key {
    let upper = if together { 7 } else { number as u128 * 0x1357_9bdf_2468_ace1 };
    Key::from_u128((upper << 64) | (number as u128 + 1))
}

fn matches_reference_model<T: Testbed>(
    testbed: &T,
    calls: &[StoreCall],
    together: bool,
) -> Result<(), TestCaseError> {
    let (limits, mut spent) = (limits(), Vec::new());
    let mut model = ReferenceModel { is_shared: T::IS_SHARED, ..ReferenceModel::default() };
    let shared = Key::from_u128(u128::MAX / 3);
    for call in calls {
        match call {
            StoreCall::Charge(drawn) => {
                // Each key occurs once per call; repeated keys have their own test. A call either spends or peeks.
                let is_peek = drawn.iter().any(|(_, _, cost, _)| *cost == 0);
                let mut seen_keys = [false; KEY_COUNT];
                let fresh = drawn
                    .iter()
                    .filter(|(number, ..)| !std::mem::replace(&mut seen_keys[*number], true));
                let charges: Vec<Charge<'_>> = fresh
                    .map(|&(number, limit, cost, is_independent)| {
                        let (key, limit) = (key(number, together), &limits[limit]);
                        let cost = if is_peek { 0 } else { cost };
                        Charge {
                            key,
                            overflow_key: shared,
                            limit,
                            cost,
                            independent: is_independent,
                        }
                    })
                    .collect();
                let found = testbed.block_on(charge(&**testbed.store(), &charges));
                let expected = model.charge(&charges, testbed.now());
                prop_assert_eq!(found.as_slice(), expected.as_slice(), "{:?}", charges);
                for (charge, outcome) in charges.iter().zip(&expected) {
                    spent.extend(outcome.refund_token().map(|refund_token| Refund {
                        key: charge.key,
                        limit: Arc::clone(charge.limit),
                        cost: charge.cost,
                        refund_token: Some(refund_token),
                    }));
                }
            }
            StoreCall::Refund(charge_index) if !spent.is_empty() => {
                let refund = spent.remove(charge_index % spent.len());
                if model.may_be_dropped(&refund, testbed.now()) {
                    continue;
                }
                let expected = usize::from(model.refund(&refund, testbed.now()));
                let refunded = testbed.block_on(testbed.store().refund(&[refund])).unwrap();
                prop_assert_eq!(refunded, expected);
            }
            StoreCall::Refund(_) => {}
            StoreCall::Renew(charge_index) => {
                if let Some(charge_index) = charge_index.checked_rem(spent.len()) {
                    let slots: &Refund = &spent[charge_index];
                    if model.may_be_dropped(slots, testbed.now()) {
                        continue;
                    }
                    let expected = usize::from(model.renew(slots, testbed.now()));
                    let renewed = testbed
                        .block_on(testbed.store().renew(std::slice::from_ref(slots)))
                        .unwrap();
                    prop_assert_eq!(renewed, expected);
                }
            }
            StoreCall::RefundLatest(number, limit, cost) => {
                let key = key(*number, together);
                // Mostly under the limit of the charge.
                let known = model.states_by_key.get(&key).filter(|_| limit % 4 > 0);
                let known = known.and_then(|states| states.iter().next());
                let limit = known.map_or_else(
                    || Arc::clone(&limits[*limit]),
                    |(known, _)| Arc::new(known.clone()),
                );
                let refund = Refund { key, limit, cost: *cost, refund_token: None };
                let expected = usize::from(model.refund(&refund, testbed.now()));
                let refunded = testbed.block_on(testbed.store().refund(&[refund])).unwrap();
                prop_assert_eq!(refunded, expected);
            }
            StoreCall::Reset(number) => {
                testbed.block_on(testbed.store().reset(key(*number, together))).unwrap();
                model.states_by_key.remove(&key(*number, together));
                // Slots in flight may be renewed or released after they were lost.
                let key = key(*number, together);
                spent.retain(|refund: &Refund| refund.key != key || refund.limit.is_concurrency());
            }
            StoreCall::Sweep => testbed.sweep(),
            StoreCall::Advance(micros) => testbed.advance(Span::from_micros(*micros)),
        }
    }
    Ok(())
}

/// Returns the number of cases of each property, from `TIDEGATE_CASES`. `make test-all` and `make soak` set it.
#[allow(clippy::disallowed_methods, reason = "the test size is set by the environment")]
fn cases() -> u32 {
    std::env::var("TIDEGATE_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(300)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn memory_store_matches_the_reference_model(calls in calls(), together: bool) {
        matches_reference_model(&MemoryTestbed::new(), &calls, together)?;
    }
}

async fn charges_of_one_key_add_up<T: Testbed>(testbed: &T) {
    let limit = Arc::new(Limit::new(Algorithm::TokenBucket, Quota::per_minute(5)).unwrap());
    let (key, shared) = (Key::from_u128(1 << 80), Key::from_u128(1));
    let charge_of =
        |cost| Charge { key, overflow_key: shared, limit: &limit, cost, independent: false };
    let outcomes = charge(&**testbed.store(), &[charge_of(3), charge_of(3)]).await;
    assert!(outcomes.iter().any(|outcome| !outcome.is_allowed()), "{outcomes:?}");
    let outcomes = charge(&**testbed.store(), &[charge_of(3), charge_of(2)]).await;
    assert!(outcomes.iter().all(|outcome| outcome.is_allowed()), "{outcomes:?}");
    assert_eq!(outcomes[1].remaining, 0);
}

#[test]
fn memory_store_adds_up_charges_of_one_key() {
    let testbed = MemoryTestbed::new();
    testbed.block_on(charges_of_one_key_add_up(&testbed));
}

/// A charge that fits is not made when another charge of the request is denied.
async fn denied_request_consumes_nothing<T: Testbed>(testbed: &T) {
    let roomy = Arc::new(Limit::new(Algorithm::FixedWindow, Quota::per_minute(100)).unwrap());
    let tight = Arc::new(Limit::new(Algorithm::TokenBucket, Quota::per_minute(1)).unwrap());
    let shared = Key::from_u128(1);
    let charge_of = |number: u128, limit, is_independent| {
        let key = Key::from_u128((number * 0x1234_5678_9abc_def1) << 64);
        Charge { key, overflow_key: shared, limit, cost: 1, independent: is_independent }
    };
    let request =
        [charge_of(1, &roomy, false), charge_of(2, &tight, false), charge_of(3, &roomy, true)];
    let first = charge(&**testbed.store(), &request).await;
    assert_eq!(first.iter().map(|outcome| outcome.remaining).collect::<Vec<_>>(), [99, 0, 99]);
    for denied in 1..=50 {
        let outcomes = charge(&**testbed.store(), &request).await;
        assert!(outcomes[0].is_allowed() && !outcomes[1].is_allowed());
        assert_eq!((outcomes[0].remaining, outcomes[0].refund_token()), (99, None));
        // The independent charge is made in either case.
        assert_eq!(outcomes[2].remaining, 99 - denied);
    }
}

#[test]
fn memory_store_charges_nothing_for_a_denied_request() {
    let testbed = MemoryTestbed::new();
    testbed.block_on(denied_request_consumes_nothing(&testbed));
}

/// A peek returns the outcome for its cost, and changes no state.
async fn peek_of_any_cost_spends_nothing<T: Testbed>(testbed: &T) {
    let limit = Arc::new(Limit::new(Algorithm::FixedWindow, Quota::per_minute(10)).unwrap());
    let shared = Key::from_u128(1);
    let charge_of = |number: u128, cost, is_independent| {
        let key = Key::from_u128((number * 0x1234_5678_9abc_def1) << 64);
        Charge { key, overflow_key: shared, limit: &limit, cost, independent: is_independent }
    };
    charge(&**testbed.store(), &[charge_of(1, 4, false)]).await;
    for (costs, allowed) in [([6, 10], [true, true]), ([1, 11], [true, false])] {
        let peeks = [charge_of(1, costs[0], true), charge_of(2, costs[1], false)];
        for _ in 0..3 {
            let results = testbed.store().charge(&peeks, ChargeMode::Peek).await;
            let outcomes: Vec<&Outcome> =
                results.iter().filter_map(ChargeResult::outcome).collect();
            let summarize = |outcome: &&Outcome| (outcome.is_allowed(), outcome.refund_token());
            assert_eq!(
                outcomes.iter().map(summarize).collect::<Vec<_>>(),
                allowed.map(|allowed| (allowed, None))
            );
            assert_eq!([outcomes[0].remaining, outcomes[1].remaining], [6, 10]);
        }
    }
}

#[test]
fn memory_store_spends_nothing_for_a_peek_of_any_cost() {
    let testbed = MemoryTestbed::new();
    testbed.block_on(peek_of_any_cost_spends_nothing(&testbed));
}

#[cfg(feature = "redis")]
mod redis;
