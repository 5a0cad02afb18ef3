//! The cluster: failover and slots on their way.

use tidegate_testkit::{Cluster, Flavour, Redis, Tool, lacking};

const REDIS: Tool = Tool::Server(Flavour::Redis);

/// Returns the code of the error that a node answered: `MOVED`, `ASK`, `TRYAGAIN`.
fn refusal(answer: Result<Option<String>, redis::RedisError>) -> String {
    answer.unwrap_err().code().unwrap().to_owned()
}

fn get(redis: &Redis, key: &str) -> Result<Option<String>, redis::RedisError> {
    redis.try_query(&["GET", key])
}

#[test]
fn a_killed_master_is_replaced_by_its_replica_with_the_data() {
    if lacking(&[REDIS]) {
        return;
    }
    let cluster = Cluster::start();
    assert_eq!(cluster.masters(), [0, 1, 2]);
    assert_eq!(cluster.url().matches("127.0.0.1:").count(), 6);
    assert_eq!(cluster.slot_of("{user}1"), cluster.slot_of("{user}2"));
    assert_eq!(cluster.query_all_masters::<String>(&["PING"]).len(), 3);

    let master = cluster.master_of("key");
    let mut connection = cluster.node(master).connection().unwrap();
    redis::cmd("SET").arg("key").arg("value").exec(&mut connection).unwrap();
    let copies: u32 = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut connection).unwrap();
    assert_eq!(copies, 1);
    let other = (master + 1) % 3;
    assert_eq!(refusal(get(cluster.node(other), "key")), "MOVED");

    assert_eq!(cluster.kill_master_of("key"), master);
    let promoted = cluster.wait_for_promotion("key");
    assert_eq!(promoted, master + 3);
    assert_eq!(cluster.query_at::<String>("key", &["GET", "key"]), "value");

    cluster.node(master).restart();
    cluster.wait_until_whole();
    assert_eq!(cluster.master_of("key"), promoted);
    assert_eq!(cluster.node(master).info("role").unwrap(), "slave");
}

#[test]
fn a_slot_on_its_way_asks_and_then_has_moved() {
    if lacking(&[REDIS]) {
        return;
    }
    let cluster = Cluster::start();
    let slot = cluster.slot_of("{on}a");
    let from = cluster.owner_of(slot);
    let to = (from + 1) % 3;
    let (old, new) = (cluster.node(from), cluster.node(to));
    for key in ["{on}a", "{on}b"] {
        old.query::<()>(&["SET", key, key]);
    }

    cluster.begin_migration(slot, to);
    assert_eq!(get(old, "{on}a").unwrap().unwrap(), "{on}a");
    assert_eq!(refusal(get(old, "{on}absent")), "ASK");
    assert_eq!(refusal(get(new, "{on}a")), "MOVED");

    assert_eq!(cluster.migrate_keys(slot, 1), 1);
    let both = old.try_query::<Option<String>>(&["MGET", "{on}a", "{on}b"]);
    assert_eq!(refusal(both), "TRYAGAIN");

    assert_eq!(cluster.migrate_keys(slot, 10), 1);
    assert_eq!(refusal(get(old, "{on}a")), "ASK");
    let mut connection = new.connection().unwrap();
    redis::cmd("ASKING").exec(&mut connection).unwrap();
    let asked: String = redis::cmd("GET").arg("{on}a").query(&mut connection).unwrap();
    assert_eq!(asked, "{on}a");

    cluster.finish_migration(slot);
    assert_eq!(cluster.owner_of(slot), to);
    assert_eq!(refusal(get(old, "{on}a")), "MOVED");
    assert_eq!(get(new, "{on}b").unwrap().unwrap(), "{on}b");
}

#[test]
fn a_paused_master_is_replaced_and_a_replica_can_have_another_clock() {
    if lacking(&[REDIS, Tool::Faketime]) {
        return;
    }
    let cluster = Cluster::builder().replica_clock(5).start();
    let master = cluster.master_of("key");
    cluster.node(master).pause();
    let promoted = cluster.wait_for_promotion("key");
    assert_eq!(promoted, master + 3);
    cluster.node(master).resume();
    cluster.wait_until_whole();
    let (before, late) = (cluster.node(master).time_micros(), cluster.node(promoted).time_micros());
    let after = cluster.node(master).time_micros();
    assert!((before..=after).contains(&(late - 5_000_000)));
}

#[test]
fn a_cluster_of_valkeys_is_one_too() {
    if lacking(&[Tool::Server(Flavour::Valkey)]) {
        return;
    }
    let cluster = Cluster::builder().flavour(Flavour::Valkey).start();
    cluster.query_at::<()>("key", &["SET", "key", "value"]);
    assert!(cluster.node(0).info("valkey_version").is_some());
}
