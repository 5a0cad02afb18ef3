//! Documents wherever a store can be: in clusters, behind sentinels, on Valkey, on servers that come and go.

use tidegate::{PutError, RedisStore, StoreError};
use tidegate_testkit::{
    Cluster, FaultProxy, Flavour, Redis, Sentinel, Tool, WAIT_TIMEOUT, lacking, poll,
};

use super::following::Follower;
use super::{KEY, NEEDED, document, draft, latest, numbers};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_keeps_a_document_and_moves_it_under_our_eyes() {
    if lacking(&NEEDED) {
        return;
    }
    let cluster = Cluster::builder().config("cluster-node-timeout", "60000").start();
    let config: tidegate::RedisConfig = cluster.url().parse().unwrap();
    let config = config.with_connect_timeout(WAIT_TIMEOUT).unwrap();
    let store = RedisStore::connect(config).await.unwrap();
    let document = store.document("rules");
    let mut follower = Follower::of(&document);
    follower.hears().await;
    document.put(draft("one")).await.unwrap();
    follower.hears().await;

    let slot = cluster.slot_of(KEY);
    let to = cluster.masters().into_iter().find(|place| *place != cluster.owner_of(slot)).unwrap();
    cluster.begin_migration(slot, to);
    document.put(draft("two")).await.unwrap();
    cluster.migrate_keys(slot, 10);
    document.put(draft("three")).await.unwrap();
    assert_eq!(latest(&document).await.unwrap().text, "three");
    cluster.finish_migration(slot);
    document.put(draft("four")).await.unwrap();
    assert_eq!(latest(&document).await.unwrap().text, "four");
    assert_eq!(numbers(&document.history(9).await.unwrap()), [4, 3, 2, 1]);
    // Wherever it is published, every node says so.
    for _ in 2..=4 {
        follower.hears().await;
    }
    document.report("a:1", "well", WAIT_TIMEOUT).await.unwrap();
    assert_eq!(document.reports().await.unwrap().len(), 1);
    assert_eq!(cluster.query_at::<u64>(KEY, &["HLEN", KEY]), 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_failover_the_new_master_is_asked_and_listened_to() {
    if lacking(&NEEDED) {
        return;
    }
    let sentinel = Sentinel::start();
    let document = document(&sentinel.url()).await;
    let mut follower = Follower::of(&document);
    follower.hears().await;
    document.put(draft("one")).await.unwrap();
    follower.hears().await;
    let edition = latest(&document).await.unwrap();
    sentinel.kill_master();
    sentinel.wait_for_switch();
    follower.hears().await;
    // The replica may not have had it yet.
    document.restore(&edition).await.unwrap();
    assert_eq!(latest(&document).await, Some(edition));
    assert_eq!(document.put(draft("two")).await.unwrap().number, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn switch_is_followed_while_the_old_master_still_answers() {
    if lacking(&NEEDED) {
        return;
    }
    let sentinel = Sentinel::start();
    // A user of its own, whose commands an isolated master still takes, PING and SUBSCRIBE included.
    for node in sentinel.nodes() {
        node.query::<()>(&["ACL", "SETUSER", "editor", "on", ">hunter2", "~*", "&*", "+@all"]);
    }
    let url = sentinel.url().replace("://", "://editor:hunter2@");
    let near = document(&url).await;
    let mut follower = Follower::of(&near);
    follower.hears().await;
    near.put(draft("one")).await.unwrap();
    follower.hears().await;

    let old = sentinel.isolate_master();
    let new = sentinel.wait_for_successor(old);
    let subscribed = || new.query::<(String, u64)>(&["PUBSUB", "NUMSUB", KEY]).1 > 0;
    assert!(poll(|| subscribed().then_some(())).is_some(), "still subscribed to the old master");
    document(&url).await.put(draft("two")).await.unwrap();
    follower.hears().await;
    assert_eq!(latest(&near).await.unwrap().text, "two");
    assert!(new.query::<Vec<String>>(&["HVALS", KEY]).contains(&"two".to_owned()));
}

#[tokio::test]
async fn a_version_is_sent_once_and_a_connection_that_died_meanwhile_is_not_used() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let proxy = FaultProxy::to(server.address());
    let document = document(&proxy.url()).await;
    document.put(draft("one")).await.unwrap();
    proxy.drop_connections();
    document.put(draft("two")).await.unwrap();
    server.restart();
    assert_eq!(latest(&document).await, None);
    document.put(draft("three")).await.unwrap();
    // The answer to the PING passes, and most of the one to the version is lost on the way.
    proxy.cut_reply_after("+PONG\r\n*".len());
    let lost = document.put(draft("four")).await.unwrap_err();
    assert!(matches!(lost, PutError::Store(StoreError::Interrupted { .. })), "{lost:?}");
    assert_eq!(numbers(&document.history(9).await.unwrap()), [2, 1]);
    assert_eq!(latest(&document).await.unwrap().text, "four");
}

#[tokio::test]
async fn a_valkey_keeps_a_document() {
    if lacking(&[Tool::Server(Flavour::Valkey)]) {
        return;
    }
    let server = Redis::builder().flavour(Flavour::Valkey).start();
    let document = document(&server.url()).await;
    document.put(draft("one")).await.unwrap();
    let edition = latest(&document).await.unwrap();
    document.report("a:1", "well", WAIT_TIMEOUT).await.unwrap();
    assert_eq!(document.reports().await.unwrap().len(), 1);
    server.query::<()>(&["FLUSHALL"]);
    assert_eq!(document.restore(&edition).await, Ok(true));
    assert_eq!(latest(&document).await, Some(edition));
}

#[tokio::test]
async fn who_may_write_and_not_publish_can_put_a_version() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let rights = ["ACL", "SETUSER", "mute", "on", ">hunter2", "~*", "+@all", "resetchannels"];
    server.query::<()>(&rights);
    let document = document(&format!("redis://mute:hunter2@{}", server.address())).await;
    document.put(draft("one")).await.unwrap();
    assert_eq!(latest(&document).await.unwrap().text, "one");
}
