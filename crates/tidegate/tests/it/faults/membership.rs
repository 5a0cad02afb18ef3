//! Fleet membership, and servers that start after the node.

use std::collections::HashSet;
use std::time::Duration;

use tidegate::redis::{OpenError, RedisConfig, RedisStore};
use tidegate::store::{Share, Store};
use tidegate_testkit::{Cluster, Flavour, Redis, Tool, lacking};

use super::scenario::wait_until;

async fn connect(redis: &Redis) -> RedisStore {
    let config: RedisConfig = redis.url().parse().unwrap();
    crate::connect(config.with_timeout(Duration::from_secs(1)).unwrap()).await
}

/// Sends two heartbeats of every node. Returns the share of each node afterwards.
async fn announce_and_read_shares(nodes: &[&RedisStore]) -> Vec<Share> {
    for _ in 0..2 {
        for node in nodes {
            node.announce().await;
        }
    }
    nodes.iter().map(|node| node.share()).collect()
}

fn are_distinct_shares(shares: &[Share], size: u64) -> bool {
    let indexes: HashSet<u64> = shares.iter().map(|share| share.index).collect();
    indexes.len() == shares.len()
        && shares.iter().all(|share| share.of == size && share.index < size)
}

#[tokio::test]
async fn nodes_get_distinct_shares_and_a_leaving_node_loses_its_share() {
    let redis = Redis::start();
    let [one, two, three] = [connect(&redis).await, connect(&redis).await, connect(&redis).await];
    let shares = announce_and_read_shares(&[&one, &two, &three]).await;
    assert!(are_distinct_shares(&shares, 3), "{shares:?}");
    three.leave().await;
    // The fleet size shrinks only after Redis has listed the nodes for four seconds, since Redis may have lost its list.
    let two_shares_remain =
        async || are_distinct_shares(&announce_and_read_shares(&[&one, &two]).await, 2);
    wait_until("the remaining nodes share the limit", two_shares_remain).await;
    // The node that left may still run to finish its last requests. It must not be counted again.
    let counts_three_nodes = async || redis.query::<usize>(&["ZCARD", "tg::nodes"]) == 3;
    let rejoined = tokio::time::timeout(
        Duration::from_secs(2),
        wait_until("the node rejoins", counts_three_nodes),
    )
    .await;
    assert!(rejoined.is_err(), "a node that left was counted again");
}

#[tokio::test]
async fn crashed_node_is_removed_from_the_fleet() {
    let redis = Redis::start();
    let (one, two) = (connect(&redis).await, connect(&redis).await);
    let shares = announce_and_read_shares(&[&one, &two]).await;
    assert!(are_distinct_shares(&shares, 2), "{shares:?}");
    drop(two);
    wait_until("the remaining node has the whole limit", async || {
        announce_and_read_shares(&[&one]).await == [Share::WHOLE]
    })
    .await;
}

#[tokio::test]
async fn store_started_before_its_server_becomes_ready_when_the_server_starts() {
    let redis = Redis::start();
    redis.kill();
    let store = RedisStore::start(redis.url().parse().unwrap()).await.unwrap();
    assert!(!store.is_ready());
    assert_eq!(store.share(), Share::WHOLE);
    redis.restart();
    wait_until("the store is ready", async || store.is_ready()).await;
}

#[tokio::test]
async fn store_started_before_its_cluster_becomes_ready_when_the_cluster_starts() {
    let cluster = Cluster::start();
    cluster.nodes().iter().for_each(Redis::kill);
    let store = RedisStore::start(cluster.url().parse().unwrap()).await.unwrap();
    assert!(!store.is_ready());
    assert_eq!(store.share(), Share::WHOLE);
    cluster.nodes().iter().for_each(Redis::restart);
    cluster.wait_until_whole();
    wait_until("the store is ready", async || store.is_ready()).await;
}

#[tokio::test]
async fn unsupported_redis_version_is_rejected_with_address_and_version() {
    if lacking(&[Tool::Server(Flavour::Redis6)]) {
        return;
    }
    let redis = Redis::builder().flavour(Flavour::Redis6).start();
    let config: RedisConfig = redis.url().parse().unwrap();
    let errors = [
        RedisStore::start(config.clone()).await.unwrap_err(),
        RedisStore::connect(config).await.unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, OpenError::Version { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains(&redis.address()) && text.contains("6.2"), "{text}");
    }
}
