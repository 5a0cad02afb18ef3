//! Leased rules on a real Redis: several nodes, one limit.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{DecisionStatus, Limiter, RedisConfig, RedisStore, Request, RuleSet, Span};
use tidegate_testkit::{Flavour, Redis, Tool, lacking};

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
            nodes.push(node(&redis, rules).await);
        }
        for node in &nodes {
            node.store().announce().await;
        }
        Self { redis, nodes }
    }

    /// Script calls of all nodes so far.
    fn calls(&self) -> u64 {
        let counts = self.nodes.iter().map(|node| node.store().counts());
        counts.map(|counts| counts.calls + counts.asks).sum()
    }
}

async fn node(redis: &Redis, rules: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = redis.url().parse().unwrap();
    let store = RedisStore::connect(
        config.with_timeout(PATIENT).unwrap().with_connect_timeout(crate::CONNECT_TIMEOUT).unwrap(),
    )
    .await
    .unwrap();
    let rules = RuleSet::parse("rules.yaml", &format!("rules: [{rules}]")).unwrap();
    Limiter::builder().rules(rules).store(Arc::new(store)).build()
}

fn by(user: &str) -> Request<'_> {
    Request::new().with("user", user).unwrap()
}

/// Checks until the limit is used up for good: how many were admitted, and how many asked.
async fn exhaust(node: &Limiter<RedisStore>, user: &str) -> (u64, u64) {
    let (mut admitted, mut checked) = (0, 0);
    loop {
        let decision = node.check(&by(user)).await;
        checked += 1;
        match decision.status() {
            DecisionStatus::Allow => admitted += 1,
            // What is fetched in parts comes again soon; a window of days does not.
            DecisionStatus::Deny if decision.retry_after().unwrap() > Span::MINUTE => {
                return (admitted, checked);
            }
            DecisionStatus::Deny => tokio::task::yield_now().await,
            DecisionStatus::Unavailable => panic!("undecided"),
        }
    }
}

