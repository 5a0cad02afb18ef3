//! Which part of the fleet this node is: every node says now and then that it is alive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::Inner;
use crate::store::Share;

/// How often a node says that it is alive.
const PULSE: Duration = Duration::from_secs(1);
/// How long it may be silent before it counts as gone.
const SILENCE: Duration = Duration::from_secs(4);

/// What a node last heard of its fleet. It stays when the store is away: that is when it is needed.
#[derive(Debug)]
pub(super) struct Fleet {
    name: String,
    /// Place in the upper half, size in the lower.
    share: AtomicU64,
    /// Whether this node has said goodbye. It may go on for a while, to answer who waits.
    left: AtomicBool,
}

impl Fleet {
    pub(super) fn new() -> Self {
        Self { name: random_name(), share: AtomicU64::new(1), left: AtomicBool::new(false) }
    }

    pub(super) fn share(&self) -> Share {
        let share = self.share.load(Ordering::Relaxed);
        Share { index: share >> 32, of: (share & u64::from(u32::MAX)).max(1) }
    }

    fn note(&self, place: u32, size: u32) {
        self.share.store(u64::from(place) << 32 | u64::from(size.max(1)), Ordering::Relaxed);
    }
}

/// A name that nobody else has: two hash maps never have the same random keys.
pub(super) fn random_name() -> String {
    use std::hash::{BuildHasher, RandomState};
    let random = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", random(), random())
}

/// Says that this node is alive, and hears how many others are.
pub(super) async fn pulse(store: &Inner) {
    let name = store.shared.spell_own("nodes");
    let Ok(node) = store.topology.node(store.topology.group_of_name(&name)) else { return };
    let silence = SILENCE.as_millis().to_string().into_bytes();
    let arguments = [store.fleet.name.clone().into_bytes(), silence];
    let reply: Result<(u32, u32), _> =
        node.call_anywhere(&store.shared.scripts.pulse, &[name], &arguments).await;
    match reply {
        Ok((place, size)) => store.fleet.note(place, size),
        Err(error) => tracing::debug!(%error, "the fleet can't be asked for its size"),
    }
}

/// Pulses until the store is gone, or has left.
#[allow(clippy::disallowed_methods, reason = "a pulse has its own pace")]
pub(super) async fn keep_pulsing(store: Weak<Inner>) {
    loop {
        match store.upgrade() {
            Some(store) if !store.fleet.left.load(Ordering::Relaxed) => pulse(&store).await,
            Some(_) | None => return,
        }
        tokio::time::sleep(PULSE).await;
    }
}

/// Tells the fleet at once that this node is going.
pub(super) async fn leave(store: &Arc<Inner>) {
    store.fleet.left.store(true, Ordering::Relaxed);
    let name = store.shared.spell_own("nodes");
    let Ok(node) = store.topology.node(store.topology.group_of_name(&name)) else { return };
    if let Some(link) = node.link() {
        let mut connection = link.connection();
        let mut leaving = redis::cmd("ZREM");
        let left: Result<u32, _> =
            leaving.arg(&name).arg(&store.fleet.name).query_async(&mut connection).await;
        if let Err(error) = left {
            tracing::debug!(%error, "left without a word, and count as alive for a moment");
        }
    }
}
