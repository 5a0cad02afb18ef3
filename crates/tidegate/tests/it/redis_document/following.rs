//! Hearing of new versions, on good networks and bad ones.

use tidegate::{RedisConfig, RedisDocument, Tls};
use tidegate_testkit::{FaultProxy, Redis, Tool, WAIT_TIMEOUT, lacking, poll};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::timeout;

use super::{NEEDED, document, draft, latest};

/// Follows a document until it is dropped.
pub(crate) struct Follower {
    heard: UnboundedReceiver<()>,
    task: JoinHandle<()>,
}

impl Follower {
    pub(crate) fn of(document: &RedisDocument) -> Self {
        let (sender, heard) = unbounded_channel();
        let document = document.clone();
        let task = tokio::spawn(async move {
            let heard = move || {
                let _ = sender.send(());
            };
            document.follow(heard).await;
        });
        Self { heard, task }
    }

    pub(crate) async fn hears(&mut self) {
        let heard = timeout(WAIT_TIMEOUT, self.heard.recv()).await;
        assert_eq!(heard, Ok(Some(())), "nothing is heard");
    }

    pub(crate) fn heard_nothing(&mut self) {
        assert!(self.heard.try_recv().is_err(), "something was heard");
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        self.task.abort();
    }
}

#[tokio::test]
async fn whoever_follows_hears_of_every_version_and_again_after_the_connection_was_cut() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let proxy = FaultProxy::to(server.address());
    let (near, far) = (document(&server.url()).await, document(&proxy.url()).await);
    let mut follower = Follower::of(&far);
    follower.hears().await;
    for text in ["one", "two"] {
        near.put(draft(text)).await.unwrap();
        follower.hears().await;
        assert_eq!(latest(&far).await.unwrap().text, text);
    }
    follower.heard_nothing();

    proxy.drop_connections();
    near.put(draft("three")).await.unwrap();
    // What was missed is not heard; that it may have been is.
    follower.hears().await;
    assert_eq!(latest(&far).await.unwrap().text, "three");
    near.put(draft("four")).await.unwrap();
    follower.hears().await;

    let edition = latest(&near).await.unwrap();
    server.query::<()>(&["FLUSHALL"]);
    near.restore(&edition).await.unwrap();
    follower.hears().await;
    near.restore(&edition).await.unwrap();
    follower.heard_nothing();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_server_that_falls_silent_is_left_and_listened_to_again() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    let proxy = FaultProxy::to(server.address());
    let mut follower = Follower::of(&document(&proxy.url()).await);
    follower.hears().await;
    let made = proxy.connections();
    proxy.stall();
    // The connection is open and says nothing, as if nobody had put a version.
    assert!(poll(|| (proxy.connections() > made).then_some(())).is_some(), "it waits in vain");
    proxy.pass();
    follower.hears().await;
    document(&server.url()).await.put(draft("one")).await.unwrap();
    follower.hears().await;
}

#[tokio::test]
async fn following_needs_no_server_to_begin_with() {
    if lacking(&NEEDED) {
        return;
    }
    let server = Redis::start();
    server.kill();
    let document = document(&server.url()).await;
    let mut follower = Follower::of(&document);
    let away = document.latest(None).await.unwrap_err().to_string();
    assert!(away.starts_with(&format!("redis {}: ", server.address())), "{away}");
    assert_eq!(away.matches("redis").count(), 1, "{away}");
    server.restart();
    follower.hears().await;
    document.put(draft("one")).await.unwrap();
    follower.hears().await;
}

#[tokio::test]
async fn following_works_with_tls_with_a_password_and_through_a_socket() {
    if lacking(&NEEDED) || lacking(&[Tool::Openssl]) {
        return;
    }
    let server = Redis::builder().tls().password("hunter2").start();
    let tls = Tls { ca: Some(server.ca()), identity: None };
    let encrypted: RedisConfig = server.url().parse().unwrap();
    let encrypted = encrypted.with_tls(tls).unwrap();
    let near = format!("redis+unix://{}?password=hunter2", server.socket().display());
    let near: RedisConfig = near.parse().unwrap();
    for config in [encrypted, near] {
        let document = RedisDocument::start(config, "rules").await.unwrap();
        let mut follower = Follower::of(&document);
        follower.hears().await;
        document.put(draft("one")).await.unwrap();
        follower.hears().await;
    }
}