const WINDOW: &str =
    "{name: api, per: [user], limit: 20000 per 10 days, algorithm: fixed_window, accuracy: leased}";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn nodes_admit_exactly_the_limit_together_and_seldom_ask() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let fleet = Arc::new(Fleet::of(3, WINDOW).await);
    let before = fleet.calls();
    let hammering = (0..3).map(|place| {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move { exhaust(&fleet.nodes[place], "alice").await })
    });
    let (mut admitted, mut checked) = (0, 0);
    for node in hammering.collect::<Vec<_>>() {
        let (passed, asked) = node.await.unwrap();
        admitted += passed;
        checked += asked;
    }
    // What others still held when one gave up is theirs; nobody comes for it any more.
    assert!((19_800..=20_000).contains(&admitted), "{admitted}");
    let calls = fleet.calls() - before;
    assert!(calls * 50 < checked, "{calls} calls for {checked} checks");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_a_node_leaves_behind_is_the_others_at_once_or_after_it_expired() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let fleet = Fleet::of(2, WINDOW).await;
    let [leaver, other] = fleet.nodes.as_slice() else { panic!("two") };
    let mut admitted = 0;
    for _ in 0..200 {
        admitted += u64::from(leaver.check(&by("alice")).await.is_allowed());
    }
    assert_eq!(admitted, 200);
    leaver.release_all().await;
    let holds: Vec<String> = fleet.redis.query(&["KEYS", "*:h"]);
    assert_eq!(holds, Vec::<String>::new());
    let (rest, _) = exhaust(other, "alice").await;
    assert_eq!(admitted + rest, 20_000);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_client_that_comes_seldom_costs_one_call_each_time() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let fleet = Fleet::of(1, WINDOW).await;
    let before = fleet.calls();
    for user in 0..50 {
        assert!(fleet.nodes[0].check(&by(&user.to_string())).await.is_allowed());
    }
    assert_eq!(fleet.calls() - before, 50);
    let holds: Vec<String> = fleet.redis.query(&["KEYS", "*:h"]);
    assert_eq!(holds, Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_request_that_an_exact_rule_denies_takes_nothing_from_a_leased_one() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let tight = "{name: tight, per: [user, path], limit: 100 per 10 days, algorithm: fixed_window}";
    let fleet = Fleet::of(1, &format!("{WINDOW}, {tight}")).await;
    let node = &fleet.nodes[0];
    let to = |path: &'static str| by("alice").with("path", path).unwrap();
    let mut admitted = 0;
    for _ in 0..1_000 {
        admitted += u64::from(node.check(&to("/a")).await.is_allowed());
    }
    assert_eq!(admitted, 100);
    // A lease that is reported while a request is being decided counts its tokens as spent: at most one for
    // each report, since one request is in flight here. One more may not be refunded yet: a check that went
    // to the store is refunded in the background.
    let lost_at_most = || node.store().counts().asks + 1;
    // Peeks tell what is left, here and in the store, and take nothing.
    let look = node.peek(&to("/b")).await;
    let left = look.rule_outcomes().iter().find(|policy| &*policy.rule == "api").unwrap();
    let (left, lost) = (left.outcome.remaining, lost_at_most());
    assert!((19_900 - lost..=19_900).contains(&left), "{left} left after {lost} reports");
    assert!(lost < 100, "{lost} reports for a lease of two seconds");
    node.release_all().await;
    let mut rest = 0;
    for path in 0..300 {
        let path: &'static str = Box::leak(format!("/{path}").into_boxed_str());
        for _ in 0..10 {
            rest += 10 * u64::from(node.check(&to(path).cost(10)).await.is_allowed());
        }
    }
    // Denials while tokens are fetched in parts took nothing either: what is left can still be had.
    node.release_all().await;
    let look = node.peek(&to("/fresh")).await;
    let left = look.rule_outcomes().iter().find(|policy| &*policy.rule == "api").unwrap();
    let (sum, lost) = (100 + rest + left.outcome.remaining, 10 * lost_at_most());
    assert!((20_000 - lost..=20_000).contains(&sum), "{sum} after {lost} that may be lost");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_bucket_under_lease_keeps_its_burst_and_its_rate() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let bucket = "{name: api, per: [user], limit: 1000 per second, burst: 500, accuracy: leased}";
    let fleet = Arc::new(Fleet::of(3, bucket).await);
    let started = fleet.redis.time_micros();
    let hammering = (0..3).map(|place| {
        let fleet = Arc::clone(&fleet);
        tokio::spawn(async move {
            let mut admitted = 0_u64;
            while fleet.redis.time_micros() < started + 2_000_000 {
                for _ in 0..200 {
                    admitted +=
                        u64::from(fleet.nodes[place].check(&by("alice")).await.is_allowed());
                }
            }
            admitted
        })
    });
    let mut admitted = 0;
    for node in hammering.collect::<Vec<_>>() {
        admitted += node.await.unwrap();
    }
    let passed = fleet.redis.time_micros() - started;
    // The bound by the server's own clock; how much of it is used is for a benchmark to say.
    assert!(admitted <= 500 + passed / 1_000 + 1, "{admitted} in {passed} us");
    assert!(admitted >= 500, "{admitted}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_its_store_a_leased_rule_answers_as_it_says() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let rule = |name, answer| {
        format!(
            "{{name: {name}, match: {{path: /{name}}}, per: [user], limit: 100 per 10 days, accuracy: leased, on_store_failure: {answer}}}"
        )
    };
    let rules = [rule("open", "allow"), rule("closed", "deny")].join(", ");
    let fleet = Fleet::of(1, &rules).await;
    let node = &fleet.nodes[0];
    fleet.redis.kill();
    let to = |path: &'static str| by("alice").with("path", path).unwrap();
    assert_eq!(node.check(&to("/open")).await.status(), DecisionStatus::Allow);
    assert_eq!(node.check(&to("/closed")).await.status(), DecisionStatus::Unavailable);
}

const HOT: &str =
    "{name: api, per: [user], limit: 20000 per 10 days, algorithm: fixed_window, hot: leased}";

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_an_exact_rule_only_a_hot_client_is_leased() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let fleet = Fleet::of(2, HOT).await;
    let before = fleet.calls();
    // A dozen each is leased where all are, and far from hot.
    for check in 0..12 {
        for user in 0..20 {
            let decision = fleet.nodes[check % 2].check(&by(&user.to_string())).await;
            assert_eq!(
                decision.strictest_rule().unwrap().outcome.remaining,
                20_000 - 1 - check as u64
            );
        }
    }
    assert_eq!(fleet.calls() - before, 240);
    let holds: Vec<String> = fleet.redis.query(&["KEYS", "*:h"]);
    assert_eq!(holds, Vec::<String>::new());
    let before = fleet.calls();
    let (hammered, checked) = exhaust(&fleet.nodes[0], "alice").await;
    let calls = fleet.calls() - before;
    assert!(calls * 20 < checked, "{calls} calls for {checked} checks");
    // What was fetched ahead and is not used is the other's.
    fleet.nodes[0].release_all().await;
    let (rest, _) = exhaust(&fleet.nodes[1], "alice").await;
    assert_eq!(hammered + rest, 20_000);
}
