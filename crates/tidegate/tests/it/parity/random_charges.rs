//! Random charges, refunds and renewals of hundreds of clients, sent to the scripts and to the core.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use futures_util::future::join_all;
use tidegate::store::{Charge, ChargeMode, ChargeResult, ClientStates, Key, Refund, Store};
use tidegate::{Algorithm, Limit, Outcome, Quota, Span, Timestamp};

use super::ParityFixture;
use super::seeded_random::SeededRandom;

const CLIENT_COUNT: u64 = 600;
const START_MICROS: u64 = 1_780_000_000_123_457;

/// Returns the number of steps, from `TIDEGATE_STEPS`. `make test-all` and `make soak` set it.
#[allow(clippy::disallowed_methods, reason = "the test size is set by the environment")]
fn step_count() -> u64 {
    std::env::var("TIDEGATE_STEPS").ok().and_then(|steps| steps.parse().ok()).unwrap_or(100_000)
}

/// Returns a random seed, or `TIDEGATE_SEED` to repeat a failed run.
#[allow(clippy::disallowed_methods, reason = "the seed of a failed run is set by the environment")]
pub(crate) fn seed() -> u64 {
    let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
    given.unwrap_or_else(|| RandomState::new().hash_one(0))
}

/// One client, and the state that the store must hold for it.
struct Client {
    key: Key,
    /// The limit of the next charges.
    limit: Arc<Limit>,
    /// The states last written, per limit.
    states: ClientStates,
    /// Limits of earlier charges.
    previous_limits: Vec<Arc<Limit>>,
    refundable: Vec<Refund>,
}

impl Client {
    /// Returns the states that a charge reads. A changed limit migrates the existing state, even if nothing is spent.
    fn states_for_charge(&mut self, now: Timestamp) -> ClientStates {
        let mut states = self.states.clone();
        let is_foreign = states.is_foreign(&self.limit);
        let state = states.enter(&self.limit, now);
        if is_foreign {
            // The migrated state is written as of now: a log without its expired entries.
            self.limit.admits(state, now, 1);
            self.store(states.clone(), now);
        }
        states
    }

    /// Stores the states without expired ones. A clock set back does not restore those.
    fn store(&mut self, mut states: ClientStates, now: Timestamp) {
        states.drop_expired(now);
        self.states = states;
    }

    fn charge(&mut self, now: Timestamp, cost: u64) -> Outcome {
        let mut states = self.states_for_charge(now);
        let outcome = self.limit.charge(states.enter(&self.limit, now), now, cost);
        // A request that spends nothing changes no state.
        if let Some(refund_token) = outcome.refund_token() {
            self.store(states, now);
            let limit = Arc::clone(&self.limit);
            self.refundable.push(Refund {
                key: self.key,
                limit,
                cost,
                refund_token: Some(refund_token),
            });
        }
        outcome
    }

    fn peek(&mut self, now: Timestamp, cost: u64) -> Outcome {
        let mut states = self.states_for_charge(now);
        self.limit.peek(states.enter(&self.limit, now), now, cost)
    }

    /// Returns the states for a refund or renewal of `charge`. Missing slots start with a fresh state.
    fn states_for_refund(&self, charge: &Refund) -> ClientStates {
        let mut states = self.states.clone();
        let is_slot = charge.limit.is_concurrency() && charge.refund_token.is_some();
        if is_slot && states.find(&charge.limit).is_none() {
            let fresh = (Limit::clone(&charge.limit), charge.limit.fresh());
            states = states.iter().cloned().chain([fresh]).collect();
        }
        states
    }

    fn refund(&mut self, refund: &Refund, now: Timestamp) -> bool {
        let mut updated = self.states_for_refund(refund);
        let Some((limit, state)) = updated.find(&refund.limit) else { return false };
        let is_token_bucket = matches!(limit, Limit::TokenBucket(_));
        let mut before = state.clone();
        let refunded = refund.take_back(limit, state, now);
        // A release that refunds nothing may still leave a tombstone.
        limit.admits(&mut before, now, 1);
        if refunded || (limit.is_concurrency() && *state != before) {
            // A refund does not shorten the TTL of a token bucket, so a full bucket stays stored.
            if is_token_bucket && updated.iter().count() == 1 {
                self.states = updated;
            } else {
                self.store(updated, now);
            }
        }
        refunded
    }

