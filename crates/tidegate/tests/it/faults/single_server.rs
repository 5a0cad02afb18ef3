//! Faults of a single Redis server.

use tidegate_testkit::{Redis, wait_for};

use super::scenario::{CheckCounts, DAILY_LIMIT, FaultScenario, StateAfterFault};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_redis_admits_at_most_one_more_limit() {
    let redis = Redis::start();
    let mut scenario = FaultScenario::start("killed", &redis.url()).await;
    redis.kill();
    scenario.wait_for_open_breaker().await;
    scenario.expect_failure_policies().await;
    scenario.expect_only_probes_at_the_server(|| 0).await;
    redis.restart();
    scenario.wait_for_recovery().await;
    scenario.finish(StateAfterFault::Lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_restarted_without_data_admits_at_most_one_more_limit() {
    let redis = Redis::start();
    let mut scenario = FaultScenario::start("restarted-empty", &redis.url()).await;
    redis.restart();
    scenario.wait_for_recovery().await;
    scenario.finish(StateAfterFault::Lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_redis_keeps_the_breaker_open_until_it_resumes() {
    let redis = Redis::start();
    let mut scenario = FaultScenario::start("stopped", &redis.url()).await;
    redis.pause();
    scenario.wait_for_open_breaker().await;
    scenario.expect_failure_policies().await;
    redis.resume();
    scenario.wait_for_recovery().await;
    scenario.finish(StateAfterFault::Kept).await;
}

/// Returns the number of script calls that the server received, including rejected ones.
fn script_calls(redis: &Redis) -> usize {
    let stats = redis.info("cmdstat_evalsha").unwrap_or_default();
    let field = |name: &str| {
        let fields = stats.split(',').filter_map(|field| field.split_once('='));
        fields
            .filter(|(found, _)| *found == name)
            .map(|(_, value)| value.parse::<usize>().unwrap())
            .sum::<usize>()
    };
    field("calls") + field("rejected_calls")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_out_of_memory_keeps_the_breaker_open_until_memory_is_free() {
    let redis = Redis::start();
    let mut scenario = FaultScenario::start("oom", &redis.url()).await;
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "1"]);
    scenario.wait_for_open_breaker().await;
    scenario.expect_failure_policies().await;
    scenario.expect_only_probes_at_the_server(|| script_calls(&redis)).await;
    assert!(redis.info("errorstat_OOM").is_some(), "the server returned OOM errors");
    redis.query::<()>(&["CONFIG", "SET", "maxmemory", "0"]);
    scenario.wait_for_recovery().await;
    scenario.finish(StateAfterFault::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn master_demoted_to_replica_keeps_the_breaker_open_until_promoted_again() {
    let (redis, other) = (Redis::start(), Redis::start());
    let mut scenario = FaultScenario::start("readonly", &redis.url()).await;
    redis.query::<()>(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
    wait_for("the replica follows its master", || {
        (redis.info("master_link_status")? == "up").then_some(())
    });
    scenario.wait_for_open_breaker().await;
    scenario.expect_failure_policies().await;
    scenario.expect_only_probes_at_the_server(|| script_calls(&redis)).await;
    redis.query::<()>(&["REPLICAOF", "NO", "ONE"]);
    scenario.wait_for_recovery().await;
    // The replica took over the other server's data, which was empty.
    scenario.finish(StateAfterFault::Lost).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn script_flush_under_load_loses_no_check() {
    let redis = Redis::start();
    let scenario = FaultScenario::start("noscript", &redis.url()).await;
    let client = scenario.new_client("deny");
    let mut spent = CheckCounts::default();
    for _ in 0..DAILY_LIMIT {
        redis.query::<()>(&["SCRIPT", "FLUSH"]);
        spent = spent.plus(scenario.check_many(&scenario.observer, &client, 2).await);
    }
    spent.expect_exactly(DAILY_LIMIT);
    assert!(redis.info("errorstat_NOSCRIPT").is_some(), "the server returned NOSCRIPT errors");
    assert_eq!(scenario.observer.store().counts().opened, 0, "no breaker opened");
    scenario.finish(StateAfterFault::Kept).await;
}
