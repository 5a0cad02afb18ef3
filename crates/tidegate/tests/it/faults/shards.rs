//! Servers that know nothing of each other.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tidegate::RedisConfig;
use tidegate_testkit::Redis;

use super::log;
use super::scene::{LIMIT, Memory, RULES, Scene, Spent};

/// Enough clients for each rule that every shard has many.
const CLIENTS: usize = 150;

fn has(redis: &Redis, name: &str) -> bool {
    redis.query(&["EXISTS", name])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_shard_fails_its_own_keys_and_no_other() {
    log::keep();
    let shards = [Redis::start(), Redis::start(), Redis::start()];
    let with = |timeout| {
        let shards = shards.iter().map(|redis| {
            redis.url().parse::<RedisConfig>().unwrap().with_timeout(timeout).unwrap()
        });
        RedisConfig::shards(shards).unwrap()
    };
    let (quick, patient) = (Duration::from_millis(10), Duration::from_secs(1));
    let mut scene =
        Scene::begin_with("one-shard-of-three-killed", [with(quick), with(patient), with(quick)])
            .await;

    // Every counter is made once, to see where it is.
    let mut counters: HashMap<String, usize> = HashMap::new();
    for rule in RULES {
        for number in 0..CLIENTS {
            let client = format!("new-{number}");
            scene.check(&scene.judge, rule, &client).await;
            let name = scene.counter(rule, &client);
            let homes: Vec<usize> = (0..3).filter(|shard| has(&shards[*shard], &name)).collect();
            assert_eq!(homes.len(), 1, "{name} is on one shard");
            counters.insert(name, homes[0]);
        }
    }
    let before = scene.counter("deny", "before");
    let dead = (0..3).find(|shard| !has(&shards[*shard], &before)).unwrap();
    let names: HashSet<String> =
        counters.iter().filter(|(_, home)| **home == dead).map(|(name, _)| name.clone()).collect();
    let concerned = names.clone();
    scene.concerns(move |name| concerned.contains(name));

    shards[dead].kill();
    scene.breaker_opens().await;
    scene.rules_follow_their_policies().await;
    let survivors: Vec<&Redis> = shards.iter().filter(|redis| redis.is_up()).collect();
    assert_eq!(survivors.len(), 2);
    for name in &names {
        assert!(survivors.iter().all(|redis| !has(redis, name)), "{name} was counted elsewhere");
    }
    let elsewhere = (0..CLIENTS).map(|number| format!("new-{number}"));
    let elsewhere = elsewhere.filter(|client| counters[&scene.counter("deny", client)] != dead);
    for client in elsewhere.take(5) {
        let more = scene.spend(&scene.judge, &client, LIMIT + 1).await;
        more.and(Spent { admitted: 1, unknown: 0 }).expect_exact(LIMIT);
    }

    shards[dead].restart();
    scene.service_resumes().await;
    scene.end(Memory::Kept).await;
}
