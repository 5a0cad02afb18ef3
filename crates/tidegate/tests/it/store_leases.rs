//! Lease requests on every store, and the keys that Redis holds for leases.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::error::StoreError;
use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::store::{
    Charge, ChargeMode, ChargeResult, Key, LeaseGrant, LeaseId, LeaseRequest, Refund, State, Store,
    UsageReport,
};
use tidegate::{Algorithm, Limit, ManualClock, MemoryStore, Quota, Span, Timestamp};
use tidegate_testkit::{Cluster, Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};
use tokio::time::{Instant, sleep};

const REQUIRED_TOOLS: [Tool; 1] = [Tool::Server(Flavour::Redis)];

async fn connect(url: &str) -> RedisStore {
    let config: RedisConfig = url.parse().unwrap();
    let config = config.with_timeout(WAIT_TIMEOUT).unwrap();
    let config = config.with_connect_timeout(WAIT_TIMEOUT).unwrap();
    RedisStore::connect(config.with_denial_memory(Duration::ZERO).unwrap()).await.unwrap()
}

fn limit(algorithm: Algorithm, quota: Quota) -> Arc<Limit> {
    Arc::new(Limit::new(algorithm, quota).unwrap())
}

/// Returns a quota with a window that outlasts every test.
fn long_quota(amount: u64) -> Quota {
    Quota::per(amount, Quota::MAX_WINDOW)
}

fn slow_bucket(amount: u64) -> Arc<Limit> {
    limit(Algorithm::TokenBucket, long_quota(amount))
}

fn key(number: u128) -> Key {
    Key::from_u128(number << 40)
}

fn lease_id(number: u32) -> LeaseId {
    LeaseId { node: 7, number }
}

fn lease_request(cost: u64, requested: u64) -> LeaseRequest {
    LeaseRequest {
        cost,
        requested,
        id: lease_id(1),
        unreported: Vec::new().into(),
        reports: Vec::new().into(),
        ttl: Span::MINUTE,
        fleet_size: 1,
    }
}

fn usage_report(spent: u64, closed: bool) -> LeaseRequest {
    let reports = vec![UsageReport { id: lease_id(1), spent, closed }].into();
    LeaseRequest { reports, ..lease_request(0, 0) }
}

async fn request_one(
    store: &impl Store,
    key: Key,
    limit: &Arc<Limit>,
    lease_request: LeaseRequest,
) -> Result<LeaseGrant, StoreError> {
    store.lease(&[(key, Arc::clone(limit), lease_request)]).await.pop().unwrap()
}

/// Expects the lease contract of any store.
async fn expect_leases(store: &impl Store) {
    let limit = slow_bucket(100);
    let granted = request_one(store, key(1), &limit, lease_request(10, 40)).await.unwrap();
    assert_eq!((granted.outcome.remaining, granted.granted, granted.ttl), (90, 40, Span::MINUTE));
    // Leased tokens are reserved, for this key only.
    let denied = request_one(store, key(1), &limit, lease_request(51, 0)).await.unwrap();
    assert!(!denied.outcome.is_allowed() && denied.outcome.remaining == 50);
    assert!(
        request_one(store, key(2), &limit, lease_request(100, 0))
            .await
            .unwrap()
            .outcome
            .is_allowed()
    );
    // A repeated lease id grants no further tokens.
    let again = request_one(store, key(1), &limit, lease_request(0, 40)).await.unwrap();
    assert_eq!((again.outcome.remaining, again.granted), (50, 40));
    assert_eq!(
        request_one(store, key(1), &limit, usage_report(5, false)).await.unwrap().outcome.remaining,
        50
    );
    // A closing report is applied once.
    for _ in 0..2 {
        let grant = request_one(store, key(1), &limit, usage_report(15, true)).await.unwrap();
        assert_eq!(grant.outcome.remaining, 75);
    }
    // A charge includes the usage of lease requests.
    let charge =
        Charge { key: key(1), overflow_key: key(1), limit: &limit, cost: 75, independent: false };
    let results = store.charge(&[charge], ChargeMode::Spend).await;
    assert!(results[0].outcome().unwrap().is_allowed());
    assert!(
        !request_one(store, key(1), &limit, lease_request(1, 0))
            .await
            .unwrap()
            .outcome
            .is_allowed()
    );
}

