//! Faults of a Redis Cluster: failover and slot migration.

use std::collections::{HashMap, HashSet};

use futures_util::future::join_all;
use tidegate::DecisionStatus;
use tidegate_testkit::{Cluster, Redis};

use super::captured_log;
use super::scenario::{CheckCounts, DAILY_LIMIT, FaultScenario, StateAfterFault, wait_until};

/// Returns the slots of the keys, queried in one pipeline.
fn key_slots(redis: &Redis, counter_names: &[String]) -> Vec<u16> {
    let mut connection = redis.connection().unwrap();
    let mut slots = redis::pipe();
    for name in counter_names {
        slots.cmd("CLUSTER").arg("KEYSLOT").arg(name);
    }
    slots.query(&mut connection).unwrap()
}

/// Waits until the replica has received all writes of its master.
fn wait_for_replication(master: &Redis, name: &str) {
    let mut connection = master.connection().unwrap();
    redis::cmd("SET").arg(format!("{{{name}}}seen")).arg(1).exec(&mut connection).unwrap();
    let seen: usize = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut connection).unwrap();
    assert_eq!(seen, 1, "the replica follows");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_master_is_replaced_by_its_replica() {
    let cluster = Cluster::start();
    let failover = |allowed: &str| {
        for node in cluster.nodes().iter().filter(|node| node.is_up()) {
            node.query::<()>(&["CONFIG", "SET", "cluster-replica-no-failover", allowed]);
        }
    };
    // No replica is promoted before the test has checked the behaviour during the fault.
    failover("yes");
    let mut scenario = FaultScenario::start("cluster-failover", &cluster.url()).await;
    let name = scenario.counter_name("deny", "before");
    let dead_master = cluster.master_of(&name);
    wait_for_replication(cluster.node(dead_master), &name);
    // While all masters still reply, find the clients with counters on the master that will die.
    let candidates: Vec<String> = (0..2000).map(|number| format!("new-{number}")).collect();
    let counter_names: Vec<String> = ["allow", "deny", "local"]
        .iter()
        .flat_map(|rule| candidates.iter().map(|client| scenario.counter_name(rule, client)))
        .collect();
    let slots = key_slots(cluster.node(dead_master), &counter_names);
    // No slot has migrated, so each master has a third of the slots.
    let is_on_dead_master = |slot: u16| usize::from(slot / (16_384 / 3)).min(2) == dead_master;
    let affected: HashSet<String> = counter_names
        .into_iter()
        .zip(slots)
        .filter(|(_, slot)| is_on_dead_master(*slot))
        .map(|(name, _)| name)
        .collect();
    scenario.restrict_clients_to(move |name| affected.contains(name));
    cluster.node(dead_master).kill();
    scenario.wait_for_open_breaker().await;
    scenario.expect_failure_policies().await;
    failover("no");
    scenario.wait_for_recovery().await;
    assert_ne!(cluster.wait_for_promotion(&name), dead_master);
    assert_eq!(scenario.limiter.store().counts().failovers, 1);
    scenario.finish(StateAfterFault::Kept).await;
}

