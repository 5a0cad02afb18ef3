//! Lease requests: the test vectors of the core and random requests, through the script and through the core.

#[path = "../../../../core/tests/vectors/lease_case.rs"]
mod lease_case;

use std::sync::Arc;

use lease_case::LeaseCase;
use tidegate::store::{
    ClientStates, Key, Lease, LeaseGrant, LeaseId, LeaseRequest, LeaseSet, Refund, State, Store,
    UnreportedUsage, UsageReport,
};
use tidegate::{Limit, Span, Timestamp};

use super::ParityFixture;
use super::random_charges::{any_limit, any_time, seed};
use super::seeded_random::SeededRandom;
use super::vectors::case;

impl ParityFixture {
    fn lease(&self, requests: &[(Key, Arc<Limit>, LeaseRequest)]) -> Vec<LeaseGrant> {
        let grants = self.runtime.block_on(self.store.lease(requests));
        grants.into_iter().map(|grant| grant.unwrap()).collect()
    }

    /// Returns the state and leases of a client under the limit of its last request.
    fn stored(&self, key: Key, limit: &Limit) -> (State, LeaseSet) {
        let (mut states, leases) = self.all_stored(key);
        let state = states.find(limit).map_or_else(|| limit.fresh(), |(_, state)| state.clone());
        let own_entry = leases.into_iter().find(|(under, _)| limit.shares_state_with(under));
        (state, own_entry.map(|(_, leases)| leases).unwrap_or_default())
    }

    /// Returns the states and leases of a client under each limit.
    fn all_stored(&self, key: Key) -> (ClientStates, Vec<(Limit, LeaseSet)>) {
        let states = self.runtime.block_on(self.store.states(key)).unwrap();
        (states, self.runtime.block_on(self.store.leases_by_limit(key)).unwrap())
    }

    /// Asserts that no key of a client expires while its value still limits the client.
    fn assert_not_expired_early(&mut self, client: &Client, now: Timestamp, context: &str) {
        let (states, leases) = &client.stored;
        let mut live = states.clone();
        live.drop_expired(now);
        let empty = [
            live.iter().next().is_none(),
            leases.iter().all(|(_, granted_count)| granted_count.is_empty()),
        ];
        for ((key_name, removable_from), empty) in
            self.key_names(client).iter().zip(client.removable_from(now)).zip(empty)
        {
            let expiry = self.expiry(key_name);
            assert!(
                empty || expiry.is_some_and(|expiry| expiry >= removable_from),
                "{context}: {key_name} expires at {expiry:?}, wanted {removable_from:?} or later: {:?}",
                client.stored
            );
        }
    }

    fn key_names(&self, client: &Client) -> [String; 2] {
        [self.store.name_of(client.key), self.store.name_of_leases(client.key)]
    }
}

#[test]
fn lua_lease_requests_match_their_vectors() {
    let file = include_str!("../../../../core/tests/vectors/holds.json");
    let cases: Vec<LeaseCase> = serde_json::from_str(file).unwrap();
    assert!(!cases.is_empty());
    let mut fixture = ParityFixture::new();
    for (number, case) in (1..).zip(cases) {
        let key = Key::from_u128(number);
        let mut limit = Arc::new(case.limit.limit());
        for (number, step) in case.steps.iter().enumerate() {
            let context = format!("{}, {}, step {number}", limit.algorithm(), case.name);
            let now = Timestamp::from_micros(step.at);
            fixture.set_time(now);
            if let Some(numbers) = &step.limit {
                // The vectors contain one state. Alternating limits are covered by the random test.
                fixture.remove_older_limits(key, &limit);
                limit = Arc::new(numbers.limit());
            }
            let grant = &fixture.lease(&[(key, Arc::clone(&limit), step.request())])[0];
            step.assert_grant(grant, &context);
            let (mut state, leases) = fixture.stored(key, &limit);
            step.assert_leases(&leases, &context);
            if matches!(*limit, Limit::TokenBucket(_)) && limit.expires_at(&mut state) <= now {
                // A full bucket need not be stored.
                assert!(step.state[0] <= step.at, "{context}: {:?} is lost", step.state);
            } else {
                assert_eq!(case::integers(&limit, &mut state, now), step.state, "{context}: state");
            }
        }
    }
}

const CLIENT_COUNT: u64 = 60;

struct Client {
    key: Key,
    limit: Arc<Limit>,
    /// States and leases under each limit of earlier requests.
    stored: (ClientStates, Vec<(Limit, LeaseSet)>),
    /// Limits of earlier requests.
    previous_limits: Vec<Arc<Limit>>,
    /// Ids of recent leases.
    recent_ids: Vec<LeaseId>,
    /// Lease id of a node with unreported usage, and the total of that usage.
    unreported: (LeaseId, u64),
    /// Recent charges that can be refunded.
    refundable: Vec<Refund>,
}

