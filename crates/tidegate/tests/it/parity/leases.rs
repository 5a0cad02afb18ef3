//! Asks of nodes that hold tokens: the shared vectors and a random walk, through the script and
//! through the core.

#[path = "../../../../core/tests/vectors/asks.rs"]
mod asks;

use std::sync::Arc;

use asks::AskCase;
use tidegate::{
    ClientStates, Key, Lease, LeaseGrant, LeaseId, LeaseRequest, LeaseSet, Limit, Refund, Span,
    State, Store, Timestamp, UnreportedUsage, UsageReport,
};

use super::Bench;
use super::random::Random;
use super::vectors::case;
use super::walk::{any_limit, any_time, seed};

impl Bench {
    fn lease(&self, asks: &[(Key, Arc<Limit>, LeaseRequest)]) -> Vec<LeaseGrant> {
        let told = self.runtime.block_on(self.store.lease(asks));
        told.into_iter().map(|told| told.unwrap()).collect()
    }

    /// What is kept of a client, under a limit that it was just asked under.
    fn kept(&self, key: Key, limit: &Limit) -> (State, LeaseSet) {
        let (mut states, leases) = self.all_kept(key);
        let state = states.find(limit).map_or_else(|| limit.fresh(), |(_, state)| state.clone());
        let own = leases.into_iter().find(|(under, _)| limit.shares_state_with(under));
        (state, own.map(|(_, leases)| leases).unwrap_or_default())
    }

    /// What is kept of a client, under each limit.
    fn all_kept(&self, key: Key) -> (ClientStates, Vec<(Limit, LeaseSet)>) {
        let states = self.runtime.block_on(self.store.states(key)).unwrap();
        (states, self.runtime.block_on(self.store.leases_by_limit(key)).unwrap())
    }

    /// Checks that no key of a client expires while it says something.
    fn assert_kept_while_it_counts(&mut self, client: &Client, now: Timestamp, place: &str) {
        let (states, leases) = &client.kept;
        let mut live = states.clone();
        live.drop_expired(now);
        let empty = [live.iter().next().is_none(), leases.iter().all(|(_, held)| held.is_empty())];
        for ((name, over), empty) in self.names(client).iter().zip(client.over(now)).zip(empty) {
            let expiry = self.expiry(name);
            assert!(
                empty || expiry.is_some_and(|expiry| expiry >= over),
                "{place}: {name} expires at {expiry:?}, wanted {over:?} or later: {:?}",
                client.kept
            );
        }
    }

    fn names(&self, client: &Client) -> [String; 2] {
        [self.store.name_of(client.key), self.store.name_of_leases(client.key)]
    }
}

#[test]
fn asks_in_lua_are_answered_as_their_vectors_say() {
    let file = include_str!("../../../../core/tests/vectors/holds.json");
    let cases: Vec<AskCase> = serde_json::from_str(file).unwrap();
    assert!(!cases.is_empty());
    let mut bench = Bench::new();
    for (number, case) in (1..).zip(cases) {
        let key = Key::from_u128(number);
        let mut limit = Arc::new(case.limit.limit());
        for (number, step) in case.steps.iter().enumerate() {
            let place = format!("{}, {}, step {number}", limit.algorithm(), case.name);
            let now = Timestamp::from_micros(step.at);
            bench.set_time(now);
            if let Some(numbers) = &step.limit {
                // The vectors have one state, and leave limits in turns to the walk.
                bench.keep_last_limit(key, &limit);
                limit = Arc::new(numbers.limit());
            }
            let granted = &bench.lease(&[(key, Arc::clone(&limit), step.ask())])[0];
            step.assert_told(granted, &place);
            let (mut state, leases) = bench.kept(key, &limit);
            step.assert_held(&leases, &place);
            if matches!(*limit, Limit::TokenBucket(_)) && limit.expires_at(&mut state) <= now {
                // A bucket that is full again need not be kept.
                assert!(step.state[0] <= step.at, "{place}: {:?} is lost", step.state);
            } else {
                assert_eq!(case::integers(&limit, &mut state, now), step.state, "{place}: state");
            }
        }
    }
}

const CLIENTS: u64 = 60;

