//! A random walk: hundreds of clients at once through the scripts, and through the core.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use futures_util::future::join_all;
use tidegate::{
    Algorithm, Charge, ChargeMode, ChargeResult, ClientStates, Key, Limit, Outcome, Quota, Refund,
    Span, Store, Timestamp,
};

use super::Bench;
use super::random::Random;

const CLIENTS: u64 = 600;
const START: u64 = 1_780_000_000_123_457;

/// How many charges and refunds the walk makes; `make test-all` and `make soak` ask for more.
#[allow(clippy::disallowed_methods, reason = "a soak says how long it is")]
fn steps() -> u64 {
    std::env::var("TIDEGATE_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(100_000)
}

/// A seed that failed can be walked again.
#[allow(clippy::disallowed_methods, reason = "a seed that failed is given by hand")]
pub(crate) fn seed() -> u64 {
    let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| RandomState::new().hash_one(0))
}

/// One client, and what the store has to remember of it.
struct Client {
    key: Key,
    /// What it is charged under from now on.
    limit: Arc<Limit>,
    /// What was last written, and under which limits.
    kept: ClientStates,
    /// Limits that it was charged under before.
    known: Vec<Arc<Limit>>,
    spent: Vec<Refund>,
}

impl Client {
    /// The states that a charge finds. A changed limit takes over what there was, spent or not.
    fn open(&mut self, now: Timestamp) -> ClientStates {
        let mut states = self.kept.clone();
        let is_foreign = states.is_foreign(&self.limit);
        let state = states.enter(&self.limit, now);
        if is_foreign {
            // What is taken over is written as it stands now: a log without what is over.
            self.limit.admits(state, now, 1);
            self.keep(states.clone(), now);
        }
        states
    }

    /// What says no more than nothing is not kept: a clock set back does not bring it back.
    fn keep(&mut self, mut states: ClientStates, now: Timestamp) {
        states.drop_expired(now);
        self.kept = states;
    }

    fn charge(&mut self, now: Timestamp, cost: u64) -> Outcome {
        let mut states = self.open(now);
        let outcome = self.limit.charge(states.enter(&self.limit, now), now, cost);
        // A request that spends nothing leaves everything as it was.
        if let Some(refund_token) = outcome.refund_token() {
            self.keep(states, now);
            let limit = Arc::clone(&self.limit);
            self.spent.push(Refund {
                key: self.key,
                limit,
                cost,
                refund_token: Some(refund_token),
            });
        }
        outcome
    }

    fn peek(&mut self, now: Timestamp, cost: u64) -> Outcome {
        let mut states = self.open(now);
        self.limit.peek(states.enter(&self.limit, now), now, cost)
    }

    /// The states of a charge to take back or renew. Slots in flight start with a fresh state.
    fn states_of(&self, charge: &Refund) -> ClientStates {
        let mut states = self.kept.clone();
        let is_slot = charge.limit.is_concurrency() && charge.refund_token.is_some();
        if is_slot && states.find(&charge.limit).is_none() {
            let fresh = (Limit::clone(&charge.limit), charge.limit.fresh());
            states = states.iter().cloned().chain([fresh]).collect();
        }
        states
    }

    fn refund(&mut self, refund: &Refund, now: Timestamp) -> bool {
        let mut after = self.states_of(refund);
        let Some((limit, state)) = after.find(&refund.limit) else { return false };
        let is_bucket = matches!(limit, Limit::TokenBucket(_));
        let mut before = state.clone();
        let given = refund.take_back(limit, state, now);
        // A release may give nothing back, and leave a tombstone.
        limit.admits(&mut before, now, 1);
        if given || (limit.is_concurrency() && *state != before) {
            // A bucket that is full again is kept for as long as it would have been without the refund.
            if is_bucket && after.iter().count() == 1 {
                self.kept = after;
            } else {
                self.keep(after, now);
            }
        }
        given
    }

    fn renew(&mut self, slots: &Refund, now: Timestamp) -> bool {
        let mut after = self.states_of(slots);
        let Some((limit, state)) = after.find(&slots.limit) else { return false };
        let held = slots.renew(limit, state, now);
        if held {
            self.keep(after, now);
        }
        held
    }
}

