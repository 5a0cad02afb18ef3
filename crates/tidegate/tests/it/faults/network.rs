//! Network faults between a node and its Redis: latency, stalls, cut connections.

use std::sync::Arc;
use std::time::Duration;

use tidegate::redis::{RedisConfig, RedisStore};
use tidegate::{DecisionStatus, Limiter, Request};
use tidegate_testkit::{FaultProxy, Redis};

use super::scenario::{
    CheckCounts, DAILY_LIMIT, FaultScenario, StateAfterFault, rules, wait_until,
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn latency_above_the_store_timeout_opens_the_breaker() {
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let mut scenario =
        FaultScenario::start_behind_proxy("latency-50ms", &proxy.url(), &redis.url()).await;
    proxy.delay(Duration::from_millis(50));
    scenario.wait_for_open_breaker().await;
    scenario.expect_failure_policies().await;
    scenario.expect_only_probes_at_the_server(|| proxy.connections()).await;
    proxy.pass();
    scenario.wait_for_recovery().await;
    scenario.finish(StateAfterFault::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_network_opens_the_breaker() {
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let mut scenario =
        FaultScenario::start_behind_proxy("stalled", &proxy.url(), &redis.url()).await;
    proxy.stall();
    scenario.wait_for_open_breaker().await;
    scenario.expect_failure_policies().await;
    scenario.expect_only_probes_at_the_server(|| proxy.connections()).await;
    proxy.pass();
    scenario.wait_for_recovery().await;
    scenario.finish(StateAfterFault::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reply_after_the_timeout_admits_no_request() {
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let mut scenario =
        FaultScenario::start_behind_proxy("late-replies", &proxy.url(), &redis.url()).await;
    let client = scenario.new_client("deny");
    let first = scenario.check_many(&scenario.limiter, &client, 5).await;
    // Requests arrive and are charged; the replies arrive after the timeout.
    proxy.delay_replies(Duration::from_secs(1));
    let mut late = CheckCounts::default();
    wait_until("a breaker opens", async || {
        late = late.plus(scenario.check_many(&scenario.limiter, &client, 2).await);
        !scenario.limiter.store().is_ready()
    })
    .await;
    assert_eq!(late.admitted, 0);
    proxy.pass();
    scenario.wait_for_recovery().await;
    let rest = scenario.check_many(&scenario.observer, &client, DAILY_LIMIT + 1).await;
    first.plus(late).plus(rest).expect_exactly(DAILY_LIMIT);
    scenario.finish(StateAfterFault::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connection_cut_within_a_reply_admits_no_request_twice() {
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let mut scenario =
        FaultScenario::start_behind_proxy("cut-mid-reply", &proxy.url(), &redis.url()).await;
    let client = scenario.new_client("deny");
    let mut spent = CheckCounts::default();
    // From an empty reply to an almost complete one.
    for bytes in [0, 1, 2, 5, 8, 12, 16, 20, 24, 30] {
        let cuts_before = proxy.cut();
        proxy.cut_reply_after(bytes);
        wait_until("the connection is cut", async || {
            spent = spent.plus(scenario.check_many(&scenario.limiter, &client, 1).await);
            proxy.cut() > cuts_before
        })
        .await;
        scenario.wait_for_recovery().await;
    }
    let rest = scenario.check_many(&scenario.observer, &client, DAILY_LIMIT + 1).await;
    spent.plus(rest).expect_exactly(DAILY_LIMIT);
    assert!(scenario.limiter.store().counts().opened >= 1, "a lost connection is noticed");
    scenario.finish(StateAfterFault::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_reply_is_not_matched_to_the_next_request() {
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let config: RedisConfig = proxy.url().parse().unwrap();
    let store = RedisStore::start(config.with_denial_memory(Duration::ZERO).unwrap()).await;
    let limiter = Limiter::builder().store(Arc::new(store.unwrap())).rules(rules("next")).build();
    wait_until("the store is ready", async || limiter.store().is_ready()).await;
    let check = async |client: &str, cost: u64| {
        let request = Request::new().with("client", client).unwrap().cost(cost);
        limiter.check_rule("deny-next", &request).await.unwrap().status()
    };
    wait_until("the client is out of tokens", async || {
        check("exhausted", 1).await == DecisionStatus::Deny
    })
    .await;
    // The stalls are too few in a row to open the breaker.
    for _ in 0..10 {
        proxy.stall();
        assert_eq!(check("exhausted", 1).await, DecisionStatus::Unavailable);
        proxy.pass();
        for (client, cost, expected) in
            [("fresh", 0, DecisionStatus::Allow), ("exhausted", 1, DecisionStatus::Deny)]
        {
            let mut status = DecisionStatus::Unavailable;
            wait_until("the store decides", async || {
                status = check(client, cost).await;
                status != DecisionStatus::Unavailable
            })
            .await;
            assert_eq!(status, expected, "{client}");
        }
    }
}
