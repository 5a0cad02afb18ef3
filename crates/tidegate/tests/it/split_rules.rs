//! Rules with `accuracy: split` on a real Redis: every node enforces its own share without store calls.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::store::{ShareStatus, Store};
use tidegate::{
    CheckRequest, CheckTarget, DecisionStatus, Limiter, Outcome, Request, RuleSet, Span,
};
use tidegate_testkit::{FaultProxy, Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};
use tokio::task::JoinHandle;

const REQUIRED_TOOLS: [Tool; 1] = [Tool::Server(Flavour::Redis)];

/// A rule that refills quickly, so that tests wait little. It denies without a share.
const BUCKET_RULE: &str =
    "{name: api, per: [user], limit: 300 per second, accuracy: split, on_store_failure: deny}";
const WINDOW_RULE: &str = "{name: api, per: [user], limit: 300 per 10 days, algorithm: fixed_window, accuracy: split, on_store_failure: deny}";

async fn start_node(url: &str, rules: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().unwrap();
    let store = crate::connect(config.with_timeout(Duration::from_secs(1)).unwrap());
    let rules = RuleSet::parse("rules.yaml", &format!("rules: [{rules}]")).unwrap();
    Limiter::builder().rules(rules).store(Arc::new(store.await)).build()
}

fn request_by(user: &str) -> Request<'_> {
    Request::new().with("user", user).unwrap()
}

/// Polls the condition until it is met. Panics after [`WAIT_TIMEOUT`].
#[allow(clippy::disallowed_methods, reason = "a change on a node gives no event to wait for")]
async fn wait_until(expectation: &str, mut is_met: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !is_met().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(
        tokio::time::timeout(WAIT_TIMEOUT, wait).await.is_ok(),
        "not within {WAIT_TIMEOUT:?}: {expectation}"
    );
}

/// Returns the fleet size of a node's share, or `None` while it has no active share.
fn share_fleet_size(node: &Limiter<RedisStore>) -> Option<u64> {
    match node.store().membership_view().unwrap().share_status() {
        ShareStatus::Active([.., share_term]) => Some(share_term.share.of),
        _ => None,
    }
}

/// Waits until every node has its share of a fleet of exactly these nodes.
async fn wait_for_shares(nodes: &[&Limiter<RedisStore>]) {
    let size = u64::try_from(nodes.len()).unwrap();
    wait_until("every node has its share", async || {
        for node in nodes {
            node.store().announce().await;
        }
        nodes.iter().all(|node| share_fleet_size(node) == Some(size))
    })
    .await;
}

async fn peek_outcome(node: &Limiter<RedisStore>, user: &str) -> Outcome {
    let request = request_by(user);
    let decision =
        node.peek_rules(CheckRequest { request: &request, target: CheckTarget::AllMatching }).await;
    decision.strictest_rule().unwrap().outcome
}

