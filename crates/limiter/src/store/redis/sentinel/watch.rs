//! Follows a master: every sentinel publishes that another server became the master.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::select;

use super::super::address::Address;
use super::super::config::RedisConfig;
use super::super::connect::within;
use super::super::node::Node;
use super::super::shared::Shared;
use super::super::subscription::Subscription;
use super::query;

/// Where a sentinel publishes `<master name> <old host> <old port> <new host> <new port>`.
const CHANNEL: &str = "+switch-master";

/// The first and the longest pause between two attempts to subscribe.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// Most sentinels that are subscribed to, one task each: the first ones of the configuration.
const MAX_WATCHED_SENTINELS: usize = 16;

/// Subscribes to the sentinels, in the background and until the node is dropped.
pub(in super::super) fn watch(
    shared: &Arc<Shared>,
    node: &Arc<Node>,
    sentinels: &[Address],
    master: &str,
) {
    if sentinels.len() > MAX_WATCHED_SENTINELS {
        let watched = MAX_WATCHED_SENTINELS;
        tracing::warn!(master, watched, "too many sentinels, subscribing to the first ones only");
    }
    for sentinel in sentinels.iter().take(MAX_WATCHED_SENTINELS) {
        let watcher = SentinelWatcher {
            node: Arc::downgrade(node),
            config: shared.config.clone(),
            sentinel: sentinel.clone(),
            master: master.to_owned(),
        };
        let dropped = node.dropped();
        shared.spawn(async move {
            select(pin!(dropped), pin!(watcher.run())).await;
        });
    }
}

/// The subscription to one sentinel.
struct SentinelWatcher {
    node: Weak<Node>,
    config: RedisConfig,
    sentinel: Address,
    master: String,
}

impl SentinelWatcher {
    #[allow(clippy::disallowed_methods, reason = "subscribing again has its own pace")]
    async fn run(self) {
        let (mut pause, longest) = BACKOFF;
        let mut is_logged = false;
        loop {
            let subscribed = self.subscribe().await;
            if subscribed.is_ok() {
                (pause, is_logged) = (BACKOFF.0, false);
            }
            let error = match subscribed {
                Ok(subscription) => self.follow(subscription).await,
                Err(error) => error,
            };
            let sentinel = &self.sentinel;
            if is_logged {
                tracing::debug!(%sentinel, error, "not subscribed to sentinel, retrying");
            } else {
                tracing::warn!(%sentinel, error, "not subscribed to sentinel, retrying");
            }
            is_logged = true;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
    }

    async fn subscribe(&self) -> Result<Subscription, String> {
        let (config, sentinel) = (&self.config, &self.sentinel);
        let subscribing = Subscription::open(config, sentinel, config.sentinel_login(), 0, CHANNEL);
        subscribing.await.map_err(|error| error.to_string())
    }

    /// Reports the sentinel's master to the node: now, since a message may have been missed, and after each
    /// message. Returns why it ended.
    async fn follow(&self, mut subscription: Subscription) -> String {
        loop {
            let query = query(&self.config, &self.sentinel, &self.master);
            match within(self.config.connect_timeout(), &self.sentinel, query).await {
                Ok(Some(report)) => match self.node.upgrade() {
                    Some(node) => node.master_reported(&report),
                    None => return "the store was dropped".to_owned(),
                },
                Ok(None) => return format!("no master of the name {:?}", self.master),
                Err(error) => return error.to_string(),
            }
            loop {
                match subscription.next().await {
                    Ok(message) if is_about(message.get_payload_bytes(), &self.master) => break,
                    Ok(_) => {}
                    Err(reason) => return reason.to_owned(),
                }
            }
        }
    }
}

/// Whether a message is about the master of this name. Nothing else of it is used: the sentinel is asked.
fn is_about(payload: &[u8], master: &str) -> bool {
    payload.strip_prefix(master.as_bytes()).is_some_and(|rest| rest.starts_with(b" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_about_another_master_or_without_a_master_is_ignored() {
        let is_ours = |payload: &[u8]| is_about(payload, "main");
        assert!(is_ours(b"main 10.0.0.1 6379 10.0.0.2 6379"));
        assert!(is_ours(b"main what follows is not read"));
        assert!(!is_ours(b"main-2 10.0.0.1 6379 10.0.0.2 6379"));
        assert!(!is_ours(b"other 10.0.0.1 6379 10.0.0.2 6379"));
        assert!(!is_ours(b"main"));
        assert!(!is_ours(b""));
        assert!(!is_ours(&[0xff, 0xfe, b' ']));
    }
}
