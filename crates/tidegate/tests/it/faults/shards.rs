//! Faults of independent Redis servers used as shards.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tidegate::redis::RedisConfig;
use tidegate_testkit::Redis;

use super::captured_log;
use super::scenario::{CheckCounts, DAILY_LIMIT, FAILURE_POLICIES, FaultScenario, StateAfterFault};

/// Enough clients that every shard has many counters of each rule.
const CLIENTS_PER_RULE: usize = 150;

fn key_exists(redis: &Redis, name: &str) -> bool {
    redis.query(&["EXISTS", name])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_shard_fails_only_its_own_keys() {
    captured_log::capture();
    let shards = [Redis::start(), Redis::start(), Redis::start()];
    let config_with_timeout = |timeout| {
        let shards = shards.iter().map(|redis| {
            redis.url().parse::<RedisConfig>().unwrap().with_timeout(timeout).unwrap()
        });
        RedisConfig::shards(shards).unwrap()
    };
    let (short_timeout, long_timeout) = (Duration::from_millis(10), Duration::from_secs(1));
    let mut scenario = FaultScenario::start_with_configs(
        "one-shard-of-three-killed",
        [
            config_with_timeout(short_timeout),
            config_with_timeout(long_timeout),
            config_with_timeout(short_timeout),
        ],
    )
    .await;

    // Create every counter once, to find the shard that owns it.
    let mut counters: HashMap<String, usize> = HashMap::new();
    for rule in FAILURE_POLICIES {
        for number in 0..CLIENTS_PER_RULE {
            let client = format!("new-{number}");
            scenario.check(&scenario.observer, rule, &client).await;
            let name = scenario.counter_name(rule, &client);
            let owners: Vec<usize> =
                (0..3).filter(|shard| key_exists(&shards[*shard], &name)).collect();
            assert_eq!(owners.len(), 1, "{name} is on one shard");
            counters.insert(name, owners[0]);
        }
    }
    let before = scenario.counter_name("deny", "before");
    let dead_shard = (0..3).find(|shard| !key_exists(&shards[*shard], &before)).unwrap();
    let affected_counters: HashSet<String> = counters
        .iter()
        .filter(|(_, owner)| **owner == dead_shard)
        .map(|(name, _)| name.clone())
        .collect();
    let affected = affected_counters.clone();
    scenario.restrict_clients_to(move |name| affected.contains(name));

    shards[dead_shard].kill();
    scenario.wait_for_open_breaker().await;
    scenario.expect_failure_policies().await;
    let survivors: Vec<&Redis> = shards.iter().filter(|redis| redis.is_up()).collect();
    assert_eq!(survivors.len(), 2);
    for name in &affected_counters {
        assert!(
            survivors.iter().all(|redis| !key_exists(redis, name)),
            "{name} was counted elsewhere"
        );
    }
    let other_clients = (0..CLIENTS_PER_RULE).map(|number| format!("new-{number}"));
    let other_clients = other_clients
        .filter(|client| counters[&scenario.counter_name("deny", client)] != dead_shard);
    for client in other_clients.take(5) {
        let counts = scenario.check_many(&scenario.observer, &client, DAILY_LIMIT + 1).await;
        counts.plus(CheckCounts { admitted: 1, unknown: 0 }).expect_exactly(DAILY_LIMIT);
    }

    shards[dead_shard].restart();
    scenario.wait_for_recovery().await;
    scenario.finish(StateAfterFault::Kept).await;
}