fn any_limit_with_leases(random: &mut SeededRandom) -> Arc<Limit> {
    loop {
        let limit = any_limit(random);
        if limit.supports_leases() {
            return limit;
        }
    }
}

fn any_amount(random: &mut SeededRandom, max: u64) -> u64 {
    match random.below(6) {
        0 => 0,
        1 => max,
        2 => random.log_uniform(max),
        3 => u64::MAX >> random.below(63),
        _ => 1 + random.below(5),
    }
}

impl Client {
    fn new(number: u64, random: &mut SeededRandom) -> Self {
        let limit = any_limit_with_leases(random);
        let unreported = (LeaseId { node: 101, number: 0 }, 0);
        let key = Key::from_u128(u128::from(number) << 50);
        let (stored, previous_limits, recent_ids) = (Default::default(), Vec::new(), Vec::new());
        Self { key, limit, stored, previous_limits, recent_ids, unreported, refundable: Vec::new() }
    }

    fn draw(&mut self, random: &mut SeededRandom, number: u32, now: Timestamp) -> LeaseRequest {
        if random.happens(3) {
            let before = Arc::clone(&self.limit);
            self.limit = match self.previous_limits.len() {
                // A node with older rules still sends requests under a previous limit.
                count @ 1.. if random.happens(50) => Arc::clone(
                    &self.previous_limits[usize::try_from(random.below(count as u64)).unwrap()],
                ),
                _ => any_limit_with_leases(random),
            };
            self.previous_limits.push(before);
            let excess = self.previous_limits.len().saturating_sub(3);
            self.previous_limits.drain(..excess);
        }
        let capacity = self.limit.capacity();
        let recent_id = |random: &mut SeededRandom| match self.recent_ids.len() {
            0 => LeaseId { node: 1, number },
            count => self.recent_ids[usize::try_from(random.below(count as u64)).unwrap()],
        };
        let reports = (0..random.below(3)).map(|_| UsageReport {
            id: recent_id(random),
            spent: any_amount(random, capacity),
            closed: random.happens(25),
        });
        let reports = reports.collect();
        let reuse_id = random.happens(10);
        let fresh = LeaseId { node: random.choose(&[1, 2, u64::MAX]), number };
        let id = if reuse_id { recent_id(random) } else { fresh };
        let unreported_count = if random.happens(30) {
            self.draw_unreported_usage(random, number, now)
        } else {
            Vec::new()
        };
        let id = if unreported_count.is_empty() { id } else { self.unreported.0 };
        self.recent_ids.push(id);
        let excess = self.recent_ids.len().saturating_sub(6);
        self.recent_ids.drain(..excess);
        LeaseRequest {
            cost: any_amount(random, capacity),
            requested: any_amount(random, capacity),
            id,
            unreported: unreported_count.into(),
            reports,
            ttl: Span::from_micros(random.log_uniform(1 << 33)),
            fleet_size: any_amount(random, 20),
        }
    }

    /// Draws unreported usage of a node. Its total never decreases.
    fn draw_unreported_usage(
        &mut self,
        random: &mut SeededRandom,
        number: u32,
        now: Timestamp,
    ) -> Vec<UnreportedUsage> {
        let (lease_id, total) = &mut self.unreported;
        if random.happens(30) {
            *lease_id = LeaseId { node: 101 + random.below(3), number };
            *total = 0;
        }
        let unreported_count = (0..random.below(4)).map(|_| {
            let back = Span::from_micros(random.log_uniform(1 << 40));
            let at = match random.below(4) {
                0 => Timestamp::from_micros(u64::MAX),
                1 => now,
                _ => now - back,
            };
            *total = total.saturating_add(any_amount(random, self.limit.capacity()));
            UnreportedUsage { at, total: *total }
        });
        unreported_count.collect()
    }

    /// Applies the request to the stored states and leases, and returns the grant of the core.
    fn apply_to_core(&mut self, now: Timestamp, request: &LeaseRequest) -> LeaseGrant {
        let (states, leases) = &mut self.stored;
        let state = states.enter(&self.limit, now);
        let own_entry = leases.iter().position(|(limit, _)| limit.shares_state_with(&self.limit));
        let mut granted_count = match own_entry {
            Some(index) => leases.remove(index).1,
            None => {
                leases.first().map(|(_, granted_count)| granted_count.clone()).unwrap_or_default()
            }
        };
        let grant = self.limit.apply_lease_request(state, &mut granted_count, now, request);
        leases.insert(0, (Limit::clone(&self.limit), granted_count));
        if let Some(refund_token) = grant.outcome.refund_token() {
            let (key, limit, refund_token) =
                (self.key, Arc::clone(&self.limit), Some(refund_token));
            self.refundable.push(Refund { key, limit, cost: request.cost, refund_token });
        }
        grant
    }

