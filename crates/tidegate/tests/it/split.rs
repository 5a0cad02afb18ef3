//! Split rules on a real Redis: every node keeps its own part, and asks nobody.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidegate::{
    CheckRequest, CheckTarget, DecisionStatus, Limiter, Outcome, RedisConfig, RedisStore, Request,
    RuleSet, ShareStatus, Span, Store,
};
use tidegate_testkit::{FaultProxy, Flavour, Redis, Tool, WAIT_TIMEOUT, lacking};
use tokio::task::JoinHandle;

const NEEDED: [Tool; 1] = [Tool::Server(Flavour::Redis)];

/// Refills so fast that a test need not wait for it, and says so when it can't tell.
const BUCKET: &str =
    "{name: api, per: [user], limit: 300 per second, accuracy: split, on_store_failure: deny}";
const WINDOW: &str = "{name: api, per: [user], limit: 300 per 10 days, algorithm: fixed_window, accuracy: split, on_store_failure: deny}";

async fn node(url: &str, rules: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().unwrap();
    let store = RedisStore::connect(config.with_timeout(Duration::from_secs(1)).unwrap());
    let rules = RuleSet::parse("rules.yaml", &format!("rules: [{rules}]")).unwrap();
    Limiter::builder().rules(rules).store(Arc::new(store.await.unwrap())).build()
}

fn by(user: &str) -> Request<'_> {
    Request::new().with("user", user).unwrap()
}

