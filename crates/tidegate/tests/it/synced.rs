//! Synced rules on a real Redis: nodes that decide alone, and how far that takes them.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{
    CheckRequest, CheckTarget, DecisionStatus, Limiter, RedisConfig, RedisStore, Request, RuleSet,
    Span,
};
use tidegate_testkit::{FaultProxy, Flavour, Redis, Sentinel, Tool, WAIT_TIMEOUT, lacking};
use tokio::time::timeout;

const NEEDED: [Tool; 1] = [Tool::Server(Flavour::Redis)];
/// A busy machine is not to be taken for a store that failed.
const PATIENT: Duration = Duration::from_secs(5);

struct Fleet {
    redis: Redis,
    nodes: Vec<Limiter<RedisStore>>,
}

impl Fleet {
    async fn of(size: usize, rules: &str) -> Self {
        let redis = Redis::start();
        let mut nodes = Vec::new();
        for _ in 0..size {
            nodes.push(node(&redis.url(), rules).await);
        }
        Self { redis, nodes }
    }

    /// Every node tells what it knows, and learns what the others told.
    async fn settle(&self) {
        for _ in 0..2 {
            for node in &self.nodes {
                node.release_all().await;
            }
        }
    }

    /// Asks of all nodes so far.
    fn calls(&self) -> u64 {
        self.nodes.iter().map(|node| node.store().counts().asks).sum()
    }
}

async fn node(url: &str, rules: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().unwrap();
    let store = RedisStore::connect(
        config.with_timeout(PATIENT).unwrap().with_connect_timeout(crate::CONNECT_TIMEOUT).unwrap(),
    )
    .await
    .unwrap();
    Limiter::builder().rules(parsed(rules)).store(Arc::new(store)).build()
}

fn parsed(rules: &str) -> RuleSet {
    RuleSet::parse("rules.yaml", &format!("rules: [{rules}]")).unwrap()
}

/// A rule whose window lasts longer than any test.
fn window(amount: u64, rest: &str) -> String {
    format!(
        "{{name: api, per: [user], limit: {amount} per 10 days, algorithm: fixed_window, accuracy: synced, {rest}}}"
    )
}

fn by(user: &str) -> Request<'_> {
    Request::new().with("user", user).unwrap()
}

/// How many of so many checks are admitted.
async fn admitted(node: &Limiter<RedisStore>, checks: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..checks {
        admitted += u64::from(node.check(&by("alice")).await.is_allowed());
    }
    admitted
}

async fn left(node: &Limiter<RedisStore>) -> u64 {
    let look = node.peek(&by("alice")).await;
    let api = look.rule_outcomes().iter().find(|policy| &*policy.rule == "api").unwrap();
    api.outcome.remaining
}

