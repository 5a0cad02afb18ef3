//! Rules with `accuracy: leased` on a real Redis: several nodes share one limit.

use std::sync::Arc;
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::{DecisionStatus, Limiter, Request, RuleSet, Span};
use tidegate_testkit::{Flavour, Redis, Tool, lacking};

/// A long timeout, so that a busy machine causes no store failure.
const STORE_TIMEOUT: Duration = Duration::from_secs(5);

struct Fleet {
    redis: Redis,
    nodes: Vec<Limiter<RedisStore>>,
}

impl Fleet {
    async fn start(size: usize, rules: &str) -> Self {
        let redis = Redis::start();
        let mut nodes = Vec::new();
        for _ in 0..size {
            nodes.push(start_node(&redis, rules).await);
        }
        for node in &nodes {
            node.store().announce().await;
        }
        Self { redis, nodes }
    }

    /// Returns the number of script calls of all nodes so far.
    fn calls(&self) -> u64 {
        let counts = self.nodes.iter().map(|node| node.store().counts());
        counts.map(|counts| counts.calls + counts.asks).sum()
    }
}

async fn start_node(redis: &Redis, rules: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = redis.url().parse().unwrap();
    let store = RedisStore::connect(
        config
            .with_timeout(STORE_TIMEOUT)
            .unwrap()
            .with_connect_timeout(crate::CONNECT_TIMEOUT)
            .unwrap(),
    )
    .await
    .unwrap();
    let rules = RuleSet::parse("rules.yaml", &format!("rules: [{rules}]")).unwrap();
    Limiter::builder().rules(rules).store(Arc::new(store)).build()
}

fn request_by(user: &str) -> Request<'_> {
    Request::new().with("user", user).unwrap()
}

/// Sends checks until the limit is exhausted. Returns the numbers of admitted and of sent checks.
async fn exhaust(node: &Limiter<RedisStore>, user: &str) -> (u64, u64) {
    let (mut admitted, mut checked) = (0, 0);
    loop {
        let decision = node.check(&request_by(user)).await;
        checked += 1;
        match decision.status() {
            DecisionStatus::Allow => admitted += 1,
            // A short wait means that the next lease is being fetched. A long wait means that the window is exhausted.
            DecisionStatus::Deny if decision.retry_after().unwrap() > Span::MINUTE => {
                return (admitted, checked);
            }
            DecisionStatus::Deny => tokio::task::yield_now().await,
            DecisionStatus::Unavailable => panic!("undecided"),
        }
    }
}