async fn count_admitted(node: &Limiter<RedisStore>, user: &str, checks: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..checks {
        admitted += u64::from(node.check(&request_by(user)).await.is_allowed());
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn shares_of_a_fleet_add_up_to_the_limit_without_store_calls() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let redis = Redis::start();
    let nodes = [
        start_node(&redis.url(), BUCKET_RULE).await,
        start_node(&redis.url(), BUCKET_RULE).await,
        start_node(&redis.url(), BUCKET_RULE).await,
    ];
    let [one, two, three] = &nodes;
    // A new node denies until it has a share, with a retry time.
    one.store().announce().await;
    let early = one.check(&request_by("alice")).await;
    assert_eq!(early.status(), DecisionStatus::Deny);
    assert!(early.retry_after().unwrap() <= Span::from_millis(4_050));

    wait_for_shares(&[one, two, three]).await;
    for node in &nodes {
        wait_until("the share is full", async || {
            peek_outcome(node, "alice").await.remaining == 100
        })
        .await;
        assert!(count_admitted(node, "alice", 100).await >= 100, "the whole share can be spent");
    }
    assert!(
        nodes.iter().all(|node| node.store().counts().carried == 0),
        "no check reached the store"
    );

    // A leaving node loses its share at once, and the other nodes take it over.
    three.release_all().await;
    three.store().leave().await;
    assert_eq!(three.check(&request_by("alice")).await.status(), DecisionStatus::Unavailable);
    wait_for_shares(&[one, two]).await;
    assert_eq!(peek_outcome(one, "alice").await.limit, 150);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn new_node_gets_no_share_of_the_current_window() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let redis = Redis::start();
    let new_node = start_node(&redis.url(), WINDOW_RULE).await;
    wait_for_shares(&[&new_node]).await;
    let denied = new_node.check(&request_by("alice")).await;
    assert_eq!(denied.status(), DecisionStatus::Deny);
    assert_eq!(peek_outcome(&new_node, "alice").await.limit, 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_denied_by_another_rule_consumes_nothing_from_a_share() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let redis = Redis::start();
    let bucket_rule = "{name: api, per: [user], limit: 300 per minute, accuracy: split}";
    let tight_rule =
        "{name: tight, per: [user, path], limit: 5 per 10 days, algorithm: fixed_window}";
    let node = start_node(&redis.url(), &format!("{bucket_rule}, {tight_rule}")).await;
    wait_for_shares(&[&node]).await;
    let left = async |path: &'static str| {
        let peeked = node.peek(&request_by("alice").with("path", path).unwrap()).await;
        let api = peeked
            .rule_outcomes()
            .iter()
            .find(|rule_outcome| &*rule_outcome.rule == "api")
            .unwrap();
        api.outcome.remaining
    };
    wait_until("some tokens have refilled", async || left("/look").await >= 20).await;
    let request = request_by("alice").with("path", "/a").unwrap();
    let before = left("/look").await;
    let (mut passed, mut checked) = (0, 0);
    while checked < 100 {
        passed += u64::from(node.check(&request).await.is_allowed());
        checked += 1;
    }
    assert_eq!(passed, 5);
    assert!(left("/look").await >= before - 5, "denied requests consumed tokens");
    // Refunded tokens are available again.
    let open = request_by("alice").with("path", "/b").unwrap().cost(5);
    let (decision, receipt) = node.check_with_receipt(&open).await;
    assert!(decision.is_allowed());
    let spent = left("/look").await;
    assert_eq!(node.refund(receipt).await.unwrap(), 2);
    assert!(left("/look").await >= spent + 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disconnected_node_stops_in_time_and_follows_on_store_failure() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let rule = |name, answer| {
        format!(
            "{{name: {name}, match: {{path: /{name}}}, per: [user], limit: 100 per second, accuracy: split, on_store_failure: {answer}}}"
        )
    };
    let rules = [rule("open", "allow"), rule("closed", "deny")].join(", ");
    let (disconnected, connected) =
        (start_node(&proxy.url(), &rules).await, start_node(&redis.url(), &rules).await);
    wait_for_shares(&[&disconnected, &connected]).await;
    proxy.refuse();
    proxy.drop_connections();
    // The disconnected node stops before the other one takes over its share.
    wait_until("the connected node has the whole limit", async || {
        connected.store().announce().await;
        share_fleet_size(&connected) == Some(1)
    })
    .await;
    assert_eq!(share_fleet_size(&disconnected), None);
    let request_to = |path: &'static str| request_by("alice").with("path", path).unwrap();
    let open = disconnected.check(&request_to("/open")).await;
    assert_eq!((open.status(), open.undecided().len()), (DecisionStatus::Allow, 1));
    assert_eq!(
        disconnected.check(&request_to("/closed")).await.status(),
        DecisionStatus::Unavailable
    );
    assert_eq!(connected.check(&request_to("/closed")).await.status(), DecisionStatus::Allow);
    proxy.pass();
    wait_for_shares(&[&disconnected, &connected]).await;
    wait_until("the share has refilled", async || {
        disconnected.check(&request_to("/closed")).await.is_allowed()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_loss_in_redis_never_enlarges_a_share() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let redis = Redis::start();
    let (one, two) =
        (start_node(&redis.url(), BUCKET_RULE).await, start_node(&redis.url(), BUCKET_RULE).await);
    wait_for_shares(&[&one, &two]).await;
    redis.query::<()>(&["FLUSHALL"]);
    one.store().announce().await;
    assert_ne!(
        share_fleet_size(&one),
        Some(1),
        "its share does not grow, although Redis lists no other node"
    );
    wait_for_shares(&[&one, &two]).await;
}

/// Starts a task that sends checks to one node until `stop` is set. Returns the number of admitted checks.
fn start_checks(node: &Limiter<RedisStore>, stop: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let (node, stop) = (node.clone(), Arc::clone(stop));
    tokio::spawn(async move {
        let mut passed = 0;
        while !stop.load(Ordering::Relaxed) {
            passed += count_admitted(&node, "alice", 100).await;
            tokio::task::yield_now().await;
        }
        passed
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_that_join_leave_and_disconnect_never_exceed_the_limit_together() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let redis = Redis::start();
    let proxies = [(); 3].map(|()| FaultProxy::to(redis.address()));
    let (total, started) = (AtomicU64::new(0), redis.time_micros());
    let stop = Arc::new(AtomicBool::new(false));
    let one = start_node(&proxies[0].url(), BUCKET_RULE).await;
    let mut tasks = vec![start_checks(&one, &stop)];
    wait_for_shares(&[&one]).await;
    let two = start_node(&proxies[1].url(), BUCKET_RULE).await;
    tasks.push(start_checks(&two, &stop));
    wait_for_shares(&[&one, &two]).await;
    let three = start_node(&proxies[2].url(), BUCKET_RULE).await;
    tasks.push(start_checks(&three, &stop));
    wait_for_shares(&[&one, &two, &three]).await;
    // One node is disconnected and another leaves; both keep receiving checks.
    proxies[0].refuse();
    proxies[0].drop_connections();
    wait_for_shares(&[&two, &three]).await;
    two.store().leave().await;
    wait_for_shares(&[&three]).await;
    proxies[0].pass();
    wait_for_shares(&[&one, &three]).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        total.fetch_add(task.await.unwrap(), Ordering::Relaxed);
    }
    let (total, passed) = (total.into_inner(), redis.time_micros() - started);
    // The bound uses the server clock.
    assert!(total <= 300 + passed * 300 / 1_000_000 + 1, "{total} in {passed} us");
    assert!(total >= 300, "{total}");
}
