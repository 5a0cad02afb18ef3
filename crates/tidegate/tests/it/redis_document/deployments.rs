//! Documents in each kind of deployment: cluster, Sentinel, Valkey, and servers that restart.

use tidegate::error::StoreError;
use tidegate::redis::PutError;
use tidegate_testkit::{
    Cluster, FaultProxy, Flavour, Redis, Sentinel, Tool, WAIT_TIMEOUT, lacking, poll,
};

use super::subscription::DocumentFollower;
use super::{DOCUMENT_KEY, REQUIRED_TOOLS, latest, new_version, open_document, version_numbers};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cluster_keeps_a_document_while_its_slot_migrates() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let cluster = Cluster::builder().config("cluster-node-timeout", "60000").start();
    let store = crate::connect(cluster.url().parse().unwrap()).await;
    let document = store.document("rules");
    let mut follower = DocumentFollower::start(&document);
    follower.expect_notification().await;
    document.put(new_version("one")).await.unwrap();
    follower.expect_notification().await;

    let slot = cluster.slot_of(DOCUMENT_KEY);
    let to = cluster.masters().into_iter().find(|place| *place != cluster.owner_of(slot)).unwrap();
    cluster.begin_migration(slot, to);
    document.put(new_version("two")).await.unwrap();
    cluster.migrate_keys(slot, 10);
    document.put(new_version("three")).await.unwrap();
    assert_eq!(latest(&document).await.unwrap().text, "three");
    cluster.finish_migration(slot);
    document.put(new_version("four")).await.unwrap();
    assert_eq!(latest(&document).await.unwrap().text, "four");
    assert_eq!(version_numbers(&document.history(9).await.unwrap()), [4, 3, 2, 1]);
    // Every cluster node forwards the notification.
    for _ in 2..=4 {
        follower.expect_notification().await;
    }
    document.report("a:1", "well", WAIT_TIMEOUT).await.unwrap();
    assert_eq!(document.reports().await.unwrap().len(), 1);
    assert_eq!(cluster.query_at::<u64>(DOCUMENT_KEY, &["HLEN", DOCUMENT_KEY]), 9);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_writes_and_notifications_use_the_new_master_after_a_failover() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let sentinel = Sentinel::start();
    let document = open_document(&sentinel.url()).await;
    let mut follower = DocumentFollower::start(&document);
    follower.expect_notification().await;
    document.put(new_version("one")).await.unwrap();
    follower.expect_notification().await;
    let stored = latest(&document).await.unwrap();
    sentinel.kill_master();
    sentinel.wait_for_switch();
    follower.expect_notification().await;
    // The replica may not have received the version.
    document.restore(&stored).await.unwrap();
    assert_eq!(latest(&document).await, Some(stored));
    assert_eq!(document.put(new_version("two")).await.unwrap().number, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failover_is_followed_while_the_old_master_still_answers() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let sentinel = Sentinel::start();
    // An isolated master still accepts all commands of this user, including PING and SUBSCRIBE.
    for node in sentinel.nodes() {
        node.query::<()>(&["ACL", "SETUSER", "editor", "on", ">hunter2", "~*", "&*", "+@all"]);
    }
    let url = sentinel.url().replace("://", "://editor:hunter2@");
    let document_before = open_document(&url).await;
    let mut follower = DocumentFollower::start(&document_before);
    follower.expect_notification().await;
    document_before.put(new_version("one")).await.unwrap();
    follower.expect_notification().await;

    let old = sentinel.isolate_master();
    let new = sentinel.wait_for_successor(old);
    let subscribed = || new.query::<(String, u64)>(&["PUBSUB", "NUMSUB", DOCUMENT_KEY]).1 > 0;
    assert!(poll(|| subscribed().then_some(())).is_some(), "still subscribed to the old master");
    open_document(&url).await.put(new_version("two")).await.unwrap();
    follower.expect_notification().await;
    assert_eq!(latest(&document_before).await.unwrap().text, "two");
    assert!(new.query::<Vec<String>>(&["HVALS", DOCUMENT_KEY]).contains(&"two".to_owned()));
}

#[tokio::test]
async fn write_is_sent_once_and_never_on_a_dead_connection() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let proxy = FaultProxy::to(server.address());
    let document = open_document(&proxy.url()).await;
    document.put(new_version("one")).await.unwrap();
    proxy.drop_connections();
    document.put(new_version("two")).await.unwrap();
    server.restart();
    assert_eq!(latest(&document).await, None);
    document.put(new_version("three")).await.unwrap();
    // The reply to PING arrives; most of the reply to the write is lost.
    proxy.cut_reply_after("+PONG\r\n*".len());
    let interrupted = document.put(new_version("four")).await.unwrap_err();
    assert!(
        matches!(interrupted, PutError::Store(StoreError::Interrupted { .. })),
        "{interrupted:?}"
    );
    assert_eq!(version_numbers(&document.history(9).await.unwrap()), [2, 1]);
    assert_eq!(latest(&document).await.unwrap().text, "four");
}

#[tokio::test]
async fn valkey_keeps_a_document() {
    if lacking(&[Tool::Server(Flavour::Valkey)]) {
        return;
    }
    let server = Redis::builder().flavour(Flavour::Valkey).start();
    let document = open_document(&server.url()).await;
    document.put(new_version("one")).await.unwrap();
    let stored = latest(&document).await.unwrap();
    document.report("a:1", "well", WAIT_TIMEOUT).await.unwrap();
    assert_eq!(document.reports().await.unwrap().len(), 1);
    server.query::<()>(&["FLUSHALL"]);
    assert_eq!(document.restore(&stored).await, Ok(true));
    assert_eq!(latest(&document).await, Some(stored));
}

#[tokio::test]
async fn user_without_publish_permission_can_write_a_version() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let acl_command =
        ["ACL", "SETUSER", "no-publish", "on", ">hunter2", "~*", "+@all", "resetchannels"];
    server.query::<()>(&acl_command);
    let document = open_document(&format!("redis://no-publish:hunter2@{}", server.address())).await;
    document.put(new_version("one")).await.unwrap();
    assert_eq!(latest(&document).await.unwrap().text, "one");
}