struct Client {
    key: Key,
    limit: Arc<Limit>,
    /// What is kept of it, under each limit that it was asked under.
    kept: (ClientStates, Vec<(Limit, LeaseSet)>),
    /// Limits that it was asked under before.
    known: Vec<Arc<Limit>>,
    /// Names of holds that it was asked for lately.
    names: Vec<LeaseId>,
    /// Under which name some node owes how much.
    owes: (LeaseId, u64),
    /// Costs that were charged lately, and can be refunded.
    spent: Vec<Refund>,
}

fn any_leasing_limit(random: &mut Random) -> Arc<Limit> {
    loop {
        let limit = any_limit(random);
        if limit.supports_leases() {
            return limit;
        }
    }
}

fn any_amount(random: &mut Random, most: u64) -> u64 {
    match random.below(6) {
        0 => 0,
        1 => most,
        2 => random.size(most),
        3 => u64::MAX >> random.below(63),
        _ => 1 + random.below(5),
    }
}

impl Client {
    fn new(number: u64, random: &mut Random) -> Self {
        let limit = any_leasing_limit(random);
        let owes = (LeaseId { node: 101, number: 0 }, 0);
        let key = Key::from_u128(u128::from(number) << 50);
        let (kept, known, names) = (Default::default(), Vec::new(), Vec::new());
        Self { key, limit, kept, known, names, owes, spent: Vec::new() }
    }

    fn draw(&mut self, random: &mut Random, number: u32, now: Timestamp) -> LeaseRequest {
        if random.chance(3) {
            let before = Arc::clone(&self.limit);
            self.limit = match self.known.len() {
                // As nodes do that still have other rules.
                known @ 1.. if random.chance(50) => {
                    Arc::clone(&self.known[usize::try_from(random.below(known as u64)).unwrap()])
                }
                _ => any_leasing_limit(random),
            };
            self.known.push(before);
            let keep = self.known.len().saturating_sub(3);
            self.known.drain(..keep);
        }
        let capacity = self.limit.capacity();
        let known = |random: &mut Random| match self.names.len() {
            0 => LeaseId { node: 1, number },
            count => self.names[usize::try_from(random.below(count as u64)).unwrap()],
        };
        let reports = (0..random.below(3)).map(|_| UsageReport {
            id: known(random),
            spent: any_amount(random, capacity),
            closed: random.chance(25),
        });
        let reports = reports.collect();
        let again = random.chance(10);
        let fresh = LeaseId { node: random.one_of(&[1, 2, u64::MAX]), number };
        let id = if again { known(random) } else { fresh };
        let owed = if random.chance(30) { self.owe(random, number, now) } else { Vec::new() };
        let id = if owed.is_empty() { id } else { self.owes.0 };
        self.names.push(id);
        let keep = self.names.len().saturating_sub(6);
        self.names.drain(..keep);
        LeaseRequest {
            cost: any_amount(random, capacity),
            requested: any_amount(random, capacity),
            id,
            unreported: owed.into(),
            reports,
            ttl: Span::from_micros(random.size(1 << 33)),
            fleet_size: any_amount(random, 20),
        }
    }

    /// What some node owes, as it was told before or more.
    fn owe(&mut self, random: &mut Random, number: u32, now: Timestamp) -> Vec<UnreportedUsage> {
        let (name, total) = &mut self.owes;
        if random.chance(30) {
            *name = LeaseId { node: 101 + random.below(3), number };
            *total = 0;
        }
        let owed = (0..random.below(4)).map(|_| {
            let back = Span::from_micros(random.size(1 << 40));
            let at = match random.below(4) {
                0 => Timestamp::from_micros(u64::MAX),
                1 => now,
                _ => now - back,
            };
            *total = total.saturating_add(any_amount(random, self.limit.capacity()));
            UnreportedUsage { at, total: *total }
        });
        owed.collect()
    }

    /// What the core answers, from what was kept.
    fn answer(&mut self, now: Timestamp, ask: &LeaseRequest) -> LeaseGrant {
        let (states, leases) = &mut self.kept;
        let state = states.enter(&self.limit, now);
        let own = leases.iter().position(|(known, _)| known.shares_state_with(&self.limit));
        let mut held = match own {
            Some(place) => leases.remove(place).1,
            None => leases.first().map(|(_, held)| held.clone()).unwrap_or_default(),
        };
        let granted = self.limit.apply_lease_request(state, &mut held, now, ask);
        leases.insert(0, (Limit::clone(&self.limit), held));
        if let Some(refund_token) = granted.outcome.refund_token() {
            let (key, limit, refund_token) =
                (self.key, Arc::clone(&self.limit), Some(refund_token));
            self.spent.push(Refund { key, limit, cost: ask.cost, refund_token });
        }
        granted
    }

