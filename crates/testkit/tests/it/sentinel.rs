//! Sentinels: that a master which is gone is replaced.

use tidegate_testkit::{Flavour, Sentinel, Tool, lacking};

const REDIS: Tool = Tool::Server(Flavour::Redis);

#[test]
fn killed_master_is_replaced_and_restarts_as_a_replica() {
    if lacking(&[REDIS]) {
        return;
    }
    let sentinel = Sentinel::start();
    let [first, second] = sentinel.nodes() else { panic!("two servers have data") };
    assert_eq!(sentinel.master().address(), first.address());
    let addresses = sentinel.addresses().join(",");
    assert_eq!(sentinel.url(), format!("redis+sentinel://{addresses}/tidegate"));

    let mut connection = first.connection().unwrap();
    redis::cmd("SET").arg("key").arg("value").exec(&mut connection).unwrap();
    let copies: u32 = redis::cmd("WAIT").arg(1).arg(10_000).query(&mut connection).unwrap();
    assert_eq!(copies, 1);

    assert_eq!(sentinel.kill_master(), first.address());
    assert_eq!(sentinel.wait_for_switch(), second.address());
    assert_eq!(second.query::<String>(&["GET", "key"]), "value");
    second.query::<()>(&["SET", "key", "new value"]);

    first.restart();
    sentinel.wait_until_whole();
    // Sentinels of a busy machine may switch once more, to the server that restarted empty: one server is the master,
    // and both have its data.
    let roles = [first, second].map(|node| node.info("role").unwrap());
    assert!(
        roles.contains(&"master".to_owned()) && roles.contains(&"slave".to_owned()),
        "{roles:?}"
    );
    let values = [first, second].map(|node| node.query::<Option<String>>(&["GET", "key"]));
    assert_eq!(values[0], values[1]);
    if roles[1] == "master" {
        assert_eq!(values[1].as_deref(), Some("new value"));
    }

    let killed = sentinel.kill_master();
    assert_ne!(sentinel.wait_for_switch(), killed);
}

#[test]
fn paused_master_is_replaced_by_a_replica_with_another_clock() {
    if lacking(&[REDIS, Tool::Faketime]) {
        return;
    }
    let sentinel = Sentinel::builder().replica_clock(-5).start();
    let [first, second] = sentinel.nodes() else { panic!("two servers have data") };
    first.pause();
    assert_eq!(sentinel.wait_for_switch(), second.address());
    first.resume();
    sentinel.wait_until_whole();
    let (before, early) = (first.time_micros(), second.time_micros());
    let after = first.time_micros();
    assert!((before..=after).contains(&(early + 5_000_000)));
    assert_eq!(first.info("role").unwrap(), "slave");
}

#[test]
fn valkey_sentinels_replace_a_killed_master() {
    if lacking(&[Tool::Server(Flavour::Valkey)]) {
        return;
    }
    let sentinel = Sentinel::builder().flavour(Flavour::Valkey).start();
    let old = sentinel.kill_master();
    assert_ne!(sentinel.wait_for_switch(), old);
}