/// Returns once something is so; what goes on in nodes gives no event to wait for.
#[allow(clippy::disallowed_methods, reason = "what goes on in nodes gives no event to wait for")]
async fn until(what: &str, mut so: impl AsyncFnMut() -> bool) {
    let wait = async {
        while !so().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    assert!(tokio::time::timeout(WAIT_TIMEOUT, wait).await.is_ok(), "waited in vain until {what}");
}

/// How many nodes this one believes to share a limit with, once it has a part of it.
fn fleet_of(node: &Limiter<RedisStore>) -> Option<u64> {
    match node.store().membership_view().unwrap().share_status() {
        ShareStatus::Active([.., era]) => Some(era.share.of),
        _ => None,
    }
}

/// Returns once every node has its part of a fleet of all of them.
async fn settled(nodes: &[&Limiter<RedisStore>]) {
    let size = u64::try_from(nodes.len()).unwrap();
    until("every node has its part", async || {
        for node in nodes {
            node.store().announce().await;
        }
        nodes.iter().all(|node| fleet_of(node) == Some(size))
    })
    .await;
}

async fn look(node: &Limiter<RedisStore>, user: &str) -> Outcome {
    let request = by(user);
    let decision =
        node.peek_rules(CheckRequest { request: &request, target: CheckTarget::AllMatching }).await;
    decision.strictest_rule().unwrap().outcome
}

async fn admitted(node: &Limiter<RedisStore>, user: &str, checks: u64) -> u64 {
    let mut admitted = 0;
    for _ in 0..checks {
        admitted += u64::from(node.check(&by(user)).await.is_allowed());
    }
    admitted
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_parts_of_a_fleet_are_all_of_the_limit_and_no_check_asks_for_them() {
    if lacking(&NEEDED) {
        return;
    }
    let redis = Redis::start();
    let nodes = [
        node(&redis.url(), BUCKET).await,
        node(&redis.url(), BUCKET).await,
        node(&redis.url(), BUCKET).await,
    ];
    let [one, two, three] = &nodes;
    // Until it has a part, a newcomer denies, and says for how long.
    one.store().announce().await;
    let early = one.check(&by("alice")).await;
    assert_eq!(early.status(), DecisionStatus::Deny);
    assert!(early.retry_after().unwrap() <= Span::from_millis(4_050));

    settled(&[one, two, three]).await;
    for node in &nodes {
        until("the part is full", async || look(node, "alice").await.remaining == 100).await;
        assert!(admitted(node, "alice", 100).await >= 100, "all of a part can be spent");
    }
    assert!(nodes.iter().all(|node| node.store().counts().carried == 0), "nobody was asked");

    // A node that goes has nothing from that moment on, and the others have it.
    three.release_all().await;
    three.store().leave().await;
    assert_eq!(three.check(&by("alice")).await.status(), DecisionStatus::Unavailable);
    settled(&[one, two]).await;
    assert_eq!(look(one, "alice").await.limit, 150);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_starts_has_nothing_of_the_window_that_is_going_on() {
    if lacking(&NEEDED) {
        return;
    }
    let redis = Redis::start();
    let newcomer = node(&redis.url(), WINDOW).await;
    settled(&[&newcomer]).await;
    let denied = newcomer.check(&by("alice")).await;
    assert_eq!(denied.status(), DecisionStatus::Deny);
    assert_eq!(look(&newcomer, "alice").await.limit, 300);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_that_another_rule_denies_takes_nothing_from_a_part() {
    if lacking(&NEEDED) {
        return;
    }
    let redis = Redis::start();
    let slow = "{name: api, per: [user], limit: 300 per minute, accuracy: split}";
    let tight = "{name: tight, per: [user, path], limit: 5 per 10 days, algorithm: fixed_window}";
    let node = node(&redis.url(), &format!("{slow}, {tight}")).await;
    settled(&[&node]).await;
    let left = async |path: &'static str| {
        let look = node.peek(&by("alice").with("path", path).unwrap()).await;
        let api = look.rule_outcomes().iter().find(|policy| &*policy.rule == "api").unwrap();
        api.outcome.remaining
    };
    until("a few have come", async || left("/look").await >= 20).await;
    let request = by("alice").with("path", "/a").unwrap();
    let before = left("/look").await;
    let (mut passed, mut checked) = (0, 0);
    while checked < 100 {
        passed += u64::from(node.check(&request).await.is_allowed());
        checked += 1;
    }
    assert_eq!(passed, 5);
    assert!(left("/look").await >= before - 5, "denials took something");
    // What is undone by its receipt is there again.
    let open = by("alice").with("path", "/b").unwrap().cost(5);
    let (decision, receipt) = node.check_with_receipt(&open).await;
    assert!(decision.is_allowed());
    let spent = left("/look").await;
    assert_eq!(node.refund(receipt).await.unwrap(), 2);
    assert!(left("/look").await >= spent + 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_node_that_is_cut_off_stops_in_time_and_follows_its_rules() {
    if lacking(&NEEDED) {
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
    let (cut, other) = (node(&proxy.url(), &rules).await, node(&redis.url(), &rules).await);
    settled(&[&cut, &other]).await;
    proxy.refuse();
    proxy.drop_connections();
    // It has stopped before the other takes over what was its own.
    until("the other is alone", async || {
        other.store().announce().await;
        fleet_of(&other) == Some(1)
    })
    .await;
    assert_eq!(fleet_of(&cut), None);
    let to = |path: &'static str| by("alice").with("path", path).unwrap();
    let open = cut.check(&to("/open")).await;
    assert_eq!((open.status(), open.undecided().len()), (DecisionStatus::Allow, 1));
    assert_eq!(cut.check(&to("/closed")).await.status(), DecisionStatus::Unavailable);
    assert_eq!(other.check(&to("/closed")).await.status(), DecisionStatus::Allow);
    proxy.pass();
    settled(&[&cut, &other]).await;
    until("a part of it is full", async || cut.check(&to("/closed")).await.is_allowed()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_loses_its_data_makes_nodes_wait_and_nobody_admit_more() {
    if lacking(&NEEDED) {
        return;
    }
    let redis = Redis::start();
    let (one, two) = (node(&redis.url(), BUCKET).await, node(&redis.url(), BUCKET).await);
    settled(&[&one, &two]).await;
    redis.query::<()>(&["FLUSHALL"]);
    one.store().announce().await;
    assert_ne!(fleet_of(&one), Some(1), "it is the only one that Redis knows, and does not grow");
    settled(&[&one, &two]).await;
}

/// Spends as fast as it can on one node until told to stop. How much it was.
fn spending(node: &Limiter<RedisStore>, stop: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let (node, stop) = (node.clone(), Arc::clone(stop));
    tokio::spawn(async move {
        let mut passed = 0;
        while !stop.load(Ordering::Relaxed) {
            passed += admitted(&node, "alice", 100).await;
            tokio::task::yield_now().await;
        }
        passed
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_that_join_and_die_admit_no_more_than_the_limit_together() {
    if lacking(&NEEDED) {
        return;
    }
    let redis = Redis::start();
    let proxies = [(); 3].map(|()| FaultProxy::to(redis.address()));
    let (total, started) = (AtomicU64::new(0), redis.time_micros());
    let stop = Arc::new(AtomicBool::new(false));
    let one = node(&proxies[0].url(), BUCKET).await;
    let mut running = vec![spending(&one, &stop)];
    settled(&[&one]).await;
    let two = node(&proxies[1].url(), BUCKET).await;
    running.push(spending(&two, &stop));
    settled(&[&one, &two]).await;
    let three = node(&proxies[2].url(), BUCKET).await;
    running.push(spending(&three, &stop));
    settled(&[&one, &two, &three]).await;
    // One is cut off and goes on trying, another says goodbye and does too.
    proxies[0].refuse();
    proxies[0].drop_connections();
    settled(&[&two, &three]).await;
    two.store().leave().await;
    settled(&[&three]).await;
    proxies[0].pass();
    settled(&[&one, &three]).await;
    stop.store(true, Ordering::Relaxed);
    for task in running {
        total.fetch_add(task.await.unwrap(), Ordering::Relaxed);
    }
    let (total, passed) = (total.into_inner(), redis.time_micros() - started);
    // By the server's own clock; that of the nodes is this machine's too.
    assert!(total <= 300 + passed * 300 / 1_000_000 + 1, "{total} in {passed} us");
    assert!(total >= 300, "{total}");
}
