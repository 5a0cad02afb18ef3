//! Charges of one limit, sent alone, together with those of other clients, in requests of several limits and as lease
//! requests: each is decided by another script, on the same keys.

use std::sync::Arc;

use futures_util::future::join_all;
use tidegate::store::{
    Charge, ChargeMode, ChargeResults, Key, LeaseId, LeaseRequest, LeaseSet, Refund, State, Store,
};
use tidegate::{Algorithm, Limit, Outcome, Quota, Span, Timestamp};

use super::ParityFixture;
use super::random_charges::{any_limit, any_time, seed};
use super::seeded_random::SeededRandom;

const CLIENT_COUNT: usize = 40;
const ROUNDS_PER_LIMIT: usize = 60;
const LIMIT_COUNT: usize = 40;

/// Clients of one limit, and the state that the store must hold for each.
struct ClientGroup {
    limit: Arc<Limit>,
    /// Never full: the second limit of requests with two.
    neighbour: Arc<Limit>,
    clients: Vec<(Key, State)>,
    refundable: Vec<(usize, Refund)>,
    now: Timestamp,
}

impl ClientGroup {
    fn new(number: usize, limit: Arc<Limit>, now: Timestamp) -> Self {
        let key = |client: usize| Key::from_u128(((number * 1_000 + client + 1) as u128) << 60);
        let clients = (0..CLIENT_COUNT).map(|client| (key(client), limit.fresh())).collect();
        let neighbour = Limit::new(Algorithm::FixedWindow, Quota::per_day(1 << 40)).unwrap();
        Self { limit, neighbour: Arc::new(neighbour), clients, refundable: Vec::new(), now }
    }

    fn charge(&self, client: usize) -> Charge<'_> {
        let key = self.clients[client].0;
        Charge { key, overflow_key: key, limit: &self.limit, cost: 0, independent: false }
    }

    /// Returns the outcome of the core. A denied charge changes no state.
    fn expected(&mut self, client: usize, cost: u64) -> Outcome {
        let (key, state) = &mut self.clients[client];
        let mut after = state.clone();
        let outcome = self.limit.charge(&mut after, self.now, cost);
        if let Some(refund_token) = outcome.refund_token() {
            *state = after;
            let (key, limit) = (*key, Arc::clone(&self.limit));
            let refund = Refund { key, limit, cost, refund_token: Some(refund_token) };
            self.refundable.push((client, refund));
        }
        outcome
    }

    /// Returns whether the core gives anything back.
    fn take_back(&mut self, client: usize, refund: &Refund) -> bool {
        let state = &mut self.clients[client].1;
        let mut after = state.clone();
        let refunded = refund.take_back(&self.limit, &mut after, self.now);
        if refunded {
            // The store drops a state that is over, except a full token bucket.
            let is_token_bucket = matches!(*self.limit, Limit::TokenBucket(_));
            let is_over = !is_token_bucket && self.limit.expires_at(&mut after) <= self.now;
            *state = if is_over { self.limit.fresh() } else { after };
        }
        refunded
    }

    /// Sends one call for each client.
    fn send_alone(
        &self,
        fixture: &ParityFixture,
        chosen: &[usize],
        cost: u64,
    ) -> Vec<ChargeResults> {
        let send = |client: &usize| {
            let charge = Charge { cost, ..self.charge(*client) };
            fixture.runtime.block_on(fixture.store.charge(&[charge], ChargeMode::Spend))
        };
        chosen.iter().map(send).collect()
    }

    /// Sends the charges of all clients at once.
    fn send_together(
        &self,
        fixture: &ParityFixture,
        chosen: &[usize],
        cost: u64,
    ) -> Vec<ChargeResults> {
        let send = |client: &usize| {
            let charge = [Charge { cost, ..self.charge(*client) }];
            async move { fixture.store.charge(&charge, ChargeMode::Spend).await }
        };
        fixture.runtime.block_on(join_all(chosen.iter().map(send)))
    }

    /// Sends requests with a second limit, which always fits.
    fn send_with_neighbour(
        &self,
        fixture: &ParityFixture,
        chosen: &[usize],
        cost: u64,
    ) -> Vec<ChargeResults> {
        let send = |client: &usize| {
            let own = Charge { cost, ..self.charge(*client) };
            let key = Key::from_u128(own.key.as_u128() + 1);
            let second = Charge {
                key,
                overflow_key: key,
                limit: &self.neighbour,
                cost: 1,
                independent: false,
            };
            fixture.runtime.block_on(fixture.store.charge(&[own, second], ChargeMode::Spend))
        };
        chosen.iter().map(send).collect()
    }
}

