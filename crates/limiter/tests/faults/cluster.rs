//! A Redis Cluster.

use std::collections::HashSet;

use tidegate_testkit::{Cluster, Redis};

use crate::scene::{Memory, Scene};

/// The slots of many names, asked for on one connection.
fn slots_of(redis: &Redis, names: &[String]) -> Vec<u16> {
    let mut connection = redis.connection().unwrap();
    let mut slots = redis::pipe();
    for name in names {
        slots.cmd("CLUSTER").arg("KEYSLOT").arg(name);
    }
    slots.query(&mut connection).unwrap()
}

/// Returns once the replica has all that its master has.
fn replicated(master: &Redis, name: &str) {
    let mut connection = master.connection().unwrap();
    redis::cmd("SET").arg(format!("{{{name}}}seen")).arg(1).exec(&mut connection).unwrap();
    let seen: usize = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut connection).unwrap();
    assert_eq!(seen, 1, "the replica follows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_dies_is_replaced_by_its_replica() {
    let cluster = Cluster::start();
    let failover = |allowed: &str| {
        for node in cluster.nodes().iter().filter(|node| node.is_up()) {
            node.query::<()>(&["CONFIG", "SET", "cluster-replica-no-failover", allowed]);
        }
    };
    // The fault lasts until the test has looked at it.
    failover("yes");
    let mut scene = Scene::begin("cluster-failover", &cluster.url()).await;
    let name = scene.counter("deny", "before");
    let dead = cluster.master_of(&name);
    replicated(cluster.node(dead), &name);
    // Found out while everybody can still be asked: the clients whose counters are on that master.
    let candidates: Vec<String> = (0..2000).map(|number| format!("new-{number}")).collect();
    let names: Vec<String> = ["allow", "deny", "local"]
        .iter()
        .flat_map(|rule| candidates.iter().map(|client| scene.counter(rule, client)))
        .collect();
    let slots = slots_of(cluster.node(dead), &names);
    // No slot has moved: each master has a third of them.
    let is_dead = |slot: u16| usize::from(slot / (16_384 / 3)).min(2) == dead;
    let concerned: HashSet<String> = names
        .into_iter()
        .zip(slots)
        .filter(|(_, slot)| is_dead(*slot))
        .map(|(name, _)| name)
        .collect();
    scene.concerns(move |name| concerned.contains(name));
    cluster.node(dead).kill();
    scene.breaker_opens().await;
    scene.rules_follow_their_policies().await;
    failover("no");
    scene.service_resumes().await;
    assert_ne!(cluster.wait_for_promotion(&name), dead);
    scene.end(Memory::Kept).await;
}
