//! A Redis Cluster.

use std::collections::{HashMap, HashSet};

use futures_util::future::join_all;
use tidegate::DecisionStatus;
use tidegate_testkit::{Cluster, Redis};

use super::log;
use super::scene::{LIMIT, Memory, Scene, Spent, until};

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
    assert_eq!(scene.limiter.store().counts().failovers, 1);
    scene.end(Memory::Kept).await;
}

/// Whether a node of the cluster has answered with this error.
fn met(cluster: &Cluster, error: &str) -> bool {
    let field = format!("errorstat_{error}");
    cluster.nodes().iter().any(|node| node.info(&field).is_some())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_moves_under_load_takes_its_counters_along() {
    let cluster = Cluster::builder().config("cluster-node-timeout", "10000").start();
    let scene = Scene::begin("slot-migration", &cluster.url()).await;
    // Three clients whose counters share a slot, so that one call may concern all of them.
    let clients: Vec<String> = (0..3000).map(|number| format!("trio-{number}")).collect();
    let names: Vec<String> = clients.iter().map(|client| scene.counter("deny", client)).collect();
    let mut by_slot: HashMap<u16, Vec<&String>> = HashMap::new();
    for (client, slot) in clients.iter().zip(slots_of(cluster.node(0), &names)) {
        by_slot.entry(slot).or_default().push(client);
    }
    let (slot, trio) = by_slot.into_iter().find(|(_, clients)| clients.len() == 3).unwrap();
    let to = (cluster.owner_of(slot) + 1) % 3;
    let mut spent: HashMap<&String, Spent> = HashMap::new();
    // The third stays unknown to the store until the slot is on its way.
    for client in &trio[..2] {
        spent.insert(client, scene.spend(&scene.judge, client, 2).await);
    }
    for node in cluster.nodes() {
        node.query::<()>(&["CONFIG", "RESETSTAT"]);
    }
    cluster.begin_migration(slot, to);
    // The new owner has forgotten the script: it is sent along with the asking.
    cluster.node(to).query::<()>(&["SCRIPT", "FLUSH"]);
    // A counter that is not there yet is made at the new owner.
    let asking = scene.spend(&scene.judge, trio[2], 2).await;
    assert_eq!(asking.admitted, 2);
    spent.insert(trio[2], asking);
    assert!(met(&cluster, "ASK"));
    assert!(met(&cluster, "NOSCRIPT"));
    // One counter here, one there: a call that concerns both is answered all the same.
    assert_eq!(cluster.migrate_keys(slot, 1), 1);
    until("a node says TRYAGAIN", async || {
        let rulings = join_all(trio.iter().map(|client| scene.check(&scene.judge, "deny", client)));
        for (client, ruling) in trio.iter().zip(rulings.await) {
            let spent = spent.get_mut(client).unwrap();
            match ruling {
                DecisionStatus::Allow => spent.admitted += 1,
                DecisionStatus::Deny => {}
                DecisionStatus::Unavailable => panic!("{client}: no answer in a second"),
            }
        }
        met(&cluster, "TRYAGAIN")
    })
    .await;
    while cluster.migrate_keys(slot, 10) > 0 {}
    cluster.finish_migration(slot);
    for client in &trio {
        let rest = scene.spend(&scene.judge, client, LIMIT + 1).await;
        spent[client].and(rest).expect_exact(LIMIT);
    }
    assert!(met(&cluster, "MOVED"));
    assert_eq!(cluster.owner_of(slot), to);
    scene.end(Memory::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_called_off_by_one_side_gives_no_server_up() {
    let cluster = Cluster::builder().config("cluster-node-timeout", "10000").start();
    let scene = Scene::begin("half-a-migration", &cluster.url()).await;
    let client = scene.newcomer("deny");
    let slot = cluster.slot_of(&scene.counter("deny", &client));
    let (from, to) = (cluster.owner_of(slot), (cluster.owner_of(slot) + 1) % 3);
    cluster.begin_migration(slot, to);
    let stable = ["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"];
    cluster.node(to).query::<()>(&stable);
    // Each of the two says that the other has it.
    for _ in 0..20 {
        let ruling = scene.check(&scene.limiter, "deny", &client).await;
        assert_eq!(ruling, DecisionStatus::Unavailable);
    }
    assert!(met(&cluster, "ASK") && met(&cluster, "MOVED"));
    let given_up = log::count(&["breaker open", "MOVED"]);
    assert_eq!(given_up, 0, "both serve their other slots");
    cluster.node(from).query::<()>(&stable);
    scene.spend(&scene.judge, &client, LIMIT + 1).await.expect_exact(LIMIT);
    scene.end(Memory::Kept).await;
}