    /// Refunds one of the last costs. Whether anything was given back.
    fn refund(&mut self, refund: &Refund, now: Timestamp) -> bool {
        let own = self.kept.0.find(&refund.limit);
        own.is_some_and(|(limit, state)| refund.take_back(limit, state, now))
    }

    /// Drops what was in keys that have expired. Each of them was over.
    fn expire(&mut self, gone: [bool; 2], now: Timestamp, place: &str) {
        for (is_gone, over) in gone.into_iter().zip(self.over(now)) {
            assert!(!is_gone || over <= now, "{place}: over at {over:?}: {:?}", self.kept);
        }
        if gone[0] {
            self.kept.0 = ClientStates::default();
        }
        if gone[1] {
            self.kept.1.clear();
        }
    }

    /// From when on the key of the states, and the key of the leases, may be gone. While tokens are leased
    /// and not reported, that is when the client is settled under each limit.
    fn over(&self, now: Timestamp) -> [Timestamp; 2] {
        let (states, leases) = &self.kept;
        let wholes = states.iter().map(|(limit, state)| limit.expires_at(&mut state.clone()));
        let mut over = [wholes.max().unwrap_or(Timestamp::EPOCH), Timestamp::EPOCH];
        for (limit, leases) in leases {
            let last = leases.iter().map(|lease| lease.until).max().unwrap_or(Timestamp::EPOCH);
            over[1] = over[1].max(last);
            if leases.iter().any(|lease| !lease.is_mark()) {
                let own = states.clone().find(limit).map(|(_, state)| state.clone());
                let mut state = own.unwrap_or_else(|| limit.fresh());
                let settled = limit.settled_at(&state, leases);
                over[1] = over[1].max(settled);
                // A state that is over says nothing, also to a lease.
                if limit.expires_at(&mut state) > now {
                    over[0] = over[0].max(settled);
                }
            }
        }
        over
    }
}

/// An answer with a state that says nothing in its only form.
fn bare(limit: &Limit, now: Timestamp, granted: &LeaseGrant) -> LeaseGrant {
    let mut granted = granted.clone();
    if let Some(snapshot) = &mut granted.snapshot
        && limit.expires_at(&mut snapshot.state) <= now
    {
        snapshot.state = limit.fresh();
    }
    granted
}

/// How many asks the walk makes; `make test-all` and `make soak` ask for more.
#[allow(clippy::disallowed_methods, reason = "a soak says how long it is")]
fn steps() -> u64 {
    let steps = std::env::var("TIDEGATE_STEPS").ok().and_then(|steps| steps.parse().ok());
    steps.map_or(5_000, |steps: u64| steps / 10)
}

