//! A bad network between a node and its Redis.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{DecisionStatus, Limiter, RedisConfig, RedisStore, Request};
use tidegate_testkit::{FaultProxy, Redis};

use super::scene::{LIMIT, Memory, Scene, Spent, rules, until};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_slower_than_the_deadline_is_a_store_that_fails() {
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let mut scene = Scene::begin_apart("latency-50ms", &proxy.url(), &redis.url()).await;
    proxy.delay(Duration::from_millis(50));
    scene.breaker_opens().await;
    scene.rules_follow_their_policies().await;
    scene.checks_stay_away(|| proxy.connections()).await;
    proxy.pass();
    scene.service_resumes().await;
    scene.end(Memory::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_swallows_everything_is_a_store_that_fails() {
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let mut scene = Scene::begin_apart("stalled", &proxy.url(), &redis.url()).await;
    proxy.stall();
    scene.breaker_opens().await;
    scene.rules_follow_their_policies().await;
    scene.checks_stay_away(|| proxy.connections()).await;
    proxy.pass();
    scene.service_resumes().await;
    scene.end(Memory::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_reply_admits_nobody() {
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let mut scene = Scene::begin_apart("late-replies", &proxy.url(), &redis.url()).await;
    let client = scene.newcomer("deny");
    let first = scene.spend(&scene.limiter, &client, 5).await;
    // What is asked arrives and is done; that it was done arrives too late.
    proxy.delay_replies(Duration::from_secs(1));
    let mut late = Spent::default();
    until("a breaker opens", async || {
        late = late.and(scene.spend(&scene.limiter, &client, 2).await);
        !scene.limiter.store().is_ready()
    })
    .await;
    assert_eq!(late.admitted, 0);
    proxy.pass();
    scene.service_resumes().await;
    let rest = scene.spend(&scene.judge, &client, LIMIT + 1).await;
    first.and(late).and(rest).expect_exact(LIMIT);
    scene.end(Memory::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_cut_within_a_reply_admits_nobody_twice() {
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let mut scene = Scene::begin_apart("cut-mid-reply", &proxy.url(), &redis.url()).await;
    let client = scene.newcomer("deny");
    let mut spent = Spent::default();
    // From a reply of which nothing arrives to one of which almost everything does.
    for bytes in [0, 1, 2, 5, 8, 12, 16, 20, 24, 30] {
        let cut = proxy.cut();
        proxy.cut_reply_after(bytes);
        until("the connection is cut", async || {
            spent = spent.and(scene.spend(&scene.limiter, &client, 1).await);
            proxy.cut() > cut
        })
        .await;
        scene.service_resumes().await;
    }
    let rest = scene.spend(&scene.judge, &client, LIMIT + 1).await;
    spent.and(rest).expect_exact(LIMIT);
    assert!(scene.limiter.store().counts().opened >= 1, "a lost connection is noticed");
    scene.end(Memory::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_reply_is_not_taken_for_the_next() {
    let redis = Redis::start();
    let proxy = FaultProxy::to(redis.address());
    let config: RedisConfig = proxy.url().parse().unwrap();
    let store = RedisStore::start(config.with_denial_memory(Duration::ZERO).unwrap()).await;
    let limiter = Limiter::builder().store(Arc::new(store.unwrap())).rules(rules("next")).build();
    until("the store is ready", async || limiter.store().is_ready()).await;
    let check = async |client: &str, cost: u64| {
        let request = Request::new().with("client", client).unwrap().cost(cost);
        limiter.check_rule("deny-next", &request).await.unwrap().status()
    };
    until("the poor one is out of tokens", async || check("poor", 1).await == DecisionStatus::Deny)
        .await;
    // Less often than it takes to give the server up.
    for _ in 0..10 {
        proxy.stall();
        assert_eq!(check("poor", 1).await, DecisionStatus::Unavailable);
        proxy.pass();
        for (client, cost, expected) in
            [("rich", 0, DecisionStatus::Allow), ("poor", 1, DecisionStatus::Deny)]
        {
            let mut ruling = DecisionStatus::Unavailable;
            until("the store decides", async || {
                ruling = check(client, cost).await;
                ruling != DecisionStatus::Unavailable
            })
            .await;
            assert_eq!(ruling, expected, "{client}");
        }
    }
}
