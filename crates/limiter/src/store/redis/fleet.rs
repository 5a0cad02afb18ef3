//! Which part of the fleet this node is: every node says now and then that it is alive.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_core::Span;
use tokio::sync::watch;

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

/// A node's place in its fleet, by the last answer of the store. It is kept while the store is unreachable: that is
/// when it is needed.
#[derive(Debug)]
pub(super) struct Fleet {
    name: String,
    /// Place in the upper half, size in the lower.
    share: AtomicU64,
    /// The same, once the store has answered.
    reported: watch::Sender<Option<Share>>,
    /// Whether this node has said goodbye. It may go on for a while, to answer who waits.
    left: AtomicBool,
    /// Goes on while the machine sleeps.
    clock: Clock,
    membership: ArcSwap<Membership>,
}

impl Fleet {
    /// A node that has not reached its store; with its share from before a restart, if it knows that.
    pub(super) fn new(last: Option<Share>) -> Self {
        let mut membership = Membership::new(SILENCE);
        if let Some(last) = last {
            membership = membership.with_last_share(last);
        }
        let fleet = Self {
            name: random_name(),
            share: AtomicU64::new(1),
            reported: watch::Sender::new(None),
            left: AtomicBool::new(false),
            clock: Clock::system(),
            membership: ArcSwap::from_pointee(membership),
        };
        fleet.note_share();
        fleet
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

    /// Returns this node's share as the store reported it, once it differs from `last`.
    pub(super) async fn next_share(&self, last: Option<Share>) -> Share {
        let mut reported = self.reported.subscribe();
        let differs = |share: &Option<Share>| share.is_some() && *share != last;
        // The sender lives as long as this does.
        let next = reported.wait_for(differs).await.ok().and_then(|share| *share);
        next.unwrap_or(Share::WHOLE)
    }

    fn heard(&self, heard: Heard) {
        self.membership.rcu(|known| {
            let mut known = Membership::clone(known);
            known.heard(heard);
            known
        });
        let share = self.note_share();
        self.reported.send_if_modified(|reported| reported.replace(share) != Some(share));
    }

    /// Keeps the share where checks read it.
    fn note_share(&self) -> Share {
        let share = self.membership.load().last_share();
        let half = |number: u64| u64::from(u32::try_from(number).unwrap_or(u32::MAX));
        self.share.store(half(share.index) << 32 | half(share.of), Ordering::Relaxed);
        share
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
            let share = Share { index: place.into(), of: size.max(1).into() };
            fleet.heard(Heard { sent, received, share, since });
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
