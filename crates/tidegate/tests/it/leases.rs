//! Asks of nodes that hold tokens ahead of use, in every store; and what Redis keeps of them.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::{
    Algorithm, Charge, ChargeMode, ChargeResult, Key, LeaseGrant, LeaseId, LeaseRequest, Limit,
    ManualClock, MemoryStore, Quota, RedisConfig, RedisStore, Refund, Span, State, Store,
    StoreError, Timestamp, UsageReport,
};
use tidegate_testkit::{Cluster, Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};
use tokio::time::{Instant, sleep};

const NEEDED: [Tool; 1] = [Tool::Server(Flavour::Redis)];

async fn connect(url: &str) -> RedisStore {
    let config: RedisConfig = url.parse().unwrap();
    let config = config.with_timeout(WAIT_TIMEOUT).unwrap();
    let config = config.with_connect_timeout(WAIT_TIMEOUT).unwrap();
    RedisStore::connect(config.with_denial_memory(Duration::ZERO).unwrap()).await.unwrap()
}

fn limit(algorithm: Algorithm, quota: Quota) -> Arc<Limit> {
    Arc::new(Limit::new(algorithm, quota).unwrap())
}

/// A quota that takes years to be whole again: time does not matter to a test.
fn lasting(amount: u64) -> Quota {
    Quota::per(amount, Quota::MAX_WINDOW)
}

fn slow(amount: u64) -> Arc<Limit> {
    limit(Algorithm::TokenBucket, lasting(amount))
}

fn key(number: u128) -> Key {
    Key::from_u128(number << 40)
}

fn id(number: u32) -> LeaseId {
    LeaseId { node: 7, number }
}

fn ask(cost: u64, requested: u64) -> LeaseRequest {
    LeaseRequest {
        cost,
        requested,
        id: id(1),
        unreported: Vec::new().into(),
        reports: Vec::new().into(),
        ttl: Span::MINUTE,
        fleet_size: 1,
    }
}

fn report(spent: u64, closed: bool) -> LeaseRequest {
    let reports = vec![UsageReport { id: id(1), spent, closed }].into();
    LeaseRequest { reports, ..ask(0, 0) }
}

async fn one(
    store: &impl Store,
    key: Key,
    limit: &Arc<Limit>,
    ask: LeaseRequest,
) -> Result<LeaseGrant, StoreError> {
    store.lease(&[(key, Arc::clone(limit), ask)]).await.pop().unwrap()
}

/// What any store owes to who asks.
async fn keeps_what_is_held(store: &impl Store) {
    let limit = slow(100);
    let granted = one(store, key(1), &limit, ask(10, 40)).await.unwrap();
    assert_eq!((granted.outcome.remaining, granted.granted, granted.ttl), (90, 40, Span::MINUTE));
    // What is held keeps its room, for this key alone.
    let denied = one(store, key(1), &limit, ask(51, 0)).await.unwrap();
    assert!(!denied.outcome.is_allowed() && denied.outcome.remaining == 50);
    assert!(one(store, key(2), &limit, ask(100, 0)).await.unwrap().outcome.is_allowed());
    // The same name takes nothing more.
    let again = one(store, key(1), &limit, ask(0, 40)).await.unwrap();
    assert_eq!((again.outcome.remaining, again.granted), (50, 40));
    assert_eq!(one(store, key(1), &limit, report(5, false)).await.unwrap().outcome.remaining, 50);
    // A return is accepted once.
    for _ in 0..2 {
        let told = one(store, key(1), &limit, report(15, true)).await.unwrap();
        assert_eq!(told.outcome.remaining, 75);
    }
    // A charge finds what asks have spent.
    let charge =
        Charge { key: key(1), overflow_key: key(1), limit: &limit, cost: 75, independent: false };
    let told = store.charge(&[charge], ChargeMode::Spend).await;
    assert!(told[0].outcome().unwrap().is_allowed());
    assert!(!one(store, key(1), &limit, ask(1, 0)).await.unwrap().outcome.is_allowed());
}

/// A limit that changes takes over what was used and what is held.
async fn takes_over_what_is_held(store: &impl Store) {
    for (number, algorithm) in
        (10..).zip([Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow])
    {
        let [before, after] = [limit(algorithm, lasting(100)), limit(algorithm, lasting(200))];
        let granted = one(store, key(number), &before, ask(20, 40)).await.unwrap();
        assert_eq!(granted.granted, 40, "{algorithm}");
        let used = if algorithm == Algorithm::TokenBucket { 40 } else { 20 };
        let told = one(store, key(number), &after, ask(0, 0)).await.unwrap();
        assert_eq!(told.outcome.remaining, 200 - used - 40, "{algorithm}");
        let told = one(store, key(number), &after, report(10, true)).await.unwrap();
        assert_eq!(told.outcome.remaining, 200 - used - 10, "{algorithm}");
    }
}

