//! Rules with `shards`: the limit of one client is divided, on one Redis, a cluster and independent servers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::rules::AttributeChain;
use tidegate::store::{Key, RuleIndex, Store};
use tidegate::{CheckRequest, CheckTarget, DecisionStatus, Limiter, Quota, Request, RuleSet};
use tidegate_testkit::{Cluster, Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};

const REQUIRED_TOOLS: [Tool; 1] = [Tool::Server(Flavour::Redis)];

/// A rule with parts of 34, 33 and 33.
const SHARDED_RULE: &str = "{name: api, per: [user], limit: 100 per day, algorithm: sliding_log, shards: 3, on_store_failure: deny}";

async fn start_node(config: RedisConfig, rules: &str) -> Limiter<RedisStore> {
    let config =
        config.with_timeout(WAIT_TIMEOUT).unwrap().with_connect_timeout(WAIT_TIMEOUT).unwrap();
    let rules = RuleSet::parse("rules.yaml", &format!("rules: [{rules}]")).unwrap();
    let store = RedisStore::connect(config).await.unwrap();
    Limiter::builder().rules(rules).store(Arc::new(store)).build()
}

async fn start_node_at(url: &str, rules: &str) -> Limiter<RedisStore> {
    start_node(url.parse().unwrap(), rules).await
}

fn request_by(user: &str) -> Request<'static> {
    Request::new().with("user", user.to_owned()).unwrap()
}

/// Returns the keys of the parts of a user's limit.
fn part_keys(node: &Limiter<RedisStore>, user: &str, of: u8) -> Vec<Key> {
    let rule = &node.rules().rules()[0];
    let scope =
        node.store().keyer().scope(rule.name(), rule.per().iter().map(AttributeChain::as_str));
    node.store().parts(scope.key(rule.parts(&request_by(user))), of)
}

async fn remaining(node: &Limiter<RedisStore>, user: &str) -> u64 {
    let request = request_by(user);
    let decision = node
        .peek_rules(CheckRequest { request: &request, target: CheckTarget::Rule(RuleIndex(0)) })
        .await;
    assert_ne!(decision.status(), DecisionStatus::Unavailable);
    decision.strictest_rule().unwrap().outcome.remaining
}