/// A limit of any algorithm, from the smallest numbers to the largest.
pub(crate) fn any_limit(random: &mut Random) -> Arc<Limit> {
    loop {
        let window = match random.below(8) {
            0 => Span::from_millis(1),
            1 => Span::from_secs(2_592_000),
            2 => Quota::MAX_WINDOW,
            3 => Span::from_micros(1_000 + random.size(1 << 48)),
            _ => random.one_of(&[Span::SECOND, Span::MINUTE, Span::HOUR, Span::DAY]),
        };
        let amount = match random.below(10) {
            0 => 999_999_999_989,
            1 => Quota::MAX_AMOUNT,
            2 => random.size(Quota::MAX_AMOUNT),
            3 => random.below(2),
            _ => 1 + random.below(40),
        };
        let quota = Quota::per(amount, window);
        let (algorithm, quota) = match random.below(8) {
            0 => (Algorithm::TokenBucket, quota),
            1 => (Algorithm::TokenBucket, quota.burst(random.size(Quota::MAX_AMOUNT))),
            2 => (Algorithm::TokenBucket, quota.burst(1 + random.below(60))),
            3 => (Algorithm::LeakyBucket { queue: random.below(12) }, quota),
            4 => (Algorithm::FixedWindow, quota),
            5 => (Algorithm::SlidingWindow, quota),
            6 => {
                let hold = Span::from_micros(1_000_000 + random.below(3_599_000_001));
                (Algorithm::Concurrency { hold }, Quota::in_flight(amount % 10_001))
            }
            _ => (Algorithm::SlidingLog, Quota::per(amount % 10_001, window)),
        };
        // Not every amount fills up in time to be counted.
        if let Ok(limit) = Limit::new(algorithm, quota) {
            let hurried = limit.with_max_wait(Span::from_micros(random.size(1 << 42)));
            return Arc::new(hurried.filter(|_| random.chance(2)).unwrap_or(limit));
        }
    }
}

fn any_cost(random: &mut Random, limit: &Limit) -> u64 {
    let capacity = limit.capacity();
    match random.below(12) {
        0 => 0,
        1 => capacity,
        2 => capacity.saturating_add(random.below(3)),
        3 | 4 => random.size(capacity),
        5 | 6 => capacity / (2 + random.below(6)),
        _ => 1 + random.below(3),
    }
}

/// Time goes on, mostly by little; now and then it is set back.
pub(crate) fn any_time(random: &mut Random, now: Timestamp) -> Timestamp {
    match random.below(20) {
        0 | 1 => now,
        2 | 3 => now - Span::from_micros(random.size(2_000_000)),
        4 => now + Span::from_micros(random.size(1 << 42)),
        _ => now + Span::from_micros(random.size(1 << 25)),
    }
}

/// What is asked at one instant. No client is in two of them, so their order does not matter.
enum Ask {
    /// The same charge by so many at once.
    Alike { client: usize, cost: u64, times: usize },
    /// One request of several limits.
    Stack { clients: Vec<usize>, cost: u64 },
}

impl Ask {
    fn clients(&self) -> &[usize] {
        match self {
            Self::Alike { client, .. } => std::slice::from_ref(client),
            Self::Stack { clients, .. } => clients,
        }
    }
}

struct Walk {
    random: Random,
    clients: Vec<Client>,
    now: Timestamp,
}