    /// Refunds a recent charge. Returns whether tokens were refunded.
    fn refund(&mut self, refund: &Refund, now: Timestamp) -> bool {
        let own_entry = self.stored.0.find(&refund.limit);
        own_entry.is_some_and(|(limit, state)| refund.take_back(limit, state, now))
    }

    /// Drops the content of expired keys, and asserts that it no longer limits the client.
    fn expire(&mut self, expired_keys: [bool; 2], now: Timestamp, context: &str) {
        for (has_expired, removable_from) in expired_keys.into_iter().zip(self.removable_from(now))
        {
            assert!(
                !has_expired || removable_from <= now,
                "{context}: removable from {removable_from:?}: {:?}",
                self.stored
            );
        }
        if expired_keys[0] {
            self.stored.0 = ClientStates::default();
        }
        if expired_keys[1] {
            self.stored.1.clear();
        }
    }

    /// Returns the instants from which the state key and the lease key may expire. With leased tokens that are not yet
    /// reported, that is when the client is settled under each limit.
    fn removable_from(&self, now: Timestamp) -> [Timestamp; 2] {
        let (states, leases) = &self.stored;
        let state_expiries =
            states.iter().map(|(limit, state)| limit.expires_at(&mut state.clone()));
        let mut removable_from =
            [state_expiries.max().unwrap_or(Timestamp::EPOCH), Timestamp::EPOCH];
        for (limit, leases) in leases {
            let last = leases.iter().map(|lease| lease.until).max().unwrap_or(Timestamp::EPOCH);
            removable_from[1] = removable_from[1].max(last);
            if leases.iter().any(|lease| !lease.is_mark()) {
                let own_entry = states.clone().find(limit).map(|(_, state)| state.clone());
                let mut state = own_entry.unwrap_or_else(|| limit.fresh());
                let settled = limit.settled_at(&state, leases);
                removable_from[1] = removable_from[1].max(settled);
                // An expired state does not affect leases either.
                if limit.expires_at(&mut state) > now {
                    removable_from[0] = removable_from[0].max(settled);
                }
            }
        }
        removable_from
    }
}

/// Returns the grant with an expired state replaced by a fresh one, so that equal grants compare equal.
fn normalize(limit: &Limit, now: Timestamp, grant: &LeaseGrant) -> LeaseGrant {
    let mut grant = grant.clone();
    if let Some(snapshot) = &mut grant.snapshot
        && limit.expires_at(&mut snapshot.state) <= now
    {
        snapshot.state = limit.fresh();
    }
    grant
}

/// Returns the number of lease requests: a tenth of `TIDEGATE_STEPS`. `make test-all` and `make soak` set it.
#[allow(clippy::disallowed_methods, reason = "the test size is set by the environment")]
fn request_count() -> u64 {
    let steps = std::env::var("TIDEGATE_STEPS").ok().and_then(|steps| steps.parse().ok());
    steps.map_or(5_000, |steps: u64| steps / 10)
}

