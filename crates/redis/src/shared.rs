//! Configuration, scripts and counters that every part of the store uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    pub(crate) other_limits: OtherLimits,
    /// Slots that are renewed before a lost connection is used again.
    pub(crate) held: HeldSlots,
}

/// The likelihood of values of other limits, as after a change of rules. The uniform scripts can't decide those: their
/// requests are sent again.
#[derive(Debug, Default)]
pub(crate) struct OtherLimits {
    /// Calls for which they are likely.
    calls: AtomicU32,
}

impl OtherLimits {
    /// Calls after one that found such a value. If one value in a few thousand is of another limit, the general script
    /// costs less than sending requests again.
    const LIKELY_CALLS: u32 = 100;

    /// Notes a value of another limit.
    pub(crate) fn note(&self) {
        self.calls.store(Self::LIKELY_CALLS, Ordering::Relaxed);
    }

    /// Returns whether the next call is likely to find one.
    pub(crate) fn are_likely(&self) -> bool {
        let less = |calls: u32| calls.checked_sub(1);
        self.calls.load(Ordering::Relaxed) > 0
            && self.calls.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
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