/// Expects that a changed limit migrates usage and leases.
async fn expect_migrated_leases(store: &impl Store) {
    for (number, algorithm) in
        (10..).zip([Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow])
    {
        let [before, after] =
            [limit(algorithm, long_quota(100)), limit(algorithm, long_quota(200))];
        let granted =
            request_one(store, key(number), &before, lease_request(20, 40)).await.unwrap();
        assert_eq!(granted.granted, 40, "{algorithm}");
        let used = if algorithm == Algorithm::TokenBucket { 40 } else { 20 };
        let grant = request_one(store, key(number), &after, lease_request(0, 0)).await.unwrap();
        assert_eq!(grant.outcome.remaining, 200 - used - 40, "{algorithm}");
        let grant = request_one(store, key(number), &after, usage_report(10, true)).await.unwrap();
        assert_eq!(grant.outcome.remaining, 200 - used - 10, "{algorithm}");
    }
}

async fn expect_charge_without_lease(store: &impl Store) {
    let limit = limit(Algorithm::SlidingLog, long_quota(10));
    let granted = request_one(store, key(20), &limit, lease_request(3, 5)).await.unwrap();
    assert_eq!((granted.outcome.remaining, granted.granted), (7, 0));
}

#[tokio::test]
async fn memory_store_reserves_leased_tokens() {
    let store =
        MemoryStore::new(ManualClock::starting_at(Timestamp::from_secs(1_780_000_000)).clock());
    expect_leases(&store).await;
    expect_migrated_leases(&store).await;
    expect_charge_without_lease(&store).await;
}

#[tokio::test]
async fn redis_store_reserves_leased_tokens() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    expect_leases(&store).await;
    expect_migrated_leases(&store).await;
    expect_charge_without_lease(&store).await;
}

#[tokio::test]
async fn leases_and_usage_of_many_nodes_never_exceed_the_limit() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let limit = slow_bucket(1_000);
    let node = async |node: u64| {
        let store = connect(&server.url()).await;
        let mut granted_and_spent = 0;
        for number in 0..40 {
            let id = LeaseId { node, number };
            let grant = request_one(
                &store,
                key(1),
                &limit,
                LeaseRequest { id, fleet_size: 4, ..lease_request(3, 64) },
            )
            .await;
            let granted = grant.unwrap();
            granted_and_spent += granted.granted + if granted.outcome.is_allowed() { 3 } else { 0 };
        }
        granted_and_spent
    };
    let granted_and_spent: u64 = join_all((0..4).map(node)).await.into_iter().sum();
    assert!((950..=1_000).contains(&granted_and_spent), "{granted_and_spent}");
}

#[tokio::test]
async fn results_of_more_requests_than_one_batch_are_in_request_order() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let requests: Vec<_> = (1..=300)
        .map(|number| (key(number.into()), slow_bucket(1_000), lease_request(number, 0)))
        .collect();
    let results = store.lease(&requests).await;
    let left: Vec<u64> =
        results.into_iter().map(|result| result.unwrap().outcome.remaining).collect();
    assert_eq!(left, (700..1_000).rev().collect::<Vec<u64>>());
    assert_eq!(store.counts().asks, 300);
}

#[tokio::test]
async fn state_and_lease_keys_expire_but_not_before_leased_tokens_refill() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let bucket = limit(Algorithm::TokenBucket, Quota::per_minute(1).burst(100));
    request_one(&store, key(1), &bucket, lease_request(1, 40)).await.unwrap();
    let left = |name: &str| server.query::<i64>(&["PTTL", name]);
    let (state, leases) = (store.name_of(key(1)), store.name_of_leases(key(1)));
    // One minute for the lease or the spent token, and forty minutes until the leased tokens have refilled.
    let refill = 40 * 60_000;
    for name in [&state, &leases] {
        assert!((refill..refill + 125_000).contains(&left(name)), "{name}: {}", left(name));
    }
    request_one(&store, key(1), &bucket, usage_report(0, true)).await.unwrap();
    assert_eq!(left(&leases), -2);
    assert!((1..=60_010).contains(&left(&state)));
}

#[tokio::test]
async fn lease_key_of_a_window_limit_lives_until_the_window_ends() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let quota = long_quota(100);
    for (number, algorithm) in (1..).zip([Algorithm::FixedWindow, Algorithm::SlidingWindow]) {
        let limit = limit(algorithm, quota);
        request_one(&store, key(number), &limit, lease_request(0, 40)).await.unwrap();
        let left: u64 = server.query(&["PTTL", &store.name_of_leases(key(number))]);
        let (window, now) = (quota.window().as_micros(), server.time_micros());
        let end = (window - now % window) / 1_000;
        assert!(left >= end, "{algorithm}: kept for {left} ms, the window ends in {end} ms");
    }
}