/// Several tasks on each node check until they are denied for good. How much was admitted.
async fn race(fleet: &Arc<Fleet>, tasks: usize) -> u64 {
    let racing = (0..fleet.nodes.len() * tasks).map(|task| {
        let fleet = Arc::clone(fleet);
        tokio::spawn(async move {
            let node = &fleet.nodes[task % fleet.nodes.len()];
            let mut admitted = 0;
            loop {
                let decision = node.check(&by("alice")).await;
                match decision.status() {
                    DecisionStatus::Allow => admitted += 1,
                    DecisionStatus::Deny => return admitted,
                    DecisionStatus::Unavailable => panic!("undecided"),
                }
            }
        })
    });
    let mut admitted = 0;
    for task in racing.collect::<Vec<_>>() {
        admitted += task.await.unwrap();
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_that_race_exceed_the_limit_by_max_ahead_each_at_the_most() {
    if lacking(&NEEDED) {
        return;
    }
    let rules = window(5_000, "sync: 20ms, max_ahead: 100");
    let fleet = Arc::new(Fleet::of(3, &rules).await);
    let passed = race(&fleet, 8).await;
    assert!((5_000..=5_300).contains(&passed), "{passed}");
    fleet.settle().await;
    for node in &fleet.nodes {
        assert_eq!(admitted(node, 3).await, 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_ahead_is_nearly_exact() {
    if lacking(&NEEDED) {
        return;
    }
    let fleet = Arc::new(Fleet::of(3, &window(300, "sync: 20ms, max_ahead: 1")).await);
    let passed = race(&fleet, 4).await;
    assert!((300..=303).contains(&passed), "{passed}");
}

/// The classic case, without its clock: three nodes, a limit of 60, and 36 each between two syncs.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_max_ahead_three_nodes_admit_108_of_60_and_then_nothing() {
    if lacking(&NEEDED) {
        return;
    }
    let fleet = Fleet::of(3, &window(60, "sync: 60s, max_ahead: unbounded")).await;
    for node in &fleet.nodes {
        assert_eq!(admitted(node, 1).await, 1);
    }
    let mut passed = 3;
    for node in &fleet.nodes {
        passed += admitted(node, 35).await;
    }
    assert_eq!(passed, 108);
    fleet.settle().await;
    for node in &fleet.nodes {
        assert_eq!((admitted(node, 10).await, left(node).await), (0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_node_tells_by_itself_and_others_learn_of_it() {
    if lacking(&NEEDED) {
        return;
    }
    let fleet = Fleet::of(2, &window(100, "sync: 10ms, max_ahead: unbounded")).await;
    let [one, other] = fleet.nodes.as_slice() else { panic!("two") };
    assert_eq!(admitted(one, 60).await, 60);
    let learned = async { while left(other).await > 40 {} };
    timeout(WAIT_TIMEOUT, learned).await.unwrap();
    assert_eq!(admitted(other, 60).await, 40);
    // What the other has used up comes to the first, which looks as often as it is asked.
    let learned = async { while one.check(&by("alice")).await.is_allowed() {} };
    timeout(WAIT_TIMEOUT, learned).await.unwrap();
    assert_eq!(left(one).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_bucket_keeps_its_burst_and_its_rate_and_what_nodes_are_ahead() {
    if lacking(&NEEDED) {
        return;
    }
    let bucket = "{name: api, per: [user], limit: 1000 per second, burst: 500, accuracy: synced, sync: 50ms, max_ahead: 50}";
    let fleet = Arc::new(Fleet::of(3, bucket).await);
    let started = fleet.redis.time_micros();
    let hammering = (0..3).map(|place| {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move {
            let mut passed = 0_u64;
            while fleet.redis.time_micros() < started + 1_500_000 {
                passed += admitted(&fleet.nodes[place], 200).await;
            }
            passed
        })
    });
    let mut passed = 0;
    for node in hammering.collect::<Vec<_>>() {
        passed += node.await.unwrap();
    }
    let took = fleet.redis.time_micros() - started;
    assert!(passed <= 500 + took / 1_000 + 1 + 3 * 50, "{passed} in {took} us");
    assert!(passed >= 500, "{passed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_told_and_never_confirmed_counts_once() {
    if lacking(&NEEDED) {
        return;
    }
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let rules = window(100_000, "sync: 60s, max_ahead: unbounded, on_store_failure: deny");
    let behind = node(&proxy.url(), &rules).await;
    let direct = node(&redis.url(), &rules).await;
    let mut passed = admitted(&behind, 1).await;
    for round in 0..5 {
        passed += admitted(&behind, 100).await;
        let cuts = proxy.cut();
        let cut = async {
            // It may have to find its way back first, and what is said on the way may be cut off, too.
            while proxy.cut() == cuts {
                proxy.cut_reply_after(0);
                behind.release_all().await;
            }
        };
        timeout(WAIT_TIMEOUT, cut).await.unwrap();
        // The script ran, the answer is lost, and the node goes on with what it knew.
        let told = async {
            loop {
                direct.release_all().await;
                let left = left(&direct).await;
                assert!(left >= 100_000 - passed, "counted twice: {left}, {passed}, round {round}");
                if left == 100_000 - passed {
                    break;
                }
                behind.release_all().await;
            }
        };
        timeout(WAIT_TIMEOUT, told).await.unwrap();
    }
    assert_eq!(passed, 501);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn replies_that_are_cut_never_admit_more() {
    if lacking(&NEEDED) {
        return;
    }
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let rules = window(400, "sync: 10ms, max_ahead: 20, on_store_failure: deny");
    let nodes = [node(&proxy.url(), &rules).await, node(&redis.url(), &rules).await];
    let (mut passed, mut denied, mut lost) = (0, 0, 0);
    // Until the node that nobody cuts off is told that it is over, some time after it last was not.
    for number in 0_u64.. {
        if number % 7 == 0 && denied == 0 {
            proxy.cut_reply_after(0);
        }
        for node in &nodes {
            match node.check(&by("alice")).await.status() {
                DecisionStatus::Allow => passed += 1,
                DecisionStatus::Deny => denied += 1,
                DecisionStatus::Unavailable => lost += 1,
            }
        }
        if denied > 50 {
            break;
        }
    }
    assert!(passed <= 400 + 2 * 20, "{passed}, {lost} lost");
    proxy.pass();
    for node in nodes.iter().chain(&nodes) {
        node.release_all().await;
    }
    assert_eq!(admitted(&nodes[1], 10).await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_its_store_a_node_admits_max_ahead_and_then_answers_as_the_rule_says() {
    if lacking(&NEEDED) {
        return;
    }
    let rules = window(100, "sync: 60s, max_ahead: 10, on_store_failure: deny");
    let fleet = Fleet::of(1, &rules).await;
    let node = &fleet.nodes[0];
    assert_eq!(admitted(node, 1).await, 1);
    fleet.redis.kill();
    assert_eq!(node.check(&by("bob")).await.status(), DecisionStatus::Unavailable);
    assert_eq!(admitted(node, 20).await, 10);
    assert_eq!(node.check(&by("alice")).await.status(), DecisionStatus::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_cost_above_max_ahead_is_charged_exactly() {
    if lacking(&NEEDED) {
        return;
    }
    let fleet = Fleet::of(2, &window(100, "sync: 60s, max_ahead: 5")).await;
    let costly = |node: usize| {
        let node = fleet.nodes[node].clone();
        async move { node.check(&by("alice").cost(30)).await }
    };
    for (place, left) in [(0, 70), (1, 40), (0, 10)] {
        assert_eq!(costly(place).await.strictest_rule().unwrap().outcome.remaining, left);
    }
    let denied = costly(1).await;
    assert!(!denied.is_allowed() && denied.retry_after().unwrap() > Span::SECOND);
    let never = fleet.nodes[0].check(&by("alice").cost(101)).await;
    assert!(!never.is_allowed() && never.retry_after().is_none());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_that_another_rule_denies_takes_nothing() {
    if lacking(&NEEDED) {
        return;
    }
    let tight = "{name: tight, per: [user, path], limit: 30 per 10 days, algorithm: fixed_window}";
    let rules = format!("{}, {tight}", window(1_000, "sync: 60s, max_ahead: unbounded"));
    let fleet = Fleet::of(1, &rules).await;
    assert_eq!(admitted(&fleet.nodes[0], 200).await, 30);
    assert_eq!(left(&fleet.nodes[0]).await, 970);
    fleet.settle().await;
    assert_eq!(left(&fleet.nodes[0]).await, 970);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_is_forgotten_starts_anew_at_once() {
    if lacking(&NEEDED) {
        return;
    }
    let fleet = Fleet::of(1, &window(20, "sync: 60s, max_ahead: unbounded")).await;
    let node = &fleet.nodes[0];
    assert_eq!(admitted(node, 30).await, 20);
    node.forget("api", &by("alice")).await.unwrap();
    assert_eq!(admitted(node, 30).await, 20);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_given_back_is_seen_at_once() {
    if lacking(&NEEDED) {
        return;
    }
    let fleet = Fleet::of(1, &window(20, "sync: 60s, max_ahead: unbounded")).await;
    let node = &fleet.nodes[0];
    assert_eq!(admitted(node, 30).await, 20);
    fleet.settle().await;
    let request = by("alice").cost(5);
    let decision = node
        .refund_latest(CheckRequest { request: &request, target: CheckTarget::AllMatching })
        .await;
    assert_eq!(decision.unwrap().strictest_rule().unwrap().outcome.remaining, 5);
    assert_eq!(admitted(node, 30).await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_was_admitted_under_a_limit_that_changes_counts_under_the_next() {
    if lacking(&NEEDED) {
        return;
    }
    let fleet = Fleet::of(1, &window(100, "sync: 60s, max_ahead: unbounded")).await;
    assert_eq!(admitted(&fleet.nodes[0], 60).await, 60);
    let wider = window(150, "sync: 60s, max_ahead: unbounded");
    let changed = fleet.nodes[0].with_rules(parsed(&wider));
    assert_eq!(admitted(&changed, 150).await, 90);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_comes_once_costs_one_call_and_a_busy_one_a_few() {
    if lacking(&NEEDED) {
        return;
    }
    let fleet = Fleet::of(1, &window(100_000, "sync: 60s")).await;
    for user in 0..50 {
        assert!(fleet.nodes[0].check(&by(&user.to_string())).await.is_allowed());
    }
    assert_eq!(fleet.calls(), 50);
    assert_eq!(admitted(&fleet.nodes[0], 10_000).await, 10_000);
    assert_eq!(fleet.calls(), 51);
}

/// Time by a key that the test sets.
const CLOCK: &str = "
local now = tonumber(redis.call('GET', 'clock') or '0')
local function milliseconds_until(instant)
  return math.max(math.ceil((instant - now) / 1000), 0) + 3600000
end
";

/// Checks fewer times than `max_ahead` and then syncs, again and again: each sync confirms what was admitted, and the view
/// is used further. Returns how much was admitted.
async fn admitted_over_syncs(nodes: &[Limiter<RedisStore>], syncs: u64) -> u64 {
    let mut passed = 0;
    for _ in 0..syncs {
        for node in nodes {
            passed += admitted(node, 8).await;
            node.release_all().await;
        }
    }
    passed
}

/// Regression: every sync after the step freed what the node had admitted, +5089 on a limit of 90.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn clock_of_the_store_set_back_or_forward_within_a_window_admits_no_more() {
    if lacking(&NEEDED) {
        return;
    }
    for algorithm in ["token_bucket", "fixed_window", "sliding_window"] {
        let redis = Redis::start();
        let rules = format!(
            "{{name: api, per: [user], limit: 90 per 10 days, algorithm: {algorithm}, accuracy: synced, \
             sync: 60s, max_ahead: 10}}"
        );
        // The first of a window of ten days, and some days into it.
        let day = 24 * 3_600 * 1_000_000_u64;
        let start = 2_060 * 10 * day + 5 * day;
        let set = |clock: u64| redis.query::<()>(&["SET", "clock", &clock.to_string()]);
        set(start);
        let mut nodes = Vec::new();
        for _ in 0..2 {
            let config: RedisConfig = redis.url().parse().unwrap();
            let config = config
                .with_timeout(PATIENT)
                .unwrap()
                .with_connect_timeout(crate::CONNECT_TIMEOUT)
                .unwrap();
            let store = RedisStore::connect_on_clock(config, CLOCK).await.unwrap();
            let limiter = Limiter::builder().rules(parsed(&rules)).store(Arc::new(store));
            nodes.push(limiter.build());
        }
        let mut passed = admitted_over_syncs(&nodes, 1).await;
        // Seconds that refill less than a token of the bucket.
        for seconds in [-1_i64, -300, 2, -60, 60, -1] {
            set(start.saturating_add_signed(seconds * 1_000_000));
            passed += admitted_over_syncs(&nodes, 10).await;
            assert!(passed <= 90 + 2 * 10, "{algorithm}, {seconds} s: {passed}");
        }
        assert!(passed >= 90, "{algorithm}: {passed}");
    }
}

/// The same by a failover to a server whose clock is behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn failover_to_a_slower_clock_admits_no_more() {
    if lacking(&[Tool::Server(Flavour::Redis), Tool::Faketime]) {
        return;
    }
    let sentinel = Sentinel::builder().replica_clock(-5).start();
    let rules = window(90, "sync: 60s, max_ahead: 10, on_store_failure: deny");
    let nodes = [node(&sentinel.url(), &rules).await, node(&sentinel.url(), &rules).await];
    let mut passed = admitted_over_syncs(&nodes, 1).await;
    assert_eq!(passed, 16);
    // What was acknowledged so far is on the replica.
    let mut master = sentinel.master().connection().unwrap();
    redis::cmd("SET").arg("seen").arg(1).exec(&mut master).unwrap();
    let seen: usize = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut master).unwrap();
    assert_eq!(seen, 1, "the replica follows");
    sentinel.kill_master();
    sentinel.wait_for_switch();
    for node in &nodes {
        let answers =
            async { while node.check(&by("bob")).await.status() == DecisionStatus::Unavailable {} };
        timeout(WAIT_TIMEOUT, answers).await.unwrap();
    }
    passed += admitted_over_syncs(&nodes, 40).await;
    assert!((90..=90 + 2 * 10).contains(&passed), "{passed}");
}
