//! Requests whose rules live in different slots of a cluster: no interleaving admits too many, and
//! what was denied leaves no charge.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::rule::AttributeChain;
use tidegate::{
    Algorithm, Charge, ChargeMode, ChargeResult, DecisionStatus, Key, Limit, Limiter, Quota,
    RedisConfig, RedisStore, Request, RuleSet, State, Store,
};
use tidegate_testkit::{Cluster, Flavour, Tool, WAIT_TIMEOUT, lacking};
use tokio::time::{Instant, sleep};

const NEEDED: [Tool; 1] = [Tool::Server(Flavour::Redis)];

fn start() -> Cluster {
    // A master that is paused or slow for a moment stays a master.
    Cluster::builder().config("cluster-node-timeout", "60000").start()
}

async fn join(cluster: &Cluster) -> Arc<RedisStore> {
    let config: RedisConfig = cluster.url().parse().unwrap();
    let config = config.with_timeout(WAIT_TIMEOUT).unwrap();
    let config = config.with_connect_timeout(WAIT_TIMEOUT).unwrap();
    let config = config.with_denial_memory(Duration::ZERO).unwrap();
    Arc::new(RedisStore::connect(config).await.unwrap())
}

/// What a key was charged, in algorithms that count.
async fn spent(store: &RedisStore, key: Key) -> u64 {
    match store.state(key).await.unwrap() {
        None => 0,
        Some((_, State::Fixed(count))) => count.spent,
        Some((_, State::Sliding(counts))) => counts.current,
        Some((_, State::Log(log))) => log.entries().map(|(_, cost)| cost).sum(),
        Some((_, state)) => panic!("{state:?} does not count"),
    }
}