#[tokio::test]
async fn state_change_extends_the_ttl_of_both_keys() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let limit = slow_bucket(100);
    let token = Quota::MAX_WINDOW.as_micros() / 1_000 / 100;
    let expect_min_ttl = |spent: u64| {
        for name in [store.name_of(key(1)), store.name_of_leases(key(1))] {
            let left: u64 = server.query(&["PTTL", &name]);
            // Subtract the time that the test may take.
            let wanted = (spent + 40) * token - 60_000;
            assert!(left >= wanted, "{name}: {left} ms, wanted {wanted} ms");
        }
    };
    request_one(&store, key(1), &limit, lease_request(10, 40)).await.unwrap();
    expect_min_ttl(10);
    request_one(&store, key(1), &limit, lease_request(30, 0)).await.unwrap();
    expect_min_ttl(40);
    let granted = request_one(&store, key(1), &limit, lease_request(5, 0)).await.unwrap();
    expect_min_ttl(45);
    let refund_token = granted.outcome.refund_token();
    let refund = Refund { key: key(1), limit: Arc::clone(&limit), cost: 5, refund_token };
    assert_eq!(store.refund(&[refund]).await, Ok(1));
    expect_min_ttl(40);
}

#[allow(clippy::disallowed_methods, reason = "a server's clock gives no event to wait for")]
#[tokio::test]
async fn lease_expires_by_the_server_clock() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let algorithms = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow];
    for (number, algorithm) in (1..).zip(algorithms) {
        let (key, limit) = (key(number), limit(algorithm, long_quota(100)));
        let short_lease = LeaseRequest { ttl: Span::from_millis(20), ..lease_request(0, 40) };
        assert_eq!(request_one(&store, key, &limit, short_lease).await.unwrap().granted, 40);
        let until = store.leases(key).await.unwrap().unwrap().1.iter().next().unwrap().until;
        let deadline = Instant::now() + WAIT_TIMEOUT;
        // Wait until the key would also have expired by its TTL.
        while server.time_micros() < until.as_micros() + 5_000 {
            assert!(Instant::now() < deadline, "the server's clock stands still");
            sleep(Duration::from_millis(5)).await;
        }
        let grant = request_one(&store, key, &limit, lease_request(0, 0)).await.unwrap();
        assert_eq!(grant.outcome.remaining, 60, "{algorithm}");
        assert_eq!(store.leases(key).await.unwrap(), None, "{algorithm}");
    }
}

#[tokio::test]
async fn corrupt_value_fails_only_its_own_lease_request() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let limit = slow_bucket(100);
    let set = |name: String, value: &str| server.query::<()>(&["SET", &name, value]);
    set(store.name_of(key(1)), "nonsense");
    set(store.name_of_leases(key(2)), "\u{1}nonsense");
    server.query::<u32>(&["LPUSH", &store.name_of_leases(key(3)), "a"]);
    // A truncated lease under a valid limit.
    request_one(&store, key(4), &limit, lease_request(0, 40)).await.unwrap();
    let name = store.name_of_leases(key(4));
    let length: usize = server.query(&["STRLEN", &name]);
    server.query::<u32>(&["SETRANGE", &name, &length.to_string(), "x"]);
    let requests: Vec<_> =
        (1..=5).map(|n| (key(n), Arc::clone(&limit), lease_request(1, 10))).collect();
    let results = store.lease(&requests).await;
    for result in &results[..4] {
        assert!(matches!(result, Err(StoreError::Corrupt { .. })), "{result:?}");
    }
    assert_eq!(results[4].as_ref().unwrap().granted, 10);
    // Corrupt values are not overwritten.
    assert_eq!(server.query::<String>(&["GET", &store.name_of(key(1))]), "nonsense");
}

#[tokio::test]
async fn reset_client_starts_fresh_minus_leased_tokens() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    let limit = slow_bucket(100);
    request_one(&store, key(1), &limit, lease_request(30, 20)).await.unwrap();
    store.reset(key(1)).await.unwrap();
    assert_eq!(
        request_one(&store, key(1), &limit, lease_request(0, 0)).await.unwrap().outcome.remaining,
        80
    );
}

#[tokio::test]
async fn lease_requests_fail_while_the_server_is_down() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let store = connect(&server.url()).await;
    drop(server);
    let requests: Vec<_> =
        (1..=3).map(|number| (key(number), slow_bucket(10), lease_request(1, 1))).collect();
    let results = store.lease(&requests).await;
    assert!(results.len() == 3 && results.iter().all(Result::is_err), "{results:?}");
    // The breaker is open now, and fails requests without a call.
    let results = store.lease(&requests).await;
    assert!(matches!(results[0], Err(StoreError::Unavailable { .. })), "{results:?}");
}