async fn charges_where_nothing_can_be_held(store: &impl Store) {
    let limit = limit(Algorithm::SlidingLog, lasting(10));
    let granted = one(store, key(20), &limit, ask(3, 5)).await.unwrap();
    assert_eq!((granted.outcome.remaining, granted.granted), (7, 0));
}

#[tokio::test]
async fn memory_keeps_what_is_held() {
    let store =
        MemoryStore::new(ManualClock::starting_at(Timestamp::from_secs(1_780_000_000)).clock());
    keeps_what_is_held(&store).await;
    takes_over_what_is_held(&store).await;
    charges_where_nothing_can_be_held(&store).await;
}

#[tokio::test]
async fn redis_keeps_what_is_held() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    keeps_what_is_held(&store).await;
    takes_over_what_is_held(&store).await;
    charges_where_nothing_can_be_held(&store).await;
}

#[tokio::test]
async fn many_nodes_never_hold_and_spend_more_than_the_limit() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let limit = slow(1_000);
    let node = async |node: u64| {
        let store = connect(&server.url()).await;
        let mut taken = 0;
        for number in 0..40 {
            let id = LeaseId { node, number };
            let told =
                one(&store, key(1), &limit, LeaseRequest { id, fleet_size: 4, ..ask(3, 64) }).await;
            let granted = told.unwrap();
            taken += granted.granted + if granted.outcome.is_allowed() { 3 } else { 0 };
        }
        taken
    };
    let taken: u64 = join_all((0..4).map(node)).await.into_iter().sum();
    assert!((950..=1_000).contains(&taken), "{taken}");
}

#[tokio::test]
async fn more_asks_than_travel_together_are_all_answered_in_their_order() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let asks: Vec<_> =
        (1..=300).map(|number| (key(number.into()), slow(1_000), ask(number, 0))).collect();
    let told = store.lease(&asks).await;
    let left: Vec<u64> = told.into_iter().map(|told| told.unwrap().outcome.remaining).collect();
    assert_eq!(left, (700..1_000).rev().collect::<Vec<u64>>());
    assert_eq!(store.counts().asks, 300);
}

#[tokio::test]
async fn both_keys_go_away_and_not_before_they_say_nothing() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let bucket = limit(Algorithm::TokenBucket, Quota::per_minute(1).burst(100));
    one(&store, key(1), &bucket, ask(1, 40)).await.unwrap();
    let left = |name: &str| server.query::<i64>(&["PTTL", name]);
    let (state, leases) = (store.name_of(key(1)), store.name_of_leases(key(1)));
    // A minute for the lease or for the token that was spent, and forty until what is leased has refilled.
    let refill = 40 * 60_000;
    for name in [&state, &leases] {
        assert!((refill..refill + 125_000).contains(&left(name)), "{name}: {}", left(name));
    }
    one(&store, key(1), &bucket, report(0, true)).await.unwrap();
    assert_eq!(left(&leases), -2);
    assert!((1..=60_010).contains(&left(&state)));
}

#[tokio::test]
async fn leased_tokens_of_a_window_are_kept_until_the_window_ends() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let quota = lasting(100);
    for (number, algorithm) in (1..).zip([Algorithm::FixedWindow, Algorithm::SlidingWindow]) {
        let limit = limit(algorithm, quota);
        one(&store, key(number), &limit, ask(0, 40)).await.unwrap();
        let left: u64 = server.query(&["PTTL", &store.name_of_leases(key(number))]);
        let (window, now) = (quota.window().as_micros(), server.time_micros());
        let end = (window - now % window) / 1_000;
        assert!(left >= end, "{algorithm}: kept for {left} ms, the window ends in {end} ms");
    }
}

#[tokio::test]
async fn both_keys_are_kept_longer_when_only_the_state_changes() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let limit = slow(100);
    let token = Quota::MAX_WINDOW.as_micros() / 1_000 / 100;
    let kept = |spent: u64| {
        for name in [store.name_of(key(1)), store.name_of_leases(key(1))] {
            let left: u64 = server.query(&["PTTL", &name]);
            // Less the time that the test takes.
            let wanted = (spent + 40) * token - 60_000;
            assert!(left >= wanted, "{name}: {left} ms, wanted {wanted} ms");
        }
    };
    one(&store, key(1), &limit, ask(10, 40)).await.unwrap();
    kept(10);
    one(&store, key(1), &limit, ask(30, 0)).await.unwrap();
    kept(40);
    let granted = one(&store, key(1), &limit, ask(5, 0)).await.unwrap();
    kept(45);
    let refund_token = granted.outcome.refund_token();
    let refund = Refund { key: key(1), limit: Arc::clone(&limit), cost: 5, refund_token };
    assert_eq!(store.refund(&[refund]).await, Ok(1));
    kept(40);
}

