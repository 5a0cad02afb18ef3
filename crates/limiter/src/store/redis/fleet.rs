//! Which part of the fleet this node is: every node says now and then that it is alive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_core::Span;

use super::Inner;
use crate::clock::Clock;
use crate::fleet::membership::{Heard, Membership, Stake};
use crate::store::{Share, StoreError};

/// How often a node says that it is alive.
const PULSE: Duration = Duration::from_secs(1);
/// How long it may be silent before it counts as gone.
const SILENCE: Span = Span::from_secs(4);
/// How soon it says so again that was not heard.
const INSISTING: Duration = Duration::from_millis(250);

/// What a node last heard of its fleet. It stays when the store is away: that is when it is needed.
#[derive(Debug)]
pub(super) struct Fleet {
    name: String,
    /// Place in the upper half, size in the lower.
    share: AtomicU64,
    /// Whether this node has said goodbye. It may go on for a while, to answer who waits.
    left: AtomicBool,
    /// Goes on while the machine sleeps.
    clock: Clock,
    membership: ArcSwap<Membership>,
}

impl Fleet {
    pub(super) fn new() -> Self {
        Self {
            name: random_name(),
            share: AtomicU64::new(1),
            left: AtomicBool::new(false),
            clock: Clock::system(),
            membership: ArcSwap::from_pointee(Membership::new(SILENCE)),
        }
    }

    /// What of the fleet's limits is this node's own now.
    pub(super) fn stake(&self) -> Stake {
        // The place is taken first: one that changes meanwhile is used as it was, for that moment.
        let membership = self.membership.load_full();
        Stake { at: self.clock.now(), membership }
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

/// Says that this node is alive, and hears how many others are. Whether it was answered.
pub(super) async fn pulse(store: &Inner) -> bool {
    let fleet = &store.fleet;
    let sent = fleet.clock.now();
    match call(store, SILENCE).await {
        Ok((place, size, since)) => {
            let received = fleet.clock.now();
            fleet.note(place, size);
            let share = Share { index: place.into(), of: size.max(1).into() };
            let heard = Heard { sent, received, share, since };
            fleet.membership.rcu(|known| {
                let mut known = Membership::clone(known);
                known.heard(heard);
                known
            });
            true
        }
        Err(error) => {
            tracing::debug!(%error, "the fleet can't be asked for its size");
            false
        }
    }
}

/// Asks the store to know this node for so long; for no time at all, to forget it.
async fn call(store: &Inner, silence: Span) -> Result<(u32, u32, u64), StoreError> {
    let name = store.shared.spell_own("nodes");
    let node = store.topology.node(store.topology.group_of_name(&name))?;
    let silence = (silence.as_micros() / 1_000).to_string().into_bytes();
    let arguments = [store.fleet.name.clone().into_bytes(), silence];
    node.call_anywhere(&store.shared.scripts.pulse, &[name], &arguments).await
}

/// Pulses until the store is gone, or has left.
#[allow(clippy::disallowed_methods, reason = "a pulse has its own pace")]
pub(super) async fn keep_pulsing(store: Weak<Inner>) {
    loop {
        let heard = match store.upgrade() {
            Some(store) if !store.fleet.left.load(Ordering::Relaxed) => pulse(&store).await,
            Some(_) | None => return,
        };
        tokio::time::sleep(if heard { PULSE } else { INSISTING }).await;
    }
}

/// Tells the fleet at once that this node is going.
pub(super) async fn leave(store: &Arc<Inner>) {
    store.fleet.left.store(true, Ordering::Relaxed);
    // Before the others can hear of it: they then use what was this node's own.
    store.fleet.membership.rcu(|known| {
        let mut known = Membership::clone(known);
        known.leave();
        known
    });
    if let Err(error) = call(store, Span::ZERO).await {
        tracing::debug!(%error, "left without a word, and count as alive for a moment");
    }
}
