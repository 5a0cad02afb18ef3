//! Rules with `accuracy: synced` on a real Redis: nodes decide locally, within the bound of `max_ahead`.

use std::sync::Arc;
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::{CheckRequest, CheckTarget, DecisionStatus, Limiter, Request, RuleSet, Span};
use tidegate_testkit::{FaultProxy, Flavour, Redis, Sentinel, Tool, WAIT_TIMEOUT, lacking};
use tokio::time::timeout;

const REQUIRED_TOOLS: [Tool; 1] = [Tool::Server(Flavour::Redis)];
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
            nodes.push(start_node(&redis.url(), rules).await);
        }
        Self { redis, nodes }
    }

    /// Syncs every node twice, so that each has reported its usage and received that of the others.
    async fn sync_all(&self) {
        for _ in 0..2 {
            for node in &self.nodes {
                node.release_all().await;
            }
        }
    }

    /// Returns the number of sync and lease calls of all nodes so far.
    fn calls(&self) -> u64 {
        self.nodes.iter().map(|node| node.store().counts().asks).sum()
    }
}

async fn start_node(url: &str, rules: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().unwrap();
    let store = RedisStore::connect(
        config
            .with_timeout(STORE_TIMEOUT)
            .unwrap()
            .with_connect_timeout(crate::CONNECT_TIMEOUT)
            .unwrap(),
    )
    .await
    .unwrap();
    Limiter::builder().rules(parse_rules(rules)).store(Arc::new(store)).build()
}

fn parse_rules(rules: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", &format!("rules: [{rules}]")).unwrap()
}

/// Returns a rule with a window that outlasts every test.
fn synced_rule(amount: u64, rest: &str) -> String {
    format!(
        "{{name: api, per: [user], limit: {amount} per 10 days, algorithm: fixed_window, accuracy: synced, {rest}}}"
    )
}

fn request_by(user: &str) -> Request<'_> {
    Request::new().with("user", user).unwrap()
}

/// Sends checks to a node, and returns the number of admitted ones.
async fn count_admitted(node: &Limiter<RedisStore>, checks: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..checks {
        admitted += u64::from(node.check(&request_by("alice")).await.is_allowed());
    }
    admitted
}

async fn remaining(node: &Limiter<RedisStore>) -> u64 {
    let peeked = node.peek(&request_by("alice")).await;
    let api =
        peeked.rule_outcomes().iter().find(|rule_outcome| &*rule_outcome.rule == "api").unwrap();
    api.outcome.remaining
}

