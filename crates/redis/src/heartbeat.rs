//! The place of this node in its fleet: every node sends heartbeats to the store.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use tidegate_core::Span;
use tokio::sync::watch;

use super::script::ScriptCall;
use super::shared::RedisShared;
use super::topology::Topology;
use tidegate_limiter::clock::Clock;
use tidegate_limiter::coordination::membership::{HeartbeatReply, Membership, MembershipView};
use tidegate_limiter::store::{Share, StoreError};

/// Time between two heartbeats.
pub(crate) const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);
/// A node counts as gone after this time without a heartbeat.
const HEARTBEAT_TIMEOUT: Span = Span::from_secs(4);
/// Time after a heartbeat that failed.
pub(crate) const HEARTBEAT_RETRY: Duration = Duration::from_millis(250);

/// The place of a node in its fleet, by the last reply of the store. It is kept while the store is unreachable, which is
/// when it is needed.
#[derive(Debug)]
pub(crate) struct FleetHeartbeat {
    name: String,
    /// The place in the upper half, the size of the fleet in the lower.
    share: AtomicU64,
    /// The same, once the store has replied.
    reported: watch::Sender<Option<Share>>,
    /// `true` once this node has left the fleet. It may still complete requests.
    left: AtomicBool,
    /// A clock that counts the time while the machine sleeps.
    clock: Clock,
    membership: ArcSwap<Membership>,
}

impl FleetHeartbeat {
    /// A node without a reply of its store so far; with its share from before a restart, if it is known.
    pub(crate) fn new(last: Option<Share>) -> Self {
        let mut membership = Membership::new(HEARTBEAT_TIMEOUT);
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
        fleet.store_share();
        fleet
    }

    /// Returns the share of the fleet's limits that is this node's own now.
    pub(crate) fn membership_view(&self) -> MembershipView {
        // The membership is loaded first: if it changes before the time is read, the older one is used at that time.
        let membership = self.membership.load_full();
        MembershipView { at: self.clock.now(), membership }
    }

    pub(crate) fn share(&self) -> Share {
        let share = self.share.load(Ordering::Relaxed);
        Share { index: share >> 32, of: (share & u64::from(u32::MAX)).max(1) }
    }

    /// Returns this node's share as the store reported it, once it differs from `last`.
    pub(crate) async fn next_share(&self, last: Option<Share>) -> Share {
        let mut reported = self.reported.subscribe();
        let differs = |share: &Option<Share>| share.is_some() && *share != last;
        // The sender lives as long as this does.
        let next = reported.wait_for(differs).await.ok().and_then(|share| *share);
        next.unwrap_or(Share::WHOLE)
    }

    /// Returns whether this node has left the fleet.
    pub(crate) fn has_left(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }

    /// Sends a heartbeat. Returns whether the store replied.
    pub(crate) async fn send(&self, shared: &RedisShared, topology: &Topology) -> bool {
        let sent = self.clock.now();
        match self.call(shared, topology, HEARTBEAT_TIMEOUT).await {
            Ok((place, size, since)) => {
                let received = self.clock.now();
                let share = Share { index: place.into(), of: size.max(1).into() };
                self.apply(HeartbeatReply { sent, received, share, since });
                true
            }
            Err(error) => {
                tracing::debug!(%error, "heartbeat failed, retrying");
                false
            }
        }
    }

    /// Removes this node from the fleet.
    pub(crate) async fn leave(&self, shared: &RedisShared, topology: &Topology) {
        self.left.store(true, Ordering::Relaxed);
        // Before the store knows: the other nodes then use the share of this one.
        self.membership.rcu(|known| {
            let mut known = Membership::clone(known);
            known.leave();
            known
        });
        if let Err(error) = self.call(shared, topology, Span::ZERO).await {
            tracing::debug!(%error, "cannot leave the fleet, counted until the heartbeat timeout");
        }
    }

    /// Has the store count this node for `timeout`; with zero, no longer. Returns its place, the size of the fleet, and
    /// the time since which the store has counted it without a gap.
    async fn call(
        &self,
        shared: &RedisShared,
        topology: &Topology,
        timeout: Span,
    ) -> Result<(u32, u32, u64), StoreError> {
        let name = shared.fleet_key("nodes");
        let node = topology.node(topology.group_of_name(&name))?;
        let timeout = (timeout.as_micros() / 1_000).to_string().into_bytes();
        let arguments = [self.name.clone().into_bytes(), timeout];
        let script = &shared.scripts.heartbeat;
        node.call(ScriptCall { script, keys: &[name], arguments: &arguments }).await
    }

    /// Applies the reply to a heartbeat.
    fn apply(&self, reply: HeartbeatReply) {
        self.membership.rcu(|known| {
            let mut known = Membership::clone(known);
            known.on_heartbeat(reply);
            known
        });
        let share = self.store_share();
        self.reported.send_if_modified(|reported| reported.replace(share) != Some(share));
    }

    /// Stores the share where checks read it.
    fn store_share(&self) -> Share {
        let share = self.membership.load().last_share();
        let half = |number: u64| u64::from(u32::try_from(number).unwrap_or(u32::MAX));
        self.share.store(half(share.index) << 32 | half(share.of), Ordering::Relaxed);
        share
    }
}

/// Returns a unique name: two hash maps never have the same random keys.
pub(crate) fn random_name() -> String {
    use std::hash::{BuildHasher, RandomState};
    let random = || RandomState::new().hash_one(0);
    format!("{:016x}{:016x}", random(), random())
}