const LEASED_RULE: &str =
    "{name: api, per: [user], limit: 20000 per 10 days, algorithm: fixed_window, accuracy: leased}";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_with_leases_admit_exactly_the_limit_with_few_store_calls() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let fleet = Arc::new(Fleet::start(3, LEASED_RULE).await);
    let before = fleet.calls();
    let tasks = (0..3).map(|node_index| {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move { exhaust(&fleet.nodes[node_index], "alice").await })
    });
    let (mut admitted, mut checked) = (0, 0);
    for node in tasks.collect::<Vec<_>>() {
        let (passed, sent) = node.await.unwrap();
        admitted += passed;
        checked += sent;
    }
    // Other nodes may still hold leases when one node is denied. Their unused tokens are not admitted.
    assert!((19_800..=20_000).contains(&admitted), "{admitted}");
    let calls = fleet.calls() - before;
    assert!(calls * 50 < checked, "{calls} calls for {checked} checks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn tokens_released_by_a_node_are_available_to_others_at_once() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let fleet = Fleet::start(2, LEASED_RULE).await;
    let [leaving_node, other] = fleet.nodes.as_slice() else { panic!("two") };
    let mut admitted = 0;
    for _ in 0..200 {
        admitted += u64::from(leaving_node.check(&request_by("alice")).await.is_allowed());
    }
    assert_eq!(admitted, 200);
    leaving_node.release_all().await;
    let lease_keys: Vec<String> = fleet.redis.query(&["KEYS", "*:h"]);
    assert_eq!(lease_keys, Vec::<String>::new());
    let (rest, _) = exhaust(other, "alice").await;
    assert_eq!(admitted + rest, 20_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn client_below_the_lease_rate_costs_one_store_call_per_check() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let fleet = Fleet::start(1, LEASED_RULE).await;
    let before = fleet.calls();
    for user in 0..50 {
        assert!(fleet.nodes[0].check(&request_by(&user.to_string())).await.is_allowed());
    }
    assert_eq!(fleet.calls() - before, 50);
    let lease_keys: Vec<String> = fleet.redis.query(&["KEYS", "*:h"]);
    assert_eq!(lease_keys, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn request_denied_by_an_exact_rule_consumes_no_leased_tokens() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let tight = "{name: tight, per: [user, path], limit: 100 per 10 days, algorithm: fixed_window}";
    let fleet = Fleet::start(1, &format!("{LEASED_RULE}, {tight}")).await;
    let node = &fleet.nodes[0];
    let request_to = |path: &'static str| request_by("alice").with("path", path).unwrap();
    let mut admitted = 0;
    for _ in 0..1_000 {
        admitted += u64::from(node.check(&request_to("/a")).await.is_allowed());
    }
    assert_eq!(admitted, 100);
    // A lease that is reported while a request is being decided counts its tokens as spent: at most one for
    // each report, since one request is in flight here. One more may not be refunded yet: a check that went
    // to the store is refunded in the background.
    let max_lost_tokens = || node.store().counts().asks + 1;
    // A peek returns the remaining tokens of the node and of the store, and consumes none.
    let peeked = node.peek(&request_to("/b")).await;
    let left =
        peeked.rule_outcomes().iter().find(|rule_outcome| &*rule_outcome.rule == "api").unwrap();
    let (left, lost) = (left.outcome.remaining, max_lost_tokens());
    assert!((19_900 - lost..=19_900).contains(&left), "{left} left after {lost} reports");
    assert!(lost < 100, "{lost} reports for a lease of two seconds");
    node.release_all().await;
    let mut rest = 0;
    for path in 0..300 {
        let path: &'static str = Box::leak(format!("/{path}").into_boxed_str());
        for _ in 0..10 {
            rest += 10 * u64::from(node.check(&request_to(path).cost(10)).await.is_allowed());
        }
    }
    // Denials during a lease request consumed nothing either: the remaining tokens are available.
    node.release_all().await;
    let peeked = node.peek(&request_to("/fresh")).await;
    let left =
        peeked.rule_outcomes().iter().find(|rule_outcome| &*rule_outcome.rule == "api").unwrap();
    let (sum, lost) = (100 + rest + left.outcome.remaining, 10 * max_lost_tokens());
    assert!((20_000 - lost..=20_000).contains(&sum), "{sum} after {lost} that may be lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leased_token_bucket_keeps_its_burst_and_rate() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let bucket = "{name: api, per: [user], limit: 1000 per second, burst: 500, accuracy: leased}";
    let fleet = Arc::new(Fleet::start(3, bucket).await);
    let started = fleet.redis.time_micros();
    let tasks = (0..3).map(|node_index| {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move {
            let mut admitted = 0_u64;
            while fleet.redis.time_micros() < started + 2_000_000 {
                for _ in 0..200 {
                    admitted += u64::from(
                        fleet.nodes[node_index].check(&request_by("alice")).await.is_allowed(),
                    );
                }
            }
            admitted
        })
    });
    let mut admitted = 0;
    for node in tasks.collect::<Vec<_>>() {
        admitted += node.await.unwrap();
    }
    let elapsed = fleet.redis.time_micros() - started;
    // The upper bound uses the server clock. How much of it is used is measured by a benchmark, not here.
    assert!(admitted <= 500 + elapsed / 1_000 + 1, "{admitted} in {elapsed} us");
    assert!(admitted >= 500, "{admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leased_rule_follows_on_store_failure_without_its_store() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let rule = |name, answer| {
        format!(
            "{{name: {name}, match: {{path: /{name}}}, per: [user], limit: 100 per 10 days, accuracy: leased, on_store_failure: {answer}}}"
        )
    };
    let rules = [rule("open", "allow"), rule("closed", "deny")].join(", ");
    let fleet = Fleet::start(1, &rules).await;
    let node = &fleet.nodes[0];
    fleet.redis.kill();
    let request_to = |path: &'static str| request_by("alice").with("path", path).unwrap();
    assert_eq!(node.check(&request_to("/open")).await.status(), DecisionStatus::Allow);
    assert_eq!(node.check(&request_to("/closed")).await.status(), DecisionStatus::Unavailable);
}

const HOT_RULE: &str =
    "{name: api, per: [user], limit: 20000 per 10 days, algorithm: fixed_window, hot: leased}";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exact_rule_with_hot_leases_leases_only_for_hot_clients() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let fleet = Fleet::start(2, HOT_RULE).await;
    let before = fleet.calls();
    // Twelve checks per client would cause leases under `accuracy: leased`, but do not make a client hot.
    for check in 0..12 {
        for user in 0..20 {
            let decision = fleet.nodes[check % 2].check(&request_by(&user.to_string())).await;
            assert_eq!(
                decision.strictest_rule().unwrap().outcome.remaining,
                20_000 - 1 - check as u64
            );
        }
    }
    assert_eq!(fleet.calls() - before, 240);
    let lease_keys: Vec<String> = fleet.redis.query(&["KEYS", "*:h"]);
    assert_eq!(lease_keys, Vec::<String>::new());
    let before = fleet.calls();
    let (admitted_by_first, checked) = exhaust(&fleet.nodes[0], "alice").await;
    let calls = fleet.calls() - before;
    assert!(calls * 20 < checked, "{calls} calls for {checked} checks");
    // Released tokens that were prefetched are available to the other node.
    fleet.nodes[0].release_all().await;
    let (rest, _) = exhaust(&fleet.nodes[1], "alice").await;
    assert_eq!(admitted_by_first + rest, 20_000);
}
