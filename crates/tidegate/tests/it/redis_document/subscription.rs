//! Notifications of new versions, on healthy and on faulty networks.

use tidegate::redis::{RedisConfig, RedisDocument, Tls};
use tidegate_testkit::{FaultProxy, Redis, Tool, WAIT_TIMEOUT, lacking, poll};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{REQUIRED_TOOLS, latest, new_version, open_document};

/// A task that follows a document until it is dropped.
pub(crate) struct DocumentFollower {
    notifications: UnboundedReceiver<()>,
    task: JoinHandle<()>,
}

impl DocumentFollower {
    pub(crate) fn start(document: &RedisDocument) -> Self {
        let (sender, notifications) = unbounded_channel();
        let document = document.clone();
        let task = tokio::spawn(async move {
            let notify = move || {
                let _ = sender.send(());
            };
            document.follow(notify).await;
        });
        Self { notifications, task }
    }

    pub(crate) async fn expect_notification(&mut self) {
        let notification = timeout(WAIT_TIMEOUT, self.notifications.recv()).await;
        assert_eq!(notification, Ok(Some(())), "no notification arrived");
    }

    pub(crate) fn expect_no_notification(&mut self) {
        assert!(self.notifications.try_recv().is_err(), "an unexpected notification arrived");
    }
}

impl Drop for DocumentFollower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn follower_is_notified_of_every_version_and_after_a_reconnect() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let proxy = FaultProxy::to(server.address());
    let (direct_document, proxied_document) =
        (open_document(&server.url()).await, open_document(&proxy.url()).await);
    let mut follower = DocumentFollower::start(&proxied_document);
    follower.expect_notification().await;
    for text in ["one", "two"] {
        direct_document.put(new_version(text)).await.unwrap();
        follower.expect_notification().await;
        assert_eq!(latest(&proxied_document).await.unwrap().text, text);
    }
    follower.expect_no_notification();

    proxy.drop_connections();
    direct_document.put(new_version("three")).await.unwrap();
    // Missed notifications are not repeated. Reconnecting itself sends one.
    follower.expect_notification().await;
    assert_eq!(latest(&proxied_document).await.unwrap().text, "three");
    direct_document.put(new_version("four")).await.unwrap();
    follower.expect_notification().await;

    let stored = latest(&direct_document).await.unwrap();
    server.query::<()>(&["FLUSHALL"]);
    direct_document.restore(&stored).await.unwrap();
    follower.expect_notification().await;
    direct_document.restore(&stored).await.unwrap();
    follower.expect_no_notification();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn follower_reconnects_to_a_server_that_stops_replying() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    let proxy = FaultProxy::to(server.address());
    let mut follower = DocumentFollower::start(&open_document(&proxy.url()).await);
    follower.expect_notification().await;
    let connections_before = proxy.connections();
    proxy.stall();
    // The open connection delivers nothing, as when no version is written.
    assert!(
        poll(|| (proxy.connections() > connections_before).then_some(())).is_some(),
        "the node does not reconnect"
    );
    proxy.pass();
    follower.expect_notification().await;
    open_document(&server.url()).await.put(new_version("one")).await.unwrap();
    follower.expect_notification().await;
}

#[tokio::test]
async fn follower_starts_without_a_reachable_server() {
    if lacking(&REQUIRED_TOOLS) {
        return;
    }
    let server = Redis::start();
    server.kill();
    let document = open_document(&server.url()).await;
    let mut follower = DocumentFollower::start(&document);
    let connect_error = document.latest(None).await.unwrap_err().to_string();
    assert!(connect_error.starts_with(&format!("redis {}: ", server.address())), "{connect_error}");
    assert_eq!(connect_error.matches("redis").count(), 1, "{connect_error}");
    server.restart();
    follower.expect_notification().await;
    document.put(new_version("one")).await.unwrap();
    follower.expect_notification().await;
}

#[tokio::test]
async fn follower_works_with_tls_a_password_and_a_unix_socket() {
    if lacking(&REQUIRED_TOOLS) || lacking(&[Tool::Openssl]) {
        return;
    }
    let server = Redis::builder().tls().password("hunter2").start();
    let tls = Tls { ca: Some(server.ca()), identity: None };
    let encrypted: RedisConfig = server.url().parse().unwrap();
    let encrypted = encrypted.with_tls(tls).unwrap();
    let socket_url = format!("redis+unix://{}?password=hunter2", server.socket().display());
    let through_socket: RedisConfig = socket_url.parse().unwrap();
    for config in [encrypted, through_socket] {
        let document = RedisDocument::start(config, "rules").await.unwrap();
        let mut follower = DocumentFollower::start(&document);
        follower.expect_notification().await;
        document.put(new_version("one")).await.unwrap();
        follower.expect_notification().await;
    }
}