impl Walk {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed);
        let client = |number: u64| Client {
            key: Key::from_u128(u128::from(number + 1) << 60),
            limit: any_limit(&mut random),
            kept: ClientStates::default(),
            known: Vec::new(),
            spent: Vec::new(),
        };
        let clients = (0..CLIENTS).map(client).collect();
        Self { random, clients, now: Timestamp::from_micros(START) }
    }

    /// Draws clients whose state the server loses.
    fn draw_losses(&mut self) -> Vec<Key> {
        let random = &mut self.random;
        let lost = self.clients.iter_mut().filter(|_| random.chance(1));
        lost.map(|client| {
            client.kept = ClientStates::default();
            client.key
        })
        .collect()
    }

    /// Draws what happens next: who is charged what, what is taken back, and what is renewed.
    fn draw(&mut self) -> (Vec<Ask>, Vec<Refund>, Vec<Refund>) {
        let (mut asks, mut refunds, mut renewals, mut place) = (vec![], vec![], vec![], 0);
        while place < self.clients.len() {
            let (random, client) = (&mut self.random, &mut self.clients[place]);
            if random.chance(3) {
                let before = Arc::clone(&client.limit);
                client.limit = match client.known.len() {
                    // As nodes do that still have other rules.
                    known @ 1.. if random.chance(50) => Arc::clone(
                        &client.known[usize::try_from(random.below(known as u64)).unwrap()],
                    ),
                    _ => any_limit(random),
                };
                client.known.push(before);
                let keep = client.known.len().saturating_sub(3);
                client.known.drain(..keep);
            }
            if random.chance(12) && !client.spent.is_empty() {
                let which = usize::try_from(random.below(client.spent.len() as u64)).unwrap();
                if random.chance(25) {
                    renewals.push(client.spent[which].clone());
                    place += 1;
                    continue;
                }
                let mut refund = client.spent[which].clone();
                // Slots in flight are also renewed and released after their release.
                if !refund.limit.is_concurrency() || random.chance(50) {
                    client.spent.swap_remove(which);
                }
                if random.chance(20) {
                    // Not this charge, but whatever was spent last.
                    (refund.refund_token, refund.cost) = (None, any_cost(random, &client.limit));
                }
                refunds.push(refund);
                place += 1;
                continue;
            }
            let cost = any_cost(random, &client.limit);
            let wide = 2 + usize::try_from(random.below(3)).unwrap();
            if random.chance(5) && place + wide <= self.clients.len() {
                asks.push(Ask::Stack { clients: (place..place + wide).collect(), cost });
                place += wide;
            } else {
                let times = random.one_of(&[1, 1, 1, 1, 2, 3, 5]);
                asks.push(Ask::Alike { client: place, cost, times });
                place += 1;
            }
        }
        (asks, refunds, renewals)
    }

    /// What the core answers. Charges that are alike are answered in any order.
    fn answer(&mut self, ask: &Ask) -> Vec<Outcome> {
        let now = self.now;
        match ask {
            Ask::Alike { client, cost, times } => {
                (0..*times).map(|_| self.clients[*client].charge(now, *cost)).collect()
            }
            Ask::Stack { clients, cost } => {
                let mut all_fit = *cost > 0;
                for client in clients {
                    let client = &mut self.clients[*client];
                    let mut states = client.open(now);
                    all_fit &= client.limit.admits(states.enter(&client.limit, now), now, *cost);
                }
                let outcome = |client: &usize| {
                    let client = &mut self.clients[*client];
                    if all_fit { client.charge(now, *cost) } else { client.peek(now, *cost) }
                };
                clients.iter().map(outcome).collect()
            }
        }
    }
}

impl Bench {
    /// What the scripts answer, all asked at once.
    fn ask(&self, walk: &Walk, asks: &[Ask]) -> Vec<Vec<ChargeResult>> {
        let charge = |client: &usize, cost: u64| {
            let Client { key, limit, .. } = &walk.clients[*client];
            Charge { key: *key, overflow_key: *key, limit, cost, independent: false }
        };
        let answers = asks.iter().map(|ask| {
            let (cost, times) = match ask {
                Ask::Alike { cost, times, .. } => (*cost, *times),
                Ask::Stack { cost, .. } => (*cost, 1),
            };
            let charges: Vec<Charge<'_>> =
                ask.clients().iter().map(|client| charge(client, cost)).collect();
            async move {
                let mode = ChargeMode::of_cost(cost);
                let calls = (0..times).map(|_| self.store.charge(&charges, mode));
                join_all(calls).await.into_iter().flatten().collect()
            }
        });
        self.runtime.block_on(join_all(answers))
    }

    fn refund(&self, refunds: &[Refund]) -> usize {
        // Short calls, as they come in life.
        let calls = refunds.chunks(16).map(|refunds| self.store.refund(refunds));
        self.runtime.block_on(join_all(calls)).into_iter().map(Result::unwrap).sum()
    }