/// Waits until `wanted` tokens remain. Refunds may still be in flight.
#[allow(clippy::disallowed_methods, reason = "a server change gives no event to wait for")]
async fn wait_for_remaining(node: &Limiter<RedisStore>, user: &str, wanted: u64) {
    let wait = async {
        while remaining(node, user).await != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = tokio::time::timeout(WAIT_TIMEOUT, wait).await;
    assert!(in_time.is_ok(), "{} are left, not {wanted}", remaining(node, user).await);
}

/// Sends concurrent checks to several nodes, and returns the number of admitted ones.
async fn count_admitted_concurrently(
    nodes: &[Limiter<RedisStore>],
    user: &str,
    checks: usize,
) -> usize {
    let tasks = (0..checks).map(|number| {
        let (node, request) = (nodes[number % nodes.len()].clone(), request_by(user));
        tokio::spawn(async move {
            let decision = node.check(&request).await;
            assert_ne!(decision.status(), DecisionStatus::Unavailable);
            decision.is_allowed()
        })
    });
    let results = join_all(tasks.collect::<Vec<_>>()).await;
    results.into_iter().filter(|admitted| *admitted.as_ref().unwrap()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_checks_admit_exactly_the_sharded_limit() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let redis = Redis::start();
    for algorithm in ["fixed_window", "sliding_window", "sliding_log"] {
        let rule = SHARDED_RULE.replace("sliding_log", algorithm);
        let nodes =
            [start_node_at(&redis.url(), &rule).await, start_node_at(&redis.url(), &rule).await];
        let user = format!("racer by {algorithm}");
        assert_eq!(count_admitted_concurrently(&nodes, &user, 400).await, 100, "{algorithm}");
        let denied = nodes[0].check(&request_by(&user)).await;
        assert!(denied.retry_after().is_some(), "{algorithm}");
        assert_eq!(remaining(&nodes[0], &user).await, 0);
        // A cached denial needs no store call.
        let before = nodes[0].store().counts().carried;
        assert!(!nodes[0].check(&request_by(&user)).await.is_allowed());
        assert_eq!(nodes[0].store().counts().carried, before, "{algorithm}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn every_cluster_master_holds_a_part_and_exactly_the_limit_is_admitted() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let cluster = Cluster::builder().config("cluster-node-timeout", "60000").start();
    let nodes = [
        start_node_at(&cluster.url(), SHARDED_RULE).await,
        start_node_at(&cluster.url(), SHARDED_RULE).await,
    ];
    for number in 0..5 {
        let user = format!("user {number}");
        let masters_of_parts = part_keys(&nodes[0], &user, 3).into_iter();
        let masters_of_parts: Vec<usize> = masters_of_parts
            .map(|part| cluster.master_of(&nodes[0].store().name_of(part)))
            .collect();
        let distinct_masters: HashSet<usize> = masters_of_parts.iter().copied().collect();
        assert_eq!(distinct_masters.len(), 3, "{masters_of_parts:?}");
        assert_eq!(part_keys(&nodes[0], &user, 3), part_keys(&nodes[1], &user, 3));
        assert_eq!(count_admitted_concurrently(&nodes, &user, 300).await, 100);
        for (part, master) in part_keys(&nodes[0], &user, 3).into_iter().zip(masters_of_parts) {
            let name = nodes[0].store().name_of(part);
            assert!(
                cluster.node(master).query::<bool>(&["EXISTS", &name]),
                "the part was not used"
            );
        }
    }
    // A cost larger than any part is collected from several masters.
    let decision = nodes[0].check(&request_by("big").cost(90)).await;
    assert!(decision.is_allowed());
    assert!(!nodes[1].check(&request_by("big").cost(11)).await.is_allowed());
    assert_eq!(remaining(&nodes[0], "big").await, 10);
    assert!(nodes[1].check(&request_by("big").cost(10)).await.is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_are_distributed_evenly_over_independent_servers() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let servers = [Redis::start(), Redis::start(), Redis::start()];
    let config = |order: [usize; 3]| {
        let servers = order.map(|place| servers[place].url().parse().unwrap());
        RedisConfig::shards(servers).unwrap()
    };
    let rule = SHARDED_RULE.replace("shards: 3", "shards: 6");
    let nodes =
        [start_node(config([0, 1, 2]), &rule).await, start_node(config([2, 0, 1]), &rule).await];
    assert_eq!(count_admitted_concurrently(&nodes, "ann", 300).await, 100);
    assert_eq!(
        part_keys(&nodes[0], "ann", 6),
        part_keys(&nodes[1], "ann", 6),
        "the order of the servers does not matter"
    );
    for server in &servers {
        let exists = |part: &Key| server.query(&["EXISTS", &nodes[0].store().name_of(*part)]);
        assert_eq!(part_keys(&nodes[0], "ann", 6).iter().filter(|part| exists(part)).count(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cost_larger_than_a_part_is_charged_in_full_or_not_at_all() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let redis = Redis::start();
    let node = start_node_at(&redis.url(), SHARDED_RULE).await;
    let check = async |cost| node.check(&request_by("ann").cost(cost)).await;
    assert!(check(50).await.is_allowed());
    assert!(!check(51).await.is_allowed());
    assert_eq!(remaining(&node, "ann").await, 50, "the denied request consumed nothing");
    assert!(check(41).await.is_allowed());
    let denied = check(10).await;
    assert_eq!(denied.status(), DecisionStatus::Deny);
    let outcome = denied.strictest_rule().unwrap().outcome;
    assert_eq!((outcome.limit, outcome.remaining), (100, 9));
    assert!(outcome.retry_after().unwrap() <= Quota::per_day(1).window());
    assert!(check(9).await.is_allowed(), "all remaining tokens of all parts");
    assert_eq!(check(101).await.retry_after(), None, "more than the limit never fits");
    // Concurrent requests are charged their whole cost or nothing.
    let request = request_by("bob").cost(40);
    let decisions = join_all((0..10).map(|_| node.check(&request)));
    let admitted = decisions.await.iter().filter(|decision| decision.is_allowed()).count() as u64;
    assert!(admitted <= 2);
    wait_for_remaining(&node, "bob", 100 - 40 * admitted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refunded_or_reset_tokens_are_available_again() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let redis = Redis::start();
    let tight_rule = "{name: tight, per: [user, path], limit: 5 per day, algorithm: fixed_window}";
    let node = start_node_at(&redis.url(), &format!("{SHARDED_RULE}, {tight_rule}")).await;
    // Another rule denies most of these requests.
    let request = request_by("ann").with("path", "/a").unwrap();
    let mut passed = 0;
    for _ in 0..50 {
        passed += u64::from(node.check(&request).await.is_allowed());
    }
    assert_eq!(passed, 5);
    wait_for_remaining(&node, "ann", 95).await;
    // Refund by receipt, also of a cost collected from several parts.
    let free = request_by("ann").cost(60);
    let check_request = CheckRequest { request: &free, target: CheckTarget::Rule(RuleIndex(0)) };
    let rules = RuleSet::parse("rules.yaml", &format!("rules: [{SHARDED_RULE}]")).unwrap();
    let (decision, receipt) = node.with_rules(rules).check_with_receipt(&free).await;
    assert!(decision.is_allowed());
    assert_eq!(remaining(&node, "ann").await, 35);
    assert!(node.refund(receipt).await.unwrap() >= 2);
    assert_eq!(remaining(&node, "ann").await, 95);
    // Refund without a receipt.
    assert!(node.check(check_request).await.is_allowed());
    let latest = request_by("ann").cost(50);
    let refunded = node
        .refund_latest(CheckRequest { request: &latest, target: CheckTarget::Rule(RuleIndex(0)) })
        .await
        .unwrap();
    assert_eq!(refunded.strictest_rule().unwrap().outcome.remaining, 85);
    node.reset("api", &request_by("ann")).await.unwrap();
    assert_eq!(remaining(&node, "ann").await, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_server_makes_only_its_part_unavailable() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let servers = [Redis::start(), Redis::start(), Redis::start()];
    let config =
        RedisConfig::shards(servers.each_ref().map(|server| server.url().parse().unwrap()));
    let node = start_node(config.unwrap(), SHARDED_RULE).await;
    servers[1].kill();
    // Checks that find the server down may or may not have been charged.
    let mut undecided_count = 0;
    let (mut admitted, mut any_undecided) = (0, false);
    while !any_undecided || admitted < 60 {
        match node.check(&request_by("ann")).await.status() {
            DecisionStatus::Allow => admitted += 1,
            DecisionStatus::Deny => panic!("a denial needs all three parts"),
            DecisionStatus::Unavailable => {
                undecided_count += 1;
                any_undecided = true;
            }
        }
        assert!(undecided_count < 1_000, "{admitted} were admitted");
    }
    assert!(admitted <= 67, "found {admitted}, wanted at most two parts of three");
}