#[allow(clippy::disallowed_methods, reason = "a resumed server gives no event to wait for")]
#[tokio::test(flavor = "multi_thread")]
async fn timed_out_lease_request_is_sent_once() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let config: RedisConfig = server.url().parse().unwrap();
    let config = config.with_timeout(Duration::from_millis(100)).unwrap();
    let store = crate::connect(config).await;
    server.pause();
    let (limit, deadline, mut timeouts) = (slow_bucket(100), Instant::now() + WAIT_TIMEOUT, 0);
    loop {
        match request_one(&store, key(1), &limit, lease_request(1, 0)).await {
            Err(StoreError::Timeout { .. }) => timeouts += 1,
            Err(StoreError::Unavailable { .. }) => break,
            result => panic!("{result:?}"),
        }
        assert!(Instant::now() < deadline, "the breaker stays shut");
    }
    assert!(timeouts > 0 && store.counts().late == timeouts);
    server.resume();
    let left = loop {
        if let Ok(grant) = request_one(&store, key(1), &limit, lease_request(0, 0)).await {
            break grant.outcome.remaining;
        }
        assert!(Instant::now() < deadline, "the breaker stays open");
        sleep(Duration::from_millis(5)).await;
    };
    assert!(left >= 100 - timeouts, "{left} left after {timeouts} requests");
}

#[tokio::test]
async fn leases_and_usage_of_a_client_share_a_cluster_slot() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let cluster = Cluster::builder().config("cluster-node-timeout", "60000").start();
    let store = connect(&cluster.url()).await;
    let limit = limit(Algorithm::FixedWindow, long_quota(100));
    let requests: Vec<_> =
        (1..=100).map(|number| (key(number), Arc::clone(&limit), lease_request(1, 10))).collect();
    let mut masters = HashSet::new();
    for result in store.lease(&requests).await {
        assert_eq!(result.unwrap().granted, 10);
    }
    for (key, _, _) in &requests {
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
        matches!(&store.charge(&[charge], ChargeMode::Spend).await[0], ChargeResult::Outcome(outcome) if outcome.is_allowed())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_for_a_migrating_slot_completes_without_delaying_other_slots() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let cluster = Cluster::builder().config("cluster-node-timeout", "60000").start();
    let store = Arc::new(connect(&cluster.url()).await);
    let limit = slow_bucket(100);
    let slot_of = |key: Key| cluster.slot_of(&store.name_of(key));
    let slot = slot_of(key(1));
    let from = cluster.owner_of(slot);
    let is_other_slot_on_same_master =
        |key: &Key| slot_of(*key) != slot && cluster.owner_of(slot_of(*key)) == from;
    let other_slot_key = (2..).map(key).find(is_other_slot_on_same_master).unwrap();
    request_one(&*store, key(1), &limit, lease_request(1, 10)).await.unwrap();

    cluster.begin_migration(slot, (from + 1) % 3);
    // The state and the leases of the client are on two servers now, so that neither can decide.
    assert_eq!(cluster.migrate_keys(slot, 1), 1);
    let waiting: Vec<_> = (0..4)
        .map(|_| {
            let (store, limit) = (Arc::clone(&store), Arc::clone(&limit));
            tokio::spawn(
                async move { request_one(&*store, key(1), &limit, lease_request(1, 0)).await },
            )
        })
        .collect();
    for _ in 0..8 {
        request_one(&*store, other_slot_key, &limit, lease_request(1, 0)).await.unwrap();
    }
    assert!(waiting.iter().all(|waiting| !waiting.is_finished()));
    while cluster.migrate_keys(slot, 10) > 0 {}
    cluster.finish_migration(slot);
    for waiting in waiting {
        waiting.await.unwrap().unwrap();
    }
    let last = request_one(&*store, key(1), &limit, lease_request(1, 0)).await.unwrap();
    assert_eq!(last.outcome.remaining, 100 - 10 - 6, "each request was charged once");
}

#[tokio::test]
async fn requests_beyond_the_queue_limit_are_not_sent() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    const MAX_QUEUED: usize = 16_384;
    let server = Redis::start();
    let config: RedisConfig = server.url().parse().unwrap();
    let config = config.with_timeout(Duration::from_millis(500)).unwrap();
    let store = crate::connect(config).await;
    server.pause();
    let limit = slow_bucket(10);
    let numbers = 1..=u128::try_from(MAX_QUEUED + 100).unwrap();
    let requests: Vec<_> =
        numbers.map(|number| (key(number), Arc::clone(&limit), lease_request(1, 0))).collect();
    let results = store.lease(&requests).await;
    server.resume();
    let is_rejected = |result: &Result<_, _>| {
        let reason = "too many requests are waiting";
        matches!(result, Err(StoreError::Unavailable { reason: found, .. }) if **found == *reason)
    };
    assert!(!results[..MAX_QUEUED].iter().any(is_rejected));
    assert!(results[MAX_QUEUED..].iter().all(is_rejected));
}
