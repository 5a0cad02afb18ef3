//! One Redis.

use tidegate_testkit::{Redis, wait_for};

use super::scene::{LIMIT, Memory, Scene, Spent};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_is_killed_costs_at_most_one_more_limit() {
    let redis = Redis::start();
    let mut scene = Scene::begin("killed", &redis.url()).await;
    redis.kill();
    scene.breaker_opens().await;
    scene.rules_follow_their_policies().await;
    scene.checks_stay_away(|| 0).await;
    redis.restart();
    scene.service_resumes().await;
    scene.end(Memory::Lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_restarts_empty_costs_at_most_one_more_limit() {
    let redis = Redis::start();
    let mut scene = Scene::begin("restarted-empty", &redis.url()).await;
    redis.restart();
    scene.service_resumes().await;
    scene.end(Memory::Lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_that_stands_still_is_left_alone_until_it_goes_on() {
    let redis = Redis::start();
    let mut scene = Scene::begin("stopped", &redis.url()).await;
    redis.pause();
    scene.breaker_opens().await;
    scene.rules_follow_their_policies().await;
    redis.resume();
    scene.service_resumes().await;
    scene.end(Memory::Kept).await;
}

/// How often the server was asked to run a script, whatever it answered.
fn scripts_asked_for(redis: &Redis) -> usize {
    let asked = redis.info("cmdstat_evalsha").unwrap_or_default();
    let field = |name: &str| {
        let fields = asked.split(',').filter_map(|field| field.split_once('='));
        fields
            .filter(|(found, _)| *found == name)
            .map(|(_, value)| value.parse::<usize>().unwrap())
            .sum::<usize>()
    };
    field("calls") + field("rejected_calls")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_redis_out_of_memory_is_left_alone_until_it_has_some() {
    let redis = Redis::start();
    let mut scene = Scene::begin("oom", &redis.url()).await;
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    scene.breaker_opens().await;
    scene.rules_follow_their_policies().await;
    scene.checks_stay_away(|| scripts_asked_for(&redis)).await;
    assert!(redis.info("errorstat_OOM").is_some(), "it did say OOM");
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    scene.service_resumes().await;
    scene.end(Memory::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_becomes_a_replica_is_left_alone_until_it_is_one_again() {
    let (redis, other) = (Redis::start(), Redis::start());
    let mut scene = Scene::begin("readonly", &redis.url()).await;
    redis.query::<()>(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    wait_for("it follows the other", || (redis.info("master_link_status")? == "up").then_some(()));
    scene.breaker_opens().await;
    scene.rules_follow_their_policies().await;
    scene.checks_stay_away(|| scripts_asked_for(&redis)).await;
    redis.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    scene.service_resumes().await;
    // It took over the other's data, of which there was none.
    scene.end(Memory::Lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_are_flushed_under_load_cost_nothing() {
    let redis = Redis::start();
    let scene = Scene::begin("noscript", &redis.url()).await;
    let client = scene.newcomer("deny");
    let mut spent = Spent::default();
    for _ in 0..LIMIT {
        redis.query::<()>(&["SCRIPT", "FLUSH"]);
        spent = spent.and(scene.spend(&scene.judge, &client, 2).await);
    }
    spent.expect_exact(LIMIT);
    assert!(redis.info("errorstat_NOSCRIPT").is_some(), "it did say NOSCRIPT");
    assert_eq!(scene.judge.store().counts().opened, 0, "no breaker opened");
    scene.end(Memory::Kept).await;
}