#[allow(clippy::disallowed_methods, reason = "a server's clock gives no event to wait for")]
#[tokio::test]
async fn what_is_held_expires_by_the_servers_own_clock() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let algorithms = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow];
    for (number, algorithm) in (1..).zip(algorithms) {
        let (key, limit) = (key(number), limit(algorithm, lasting(100)));
        let brief = LeaseRequest { ttl: Span::from_millis(20), ..ask(0, 40) };
        assert_eq!(one(&store, key, &limit, brief).await.unwrap().granted, 40);
        let until = store.leases(key).await.unwrap().unwrap().1.iter().next().unwrap().until;
        let patience = Instant::now() + WAIT_TIMEOUT;
        // Also a key that would be gone by the end of its lease is gone by then.
        while server.time_micros() < until.as_micros() + 5_000 {
            assert!(Instant::now() < patience, "the server's clock stands still");
            sleep(Duration::from_millis(5)).await;
        }
        let told = one(&store, key, &limit, ask(0, 0)).await.unwrap();
        assert_eq!(told.outcome.remaining, 60, "{algorithm}");
        assert_eq!(store.leases(key).await.unwrap(), None, "{algorithm}");
    }
}

#[tokio::test]
async fn what_cant_be_read_fails_its_own_ask_and_no_other() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let limit = slow(100);
    let set = |name: String, value: &str| server.query::<()>(&["SET", &name, value]);
    set(store.name_of(key(1)), "nonsense");
    set(store.name_of_leases(key(2)), "\u{1}nonsense");
    server.query::<u32>(&["LPUSH", &store.name_of_leases(key(3)), "a"]);
    // A hold cut short, under the right limit.
    one(&store, key(4), &limit, ask(0, 40)).await.unwrap();
    let name = store.name_of_leases(key(4));
    let length: usize = server.query(&["STRLEN", &name]);
    server.query::<u32>(&["SETRANGE", &name, &length.to_string(), "x"]);
    let asks: Vec<_> = (1..=5).map(|n| (key(n), Arc::clone(&limit), ask(1, 10))).collect();
    let told = store.lease(&asks).await;
    for told in &told[..4] {
        assert!(matches!(told, Err(StoreError::Corrupt { .. })), "{told:?}");
    }
    assert_eq!(told[4].as_ref().unwrap().granted, 10);
    // Nothing was written over.
    assert_eq!(server.query::<String>(&["GET", &store.name_of(key(1))]), "nonsense");
}

#[tokio::test]
async fn a_forgotten_client_starts_anew_less_what_is_held() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let limit = slow(100);
    one(&store, key(1), &limit, ask(30, 20)).await.unwrap();
    store.forget(key(1)).await.unwrap();
    assert_eq!(one(&store, key(1), &limit, ask(0, 0)).await.unwrap().outcome.remaining, 80);
}

#[tokio::test]
async fn without_its_server_each_ask_fails() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    drop(server);
    let asks: Vec<_> = (1..=3).map(|number| (key(number), slow(10), ask(1, 1))).collect();
    let told = store.lease(&asks).await;
    assert!(told.len() == 3 && told.iter().all(Result::is_err), "{told:?}");
    // From now on the breaker answers.
    let told = store.lease(&asks).await;
    assert!(matches!(told[0], Err(StoreError::Unavailable { .. })), "{told:?}");
}

#[allow(clippy::disallowed_methods, reason = "a server that comes back gives no event to wait for")]
#[tokio::test(flavor = "multi_thread")]
async fn an_ask_without_an_answer_in_time_is_sent_once() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let config: RedisConfig = server.url().parse().unwrap();
    let config = config.with_timeout(Duration::from_millis(100)).unwrap();
    let store = RedisStore::connect(config).await.unwrap();
    server.pause();
    let (limit, patience, mut late) = (slow(100), Instant::now() + WAIT_TIMEOUT, 0);
    loop {
        match one(&store, key(1), &limit, ask(1, 0)).await {
            Err(StoreError::Timeout { .. }) => late += 1,
            Err(StoreError::Unavailable { .. }) => break,
            told => panic!("{told:?}"),
        }
        assert!(Instant::now() < patience, "the breaker stays shut");
    }
    assert!(late > 0 && store.counts().late == late);
    server.resume();
    let left = loop {
        if let Ok(told) = one(&store, key(1), &limit, ask(0, 0)).await {
            break told.outcome.remaining;
        }
        assert!(Instant::now() < patience, "the breaker stays open");
        sleep(Duration::from_millis(5)).await;
    };
    assert!(left >= 100 - late, "{left} left after {late} asks");
}