/// Returns whether a node of the cluster has replied with this error.
fn has_returned_error(cluster: &Cluster, error: &str) -> bool {
    let field = format!("errorstat_{error}");
    cluster.nodes().iter().any(|node| node.info(&field).is_some())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn migrated_slot_keeps_its_counters_under_load() {
    let cluster = Cluster::builder().config("cluster-node-timeout", "10000").start();
    let scenario = FaultScenario::start("slot-migration", &cluster.url()).await;
    // The counters of three clients share a slot, so that one script call may contain all of them.
    let clients: Vec<String> = (0..3000).map(|number| format!("trio-{number}")).collect();
    let counter_names: Vec<String> =
        clients.iter().map(|client| scenario.counter_name("deny", client)).collect();
    let mut by_slot: HashMap<u16, Vec<&String>> = HashMap::new();
    for (client, slot) in clients.iter().zip(key_slots(cluster.node(0), &counter_names)) {
        by_slot.entry(slot).or_default().push(client);
    }
    let (slot, trio) = by_slot.into_iter().find(|(_, clients)| clients.len() == 3).unwrap();
    let to = (cluster.owner_of(slot) + 1) % 3;
    let mut spent: HashMap<&String, CheckCounts> = HashMap::new();
    // The third client has no counter before the migration begins.
    for client in &trio[..2] {
        spent.insert(client, scenario.check_many(&scenario.observer, client, 2).await);
    }
    for node in cluster.nodes() {
        node.query::<()>(&["CONFIG", "RESETSTAT"]);
    }
    cluster.begin_migration(slot, to);
    // The new owner has no script: the store sends it after ASKING.
    cluster.node(to).query::<()>(&["SCRIPT", "FLUSH"]);
    // A counter that does not exist yet is created on the new owner.
    let new_counts = scenario.check_many(&scenario.observer, trio[2], 2).await;
    assert_eq!(new_counts.admitted, 2);
    spent.insert(trio[2], new_counts);
    assert!(has_returned_error(&cluster, "ASK"));
    assert!(has_returned_error(&cluster, "NOSCRIPT"));
    // The counters are on two servers now. A call that needs both still gets a reply.
    assert_eq!(cluster.migrate_keys(slot, 1), 1);
    wait_until("a node returns TRYAGAIN", async || {
        let statuses =
            join_all(trio.iter().map(|client| scenario.check(&scenario.observer, "deny", client)));
        for (client, status) in trio.iter().zip(statuses.await) {
            let spent = spent.get_mut(client).unwrap();
            match status {
                DecisionStatus::Allow => spent.admitted += 1,
                DecisionStatus::Deny => {}
                DecisionStatus::Unavailable => panic!("{client}: no reply within a second"),
            }
        }
        has_returned_error(&cluster, "TRYAGAIN")
    })
    .await;
    while cluster.migrate_keys(slot, 10) > 0 {}
    cluster.finish_migration(slot);
    for client in &trio {
        let rest = scenario.check_many(&scenario.observer, client, DAILY_LIMIT + 1).await;
        spent[client].plus(rest).expect_exactly(DAILY_LIMIT);
    }
    assert!(has_returned_error(&cluster, "MOVED"));
    assert_eq!(cluster.owner_of(slot), to);
    scenario.finish(StateAfterFault::Kept).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn half_cancelled_slot_migration_opens_no_breaker() {
    let cluster = Cluster::builder().config("cluster-node-timeout", "10000").start();
    let scenario = FaultScenario::start("half-a-migration", &cluster.url()).await;
    let client = scenario.new_client("deny");
    let slot = cluster.slot_of(&scenario.counter_name("deny", &client));
    let (from, to) = (cluster.owner_of(slot), (cluster.owner_of(slot) + 1) % 3);
    cluster.begin_migration(slot, to);
    let stable = ["CLUSTER", "SETSLOT", &slot.to_string(), "STABLE"];
    cluster.node(to).query::<()>(&stable);
    // Each of the two servers redirects to the other.
    for _ in 0..20 {
        let status = scenario.check(&scenario.limiter, "deny", &client).await;
        assert_eq!(status, DecisionStatus::Unavailable);
    }
    assert!(has_returned_error(&cluster, "ASK") && has_returned_error(&cluster, "MOVED"));
    let breaker_openings = captured_log::count_lines(&["breaker open", "MOVED"]);
    assert_eq!(breaker_openings, 0, "both servers still own other slots");
    cluster.node(from).query::<()>(&stable);
    scenario
        .check_many(&scenario.observer, &client, DAILY_LIMIT + 1)
        .await
        .expect_exactly(DAILY_LIMIT);
    scenario.finish(StateAfterFault::Kept).await;
}
