//! Failover by Redis Sentinel.

use std::sync::Arc;
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::store::Store;
use tidegate::{DecisionStatus, Limiter, Request, RuleSet};
use tidegate_testkit::{FaultProxy, Redis, Sentinel, Tool, lacking};

use super::scenario::{DAILY_LIMIT, FaultScenario, StateAfterFault, wait_until};

/// Sentinels do not replace the master before the test has checked the behaviour during the fault.
const SLOW_DOWN_AFTER_MILLIS: &str = "600000";
const FAST_DOWN_AFTER_MILLIS: &str = "300";

fn set_down_after(sentinel: &Sentinel, milliseconds: &str) {
    for monitor in sentinel.sentinels() {
        let set = ["SENTINEL", "SET", Sentinel::NAME, "down-after-milliseconds", milliseconds];
        monitor.query::<()>(&set);
    }
}

/// Waits until the replica has received all writes of its master.
fn wait_for_replication(master: &Redis) {
    let mut connection = master.connection().unwrap();
    redis::cmd("SET").arg("seen").arg(1).exec(&mut connection).unwrap();
    let seen: usize = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut connection).unwrap();
    assert_eq!(seen, 1, "the replica follows");
}

async fn run_failover(fault: &'static str, clock_offset: Option<i64>) {
    let builder = Sentinel::builder();
    let sentinel = match clock_offset {
        Some(offset) => builder.replica_clock(offset),
        None => builder,
    };
    let sentinel = sentinel.start();
    set_down_after(&sentinel, SLOW_DOWN_AFTER_MILLIS);
    let mut scenario = FaultScenario::start(fault, &sentinel.url()).await;
    let exhausted_client = scenario.new_client("deny");
    let spent = scenario.check_many(&scenario.observer, &exhausted_client, DAILY_LIMIT + 1).await;
    wait_for_replication(sentinel.master());
    sentinel.kill_master();
    scenario.wait_for_open_breaker().await;
    scenario.expect_failure_policies().await;
    set_down_after(&sentinel, FAST_DOWN_AFTER_MILLIS);
    scenario.wait_for_recovery().await;
    assert_eq!(scenario.observer.store().counts().failovers, 1);
    // A clock step in either direction must not admit a request early.
    let more = scenario.check_many(&scenario.observer, &exhausted_client, 5).await;
    assert!(spent.admitted + more.admitted <= DAILY_LIMIT, "{spent:?} {more:?}");
    let went_back = clock_offset.is_some_and(|offset| offset < 0);
    scenario
        .finish(if went_back {
            StateAfterFault::KeptWithClockBehind
        } else {
            StateAfterFault::Kept
        })
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_failover_keeps_all_counters() {
    run_failover("sentinel-failover", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promoted_master_with_clock_ahead_admits_nothing_early() {
    if !lacking(&[Tool::Faketime]) {
        run_failover("promoted-clock-ahead-5s", Some(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn promoted_master_with_clock_behind_admits_nothing_early() {
    if !lacking(&[Tool::Faketime]) {
        run_failover("promoted-clock-behind-5s", Some(-5)).await;
    }
}

/// A client of a node, checked against a rule that denies when the store fails.
struct Client<'a> {
    limiter: Limiter<RedisStore>,
    request: Request<'a>,
}

/// Starts a node that finds its sentinels at `url`.
async fn start_node(url: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().unwrap();
    let config = config.with_timeout(Duration::from_secs(1)).unwrap();
    let config = config.with_denial_memory(Duration::ZERO).unwrap();
    let store = crate::connect(config).await;
    let rules = format!(
        "rules: [{{name: api, per: [user], limit: {DAILY_LIMIT} per day, on_store_failure: deny}}]"
    );
    let rules = RuleSet::parse("rules.yaml", &rules).unwrap();
    Limiter::builder().store(Arc::new(store)).rules(rules).build()
}

impl<'a> Client<'a> {
    fn new(limiter: &Limiter<RedisStore>, user: &'a str) -> Self {
        Self { limiter: limiter.clone(), request: Request::new().with("user", user).unwrap() }
    }

    async fn check(&self) -> DecisionStatus {
        self.limiter.check(&self.request).await.status()
    }

    /// Sends twice as many checks as the limit. Returns the number of admitted ones.
    async fn count_admitted(&self) -> u64 {
        let mut admitted = 0;
        for _ in 0..2 * DAILY_LIMIT {
            admitted += u64::from(self.check().await == DecisionStatus::Allow);
        }
        admitted
    }

    /// Returns whether a server has a counter of this client.
    fn has_counter_on(&self, server: &Redis) -> bool {
        let rules = self.limiter.rules();
        let rule = &rules.rules()[0];
        let store = self.limiter.store();
        let scope = store.keyer().scope(rule.name(), ["user"]);
        let name = store.name_of(scope.key(rule.parts(&self.request)));
        server.query::<bool>(&["EXISTS", &name])
    }
}

/// Waits until a node is subscribed to every sentinel.
async fn wait_for_subscriptions(sentinel: &Sentinel) {
    wait_until("the node is subscribed to every sentinel", async || {
        sentinel.sentinels().iter().all(|sentinel| {
            let clients: String = sentinel.query(&["CLIENT", "LIST", "TYPE", "pubsub"]);
            // Sentinels subscribe to the Redis servers, not to each other: this subscription is the node's.
            clients.lines().any(|client| client.contains("sub=1"))
        })
    })
    .await;
}

async fn wait_for_failover(node: &Limiter<RedisStore>) {
    wait_until("the node uses the new master", async || {
        let store = node.store();
        store.counts().failovers == 1 && store.is_ready()
    })
    .await;
}

/// Starts a proxy in front of each sentinel. Returns the proxies and a URL that contains only their addresses.
fn proxy_sentinels(sentinel: &Sentinel) -> (Vec<FaultProxy>, String) {
    let proxies: Vec<FaultProxy> = sentinel.addresses().into_iter().map(FaultProxy::to).collect();
    let addresses: Vec<String> = proxies.iter().map(FaultProxy::address).collect();
    let url = format!("redis+sentinel://{}/{}", addresses.join(","), Sentinel::NAME);
    (proxies, url)
}

fn disconnect(proxies: &[FaultProxy]) {
    for proxy in proxies {
        proxy.refuse();
        proxy.drop_connections();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_is_followed_while_the_old_master_still_answers() {
    let sentinel = Sentinel::start();
    let node = start_node(&sentinel.url()).await;
    wait_for_subscriptions(&sentinel).await;
    let (before, after) = (Client::new(&node, "before"), Client::new(&node, "after"));
    assert_eq!(before.count_admitted().await, DAILY_LIMIT);
    wait_for_replication(sentinel.master());

    let old = sentinel.isolate_master();
    let new = sentinel.wait_for_successor(old);
    wait_for_failover(&node).await;
    assert_eq!(before.count_admitted().await, 0, "the limit is not doubled");
    assert_eq!(after.count_admitted().await, DAILY_LIMIT);
    assert!(!after.has_counter_on(old), "a charge reached the old master");
    assert!(after.has_counter_on(new));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_during_a_lost_subscription_is_followed_after_reconnect() {
    let sentinel = Sentinel::start();
    let (proxies, url) = proxy_sentinels(&sentinel);
    let node = start_node(&url).await;
    disconnect(&proxies);
    let old = sentinel.isolate_master();
    let new = sentinel.wait_for_successor(old);
    // The node has not received the failover, and the old master still accepts its charges.
    let client_of_old_master = Client::new(&node, "unaware");
    assert_eq!(client_of_old_master.count_admitted().await, DAILY_LIMIT);
    assert!(client_of_old_master.has_counter_on(old));

    proxies.iter().for_each(FaultProxy::pass);
    wait_for_failover(&node).await;
    let after = Client::new(&node, "after");
    assert_eq!(after.count_admitted().await, DAILY_LIMIT);
    assert!(!after.has_counter_on(old), "a charge reached the old master");
    assert!(after.has_counter_on(new));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_sentinel_does_not_cause_use_of_the_old_master() {
    let sentinel = Sentinel::start();
    let old = sentinel.isolate_master();
    let new = sentinel.wait_for_successor(old);
    let stale = Sentinel::start_stale(old);
    let addresses = [vec![stale.address()], sentinel.addresses()].concat().join(",");
    let node = start_node(&format!("redis+sentinel://{addresses}/{}", Sentinel::NAME)).await;
    let client = Client::new(&node, "client");
    assert_eq!(client.count_admitted().await, DAILY_LIMIT);
    assert!(!client.has_counter_on(old), "a charge reached the old master");
    assert!(client.has_counter_on(new));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partitioned_node_stops_when_the_old_master_requires_replicas() {
    let sentinel = Sentinel::start();
    let (proxies, url) = proxy_sentinels(&sentinel);
    let node = start_node(&url).await;
    let client = Client::new(&node, "client");
    let before = client.count_admitted().await;
    assert_eq!(before, DAILY_LIMIT);
    for (name, value) in [("min-replicas-to-write", "1"), ("min-replicas-max-lag", "1")] {
        sentinel.master().query::<()>(&["CONFIG", "SET", name, value]);
    }
    disconnect(&proxies);
    let old = sentinel.isolate_master();
    wait_until("the old master rejects charges", async || {
        Client::new(&node, "other").check().await == DecisionStatus::Unavailable
    })
    .await;
    assert_eq!(client.count_admitted().await, 0);

    sentinel.wait_for_successor(old);
    proxies.iter().for_each(FaultProxy::pass);
    wait_until("the node uses the new master", async || node.store().is_ready()).await;
    let after = Client::new(&node, "after");
    wait_until("charges are decided", async || after.check().await == DecisionStatus::Allow).await;
    assert!(!after.has_counter_on(old));
}