/// Waits until each key was charged so much: give-backs may still be on their way.
#[allow(clippy::disallowed_methods, reason = "what goes on in a server gives no event to wait for")]
async fn wait_until_spent(store: &RedisStore, wanted: &[(Key, u64)]) {
    let patience = Instant::now() + WAIT_TIMEOUT;
    for (key, wanted) in wanted {
        loop {
            let found = spent(store, *key).await;
            if found == *wanted {
                break;
            }
            assert!(Instant::now() < patience, "{found} stay charged, not {wanted}");
            sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Waits until so many parts of requests were handed to a server.
#[allow(clippy::disallowed_methods, reason = "what goes on in a store gives no event to wait for")]
async fn wait_until_carried(store: &RedisStore, wanted: u64) {
    let patience = Instant::now() + WAIT_TIMEOUT;
    while store.counts().carried < wanted {
        assert!(Instant::now() < patience, "{} were handed over", store.counts().carried);
        sleep(Duration::from_millis(2)).await;
    }
}

/// Keys of one round, each on a master of its own.
fn keys(cluster: &Cluster, store: &RedisStore, round: u128) -> Vec<Key> {
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

/// So long a window that no test meets its end.
fn limit(algorithm: Algorithm, amount: u64) -> Arc<Limit> {
    Arc::new(Limit::new(algorithm, Quota::per(amount, Quota::MAX_WINDOW)).unwrap())
}

const COUNTING: [Algorithm; 3] =
    [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::SlidingLog];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_that_race_through_slots_in_any_order_never_pass_a_limit() {
    if lacking(&NEEDED) {
        return;
    }
    let cluster = start();
    let nodes = [join(&cluster).await, join(&cluster).await];
    for round in 0..30 {
        let keys = keys(&cluster, &nodes[0], round + 1);
        let algorithm = COUNTING[usize::try_from(round % 3).unwrap()];
        let limits = [5, 7, 6].map(|amount| limit(algorithm, amount));
        let requests = (0..60).map(|number| {
            let (keys, limits, store) = (&keys, &limits, &nodes[number % 2]);
            async move {
                // Two or three of the keys, beginning with any.
                let places: Vec<usize> = (0..2 + number % 2).map(|at| (number + at) % 3).collect();
                let charge = |place: &usize| {
                    let (key, limit) = (keys[*place], &limits[*place]);
                    Charge { key, overflow_key: key, limit, cost: 1, independent: false }
                };
                let charges: Vec<Charge<'_>> = places.iter().map(charge).collect();
                let answers = store.charge(&charges, ChargeMode::Spend).await;
                assert!(!answers.iter().any(|answer| matches!(answer, ChargeResult::Failed(_))));
                let fits =
                    |answer: &ChargeResult| answer.outcome().is_some_and(|told| told.is_allowed());
                answers.iter().all(fits).then_some(places)
            }
        });
        let admitted: Vec<usize> =
            join_all(requests).await.into_iter().flatten().flatten().collect();
        let charged = |place: usize| {
            (keys[place], admitted.iter().filter(|admitted| **admitted == place).count() as u64)
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
async fn two_that_race_for_the_last_may_both_be_denied_and_leave_the_budget_whole() {
    if lacking(&NEEDED) {
        return;
    }
    let cluster = start();
    let nodes = [join(&cluster).await, join(&cluster).await];
    let (mut one, mut neither) = (0u64, 0u64);
    for round in 0..60 {
        let keys = keys(&cluster, &nodes[0], round + 1);
        let limit = limit(Algorithm::FixedWindow, 1);
        let ask = |store: &Arc<RedisStore>, order: [usize; 2]| {
            let (store, limit) = (Arc::clone(store), Arc::clone(&limit));
            let keys = order.map(|place| keys[place]);
            tokio::spawn(async move {
                let charge = |key| Charge {
                    key,
                    overflow_key: key,
                    limit: &limit,
                    cost: 1,
                    independent: false,
                };
                let answers = store.charge(&keys.map(charge), ChargeMode::Spend).await;
                answers.iter().all(|answer| answer.outcome().is_some_and(|told| told.is_allowed()))
            })
        };
        // Each begins where the other ends.
        let both = join_all([ask(&nodes[0], [0, 1]), ask(&nodes[1], [1, 0])]).await;
        let admitted = both.into_iter().filter(|passed| *passed.as_ref().unwrap()).count() as u64;
        assert!(admitted <= 1, "both were admitted");
        wait_until_spent(&nodes[0], &[(keys[0], admitted), (keys[1], admitted)]).await;
        (one, neither) = (one + admitted, neither + 1 - admitted);
        // Whole again: whoever comes now and fits is admitted.
        assert_eq!(ask(&nodes[0], [0, 1]).await.unwrap(), admitted == 0);
    }
    println!("one was admitted in {one} rounds, neither in {neither}");
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

/// The key of a request under a rule.
fn key(limiter: &Limiter<RedisStore>, rule: &str, request: &Request<'_>) -> Key {
    let rule = limiter.rules().rules().iter().find(|known| known.name() == rule).unwrap();
    let scope =
        limiter.store().keyer().scope(rule.name(), rule.per().iter().map(AttributeChain::as_str));
    scope.key(rule.parts(request))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_narrow_rule_that_denies_never_touches_a_wider_one() {
    if lacking(&NEEDED) {
        return;
    }
    let cluster = start();
    let store = join(&cluster).await;
    let rules = RuleSet::parse("rules.yaml", RULES).unwrap();
    let limiter = Limiter::builder().rules(rules).store(Arc::clone(&store)).build();
    let (book, pen) = (request("ann", "book"), request("ann", "pen"));
    for _ in 0..2 {
        assert_eq!(limiter.check(&book).await.status(), DecisionStatus::Allow);
    }
    assert_eq!(store.counts().carried, 6, "each rule is asked where it lives");
    let [all, user, item, other] =
        [("all", &book), ("user", &book), ("item", &book), ("item", &pen)]
            .map(|(rule, request)| key(&limiter, rule, request));
    // Whoever touches the widest counter now trips over it.
    let name = store.name_of(all);
    cluster.node(cluster.master_of(&name)).query::<()>(&["SET", &name, "none of ours"]);

    let denied = limiter.check(&book).await;
    assert_eq!((denied.status(), denied.undecided()), (DecisionStatus::Deny, [].as_slice()));
    assert_eq!(
        denied.rule_outcomes().iter().map(|policy| &*policy.rule).collect::<Vec<_>>(),
        ["item"]
    );
    assert_eq!(store.counts().carried, 7, "only the narrowest rule is asked");

    // The rule in the middle denies: the widest is not asked, the narrowest is given back.
    limiter.check_rule("user", &pen).await.unwrap();
    let denied = limiter.check(&pen).await;
    assert_eq!((denied.status(), denied.undecided()), (DecisionStatus::Deny, [].as_slice()));
    wait_until_spent(&store, &[(item, 2), (user, 3), (other, 0)]).await;

    // One that passes both does trip, and is charged nothing either.
    let bob = request("bob", "book");
    assert_eq!(limiter.check(&bob).await.status(), DecisionStatus::Unavailable);
    let charged = ["user", "item"].map(|rule| (key(&limiter, rule, &bob), 0));
    wait_until_spent(&store, &charged).await;
    assert_eq!(store.counts().lost, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[allow(clippy::disallowed_methods, reason = "what goes on in a server gives no event to wait for")]
async fn a_check_dropped_between_two_slots_gives_back() {
    if lacking(&NEEDED) {
        return;
    }
    let cluster = start();
    let store = join(&cluster).await;
    let rules = RuleSet::parse("rules.yaml", RULES).unwrap();
    let limiter = Limiter::builder().rules(rules).store(Arc::clone(&store)).build();
    let master = |rule, request: &Request<'_>| {
        cluster.master_of(&store.name_of(key(&limiter, rule, request)))
    };
    // A user whose counters are not where everybody's is.
    let candidates = (0..).map(|number| request(&format!("user {number}"), "book"));
    let wide = master("all", &request("", ""));
    let mut apart = candidates
        .filter(|request| master("user", request) != wide && master("item", request) != wide);
    let asked = apart.next().unwrap();
    let [user, item] = ["user", "item"].map(|rule| key(&limiter, rule, &asked));

    cluster.node(wide).pause();
    let before = store.counts().carried;
    let checking = tokio::spawn({
        let (limiter, asked) = (limiter.clone(), asked.clone());
        async move { limiter.check(&asked).await }
    });
    // The third is on its way once the other two have answered.
    wait_until_carried(&store, before + 3).await;
    assert_eq!((spent(&store, item).await, spent(&store, user).await), (1, 1));
    checking.abort();
    assert!(checking.await.unwrap_err().is_cancelled());
    wait_until_spent(&store, &[(item, 0), (user, 0)]).await;
    cluster.node(wide).resume();
    assert_eq!(store.counts().lost, 0);
    // What was under way to the third slot when nobody waited any more may stand, once.
    let all = key(&limiter, "all", &asked);
    assert!(spent(&store, all).await <= 1);
    assert_eq!(limiter.check(&asked).await.status(), DecisionStatus::Allow);
}