/// Runs several tasks on each node that send checks until denied. Returns the number of admitted checks.
async fn check_until_denied(fleet: &Arc<Fleet>, tasks: usize) -> u64 {
    let tasks = (0..fleet.nodes.len() * tasks).map(|task| {
        let fleet = Arc::clone(fleet);
        tokio::spawn(async move {
            let node = &fleet.nodes[task % fleet.nodes.len()];
            let mut admitted = 0;
            loop {
                let decision = node.check(&request_by("alice")).await;
                match decision.status() {
                    DecisionStatus::Allow => admitted += 1,
                    DecisionStatus::Deny => return admitted,
                    DecisionStatus::Unavailable => panic!("undecided"),
                }
            }
        })
    });
    let mut admitted = 0;
    for task in tasks.collect::<Vec<_>>() {
        admitted += task.await.unwrap();
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_nodes_exceed_the_limit_by_at_most_max_ahead_each() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let rules = synced_rule(5_000, "sync: 20ms, max_ahead: 100");
    let fleet = Arc::new(Fleet::start(3, &rules).await);
    let admitted = check_until_denied(&fleet, 8).await;
    assert!((5_000..=5_300).contains(&admitted), "{admitted}");
    fleet.sync_all().await;
    for node in &fleet.nodes {
        assert_eq!(count_admitted(node, 3).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn max_ahead_of_one_exceeds_the_limit_by_at_most_one_per_node() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Arc::new(Fleet::start(3, &synced_rule(300, "sync: 20ms, max_ahead: 1")).await);
    let admitted = check_until_denied(&fleet, 4).await;
    assert!((300..=303).contains(&admitted), "{admitted}");
}

/// Three nodes with a limit of 60 each admit 36 requests between two syncs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unbounded_max_ahead_admits_108_of_60_until_the_next_sync() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Fleet::start(3, &synced_rule(60, "sync: 60s, max_ahead: unbounded")).await;
    for node in &fleet.nodes {
        assert_eq!(count_admitted(node, 1).await, 1);
    }
    let mut admitted = 3;
    for node in &fleet.nodes {
        admitted += count_admitted(node, 35).await;
    }
    assert_eq!(admitted, 108);
    fleet.sync_all().await;
    for node in &fleet.nodes {
        assert_eq!((count_admitted(node, 10).await, remaining(node).await), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn node_reports_its_usage_in_the_background_and_others_receive_it() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Fleet::start(2, &synced_rule(100, "sync: 10ms, max_ahead: unbounded")).await;
    let [one, other] = fleet.nodes.as_slice() else { panic!("two") };
    assert_eq!(count_admitted(one, 60).await, 60);
    let sees_usage = async { while remaining(other).await > 40 {} };
    timeout(WAIT_TIMEOUT, sees_usage).await.unwrap();
    assert_eq!(count_admitted(other, 60).await, 40);
    // The first node receives the usage of the other at its next sync.
    let sees_usage = async { while one.check(&request_by("alice")).await.is_allowed() {} };
    timeout(WAIT_TIMEOUT, sees_usage).await.unwrap();
    assert_eq!(remaining(one).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn synced_token_bucket_exceeds_burst_and_rate_by_at_most_max_ahead_per_node() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let bucket = "{name: api, per: [user], limit: 1000 per second, burst: 500, accuracy: synced, sync: 50ms, max_ahead: 50}";
    let fleet = Arc::new(Fleet::start(3, bucket).await);
    let started = fleet.redis.time_micros();
    let tasks = (0..3).map(|node_index| {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move {
            let mut admitted = 0_u64;
            while fleet.redis.time_micros() < started + 1_500_000 {
                admitted += count_admitted(&fleet.nodes[node_index], 200).await;
            }
            admitted
        })
    });
    let mut admitted = 0;
    for node in tasks.collect::<Vec<_>>() {
        admitted += node.await.unwrap();
    }
    let elapsed_micros = fleet.redis.time_micros() - started;
    assert!(
        admitted <= 500 + elapsed_micros / 1_000 + 1 + 3 * 50,
        "{admitted} in {elapsed_micros} us"
    );
    assert!(admitted >= 500, "{admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn usage_reported_without_a_confirmed_reply_counts_once() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let rules = synced_rule(100_000, "sync: 60s, max_ahead: unbounded, on_store_failure: deny");
    let proxied_node = start_node(&proxy.url(), &rules).await;
    let direct_node = start_node(&redis.url(), &rules).await;
    let mut admitted = count_admitted(&proxied_node, 1).await;
    for round in 0..5 {
        admitted += count_admitted(&proxied_node, 100).await;
        let cuts_before = proxy.cut();
        let cut = async {
            // The node may have to reconnect first, and a reply during the handshake may be cut as well.
            while proxy.cut() == cuts_before {
                proxy.cut_reply_after(0);
                proxied_node.release_all().await;
            }
        };
        timeout(WAIT_TIMEOUT, cut).await.unwrap();
        // The script ran and its reply is lost. The node continues with its previous view.
        let usage_arrives = async {
            loop {
                direct_node.release_all().await;
                let remaining = remaining(&direct_node).await;
                assert!(
                    remaining >= 100_000 - admitted,
                    "counted twice: {remaining}, {admitted}, round {round}"
                );
                if remaining == 100_000 - admitted {
                    break;
                }
                proxied_node.release_all().await;
            }
        };
        timeout(WAIT_TIMEOUT, usage_arrives).await.unwrap();
    }
    assert_eq!(admitted, 501);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn lost_replies_never_admit_more_than_the_bound() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let rules = synced_rule(400, "sync: 10ms, max_ahead: 20, on_store_failure: deny");
    let nodes = [start_node(&proxy.url(), &rules).await, start_node(&redis.url(), &rules).await];
    let (mut admitted, mut denied, mut lost) = (0, 0, 0);
    // Run until the connected node has been denied often enough that the limit is surely exhausted.
    for number in 0_u64.. {
        if number % 7 == 0 && denied == 0 {
            proxy.cut_reply_after(0);
        }
        for node in &nodes {
            match node.check(&request_by("alice")).await.status() {
                DecisionStatus::Allow => admitted += 1,
                DecisionStatus::Deny => denied += 1,
                DecisionStatus::Unavailable => lost += 1,
            }
        }
        if denied > 50 {
            break;
        }
    }
    assert!(admitted <= 400 + 2 * 20, "{admitted}, {lost} lost");
    proxy.pass();
    for node in nodes.iter().chain(&nodes) {
        node.release_all().await;
    }
    assert_eq!(count_admitted(&nodes[1], 10).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn node_without_its_store_admits_max_ahead_and_then_follows_on_store_failure() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let rules = synced_rule(100, "sync: 60s, max_ahead: 10, on_store_failure: deny");
    let fleet = Fleet::start(1, &rules).await;
    let node = &fleet.nodes[0];
    assert_eq!(count_admitted(node, 1).await, 1);
    fleet.redis.kill();
    assert_eq!(node.check(&request_by("bob")).await.status(), DecisionStatus::Unavailable);
    assert_eq!(count_admitted(node, 20).await, 10);
    assert_eq!(node.check(&request_by("alice")).await.status(), DecisionStatus::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn cost_above_max_ahead_is_charged_in_the_store() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Fleet::start(2, &synced_rule(100, "sync: 60s, max_ahead: 5")).await;
    let costly = |node: usize| {
        let node = fleet.nodes[node].clone();
        async move { node.check(&request_by("alice").cost(30)).await }
    };
    for (node_index, remaining) in [(0, 70), (1, 40), (0, 10)] {
        assert_eq!(costly(node_index).await.strictest_rule().unwrap().outcome.remaining, remaining);
    }
    let denied = costly(1).await;
    assert!(!denied.is_allowed() && denied.retry_after().unwrap() > Span::SECOND);
    let exceeds_limit = fleet.nodes[0].check(&request_by("alice").cost(101)).await;
    assert!(!exceeds_limit.is_allowed() && exceeds_limit.retry_after().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn request_denied_by_another_rule_consumes_nothing() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let tight_rule =
        "{name: tight, per: [user, path], limit: 30 per 10 days, algorithm: fixed_window}";
    let rules = format!("{}, {tight_rule}", synced_rule(1_000, "sync: 60s, max_ahead: unbounded"));
    let fleet = Fleet::start(1, &rules).await;
    assert_eq!(count_admitted(&fleet.nodes[0], 200).await, 30);
    assert_eq!(remaining(&fleet.nodes[0]).await, 970);
    fleet.sync_all().await;
    assert_eq!(remaining(&fleet.nodes[0]).await, 970);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn reset_client_starts_fresh_at_once() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Fleet::start(1, &synced_rule(20, "sync: 60s, max_ahead: unbounded")).await;
    let node = &fleet.nodes[0];
    assert_eq!(count_admitted(node, 30).await, 20);
    node.reset("api", &request_by("alice")).await.unwrap();
    assert_eq!(count_admitted(node, 30).await, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn refund_is_visible_at_once() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Fleet::start(1, &synced_rule(20, "sync: 60s, max_ahead: unbounded")).await;
    let node = &fleet.nodes[0];
    assert_eq!(count_admitted(node, 30).await, 20);
    fleet.sync_all().await;
    let request = request_by("alice").cost(5);
    let decision = node
        .refund_latest(CheckRequest { request: &request, target: CheckTarget::AllMatching })
        .await;
    assert_eq!(decision.unwrap().strictest_rule().unwrap().outcome.remaining, 5);
    assert_eq!(count_admitted(node, 30).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn unsynced_usage_counts_under_a_changed_limit() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Fleet::start(1, &synced_rule(100, "sync: 60s, max_ahead: unbounded")).await;
    assert_eq!(count_admitted(&fleet.nodes[0], 60).await, 60);
    let wider = synced_rule(150, "sync: 60s, max_ahead: unbounded");
    let changed = fleet.nodes[0].with_rules(parse_rules(&wider));
    assert_eq!(count_admitted(&changed, 150).await, 90);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_call_per_new_client_and_one_per_sync_of_a_busy_client() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let fleet = Fleet::start(1, &synced_rule(100_000, "sync: 60s")).await;
    for user in 0..50 {
        assert!(fleet.nodes[0].check(&request_by(&user.to_string())).await.is_allowed());
    }
    assert_eq!(fleet.calls(), 50);
    assert_eq!(count_admitted(&fleet.nodes[0], 10_000).await, 10_000);
    assert_eq!(fleet.calls(), 51);
}

/// Replaces the server clock by a key that the test sets.
const CONTROLLED_CLOCK_LUA: &str = "
local now = tonumber(redis.call('GET', 'clock') or '0')
local function milliseconds_until(instant)
  return math.max(math.ceil((instant - now) / 1000), 0) + 3600000
end
";

/// Repeatedly sends fewer checks than `max_ahead` to each node, and then syncs it. Each sync confirms the admissions, so
/// the local view stays in use. Returns the number of admitted checks.
async fn admitted_over_syncs(nodes: &[Limiter<RedisStore>], syncs: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..syncs {
        for node in nodes {
            admitted += count_admitted(node, 8).await;
            node.release_all().await;
        }
    }
    admitted
}

/// Regression: every sync after the clock step refunded the admissions of the node, 5089 above a limit of 90.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn store_clock_steps_within_a_window_admit_no_more() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    for algorithm in ["token_bucket", "fixed_window", "sliding_window"] {
        let redis = Redis::start();
        let rules = format!(
            "{{name: api, per: [user], limit: 90 per 10 days, algorithm: {algorithm}, accuracy: synced, \
             sync: 60s, max_ahead: 10}}"
        );
        // Five days into a window of ten days.
        let day = 24 * 3_600 * 1_000_000_u64;
        let start = 2_060 * 10 * day + 5 * day;
        let set = |clock: u64| redis.query::<()>(&["SET", "clock", &clock.to_string()]);
        set(start);
        let mut nodes = Vec::new();
        for _ in 0..2 {
            let config: RedisConfig = redis.url().parse().unwrap();
            let config = config
                .with_timeout(STORE_TIMEOUT)
                .unwrap()
                .with_connect_timeout(crate::CONNECT_TIMEOUT)
                .unwrap();
            let store = RedisStore::connect_on_clock(config, CONTROLLED_CLOCK_LUA).await.unwrap();
            let limiter = Limiter::builder().rules(parse_rules(&rules)).store(Arc::new(store));
            nodes.push(limiter.build());
        }
        let mut admitted = admitted_over_syncs(&nodes, 1).await;
        // The steps are too short to refill one token of the bucket.
        for seconds in [-1_i64, -300, 2, -60, 60, -1] {
            set(start.saturating_add_signed(seconds * 1_000_000));
            admitted += admitted_over_syncs(&nodes, 10).await;
            assert!(admitted <= 90 + 2 * 10, "{algorithm}, {seconds} s: {admitted}");
        }
        assert!(admitted >= 90, "{algorithm}: {admitted}");
    }
}

/// The same for a failover to a server with a clock that is behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failover_to_a_server_with_clock_behind_admits_no_more() {
    if lacking(&[Tool::Server(Flavour::Redis), Tool::Faketime]) {
        return;
    }
    let sentinel = Sentinel::builder().replica_clock(-5).start();
    let rules = synced_rule(90, "sync: 60s, max_ahead: 10, on_store_failure: deny");
    let nodes =
        [start_node(&sentinel.url(), &rules).await, start_node(&sentinel.url(), &rules).await];
    let mut admitted = admitted_over_syncs(&nodes, 1).await;
    assert_eq!(admitted, 16);
    // Wait until the replica has all acknowledged writes.
    let mut master = sentinel.master().connection().unwrap();
    redis::cmd("SET").arg("seen").arg(1).exec(&mut master).unwrap();
    let seen: usize = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut master).unwrap();
    assert_eq!(seen, 1, "the replica follows");
    sentinel.kill_master();
    sentinel.wait_for_switch();
    for node in &nodes {
        let store_answers = async {
            while node.check(&request_by("bob")).await.status() == DecisionStatus::Unavailable {}
        };
        timeout(WAIT_TIMEOUT, store_answers).await.unwrap();
    }
    admitted += admitted_over_syncs(&nodes, 40).await;
    assert!((90..=90 + 2 * 10).contains(&admitted), "{admitted}");
}