#[tokio::test]
async fn in_a_cluster_what_is_held_lives_beside_what_was_spent() {
    if lacking(&NEEDED) {
        return;
    }
    let cluster = Cluster::builder().config("cluster-node-timeout", "60000").start();
    let store = connect(&cluster.url()).await;
    let limit = limit(Algorithm::FixedWindow, lasting(100));
    let asks: Vec<_> =
        (1..=100).map(|number| (key(number), Arc::clone(&limit), ask(1, 10))).collect();
    let mut masters = HashSet::new();
    for told in store.lease(&asks).await {
        assert_eq!(told.unwrap().granted, 10);
    }
    for (key, _, _) in &asks {
        let master = cluster.master_of(&store.name_of(*key));
        assert_eq!(master, cluster.master_of(&store.name_of_leases(*key)));
        masters.insert(master);
        let (_, state) = store.state(*key).await.unwrap().unwrap();
        assert!(matches!(state, State::Fixed(count) if count.spent == 1));
        assert_eq!(store.leases(*key).await.unwrap().unwrap().1.iter().len(), 1);
    }
    assert_eq!(masters.len(), 3);
    let charge =
        Charge { key: key(1), overflow_key: key(1), limit: &limit, cost: 99, independent: false };
    assert!(
        matches!(&store.charge(&[charge], ChargeMode::Spend).await[0], ChargeResult::Outcome(told) if told.is_allowed())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_for_a_migrating_slot_is_completed_and_delays_no_other_slot() {
    if lacking(&NEEDED) {
        return;
    }
    let cluster = Cluster::builder().config("cluster-node-timeout", "60000").start();
    let store = Arc::new(connect(&cluster.url()).await);
    let limit = slow(100);
    let slot_of = |key: Key| cluster.slot_of(&store.name_of(key));
    let slot = slot_of(key(1));
    let from = cluster.owner_of(slot);
    let is_beside = |key: &Key| slot_of(*key) != slot && cluster.owner_of(slot_of(*key)) == from;
    let beside = (2..).map(key).find(is_beside).unwrap();
    one(&*store, key(1), &limit, ask(1, 10)).await.unwrap();

    cluster.begin_migration(slot, (from + 1) % 3);
    // The state and the leases of the client are on two servers now, so that no server decides.
    assert_eq!(cluster.migrate_keys(slot, 1), 1);
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let (store, limit) = (Arc::clone(&store), Arc::clone(&limit));
            tokio::spawn(async move { one(&*store, key(1), &limit, ask(1, 0)).await })
        })
        .collect();
    for _ in 0..8 {
        one(&*store, beside, &limit, ask(1, 0)).await.unwrap();
    }
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    while cluster.migrate_keys(slot, 10) > 0 {}
    cluster.finish_migration(slot);
    for waiting in waiting {
        waiting.await.unwrap().unwrap();
    }
    let last = one(&*store, key(1), &limit, ask(1, 0)).await.unwrap();
    assert_eq!(last.outcome.remaining, 100 - 10 - 6, "each request was charged once");
}

#[tokio::test]
async fn requests_that_find_the_queue_full_are_not_sent() {
    if lacking(&NEEDED) {
        return;
    }
    const MAX_QUEUED: usize = 16_384;
    let server = Redis::start();
    let config: RedisConfig = server.url().parse().unwrap();
    let config = config.with_timeout(Duration::from_millis(500)).unwrap();
    let store = RedisStore::connect(config).await.unwrap();
    server.pause();
    let limit = slow(10);
    let numbers = 1..=u128::try_from(MAX_QUEUED + 100).unwrap();
    let asks: Vec<_> = numbers.map(|number| (key(number), Arc::clone(&limit), ask(1, 0))).collect();
    let results = store.lease(&asks).await;
    server.resume();
    let is_rejected = |result: &Result<_, _>| {
        let reason = "too many requests are waiting";
        matches!(result, Err(StoreError::Unavailable { reason: found, .. }) if **found == *reason)
    };
    assert!(!results[..MAX_QUEUED].iter().any(is_rejected));
    assert!(results[MAX_QUEUED..].iter().all(is_rejected));
}
