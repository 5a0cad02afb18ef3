//! Configuration, scripts and counters that every part of the store uses.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use tidegate_core::Key;
use tokio::runtime::Handle;

use super::config::RedisConfig;
use super::held_slots::HeldSlots;
use super::script::Scripts;

/// Configuration, scripts and counters that every part of the store uses.
#[derive(Debug)]
pub(crate) struct RedisShared {
    pub(crate) config: RedisConfig,
    pub(crate) scripts: Scripts,
    pub(crate) runtime: Handle,
    pub(crate) counters: RedisCounters,
    /// Slots that are renewed before a lost connection is used again.
    pub(crate) held: HeldSlots,
}

/// RedisCounters of the store, for metrics.
#[derive(Debug, Default)]
pub(crate) struct RedisCounters {
    /// Script calls that charged.
    pub(crate) calls: AtomicU64,
    /// Requests that were submitted to a server.
    pub(crate) carried: AtomicU64,
    /// Lease requests that were submitted to a server.
    pub(crate) asks: AtomicU64,
    /// Script calls of lease requests.
    pub(crate) ask_calls: AtomicU64,
    /// Requests that a cached denial answered.
    pub(crate) remembered: AtomicU64,
    /// Charges that could not be refunded.
    pub(crate) lost: AtomicU64,
    /// Number of times that a breaker opened.
    pub(crate) opened: AtomicU64,
    /// Number of times that another server became the master.
    pub(crate) failovers: AtomicU64,
    /// Requests without a reply by their deadline.
    pub(crate) late: AtomicU64,
}

impl RedisShared {
    /// Returns the Redis key of a counter: the prefix, and the 128 bits of the key in 22 letters.
    pub(crate) fn counter_key(&self, key: Key) -> String {
        let mut name = String::with_capacity(self.config.prefix().len() + 22);
        name.push_str(self.config.prefix());
        BASE64_URL_SAFE_NO_PAD.encode_string(key.as_u128().to_be_bytes(), &mut name);
        name
    }

    /// Returns the Redis key of the leases of a key; a cluster keeps it in the slot of the counter.
    pub(crate) fn lease_key(&self, key: Key) -> String {
        format!("{{{}}}:h", self.counter_key(key))
    }

    /// Returns a Redis key that belongs to the fleet and is no counter.
    pub(crate) fn fleet_key(&self, name: &str) -> String {
        // No counter has this key: those are longer and have no colon after the prefix.
        format!("{}:{name}", self.config.prefix())
    }

    /// Runs a task in the background.
    pub(crate) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }
}
