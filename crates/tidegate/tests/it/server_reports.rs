//! Reports of a store about its servers.

use std::sync::Arc;
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore, ServerReport};
use tidegate::{Limiter, Request, RuleSet};
use tidegate_testkit::{FaultProxy, Flavour, Redis, Tool, WAIT_TIMEOUT, lacking, wait_for};

const REQUIRED_TOOLS: [Tool; 1] = [Tool::Server(Flavour::Redis)];

async fn limiter(config: RedisConfig) -> Limiter<RedisStore> {
    let store = Arc::new(crate::connect(config).await);
    let rules = RuleSet::parse("rules.yaml", "rules: [{name: api, per: [user], limit: 9 per day}]");
    Limiter::builder().rules(rules.unwrap()).store(store).build()
}

fn report(limiter: &Limiter<RedisStore>) -> ServerReport {
    let mut reports = limiter.store().reports();
    assert_eq!(reports.len(), 1);
    reports.remove(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_report_contains_latency_and_memory_usage() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::builder().config("maxmemory", "67108864").start();
    let config: RedisConfig = server.url().parse().unwrap();
    let limiter = limiter(config.with_timeout(WAIT_TIMEOUT).unwrap()).await;
    for user in ["a", "b", "c"] {
        let request = Request::new().with("user", user).unwrap();
        assert!(limiter.check(&request).await.is_allowed());
    }
    limiter.store().sample_memory().await;
    let report = report(&limiter);
    assert_eq!(report.name, format!("redis {}", server.address()));
    assert!(report.is_up);
    assert_eq!((report.connections, report.opened), (1, 0));
    assert_eq!((report.timeouts, report.failures), (0, 0));
    assert!(report.latency.count() >= limiter.store().counts().calls, "{report:?}");
    assert!(report.latency.longest > Duration::ZERO);
    assert!(report.latency.sum >= report.latency.longest);
    let usage = report.usage.unwrap();
    assert!(usage.memory > 0 && usage.memory < usage.max_memory, "{usage:?}");
    assert_eq!((usage.max_memory, usage.evicted), (67_108_864, 0));
    // Three counters, and the key of the heartbeat if the node has already sent one.
    assert!((3..=4).contains(&usage.keys), "{usage:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn server_report_counts_timeouts_until_the_server_is_reachable_again() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let proxy = FaultProxy::to(server.address());
    let config: RedisConfig = proxy.url().parse().unwrap();
    let limiter = limiter(config.with_timeout(Duration::from_millis(100)).unwrap()).await;
    let request = Request::new().with("user", "a").unwrap();
    proxy.stall();
    while report(&limiter).is_up {
        assert!(limiter.check(&request).await.is_allowed(), "rules fail open");
    }
    let down = report(&limiter);
    assert_eq!((down.opened, down.failures), (1, 0));
    assert!(down.timeouts >= 5, "{down:?}");
    assert!(down.latency.longest >= Duration::from_millis(100));
    assert!(limiter.store().counts().late >= 1);
    proxy.pass();
    wait_for("the server is reachable again", || report(&limiter).is_up.then_some(()));
    assert_eq!(report(&limiter).connections, 2);
    assert_eq!(limiter.store().counts().failovers, 0, "reconnecting is no failover");
    proxy.drop_connections();
    wait_for("the node has reconnected", || (report(&limiter).connections == 3).then_some(()));
}
