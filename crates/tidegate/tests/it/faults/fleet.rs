//! Nodes that come and go, and servers that are not there at the start.

use std::collections::HashSet;
use std::time::Duration;

use tidegate::{OpenError, RedisConfig, RedisStore, Share, Store};
use tidegate_testkit::{Cluster, Flavour, Redis, Tool, lacking};

use super::scene::until;

async fn connect(redis: &Redis) -> RedisStore {
    let config: RedisConfig = redis.url().parse().unwrap();
    RedisStore::connect(config.with_timeout(Duration::from_secs(1)).unwrap()).await.unwrap()
}

/// What each of the nodes believes after all of them have announced themselves.
async fn shares(nodes: &[&RedisStore]) -> Vec<Share> {
    for _ in 0..2 {
        for node in nodes {
            node.announce().await;
        }
    }
    nodes.iter().map(|node| node.share()).collect()
}

fn are_parts_of(shares: &[Share], size: u64) -> bool {
    let indexes: HashSet<u64> = shares.iter().map(|share| share.index).collect();
    indexes.len() == shares.len()
        && shares.iter().all(|share| share.of == size && share.index < size)
}

#[tokio::test]
async fn every_node_has_a_part_of_its_own_and_those_who_leave_have_none() {
    let redis = Redis::start();
    let [one, two, three] = [connect(&redis).await, connect(&redis).await, connect(&redis).await];
    let told = shares(&[&one, &two, &three]).await;
    assert!(are_parts_of(&told, 3), "{told:?}");
    three.leave().await;
    // They count fewer only when Redis has known them for four seconds: it may have lost its list.
    let two_are_left = async || are_parts_of(&shares(&[&one, &two]).await, 2);
    until("the others share the limit", two_are_left).await;
    // It is still there, perhaps to answer its last requests, and yet stays out of the count.
    let count = async || redis.query::<usize>(&["ZCARD", "tg::nodes"]) == 3;
    let back = tokio::time::timeout(Duration::from_secs(2), until("it comes back", count)).await;
    assert!(back.is_err(), "a node that left counts again");
}

#[tokio::test]
async fn a_node_that_dies_without_a_word_is_noticed() {
    let redis = Redis::start();
    let (one, two) = (connect(&redis).await, connect(&redis).await);
    let told = shares(&[&one, &two]).await;
    assert!(are_parts_of(&told, 2), "{told:?}");
    drop(two);
    until("the other is alone", async || shares(&[&one]).await == [Share::WHOLE]).await;
}

#[tokio::test]
async fn a_store_started_without_its_server_is_ready_once_it_comes() {
    let redis = Redis::start();
    redis.kill();
    let store = RedisStore::start(redis.url().parse().unwrap()).await.unwrap();
    assert!(!store.is_ready());
    assert_eq!(store.share(), Share::WHOLE);
    redis.restart();
    until("the store is ready", async || store.is_ready()).await;
}

#[tokio::test]
async fn a_store_started_without_its_cluster_is_ready_once_it_comes() {
    let cluster = Cluster::start();
    cluster.nodes().iter().for_each(Redis::kill);
    let store = RedisStore::start(cluster.url().parse().unwrap()).await.unwrap();
    assert!(!store.is_ready());
    assert_eq!(store.share(), Share::WHOLE);
    cluster.nodes().iter().for_each(Redis::restart);
    cluster.wait_until_whole();
    until("the store is ready", async || store.is_ready()).await;
}

#[tokio::test]
async fn a_redis_too_old_is_refused_by_name_and_version() {
    if lacking(&[Tool::Server(Flavour::Redis6)]) {
        return;
    }
    let redis = Redis::builder().flavour(Flavour::Redis6).start();
    let config: RedisConfig = redis.url().parse().unwrap();
    let refusals = [
        RedisStore::start(config.clone()).await.unwrap_err(),
        RedisStore::connect(config).await.unwrap_err(),
    ];
    for refusal in refusals {
        assert!(matches!(refusal, OpenError::Version { .. }), "{refusal}");
        let text = refusal.to_string();
        assert!(text.contains(&redis.address()) && text.contains("6.2"), "{text}");
    }
}