#[test]
fn lua_and_core_agree_on_random_lease_requests_while_keys_expire_at_their_ttl() {
    let (seed, target) = (seed(), request_count());
    let (mut fixture, mut random, mut sent) = (ParityFixture::new(), SeededRandom::new(seed), 0);
    let mut now = Timestamp::from_micros(1_780_000_000_123_457);
    let mut clients: Vec<Client> =
        (0..CLIENT_COUNT).map(|number| Client::new(number, &mut random)).collect();
    let (mut granted_count, mut unreported_count, mut max_leases, mut expired, mut refunded) =
        (0, 0, 0, 0, 0);
    while sent < target {
        now = any_time(&mut random, now);
        if random.happens(70) {
            // Small extra steps, because leases end sooner than most windows.
            now = now + Span::from_micros(random.log_uniform(1 << 22));
        }
        fixture.set_time(now);
        let expired_keys = fixture.expire_keys(now);
        expired += expired_keys.len();
        for client in clients.iter_mut().filter(|_| !expired_keys.is_empty()) {
            let expired_keys =
                fixture.key_names(client).map(|key_name| expired_keys.contains(&key_name));
            client.expire(expired_keys, now, &format!("TIDEGATE_SEED={seed}, after {sent} steps"));
        }
        // One call carries up to 64 requests; the script decides them in order.
        let count = 1 + random.below(64);
        let mut client_indices = Vec::new();
        let mut requests = Vec::new();
        for number in 0..count {
            let index = usize::try_from(random.below(CLIENT_COUNT)).unwrap();
            let limit = Arc::clone(&clients[index].limit);
            let client = &mut clients[index];
            let request = client.draw(&mut random, u32::try_from(sent + number).unwrap(), now);
            if client_indices.contains(&index) {
                // Within one call a client keeps its limit.
                client.limit = limit;
            }
            requests.push((client.key, Arc::clone(&client.limit), request));
            client_indices.push(index);
        }
        let grants = fixture.lease(&requests);
        for ((index, grant), (_, limit, request)) in
            client_indices.iter().zip(&grants).zip(&requests)
        {
            let client = &mut clients[*index];
            let before = client.stored.clone();
            let expected = client.apply_to_core(now, request);
            assert_eq!(
                normalize(limit, now, grant),
                normalize(limit, now, &expected),
                "TIDEGATE_SEED={seed}, after {sent} steps, at {now:?}: {limit} {request:?} {before:?}"
            );
            granted_count += u64::from(expected.granted > 0);
            unreported_count += u64::from(!request.unreported.is_empty());
            sent += 1;
        }
        client_indices.sort_unstable();
        client_indices.dedup();
        for index in &client_indices {
            let client = &mut clients[*index];
            let excess = client.refundable.len().saturating_sub(4);
            client.refundable.drain(..excess);
            if random.happens(20)
                && let Some(refund) = client.refundable.pop()
            {
                let refund_count = fixture
                    .runtime
                    .block_on(fixture.store.refund(std::slice::from_ref(&refund)))
                    .unwrap();
                let expected = usize::from(client.refund(&refund, now));
                assert_eq!(
                    refund_count, expected,
                    "TIDEGATE_SEED={seed}, after {sent} steps: {refund:?}"
                );
                refunded += refund_count;
            }
        }
        for index in client_indices {
            let client = &mut clients[index];
            let (state, leases) = fixture.stored(client.key, &client.limit);
            let context = format!("TIDEGATE_SEED={seed}, after {sent} steps, at {now:?}");
            assert_eq!(leases, client.stored.1[0].1, "{context}");
            max_leases = max_leases.max(leases.iter().len());
            // Expired states need not be stored, and expired log entries are removed later.
            let limit = Arc::clone(&client.limit);
            let expected = client.stored.0.iter().next().map(|(_, state)| state.clone());
            let [mut found, mut wanted] = [state.clone(), expected.unwrap()];
            if limit.expires_at(&mut wanted) <= now {
                assert!(
                    limit.expires_at(&mut found) <= now,
                    "{context}: {limit} {found:?} {wanted:?}"
                );
            } else {
                limit.admits(&mut found, now, 1);
                limit.admits(&mut wanted, now, 1);
                assert_eq!(found, wanted, "{context}: {limit}");
            }
            client.stored = fixture.all_stored(client.key);
            fixture.assert_not_expired_early(client, now, &context);
        }
    }
    println!(
        "{sent} requests, {granted_count} granted a lease, {unreported_count} with unreported usage, at most {max_leases} leases of one client, {refunded} refunds, {expired} keys expired"
    );
    assert!(
        granted_count > sent / 20
            && unreported_count > sent / 10
            && max_leases > 3
            && refunded > 0
            && expired > 0
    );
}

#[test]
fn lease_expires_by_the_server_clock_and_counts_as_spent() {
    let mut fixture = ParityFixture::new();
    let start = 1_780_000_000_123_457;
    let limit = Arc::new(
        Limit::new(tidegate::Algorithm::TokenBucket, tidegate::Quota::per_second(100)).unwrap(),
    );
    let request = |requested, cost| LeaseRequest {
        cost,
        requested,
        id: LeaseId { node: 1, number: 1 },
        unreported: Vec::new().into(),
        reports: Vec::new().into(),
        ttl: Span::SECOND,
        fleet_size: 1,
    };
    let key = Key::from_u128(1);
    fixture.set_time(Timestamp::from_micros(start));
    let grant = &fixture.lease(&[(key, Arc::clone(&limit), request(50, 0))])[0];
    assert_eq!((grant.granted, grant.ttl), (50, Span::SECOND));
    let leases = |fixture: &ParityFixture| -> Vec<Lease> {
        fixture.stored(key, &limit).1.iter().copied().collect()
    };
    assert_eq!(leases(&fixture)[0].until.as_micros(), start + 1_020_000);
    fixture.set_time(Timestamp::from_micros(start + 1_019_999));
    let grants = fixture.lease(&[(key, Arc::clone(&limit), request(0, 51))]);
    assert!(!grants[0].outcome.is_allowed() && !leases(&fixture).is_empty());
    fixture.set_time(Timestamp::from_micros(start + 1_020_000));
    let grants = fixture.lease(&[(key, Arc::clone(&limit), request(0, 50))]);
    assert!(grants[0].outcome.is_allowed() && leases(&fixture).is_empty());
    assert_eq!(grants[0].outcome.remaining, 0);
}
