//! What every part of the store has in common.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use tidegate_core::Key;
use tokio::runtime::Handle;

use super::RedisConfig;
use super::node::HeldSlots;
use super::script::Scripts;

/// What every part of the store has in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) config: RedisConfig,
    pub(super) scripts: Scripts,
    pub(super) runtime: Handle,
    pub(super) counters: Counters,
    /// Renewed when a lost connection is back.
    pub(super) held: HeldSlots,
}

/// What happened, for metrics.
#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Script calls that charged.
    pub(super) calls: AtomicU64,
    /// Requests that they carried.
    pub(super) carried: AtomicU64,
    /// Asks that were handed to a server.
    pub(super) asks: AtomicU64,
    /// Script calls that carried them.
    pub(super) ask_calls: AtomicU64,
    /// Requests that were denied from memory.
    pub(super) remembered: AtomicU64,
    /// Charges that could not be given back.
    pub(super) lost: AtomicU64,
    /// How often a server was given up for a while.
    pub(super) opened: AtomicU64,
    /// How often another server took the place of a master.
    pub(super) failovers: AtomicU64,
    /// Requests without an answer by their deadline.
    pub(super) late: AtomicU64,
}

impl Shared {
    /// The name of a key in Redis: the prefix, and the 128 bits in 22 letters.
    pub(super) fn spell(&self, key: Key) -> String {
        let mut name = String::with_capacity(self.config.prefix().len() + 22);
        name.push_str(self.config.prefix());
        BASE64_URL_SAFE_NO_PAD.encode_string(key.as_u128().to_be_bytes(), &mut name);
        name
    }

    /// The name of what is held beside a key's counter; a cluster keeps both in one slot.
    pub(super) fn spell_holds(&self, key: Key) -> String {
        format!("{{{}}}:h", self.spell(key))
    }

    /// A name for something that is no counter.
    pub(super) fn spell_own(&self, name: &str) -> String {
        // No counter is called so: their names are longer and have no colon.
        format!("{}:{name}", self.config.prefix())
    }

    /// Runs something that nobody waits for.
    pub(super) fn spawn(self: &Arc<Self>, task: impl Future<Output = ()> + Send + 'static) {
        drop(self.runtime.spawn(task));
    }
}
