//! Requests with rules in different slots of a cluster. No interleaving exceeds a limit, and a denied request
//! leaves no charge.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::rules::AttributeChain;
use tidegate::store::{Charge, ChargeMode, ChargeResult, Key, State, Store};
use tidegate::{Algorithm, DecisionStatus, Limit, Limiter, Quota, Request, RuleSet};
use tidegate_testkit::{Cluster, Flavour, Tool, WAIT_TIMEOUT, lacking};
use tokio::time::{Instant, sleep};

const REQUIRED_TOOLS: [Tool; 1] = [Tool::Server(Flavour::Redis)];

fn start() -> Cluster {
    // A long node timeout, so that a paused or slow master is not replaced.
    Cluster::builder().config("cluster-node-timeout", "60000").start()
}

async fn connect(cluster: &Cluster) -> Arc<RedisStore> {
    let config: RedisConfig = cluster.url().parse().unwrap();
    let config = config.with_timeout(WAIT_TIMEOUT).unwrap();
    let config = config.with_connect_timeout(WAIT_TIMEOUT).unwrap();
    let config = config.with_denial_memory(Duration::ZERO).unwrap();
    Arc::new(RedisStore::connect(config).await.unwrap())
}

/// Returns the usage of a key, for algorithms that count requests.
async fn spent(store: &RedisStore, key: Key) -> u64 {
    match store.state(key).await.unwrap() {
        None => 0,
        Some((_, State::Fixed(count))) => count.spent,
        Some((_, State::Sliding(counts))) => counts.current,
        Some((_, State::Log(log))) => log.entries().map(|(_, cost)| cost).sum(),
        Some((_, state)) => panic!("{state:?} does not count"),
    }
}

