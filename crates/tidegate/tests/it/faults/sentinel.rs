//! A master, its replica and sentinels.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{DecisionStatus, Limiter, RedisConfig, RedisStore, Request, RuleSet, Store};
use tidegate_testkit::{FaultProxy, Redis, Sentinel, Tool, lacking};

use super::scene::{LIMIT, Memory, Scene, until};

/// Long enough for a test to look around before the master is replaced.
const PATIENT: &str = "600000";
const QUICK: &str = "300";

fn wait_before_replacing(sentinel: &Sentinel, milliseconds: &str) {
    for watcher in sentinel.sentinels() {
        let set = ["SENTINEL", "SET", Sentinel::NAME, "down-after-milliseconds", milliseconds];
        watcher.query::<()>(&set);
    }
}

/// Returns once the replica has all that its master has.
fn replicated(master: &Redis) {
    let mut connection = master.connection().unwrap();
    redis::cmd("SET").arg("seen").arg(1).exec(&mut connection).unwrap();
    let seen: usize = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut connection).unwrap();
    assert_eq!(seen, 1, "the replica follows");
}

async fn is_replaced(fault: &'static str, clock: Option<i64>) {
    let builder = Sentinel::builder();
    let sentinel = match clock {
        Some(offset) => builder.replica_clock(offset),
        None => builder,
    };
    let sentinel = sentinel.start();
    wait_before_replacing(&sentinel, PATIENT);
    let mut scene = Scene::begin(fault, &sentinel.url()).await;
    let full = scene.newcomer("deny");
    let spent = scene.spend(&scene.judge, &full, LIMIT + 1).await;
    replicated(sentinel.master());
    sentinel.kill_master();
    scene.breaker_opens().await;
    scene.rules_follow_their_policies().await;
    wait_before_replacing(&sentinel, QUICK);
    scene.service_resumes().await;
    assert_eq!(scene.judge.store().counts().failovers, 1);
    // Neither a clock that went back nor one that is ahead gives a client anything before its time.
    let more = scene.spend(&scene.judge, &full, 5).await;
    assert!(spent.admitted + more.admitted <= LIMIT, "{spent:?} {more:?}");
    let went_back = clock.is_some_and(|offset| offset < 0);
    scene.end(if went_back { Memory::KeptBehind } else { Memory::Kept }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_replaced_and_nothing_is_forgotten() {
    is_replaced("sentinel-failover", None).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_master_whose_clock_is_ahead_gives_nothing_away() {
    if !lacking(&[Tool::Faketime]) {
        is_replaced("promoted-clock-ahead-5s", Some(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_master_whose_clock_is_behind_gives_nothing_away() {
    if !lacking(&[Tool::Faketime]) {
        is_replaced("promoted-clock-behind-5s", Some(-5)).await;
    }
}

/// A client of a node, by the rule that never admits without the store.
struct Client<'a> {
    limiter: Limiter<RedisStore>,
    request: Request<'a>,
}

/// A node whose sentinels are reached at `url`.
async fn node(url: &str) -> Limiter<RedisStore> {
    let config: RedisConfig = url.parse().unwrap();
    let config = config.with_timeout(Duration::from_secs(1)).unwrap();
    let config = config.with_denial_memory(Duration::ZERO).unwrap();
    let store = RedisStore::connect(config).await.unwrap();
    let rules = format!(
        "rules: [{{name: api, per: [user], limit: {LIMIT} per day, on_store_failure: deny}}]"
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

    /// The number of admitted checks, of many more than the limit.
    async fn spend(&self) -> u64 {
        let mut admitted = 0;
        for _ in 0..2 * LIMIT {
            admitted += u64::from(self.check().await == DecisionStatus::Allow);
        }
        admitted
    }

    /// Whether a server has a counter of this client.
    fn is_known_to(&self, server: &Redis) -> bool {
        let rules = self.limiter.rules();
        let rule = &rules.rules()[0];
        let store = self.limiter.store();
        let scope = store.keyer().scope(rule.name(), ["user"]);
        let name = store.name_of(scope.key(rule.parts(&self.request)));
        server.query::<bool>(&["EXISTS", &name])
    }
}

/// Waits until a node is subscribed to every sentinel.
async fn subscribed(sentinel: &Sentinel) {
    until("the node is subscribed to every sentinel", async || {
        sentinel.sentinels().iter().all(|sentinel| {
            let clients: String = sentinel.query(&["CLIENT", "LIST", "TYPE", "pubsub"]);
            // Each sentinel has subscriptions on the servers, and none of the others here.
            clients.lines().any(|client| client.contains("sub=1"))
        })
    })
    .await;
}

async fn followed(node: &Limiter<RedisStore>) {
    until("the node uses the new master", async || {
        let store = node.store();
        store.counts().failovers == 1 && store.is_ready()
    })
    .await;
}

/// Proxies before all sentinels, and the address of a node that knows only those.
fn behind_proxies(sentinel: &Sentinel) -> (Vec<FaultProxy>, String) {
    let proxies: Vec<FaultProxy> = sentinel.addresses().into_iter().map(FaultProxy::to).collect();
    let addresses: Vec<String> = proxies.iter().map(FaultProxy::address).collect();
    let url = format!("redis+sentinel://{}/{}", addresses.join(","), Sentinel::NAME);
    (proxies, url)
}

fn cut_off(proxies: &[FaultProxy]) {
    for proxy in proxies {
        proxy.refuse();
        proxy.drop_connections();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switch_is_followed_while_the_old_master_still_answers() {
    let sentinel = Sentinel::start();
    let node = node(&sentinel.url()).await;
    subscribed(&sentinel).await;
    let (before, after) = (Client::new(&node, "before"), Client::new(&node, "after"));
    assert_eq!(before.spend().await, LIMIT);
    replicated(sentinel.master());

    let old = sentinel.isolate_master();
    let new = sentinel.wait_for_successor(old);
    followed(&node).await;
    assert_eq!(before.spend().await, 0, "the limit is not doubled");
    assert_eq!(after.spend().await, LIMIT);
    assert!(!after.is_known_to(old), "a charge reached the old master");
    assert!(after.is_known_to(new));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switch_during_a_lost_subscription_is_followed_when_it_returns() {
    let sentinel = Sentinel::start();
    let (proxies, url) = behind_proxies(&sentinel);
    let node = node(&url).await;
    cut_off(&proxies);
    let old = sentinel.isolate_master();
    let new = sentinel.wait_for_successor(old);
    // The node can't know, and the old master takes its charges.
    let unaware = Client::new(&node, "unaware");
    assert_eq!(unaware.spend().await, LIMIT);
    assert!(unaware.is_known_to(old));

    proxies.iter().for_each(FaultProxy::pass);
    followed(&node).await;
    let after = Client::new(&node, "after");
    assert_eq!(after.spend().await, LIMIT);
    assert!(!after.is_known_to(old), "a charge reached the old master");
    assert!(after.is_known_to(new));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stale_sentinel_does_not_lead_to_the_old_master() {
    let sentinel = Sentinel::start();
    let old = sentinel.isolate_master();
    let new = sentinel.wait_for_successor(old);
    let stale = Sentinel::start_stale(old);
    let addresses = [vec![stale.address()], sentinel.addresses()].concat().join(",");
    let node = node(&format!("redis+sentinel://{addresses}/{}", Sentinel::NAME)).await;
    let client = Client::new(&node, "client");
    assert_eq!(client.spend().await, LIMIT);
    assert!(!client.is_known_to(old), "a charge reached the old master");
    assert!(client.is_known_to(new));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_cut_off_with_the_old_master_stops_when_that_requires_replicas() {
    let sentinel = Sentinel::start();
    let (proxies, url) = behind_proxies(&sentinel);
    let node = node(&url).await;
    let client = Client::new(&node, "client");
    let before = client.spend().await;
    assert_eq!(before, LIMIT);
    for (name, value) in [("min-replicas-to-write", "1"), ("min-replicas-max-lag", "1")] {
        sentinel.master().query::<()>(&["CONFIG", "SET", name, value]);
    }
    cut_off(&proxies);
    let old = sentinel.isolate_master();
    until("the old master rejects charges", async || {
        Client::new(&node, "other").check().await == DecisionStatus::Unavailable
    })
    .await;
    assert_eq!(client.spend().await, 0);

    sentinel.wait_for_successor(old);
    proxies.iter().for_each(FaultProxy::pass);
    until("the node uses the new master", async || node.store().is_ready()).await;
    let after = Client::new(&node, "after");
    until("charges are decided", async || after.check().await == DecisionStatus::Allow).await;
    assert!(!after.is_known_to(old));
}
