//! One client's limit in parts, on a real Redis, a cluster and independent servers.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tidegate::rule::AttributeChain;
use tidegate::{
    CheckRequest, CheckTarget, DecisionStatus, Key, Limiter, Quota, RedisConfig, RedisStore,
    Request, RuleIndex, RuleSet, Store,
};
use tidegate_testkit::{Cluster, Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};

const NEEDED: [Tool; 1] = [Tool::Server(Flavour::Redis)];

/// In parts of 34, 33 and 33.
const RULE: &str = "{name: api, per: [user], limit: 100 per day, algorithm: sliding_log, shards: 3, on_store_failure: deny}";

async fn node(config: RedisConfig, rules: &str) -> Limiter<RedisStore> {
    let config =
        config.with_timeout(WAIT_TIMEOUT).unwrap().with_connect_timeout(WAIT_TIMEOUT).unwrap();
    let rules = RuleSet::parse("rules.yaml", &format!("rules: [{rules}]")).unwrap();
    let store = RedisStore::connect(config).await.unwrap();
    Limiter::builder().rules(rules).store(Arc::new(store)).build()
}

async fn on(url: &str, rules: &str) -> Limiter<RedisStore> {
    node(url.parse().unwrap(), rules).await
}

fn by(user: &str) -> Request<'static> {
    Request::new().with("user", user.to_owned()).unwrap()
}

/// Where the parts of a user are.
fn parts(node: &Limiter<RedisStore>, user: &str, of: u8) -> Vec<Key> {
    let rule = &node.rules().rules()[0];
    let scope =
        node.store().keyer().scope(rule.name(), rule.per().iter().map(AttributeChain::as_str));
    node.store().parts(scope.key(rule.parts(&by(user))), of)
}

async fn left(node: &Limiter<RedisStore>, user: &str) -> u64 {
    let request = by(user);
    let decision = node
        .peek_rules(CheckRequest { request: &request, target: CheckTarget::Rule(RuleIndex(0)) })
        .await;
    assert_ne!(decision.status(), DecisionStatus::Unavailable);
    decision.strictest_rule().unwrap().outcome.remaining
}