/// Waits until each key has the given usage. Refunds may still be in flight.
#[allow(clippy::disallowed_methods, reason = "a server change gives no event to wait for")]
async fn wait_until_spent(store: &RedisStore, wanted: &[(Key, u64)]) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    for (key, wanted) in wanted {
        loop {
            let found = spent(store, *key).await;
            if found == *wanted {
                break;
            }
            assert!(Instant::now() < deadline, "found a usage of {found}, wanted {wanted}");
            sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Waits until the store has sent this many charges.
#[allow(clippy::disallowed_methods, reason = "a store change gives no event to wait for")]
async fn wait_until_sent(store: &RedisStore, wanted: u64) {
    let deadline = Instant::now() + WAIT_TIMEOUT;
    while store.counts().carried < wanted {
        assert!(Instant::now() < deadline, "{} were sent", store.counts().carried);
        sleep(Duration::from_millis(2)).await;
    }
}

/// Returns three keys for a round, each on a different master.
fn keys_on_three_masters(cluster: &Cluster, store: &RedisStore, round: u128) -> Vec<Key> {
    let mut found: Vec<(usize, Key)> = Vec::new();
    for number in 0.. {
        let key = Key::from_u128((round << 32) + number);
        let master = cluster.master_of(&store.name_of(key));
        if found.iter().all(|(other, _)| *other != master) {
            found.push((master, key));
        }
        if found.len() == 3 {
            break;
        }
    }
    found.into_iter().map(|(_, key)| key).collect()
}

/// Returns a limit with a window that outlasts every test.
fn limit(algorithm: Algorithm, amount: u64) -> Arc<Limit> {
    Arc::new(Limit::new(algorithm, Quota::per(amount, Quota::MAX_WINDOW)).unwrap())
}

const COUNTING_ALGORITHMS: [Algorithm; 3] =
    [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_requests_across_slots_never_exceed_a_limit() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let cluster = start();
    let nodes = [connect(&cluster).await, connect(&cluster).await];
    for round in 0..30 {
        let keys = keys_on_three_masters(&cluster, &nodes[0], round + 1);
        let algorithm = COUNTING_ALGORITHMS[usize::try_from(round % 3).unwrap()];
        let limits = [5, 7, 6].map(|amount| limit(algorithm, amount));
        let requests = (0..60).map(|number| {
            let (keys, limits, store) = (&keys, &limits, &nodes[number % 2]);
            async move {
                // Two or three of the keys, in rotating order.
                let indices: Vec<usize> = (0..2 + number % 2).map(|at| (number + at) % 3).collect();
                let charge = |index: &usize| {
                    let (key, limit) = (keys[*index], &limits[*index]);
                    Charge { key, overflow_key: key, limit, cost: 1, independent: false }
                };
                let charges: Vec<Charge<'_>> = indices.iter().map(charge).collect();
                let results = store.charge(&charges, ChargeMode::Spend).await;
                assert!(!results.iter().any(|result| matches!(result, ChargeResult::Failed(_))));
                let is_admitted = |result: &ChargeResult| {
                    result.outcome().is_some_and(|outcome| outcome.is_allowed())
                };
                results.iter().all(is_admitted).then_some(indices)
            }
        });
        let admitted: Vec<usize> =
            join_all(requests).await.into_iter().flatten().flatten().collect();
        let charged = |index: usize| {
            (keys[index], admitted.iter().filter(|admitted| **admitted == index).count() as u64)
        };
        let wanted: Vec<(Key, u64)> = (0..3).map(charged).collect();
        for ((_, charged), limit) in wanted.iter().zip(&limits) {
            assert!(*charged <= limit.capacity(), "{algorithm}: {wanted:?}");
        }
        wait_until_spent(&nodes[0], &wanted).await;
    }
    assert_eq!(nodes.map(|store| store.counts().lost), [0, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn race_for_the_last_token_may_deny_both_requests_and_refunds_all_charges() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let cluster = start();
    let nodes = [connect(&cluster).await, connect(&cluster).await];
    let (mut one_admitted, mut none_admitted) = (0u64, 0u64);
    for round in 0..60 {
        let keys = keys_on_three_masters(&cluster, &nodes[0], round + 1);
        let limit = limit(Algorithm::FixedWindow, 1);
        let send = |store: &Arc<RedisStore>, order: [usize; 2]| {
            let (store, limit) = (Arc::clone(store), Arc::clone(&limit));
            let keys = order.map(|index| keys[index]);
            tokio::spawn(async move {
                let charge = |key| Charge {
                    key,
                    overflow_key: key,
                    limit: &limit,
                    cost: 1,
                    independent: false,
                };
                let results = store.charge(&keys.map(charge), ChargeMode::Spend).await;
                results
                    .iter()
                    .all(|result| result.outcome().is_some_and(|outcome| outcome.is_allowed()))
            })
        };
        // The two requests charge the keys in opposite order.
        let both = join_all([send(&nodes[0], [0, 1]), send(&nodes[1], [1, 0])]).await;
        let admitted = both.into_iter().filter(|passed| *passed.as_ref().unwrap()).count() as u64;
        assert!(admitted <= 1, "both were admitted");
        wait_until_spent(&nodes[0], &[(keys[0], admitted), (keys[1], admitted)]).await;
        (one_admitted, none_admitted) = (one_admitted + admitted, none_admitted + 1 - admitted);
        // The budget is intact again, so a request that fits is admitted.
        assert_eq!(send(&nodes[0], [0, 1]).await.unwrap(), admitted == 0);
    }
    println!("one was admitted in {one_admitted} rounds, neither in {none_admitted}");
    assert_eq!(nodes.map(|store| store.counts().lost), [0, 0]);
}

const RULES: &str = "
rules:
  - {name: all, per: [], limit: 100 per day, algorithm: sliding_log, on_store_failure: deny}
  - {name: user, per: [user], limit: 3 per day, algorithm: sliding_log, on_store_failure: deny}
  - {name: item, per: [user, item], limit: 2 per day, algorithm: sliding_log, on_store_failure: deny}
";

fn request(user: &str, item: &str) -> Request<'static> {
    let request = Request::new().with("user", user.to_owned()).unwrap();
    request.with("item", item.to_owned()).unwrap()
}

/// Returns the key of a request under a rule.
fn key(limiter: &Limiter<RedisStore>, rule: &str, request: &Request<'_>) -> Key {
    let rule = limiter.rules().rules().iter().find(|known| known.name() == rule).unwrap();
    let scope =
        limiter.store().keyer().scope(rule.name(), rule.per().iter().map(AttributeChain::as_str));
    scope.key(rule.parts(request))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn denial_by_a_narrow_rule_never_charges_a_wider_rule() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let cluster = start();
    let store = connect(&cluster).await;
    let rules = RuleSet::parse("rules.yaml", RULES).unwrap();
    let limiter = Limiter::builder().rules(rules).store(Arc::clone(&store)).build();
    let (book, pen) = (request("ann", "book"), request("ann", "pen"));
    for _ in 0..2 {
        assert_eq!(limiter.check(&book).await.status(), DecisionStatus::Allow);
    }
    assert_eq!(store.counts().carried, 6, "each rule is charged in its own slot");
    let [all, user, item, other] =
        [("all", &book), ("user", &book), ("item", &book), ("item", &pen)]
            .map(|(rule, request)| key(&limiter, rule, request));
    // Corrupt the widest counter, so that a charge to it fails.
    let name = store.name_of(all);
    cluster.node(cluster.master_of(&name)).query::<()>(&["SET", &name, "not a counter"]);

    let denied = limiter.check(&book).await;
    assert_eq!((denied.status(), denied.undecided()), (DecisionStatus::Deny, [].as_slice()));
    assert_eq!(
        denied.rule_outcomes().iter().map(|rule_outcome| &*rule_outcome.rule).collect::<Vec<_>>(),
        ["item"]
    );
    assert_eq!(store.counts().carried, 7, "only the narrowest rule is charged");

    // The middle rule denies: the widest rule is not charged, and the narrowest is refunded.
    limiter.check_rule("user", &pen).await.unwrap();
    let denied = limiter.check(&pen).await;
    assert_eq!((denied.status(), denied.undecided()), (DecisionStatus::Deny, [].as_slice()));
    wait_until_spent(&store, &[(item, 2), (user, 3), (other, 0)]).await;

    // A request that passes both narrow rules fails at the widest, and is refunded.
    let bob = request("bob", "book");
    assert_eq!(limiter.check(&bob).await.status(), DecisionStatus::Unavailable);
    let charged = ["user", "item"].map(|rule| (key(&limiter, rule, &bob), 0));
    wait_until_spent(&store, &charged).await;
    assert_eq!(store.counts().lost, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "a server change gives no event to wait for")]
async fn check_dropped_between_two_slots_is_refunded() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let cluster = start();
    let store = connect(&cluster).await;
    let rules = RuleSet::parse("rules.yaml", RULES).unwrap();
    let limiter = Limiter::builder().rules(rules).store(Arc::clone(&store)).build();
    let master = |rule, request: &Request<'_>| {
        cluster.master_of(&store.name_of(key(&limiter, rule, request)))
    };
    // Find a user with counters on other masters than the counter of all users.
    let candidates = (0..).map(|number| request(&format!("user {number}"), "book"));
    let wide = master("all", &request("", ""));
    let mut users_on_other_masters = candidates
        .filter(|request| master("user", request) != wide && master("item", request) != wide);
    let request_to_check = users_on_other_masters.next().unwrap();
    let [user, item] = ["user", "item"].map(|rule| key(&limiter, rule, &request_to_check));

    cluster.node(wide).pause();
    let before = store.counts().carried;
    let checking = tokio::spawn({
        let (limiter, request_to_check) = (limiter.clone(), request_to_check.clone());
        async move { limiter.check(&request_to_check).await }
    });
    // The third charge is sent after the other two have replied.
    wait_until_sent(&store, before + 3).await;
    assert_eq!((spent(&store, item).await, spent(&store, user).await), (1, 1));
    checking.abort();
    assert!(checking.await.unwrap_err().is_cancelled());
    wait_until_spent(&store, &[(item, 0), (user, 0)]).await;
    cluster.node(wide).resume();
    assert_eq!(store.counts().lost, 0);
    // The charge that was in flight to the third slot when the check was dropped may remain.
    let all = key(&limiter, "all", &request_to_check);
    assert!(spent(&store, all).await <= 1);
    assert_eq!(limiter.check(&request_to_check).await.status(), DecisionStatus::Allow);
}