    fn renew(&self, slots: &[Refund]) -> usize {
        let calls = slots.chunks(16).map(|slots| self.store.renew(slots));
        self.runtime.block_on(join_all(calls)).into_iter().map(Result::unwrap).sum()
    }
}

/// Whether the same outcomes were told, in whatever order.
fn are_alike(told: &[ChargeResult], expected: &[Outcome]) -> bool {
    let mut expected: Vec<Option<&Outcome>> = expected.iter().map(Some).collect();
    let found = told.iter().all(|answer| {
        let place = expected.iter().position(|outcome| *outcome == answer.outcome());
        place.is_some_and(|place| answer.outcome().is_some() && expected.remove(place).is_some())
    });
    found && expected.is_empty()
}

#[test]
fn a_random_walk_through_lua_and_through_rust_agrees_at_every_step() {
    let (seed, wanted) = (seed(), steps());
    let (mut bench, mut walk, mut taken) = (Bench::new(), Walk::new(seed), 0);
    let (mut admitted, mut denied, mut given_back, mut renewed) = (0, 0, 0, 0);
    while taken < wanted {
        walk.now = any_time(&mut walk.random, walk.now);
        bench.set_time(walk.now);
        for key in walk.draw_losses() {
            bench.runtime.block_on(bench.store.forget(key)).unwrap();
        }
        let (asks, refunds, renewals) = walk.draw();
        let told = bench.ask(&walk, &asks);
        for (ask, told) in asks.iter().zip(&told) {
            let before: Vec<_> =
                ask.clients().iter().map(|at| walk.clients[*at].kept.clone()).collect();
            let expected = walk.answer(ask);
            let agree = match ask {
                Ask::Alike { .. } => are_alike(told, &expected),
                Ask::Stack { .. } => {
                    told.iter().map(ChargeResult::outcome).eq(expected.iter().map(Some))
                }
            };
            assert!(
                agree,
                "TIDEGATE_SEED={seed}, after {taken} steps, at {:?}: {:?}\n kept {before:?}\n told {told:?}\n wanted {expected:?}",
                walk.now,
                ask.clients().iter().map(|at| &walk.clients[*at].limit).collect::<Vec<_>>(),
            );
            taken += expected.len() as u64;
            let passed = expected.iter().filter(|outcome| outcome.is_allowed()).count();
            (admitted, denied) = (admitted + passed, denied + expected.len() - passed);
        }
        let given = refunds.iter().filter(|refund| {
            let client = walk.clients.iter_mut().find(|client| client.key == refund.key).unwrap();
            client.refund(refund, walk.now)
        });
        let given = given.count();
        assert_eq!(bench.refund(&refunds), given, "TIDEGATE_SEED={seed}, after {taken} steps");
        (taken, given_back) = (taken + refunds.len() as u64, given_back + given);
        let held = renewals.iter().filter(|slots| {
            let client = walk.clients.iter_mut().find(|client| client.key == slots.key).unwrap();
            client.renew(slots, walk.now)
        });
        let held = held.count();
        assert_eq!(bench.renew(&renewals), held, "TIDEGATE_SEED={seed}, after {taken} steps");
        (taken, renewed) = (taken + renewals.len() as u64, renewed + held);
        for client in &mut walk.clients {
            let keep = client.spent.len().saturating_sub(8);
            client.spent.drain(..keep);
        }
    }
    for client in &walk.clients {
        let kept = bench.runtime.block_on(bench.store.state(client.key)).unwrap();
        // How long the last one would have waited is nothing to keep.
        let patient = |limit: &Limit| Limit::new(limit.algorithm(), *limit.quota()).unwrap();
        let wanted = client.kept.iter().next();
        let wanted = wanted.map(|(limit, state)| (patient(limit), state.clone()));
        assert_eq!(kept, wanted, "TIDEGATE_SEED={seed}, after {taken} steps");
    }
    println!(
        "{taken} steps: {admitted} admitted, {denied} denied, {given_back} refunded, {renewed} renewed"
    );
    let counts = bench.store.counts();
    println!("{} requests in {} script calls", counts.carried, counts.calls);
}