/// Returns once so much is left: what is given back may still be on its way.
#[allow(clippy::disallowed_methods, reason = "what goes on in a server gives no event to wait for")]
async fn until_left(node: &Limiter<RedisStore>, user: &str, wanted: u64) {
    let wait = async {
        while left(node, user).await != wanted {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let came = tokio::time::timeout(WAIT_TIMEOUT, wait).await;
    assert!(came.is_ok(), "{} are left, not {wanted}", left(node, user).await);
}

/// How many of many checks that race on several nodes are admitted.
async fn race(nodes: &[Limiter<RedisStore>], user: &str, checks: usize) -> usize {
    let tasks = (0..checks).map(|number| {
        let (node, request) = (nodes[number % nodes.len()].clone(), by(user));
        tokio::spawn(async move {
            let decision = node.check(&request).await;
            assert_ne!(decision.status(), DecisionStatus::Unavailable);
            decision.is_allowed()
        })
    });
    let told = join_all(tasks.collect::<Vec<_>>()).await;
    told.into_iter().filter(|admitted| *admitted.as_ref().unwrap()).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn whoever_races_exactly_the_limit_is_admitted() {
    if lacking(&NEEDED) {
        return;
    }
    let redis = Redis::start();
    for algorithm in ["fixed_window", "sliding_window", "sliding_log"] {
        let rule = RULE.replace("sliding_log", algorithm);
        let nodes = [on(&redis.url(), &rule).await, on(&redis.url(), &rule).await];
        let user = format!("racer by {algorithm}");
        assert_eq!(race(&nodes, &user, 400).await, 100, "{algorithm}");
        let denied = nodes[0].check(&by(&user)).await;
        assert!(denied.retry_after().is_some(), "{algorithm}");
        assert_eq!(left(&nodes[0], &user).await, 0);
        // A denial that is remembered asks nobody.
        let before = nodes[0].store().counts().carried;
        assert!(!nodes[0].check(&by(&user)).await.is_allowed());
        assert_eq!(nodes[0].store().counts().carried, before, "{algorithm}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn in_a_cluster_every_master_keeps_a_part_and_exactly_the_limit_is_admitted() {
    if lacking(&NEEDED) {
        return;
    }
    let cluster = Cluster::builder().config("cluster-node-timeout", "60000").start();
    let nodes = [on(&cluster.url(), RULE).await, on(&cluster.url(), RULE).await];
    for number in 0..5 {
        let user = format!("user {number}");
        let homes = parts(&nodes[0], &user, 3).into_iter();
        let homes: Vec<usize> =
            homes.map(|part| cluster.master_of(&nodes[0].store().name_of(part))).collect();
        let masters: HashSet<usize> = homes.iter().copied().collect();
        assert_eq!(masters.len(), 3, "{homes:?}");
        assert_eq!(parts(&nodes[0], &user, 3), parts(&nodes[1], &user, 3));
        assert_eq!(race(&nodes, &user, 300).await, 100);
        for (part, home) in parts(&nodes[0], &user, 3).into_iter().zip(homes) {
            let name = nodes[0].store().name_of(part);
            assert!(cluster.node(home).query::<bool>(&["EXISTS", &name]), "it was not used");
        }
    }
    // A cost that no part has room for is gathered from several masters.
    let asked = nodes[0].check(&by("big").cost(90)).await;
    assert!(asked.is_allowed());
    assert!(!nodes[1].check(&by("big").cost(11)).await.is_allowed());
    assert_eq!(left(&nodes[0], "big").await, 10);
    assert!(nodes[1].check(&by("big").cost(10)).await.is_allowed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn independent_servers_take_turns() {
    if lacking(&NEEDED) {
        return;
    }
    let servers = [Redis::start(), Redis::start(), Redis::start()];
    let config = |order: [usize; 3]| {
        let servers = order.map(|place| servers[place].url().parse().unwrap());
        RedisConfig::shards(servers).unwrap()
    };
    let rule = RULE.replace("shards: 3", "shards: 6");
    let nodes = [node(config([0, 1, 2]), &rule).await, node(config([2, 0, 1]), &rule).await];
    assert_eq!(race(&nodes, "ann", 300).await, 100);
    assert_eq!(parts(&nodes[0], "ann", 6), parts(&nodes[1], "ann", 6), "in whatever order");
    for server in &servers {
        let is_there = |part: &Key| server.query(&["EXISTS", &nodes[0].store().name_of(*part)]);
        assert_eq!(parts(&nodes[0], "ann", 6).iter().filter(|part| is_there(part)).count(), 2);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn costs_larger_than_a_part_are_gathered_all_of_them_or_nothing() {
    if lacking(&NEEDED) {
        return;
    }
    let redis = Redis::start();
    let node = on(&redis.url(), RULE).await;
    let ask = async |cost| node.check(&by("ann").cost(cost)).await;
    assert!(ask(50).await.is_allowed());
    assert!(!ask(51).await.is_allowed());
    assert_eq!(left(&node, "ann").await, 50, "what was refused took nothing");
    assert!(ask(41).await.is_allowed());
    let denied = ask(10).await;
    assert_eq!(denied.status(), DecisionStatus::Deny);
    let told = denied.strictest_rule().unwrap().outcome;
    assert_eq!((told.limit, told.remaining), (100, 9));
    assert!(told.retry_after().unwrap() <= Quota::per_day(1).window());
    assert!(ask(9).await.is_allowed(), "all that is left, wherever it is");
    assert_eq!(ask(101).await.retry_after(), None, "more than the limit never fits");
    // Nobody gets half of what it asked for, however many ask.
    let request = by("bob").cost(40);
    let asked = join_all((0..10).map(|_| node.check(&request)));
    let admitted = asked.await.iter().filter(|decision| decision.is_allowed()).count() as u64;
    assert!(admitted <= 2);
    until_left(&node, "bob", 100 - 40 * admitted).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_undone_given_back_or_forgotten_can_be_spent_again() {
    if lacking(&NEEDED) {
        return;
    }
    let redis = Redis::start();
    let tight = "{name: tight, per: [user, path], limit: 5 per day, algorithm: fixed_window}";
    let node = on(&redis.url(), &format!("{RULE}, {tight}")).await;
    // Denied by another rule, ten times over.
    let request = by("ann").with("path", "/a").unwrap();
    let mut passed = 0;
    for _ in 0..50 {
        passed += u64::from(node.check(&request).await.is_allowed());
    }
    assert_eq!(passed, 5);
    until_left(&node, "ann", 95).await;
    // By its receipt, also when it was gathered.
    let free = by("ann").cost(60);
    let claim = CheckRequest { request: &free, target: CheckTarget::Rule(RuleIndex(0)) };
    let rules = RuleSet::parse("rules.yaml", &format!("rules: [{RULE}]")).unwrap();
    let (decision, receipt) = node.with_rules(rules).check_with_receipt(&free).await;
    assert!(decision.is_allowed());
    assert_eq!(left(&node, "ann").await, 35);
    assert!(node.refund(receipt).await.unwrap() >= 2);
    assert_eq!(left(&node, "ann").await, 95);
    // Without one.
    assert!(node.check(claim).await.is_allowed());
    let some = by("ann").cost(50);
    let back = node
        .refund_latest(CheckRequest { request: &some, target: CheckTarget::Rule(RuleIndex(0)) })
        .await
        .unwrap();
    assert_eq!(back.strictest_rule().unwrap().outcome.remaining, 85);
    node.forget("api", &by("ann")).await.unwrap();
    assert_eq!(left(&node, "ann").await, 100);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_away_costs_its_part_and_no_more() {
    if lacking(&NEEDED) {
        return;
    }
    let servers = [Redis::start(), Redis::start(), Redis::start()];
    let config =
        RedisConfig::shards(servers.each_ref().map(|server| server.url().parse().unwrap()));
    let node = node(config.unwrap(), RULE).await;
    servers[1].kill();
    // The first that finds it gone can't know whether it was charged.
    let mut lost = 0;
    let (mut admitted, mut undecided) = (0, false);
    while !undecided || admitted < 60 {
        match node.check(&by("ann")).await.status() {
            DecisionStatus::Allow => admitted += 1,
            DecisionStatus::Deny => panic!("nobody can tell whether there is something left"),
            DecisionStatus::Unavailable => {
                lost += 1;
                undecided = true;
            }
        }
        assert!(lost < 1_000, "{admitted} were admitted");
    }
    assert!(admitted <= 67, "two parts of three: {admitted}");
}