    fn renew(&mut self, slots: &Refund, now: Timestamp) -> bool {
        let mut updated = self.states_for_refund(slots);
        let Some((limit, state)) = updated.find(&slots.limit) else { return false };
        let renewed = slots.renew(limit, state, now);
        if renewed {
            self.store(updated, now);
        }
        renewed
    }
}

/// Draws a limit of any algorithm, from the smallest numbers to the largest.
pub(crate) fn any_limit(random: &mut SeededRandom) -> Arc<Limit> {
    loop {
        let window = match random.below(8) {
            0 => Span::from_millis(1),
            1 => Span::from_secs(2_592_000),
            2 => Quota::MAX_WINDOW,
            3 => Span::from_micros(1_000 + random.log_uniform(1 << 48)),
            _ => random.choose(&[Span::SECOND, Span::MINUTE, Span::HOUR, Span::DAY]),
        };
        let amount = match random.below(10) {
            0 => 999_999_999_989,
            1 => Quota::MAX_AMOUNT,
            2 => random.log_uniform(Quota::MAX_AMOUNT),
            3 => random.below(2),
            _ => 1 + random.below(40),
        };
        let quota = Quota::per(amount, window);
        let (algorithm, quota) = match random.below(8) {
            0 => (Algorithm::TokenBucket, quota),
            1 => (Algorithm::TokenBucket, quota.burst(random.log_uniform(Quota::MAX_AMOUNT))),
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
        // Some amounts refill too slowly to be valid.
        if let Ok(limit) = Limit::new(algorithm, quota) {
            let with_max_wait = limit.with_max_wait(Span::from_micros(random.log_uniform(1 << 42)));
            return Arc::new(with_max_wait.filter(|_| random.happens(2)).unwrap_or(limit));
        }
    }
}

fn any_cost(random: &mut SeededRandom, limit: &Limit) -> u64 {
    let capacity = limit.capacity();
    match random.below(12) {
        0 => 0,
        1 => capacity,
        2 => capacity.saturating_add(random.below(3)),
        3 | 4 => random.log_uniform(capacity),
        5 | 6 => capacity / (2 + random.below(6)),
        _ => 1 + random.below(3),
    }
}

/// Draws the next instant: mostly a small step forward, sometimes a step back.
pub(crate) fn any_time(random: &mut SeededRandom, now: Timestamp) -> Timestamp {
    match random.below(20) {
        0 | 1 => now,
        2 | 3 => now - Span::from_micros(random.log_uniform(2_000_000)),
        4 => now + Span::from_micros(random.log_uniform(1 << 42)),
        _ => now + Span::from_micros(random.log_uniform(1 << 25)),
    }
}

/// Charges sent at one instant. Each client occurs in one step, so the order of the steps does not matter.
enum ChargeStep {
    /// The same charge, sent `times` times concurrently.
    Identical { client: usize, cost: u64, times: usize },
    /// One request with several limits.
    MultiLimit { clients: Vec<usize>, cost: u64 },
}

impl ChargeStep {
    fn clients(&self) -> &[usize] {
        match self {
            Self::Identical { client, .. } => std::slice::from_ref(client),
            Self::MultiLimit { clients, .. } => clients,
        }
    }
}

struct RandomWalk {
    random: SeededRandom,
    clients: Vec<Client>,
    now: Timestamp,
}

impl RandomWalk {
    fn new(seed: u64) -> Self {
        let mut random = SeededRandom::new(seed);
        let client = |number: u64| Client {
            key: Key::from_u128(u128::from(number + 1) << 60),
            limit: any_limit(&mut random),
            states: ClientStates::default(),
            previous_limits: Vec::new(),
            refundable: Vec::new(),
        };
        let clients = (0..CLIENT_COUNT).map(client).collect();
        Self { random, clients, now: Timestamp::from_micros(START_MICROS) }
    }

    /// Draws the clients that lose their state on the server.
    fn draw_lost_clients(&mut self) -> Vec<Key> {
        let random = &mut self.random;
        let lost = self.clients.iter_mut().filter(|_| random.happens(1));
        lost.map(|client| {
            client.states = ClientStates::default();
            client.key
        })
        .collect()
    }

    /// Draws the charges, refunds and renewals of the next instant.
    fn draw_step(&mut self) -> (Vec<ChargeStep>, Vec<Refund>, Vec<Refund>) {
        let (mut charge_steps, mut refunds, mut renewals, mut index) = (vec![], vec![], vec![], 0);
        while index < self.clients.len() {
            let (random, client) = (&mut self.random, &mut self.clients[index]);
            if random.happens(3) {
                let before = Arc::clone(&client.limit);
                client.limit = match client.previous_limits.len() {
                    // A node with older rules still charges under a previous limit.
                    count @ 1.. if random.happens(50) => Arc::clone(
                        &client.previous_limits
                            [usize::try_from(random.below(count as u64)).unwrap()],
                    ),
                    _ => any_limit(random),
                };
                client.previous_limits.push(before);
                let excess = client.previous_limits.len().saturating_sub(3);
                client.previous_limits.drain(..excess);
            }
            if random.happens(12) && !client.refundable.is_empty() {
                let charge_index =
                    usize::try_from(random.below(client.refundable.len() as u64)).unwrap();
                if random.happens(25) {
                    renewals.push(client.refundable[charge_index].clone());
                    index += 1;
                    continue;
                }
                let mut refund = client.refundable[charge_index].clone();
                // Slots in flight are also renewed and released after their release.
                if !refund.limit.is_concurrency() || random.happens(50) {
                    client.refundable.swap_remove(charge_index);
                }
                if random.happens(20) {
                    // A refund without a token refunds the latest usage.
                    (refund.refund_token, refund.cost) = (None, any_cost(random, &client.limit));
                }
                refunds.push(refund);
                index += 1;
                continue;
            }
            let cost = any_cost(random, &client.limit);
            let width = 2 + usize::try_from(random.below(3)).unwrap();
            if random.happens(5) && index + width <= self.clients.len() {
                charge_steps.push(ChargeStep::MultiLimit {
                    clients: (index..index + width).collect(),
                    cost,
                });
                index += width;
            } else {
                let times = random.choose(&[1, 1, 1, 1, 2, 3, 5]);
                charge_steps.push(ChargeStep::Identical { client: index, cost, times });
                index += 1;
            }
        }
        (charge_steps, refunds, renewals)
    }

    /// Returns the outcomes of the core. Outcomes of identical charges are in any order.
    fn expected_outcomes(&mut self, charge_step: &ChargeStep) -> Vec<Outcome> {
        let now = self.now;
        match charge_step {
            ChargeStep::Identical { client, cost, times } => {
                (0..*times).map(|_| self.clients[*client].charge(now, *cost)).collect()
            }
            ChargeStep::MultiLimit { clients, cost } => {
                let mut all_fit = *cost > 0;
                for client in clients {
                    let client = &mut self.clients[*client];
                    let mut states = client.states_for_charge(now);
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

impl ParityFixture {
    /// Sends all steps to the scripts concurrently, and returns their results.
    fn send_charges(
        &self,
        walk: &RandomWalk,
        charge_steps: &[ChargeStep],
    ) -> Vec<Vec<ChargeResult>> {
        let charge = |client: &usize, cost: u64| {
            let Client { key, limit, .. } = &walk.clients[*client];
            Charge { key: *key, overflow_key: *key, limit, cost, independent: false }
        };
        let replies = charge_steps.iter().map(|charge_step| {
            let (cost, times) = match charge_step {
                ChargeStep::Identical { cost, times, .. } => (*cost, *times),
                ChargeStep::MultiLimit { cost, .. } => (*cost, 1),
            };
            let charges: Vec<Charge<'_>> =
                charge_step.clients().iter().map(|client| charge(client, cost)).collect();
            async move {
                let mode = ChargeMode::of_cost(cost);
                let calls = (0..times).map(|_| self.store.charge(&charges, mode));
                join_all(calls).await.into_iter().flatten().collect()
            }
        });
        self.runtime.block_on(join_all(replies))
    }

    fn refund(&self, refunds: &[Refund]) -> usize {
        // Short calls, as nodes send them.
        let calls = refunds.chunks(16).map(|refunds| self.store.refund(refunds));
        self.runtime.block_on(join_all(calls)).into_iter().map(Result::unwrap).sum()
    }

    fn renew(&self, slots: &[Refund]) -> usize {
        let calls = slots.chunks(16).map(|slots| self.store.renew(slots));
        self.runtime.block_on(join_all(calls)).into_iter().map(Result::unwrap).sum()
    }
}

/// Returns whether the results equal the expected outcomes in some order.
fn match_in_any_order(results: &[ChargeResult], expected: &[Outcome]) -> bool {
    let mut expected: Vec<Option<&Outcome>> = expected.iter().map(Some).collect();
    let found = results.iter().all(|result| {
        let index = expected.iter().position(|outcome| *outcome == result.outcome());
        index.is_some_and(|index| result.outcome().is_some() && expected.remove(index).is_some())
    });
    found && expected.is_empty()
}

#[test]
fn lua_scripts_and_rust_core_agree_on_random_charges_refunds_and_renewals() {
    let (seed, target) = (seed(), step_count());
    let (mut fixture, mut walk, mut steps_done) = (ParityFixture::new(), RandomWalk::new(seed), 0);
    let (mut admitted, mut denied, mut refund_count, mut renewal_count) = (0, 0, 0, 0);
    while steps_done < target {
        walk.now = any_time(&mut walk.random, walk.now);
        fixture.set_time(walk.now);
        for key in walk.draw_lost_clients() {
            fixture.runtime.block_on(fixture.store.reset(key)).unwrap();
        }
        let (charge_steps, refunds, renewals) = walk.draw_step();
        let results = fixture.send_charges(&walk, &charge_steps);
        for (charge_step, results) in charge_steps.iter().zip(&results) {
            let before: Vec<_> =
                charge_step.clients().iter().map(|at| walk.clients[*at].states.clone()).collect();
            let expected = walk.expected_outcomes(charge_step);
            let agree = match charge_step {
                ChargeStep::Identical { .. } => match_in_any_order(results, &expected),
                ChargeStep::MultiLimit { .. } => {
                    results.iter().map(ChargeResult::outcome).eq(expected.iter().map(Some))
                }
            };
            assert!(
                agree,
                "TIDEGATE_SEED={seed}, after {steps_done} steps, at {:?}: {:?}\n states {before:?}\n found {results:?}\n wanted {expected:?}",
                walk.now,
                charge_step.clients().iter().map(|at| &walk.clients[*at].limit).collect::<Vec<_>>(),
            );
            steps_done += expected.len() as u64;
            let passed = expected.iter().filter(|outcome| outcome.is_allowed()).count();
            (admitted, denied) = (admitted + passed, denied + expected.len() - passed);
        }
        let refunded = refunds.iter().filter(|refund| {
            let client = walk.clients.iter_mut().find(|client| client.key == refund.key).unwrap();
            client.refund(refund, walk.now)
        });
        let refunded = refunded.count();
        assert_eq!(
            fixture.refund(&refunds),
            refunded,
            "TIDEGATE_SEED={seed}, after {steps_done} steps"
        );
        (steps_done, refund_count) = (steps_done + refunds.len() as u64, refund_count + refunded);
        let renewed = renewals.iter().filter(|slots| {
            let client = walk.clients.iter_mut().find(|client| client.key == slots.key).unwrap();
            client.renew(slots, walk.now)
        });
        let renewed = renewed.count();
        assert_eq!(
            fixture.renew(&renewals),
            renewed,
            "TIDEGATE_SEED={seed}, after {steps_done} steps"
        );
        (steps_done, renewal_count) = (steps_done + renewals.len() as u64, renewal_count + renewed);
        for client in &mut walk.clients {
            let excess = client.refundable.len().saturating_sub(8);
            client.refundable.drain(..excess);
        }
    }
    for client in &walk.clients {
        let stored = fixture.runtime.block_on(fixture.store.state(client.key)).unwrap();
        // The store does not keep the maximum wait of a limit.
        let without_max_wait =
            |limit: &Limit| Limit::new(limit.algorithm(), *limit.quota()).unwrap();
        let expected = client.states.iter().next();
        let expected = expected.map(|(limit, state)| (without_max_wait(limit), state.clone()));
        assert_eq!(stored, expected, "TIDEGATE_SEED={seed}, after {steps_done} steps");
    }
    println!(
        "{steps_done} steps: {admitted} admitted, {denied} denied, {refund_count} refunded, {renewal_count} renewed"
    );
    let counts = fixture.store.counts();
    println!("{} requests in {} script calls", counts.carried, counts.calls);
}