#[test]
fn a_random_walk_of_asks_agrees_with_the_core_while_keys_expire_at_their_ttl() {
    let (seed, wanted) = (seed(), steps());
    let (mut bench, mut random, mut taken) = (Bench::new(), Random::new(seed), 0);
    let mut now = Timestamp::from_micros(1_780_000_000_123_457);
    let mut clients: Vec<Client> =
        (0..CLIENTS).map(|number| Client::new(number, &mut random)).collect();
    let (mut held, mut owed, mut longest, mut expired, mut refunded) = (0, 0, 0, 0, 0);
    while taken < wanted {
        now = any_time(&mut random, now);
        if random.chance(70) {
            // Holds live shorter than most limits.
            now = now + Span::from_micros(random.size(1 << 22));
        }
        bench.set_time(now);
        let gone = bench.expire_keys(now);
        expired += gone.len();
        for client in clients.iter_mut().filter(|_| !gone.is_empty()) {
            let gone = bench.names(client).map(|name| gone.contains(&name));
            client.expire(gone, now, &format!("TIDEGATE_SEED={seed}, after {taken} steps"));
        }
        // So many travel in one call, which decides them one after another.
        let count = 1 + random.below(64);
        let mut places = Vec::new();
        let mut asks = Vec::new();
        for number in 0..count {
            let place = usize::try_from(random.below(CLIENTS)).unwrap();
            let limit = Arc::clone(&clients[place].limit);
            let client = &mut clients[place];
            let ask = client.draw(&mut random, u32::try_from(taken + number).unwrap(), now);
            if places.contains(&place) {
                // One client under two limits at once is a change in between.
                client.limit = limit;
            }
            asks.push((client.key, Arc::clone(&client.limit), ask));
            places.push(place);
        }
        let told = bench.lease(&asks);
        for ((place, told), (_, limit, ask)) in places.iter().zip(&told).zip(&asks) {
            let client = &mut clients[*place];
            let before = client.kept.clone();
            let expected = client.answer(now, ask);
            assert_eq!(
                bare(limit, now, told),
                bare(limit, now, &expected),
                "TIDEGATE_SEED={seed}, after {taken} steps, at {now:?}: {limit} {ask:?} {before:?}"
            );
            held += u64::from(expected.granted > 0);
            owed += u64::from(!ask.unreported.is_empty());
            taken += 1;
        }
        places.sort_unstable();
        places.dedup();
        for place in &places {
            let client = &mut clients[*place];
            let keep = client.spent.len().saturating_sub(4);
            client.spent.drain(..keep);
            if random.chance(20)
                && let Some(refund) = client.spent.pop()
            {
                let given = bench
                    .runtime
                    .block_on(bench.store.refund(std::slice::from_ref(&refund)))
                    .unwrap();
                let expected = usize::from(client.refund(&refund, now));
                assert_eq!(
                    given, expected,
                    "TIDEGATE_SEED={seed}, after {taken} steps: {refund:?}"
                );
                refunded += given;
            }
        }
        for place in places {
            let client = &mut clients[place];
            let (state, leases) = bench.kept(client.key, &client.limit);
            let at = format!("TIDEGATE_SEED={seed}, after {taken} steps, at {now:?}");
            assert_eq!(leases, client.kept.1[0].1, "{at}");
            longest = longest.max(leases.iter().len());
            // What says nothing any more is not kept, and what is over is dropped later.
            let limit = Arc::clone(&client.limit);
            let expected = client.kept.0.iter().next().map(|(_, state)| state.clone());
            let [mut seen, mut wanted] = [state.clone(), expected.unwrap()];
            if limit.expires_at(&mut wanted) <= now {
                assert!(limit.expires_at(&mut seen) <= now, "{at}: {limit} {seen:?} {wanted:?}");
            } else {
                limit.admits(&mut seen, now, 1);
                limit.admits(&mut wanted, now, 1);
                assert_eq!(seen, wanted, "{at}: {limit}");
            }
            client.kept = bench.all_kept(client.key);
            bench.assert_kept_while_it_counts(client, now, &at);
        }
    }
    println!(
        "{taken} asks, {held} granted a hold, {owed} owed, at most {longest} of one client, {refunded} refunds, {expired} keys expired"
    );
    assert!(held > taken / 20 && owed > taken / 10 && longest > 3 && refunded > 0 && expired > 0);
}

#[test]
fn a_hold_expires_by_the_servers_clock_and_counts_as_spent() {
    let mut bench = Bench::new();
    let start = 1_780_000_000_123_457;
    let limit = Arc::new(
        Limit::new(tidegate::Algorithm::TokenBucket, tidegate::Quota::per_second(100)).unwrap(),
    );
    let ask = |requested, cost| LeaseRequest {
        cost,
        requested,
        id: LeaseId { node: 1, number: 1 },
        unreported: Vec::new().into(),
        reports: Vec::new().into(),
        ttl: Span::SECOND,
        fleet_size: 1,
    };
    let key = Key::from_u128(1);
    bench.set_time(Timestamp::from_micros(start));
    let granted = &bench.lease(&[(key, Arc::clone(&limit), ask(50, 0))])[0];
    assert_eq!((granted.granted, granted.ttl), (50, Span::SECOND));
    let kept =
        |bench: &Bench| -> Vec<Lease> { bench.kept(key, &limit).1.iter().copied().collect() };
    assert_eq!(kept(&bench)[0].until.as_micros(), start + 1_020_000);
    bench.set_time(Timestamp::from_micros(start + 1_019_999));
    let asked = bench.lease(&[(key, Arc::clone(&limit), ask(0, 51))]);
    assert!(!asked[0].outcome.is_allowed() && !kept(&bench).is_empty());
    bench.set_time(Timestamp::from_micros(start + 1_020_000));
    let asked = bench.lease(&[(key, Arc::clone(&limit), ask(0, 50))]);
    assert!(asked[0].outcome.is_allowed() && kept(&bench).is_empty());
    assert_eq!(asked[0].outcome.remaining, 0);
}
