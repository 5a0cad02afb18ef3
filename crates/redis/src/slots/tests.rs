use tidegate_testkit::{Cluster, Flavour, Tool, lacking};

use super::*;
use crate::redirect::Redirect;

fn bulk(text: &str) -> Value {
    Value::BulkString(text.as_bytes().to_vec())
}

fn list(items: impl IntoIterator<Item = Value>) -> Value {
    Value::Array(items.into_iter().collect())
}

fn node(endpoint: Value, port: i64) -> Value {
    list([endpoint, Value::Int(port), bulk("id"), list([])])
}

fn range(first: i64, last: i64, nodes: impl IntoIterator<Item = Value>) -> Value {
    list([Value::Int(first), Value::Int(last)].into_iter().chain(nodes))
}

fn at(text: &str) -> Address {
    Address::parse(text, 1).unwrap()
}

fn read(ranges: impl IntoIterator<Item = Value>) -> SlotMap {
    SlotMap::read(&list(ranges), &at("seed:7000")).unwrap()
}

fn unserved(map: &SlotMap) -> usize {
    (0..SLOTS).filter(|slot| map.master_of(*slot).is_none()).count()
}

#[test]
fn keys_have_the_slots_that_redis_gives_them() {
    // From CLUSTER KEYSLOT.
    for (key, slot) in [
        ("", 0),
        ("123456789", 12739),
        ("foo", 12182),
        ("{user1000}.following", 3443),
        ("{user1000}.followers", 3443),
        ("user1000", 3443),
        ("foo{}{bar}", 8363),
        ("foo{{bar}}zap", 4015),
        ("{bar", 4015),
        ("foo{bar}{zap}", 5061),
    ] {
        assert_eq!(slot_of(key.as_bytes()), slot, "{key}");
    }
}

#[test]
fn a_slot_is_served_by_the_master_of_its_range() {
    let map = read([
        range(0, 99, [node(bulk("10.0.0.1"), 7000), node(bulk("10.0.0.9"), 7000)]),
        range(200, 16_383, [node(bulk("node-2.example.com"), 7001)]),
        range(150, 150, [node(bulk("10.0.0.1"), 7000)]),
    ]);
    let master = |slot| map.master_of(slot).map(Address::to_string);
    assert_eq!(master(0).as_deref(), Some("10.0.0.1:7000"));
    assert_eq!(master(99).as_deref(), Some("10.0.0.1:7000"));
    assert_eq!(master(100), None);
    assert_eq!(master(150).as_deref(), Some("10.0.0.1:7000"));
    assert_eq!(master(16_383).as_deref(), Some("node-2.example.com:7001"));
    assert_eq!(master(16_384), None);
    assert_eq!(unserved(&map), 99);
    let masters: Vec<_> = map.masters().map(Address::to_string).collect();
    assert_eq!(masters, ["10.0.0.1:7000", "node-2.example.com:7001"]);
}

#[test]
fn a_node_without_a_host_is_where_the_question_went() {
    let by_ip = list([
        bulk("?"),
        Value::Int(7004),
        bulk("id"),
        Value::Map(vec![(bulk("ip"), bulk("10.0.0.4"))]),
    ]);
    let by_ip_in_a_list =
        list([bulk("?"), Value::Int(7005), bulk("id"), list([bulk("ip"), bulk("10.0.0.5")])]);
    let map = read([
        range(0, 0, [node(Value::Nil, 7001)]),
        range(1, 1, [node(bulk(""), 7002)]),
        range(2, 2, [node(bulk("?"), 7003)]),
        range(3, 3, [by_ip]),
        range(4, 4, [by_ip_in_a_list]),
        range(5, 5, [node(bulk("::1"), 7006)]),
        range(6, 6, [node(bulk("10.0.0.1"), 0)]),
        range(7, 7, []),
    ]);
    let masters: Vec<_> = (0..8).map(|slot| map.master_of(slot).map(Address::to_string)).collect();
    let masters: Vec<_> = masters.iter().map(Option::as_deref).collect();
    let here = ["seed:7001", "seed:7002", "seed:7003", "10.0.0.4:7004", "10.0.0.5:7005"];
    assert_eq!(masters[..5], here.map(Some));
    assert_eq!(masters[5..], [Some("[::1]:7006"), None, None]);
}

#[test]
fn a_slot_that_moved_has_a_new_master_and_the_old_one_may_be_gone() {
    let mut map = read([range(0, 1, [node(bulk("a"), 1)])]);
    map.moved(0, &at("b:2"));
    assert_eq!(map.master_of(0), Some(&at("b:2")));
    assert_eq!(map.masters().collect::<Vec<_>>(), [&at("a:1"), &at("b:2")]);
    map.moved(1, &at("b:2"));
    map.moved(16_384, &at("c:3"));
    assert_eq!(map.masters().collect::<Vec<_>>(), [&at("b:2")]);
}

#[test]
fn invalid_reply_to_cluster_slots_is_rejected() {
    for reply in [
        Value::Nil,
        Value::Int(1),
        list([Value::Int(1)]),
        list([list([Value::Int(1)])]),
        list([range(-1, 5, [])]),
        list([range(0, 16_384, [])]),
    ] {
        assert!(SlotMap::read(&reply, &at("seed:1")).is_err(), "{reply:?}");
    }
    assert_eq!(unserved(&read([])), usize::from(SLOTS));
}

#[test]
fn slot_map_and_redirects_of_a_real_cluster_agree() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let cluster = Cluster::start();
    let keys = ["a", "{user1000}.following", "foo{}{bar}", "foo{{bar}}zap"];
    for node in cluster.nodes() {
        let asked = at(&node.address());
        let map = SlotMap::read(&node.query(&["CLUSTER", "SLOTS"]), &asked).unwrap();
        assert_eq!((map.masters().count(), unserved(&map)), (3, 0));
        for key in keys {
            let slot = slot_of(key.as_bytes());
            assert_eq!(slot, cluster.slot_of(key));
            let master = at(&cluster.node(cluster.owner_of(slot)).address());
            assert_eq!(map.master_of(slot), Some(&master));

            let answer = node.try_query::<Option<String>>(&["GET", key]);
            let sent = answer.err().and_then(|error| Redirect::read(&error, &asked));
            let elsewhere = Redirect::Moved { slot, to: master.clone() };
            assert_eq!(sent, (master != asked).then_some(elsewhere));
        }
    }
}