/// Draws a limit that the uniform scripts decide.
fn any_bucket_or_window(random: &mut SeededRandom) -> Arc<Limit> {
    loop {
        let limit = any_limit(random);
        if !matches!(*limit, Limit::SlidingLog(_) | Limit::Concurrency(_)) && limit.capacity() > 0 {
            return limit;
        }
    }
}

#[test]
fn charges_sent_alone_together_with_others_and_as_leases_agree_with_the_core() {
    let seed = seed();
    let (mut fixture, mut random) = (ParityFixture::new(), SeededRandom::new(seed));
    let mut now = Timestamp::from_micros(1_780_000_000_123_457);
    let (mut admitted, mut denied, mut refunded, mut expired) = (0, 0, 0, 0);
    for number in 0..LIMIT_COUNT {
        let mut group = ClientGroup::new(number, any_bucket_or_window(&mut random), now);
        for round in 0..ROUNDS_PER_LIMIT {
            let limit = Arc::clone(&group.limit);
            let context = format!("TIDEGATE_SEED={seed}, limit {number}, round {round}: {limit}");
            now = any_time(&mut random, now);
            group.now = now;
            fixture.set_time(now);
            let expired_keys = fixture.expire_keys(now);
            for (key, state) in &mut group.clients {
                if expired_keys.contains(&fixture.store.name_of(*key)) {
                    assert!(limit.expires_at(state) <= now, "{context}: {state:?} has expired");
                    (*state, expired) = (limit.fresh(), expired + 1);
                }
            }
            // Many small costs, and some that no other request fits beside.
            let cost = match random.below(4) {
                0 => random.log_uniform(limit.capacity()),
                1 => limit.capacity().div_ceil(2),
                _ => 1,
            };
            let chosen: Vec<usize> = (0..CLIENT_COUNT).filter(|_| random.happens(50)).collect();
            let results = match random.below(4) {
                0 => group.send_alone(&fixture, &chosen, cost),
                1 | 2 => group.send_together(&fixture, &chosen, cost),
                _ => group.send_with_neighbour(&fixture, &chosen, cost),
            };
            for (client, results) in chosen.iter().zip(&results) {
                let before = group.clients[*client].1.clone();
                let expected = group.expected(*client, cost);
                assert_eq!(
                    results[0].outcome(),
                    Some(&expected),
                    "{context}, cost {cost}: {before:?}"
                );
                (admitted, denied) = match expected.is_allowed() {
                    true => (admitted + 1, denied),
                    false => (admitted, denied + 1),
                };
            }
            if limit.supports_leases() && random.happens(30) {
                let client = usize::try_from(random.below(CLIENT_COUNT as u64)).unwrap();
                // Takes no lease, so the expiry of the state is that of a plain charge.
                let request = LeaseRequest {
                    cost,
                    requested: 0,
                    id: LeaseId { node: 1, number: u32::try_from(round).unwrap() },
                    unreported: Vec::new().into(),
                    reports: Vec::new().into(),
                    ttl: Span::SECOND,
                    fleet_size: 1,
                };
                let (key, state) = &mut group.clients[client];
                let requests = [(*key, Arc::clone(&limit), request)];
                let grants = fixture.runtime.block_on(fixture.store.lease(&requests));
                let (mut after, mut leases) = (state.clone(), LeaseSet::default());
                let expected =
                    limit.apply_lease_request(&mut after, &mut leases, now, &requests[0].2);
                if expected.outcome.is_allowed() {
                    *state = after;
                }
                let found = grants[0].as_ref().map(|grant| grant.outcome);
                assert_eq!(found, Ok(expected.outcome), "{context}: lease request");
            }
            while group.refundable.len() > 8 {
                let index = random.below(group.refundable.len() as u64);
                let (client, refund) =
                    group.refundable.swap_remove(usize::try_from(index).unwrap());
                if random.happens(30) {
                    let expected = group.take_back(client, &refund);
                    let found = fixture.runtime.block_on(fixture.store.refund(&[refund]));
                    assert_eq!(found, Ok(usize::from(expected)), "{context}: refund");
                    refunded += usize::from(expected);
                }
            }
        }
    }
    println!("{admitted} admitted, {denied} denied, {refunded} refunded, {expired} keys expired");
    assert!(admitted > 1_000 && denied > 1_000 && refunded > 10 && expired > 10);
}
