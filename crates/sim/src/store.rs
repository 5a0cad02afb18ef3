//! The store that simulated nodes share, in the role of Redis and without a network.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use tidegate_core::{Key, Keyer, LeaseGrant, LeaseRequest, Limit, Span, Timestamp};
use tidegate_limiter::{
    Charge, ChargeMode, ChargeResult, ChargeResults, Clock, HeartbeatReply, ManualClock,
    Membership, MembershipView, MemoryStore, Refund, Share, Store, StoreError,
};

use crate::faults::FaultPlan;

/// Time after which the store drops a node that sends no heartbeat, as Redis does.
const HEARTBEAT_TIMEOUT: Span = Span::from_secs(4);
/// Interval of heartbeats.
pub(crate) const HEARTBEAT_INTERVAL: Span = Span::from_secs(1);
/// Interval after a heartbeat without a reply.
pub(crate) const HEARTBEAT_RETRY: Span = Span::from_millis(250);

/// A store in memory with its own clock. It replies at once, or fails at once while it is down.
pub(crate) struct SimStore {
    store: MemoryStore,
    time: ManualClock,
    start: Timestamp,
    faults: FaultPlan,
    unavailable: StoreError,
    /// True if lease requests read the state without charging.
    read_only: AtomicBool,
    /// For each node the expiry of its registration, and the heartbeat that began it.
    registered: Mutex<Vec<Option<(Timestamp, u64)>>>,
}

/// One node's connection to the store.
pub(crate) struct NodeStore {
    store: Arc<SimStore>,
    index: u64,
    /// The node's own clock.
    clock: Clock,
    membership: Mutex<Arc<Membership>>,
}

impl SimStore {
    /// Creates a store for this number of nodes, none of which is registered.
    pub(crate) fn new(nodes: usize, start: Timestamp, faults: FaultPlan) -> Self {
        let time = ManualClock::starting_at(start);
        let (store, reason) = ("store".into(), "simulated outage".into());
        Self {
            store: MemoryStore::new(time.clock()),
            time,
            start,
            faults,
            unavailable: StoreError::Unavailable { store, reason },
            read_only: AtomicBool::new(false),
            registered: Mutex::new(vec![None; nodes]),
        }
    }

    /// Moves its clock to `now`.
    pub(crate) fn advance(&self, now: Timestamp) {
        self.time.advance(now.since(self.time.now()));
    }

    /// Sets whether lease requests only read the state of a client.
    pub(crate) fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::Relaxed);
    }

    fn available(&self) -> Result<&MemoryStore, StoreError> {
        match self.faults.is_down(self.start, self.time.now()) {
            false => Ok(&self.store),
            true => Err(self.unavailable.clone()),
        }
    }

    fn nodes(&self) -> u64 {
        self.registered.lock().len() as u64
    }

    /// Registers a heartbeat at `now`. Returns the node's share of the fleet, and the heartbeat that began its
    /// registration.
    fn register(&self, index: u64, now: Timestamp) -> (Share, u64) {
        let mut registered = self.registered.lock();
        for node in registered.iter_mut() {
            node.take_if(|(until, _)| *until <= now);
        }
        let slot = usize::try_from(index).unwrap_or(usize::MAX);
        let since = registered[slot].map_or(now.as_micros(), |(_, since)| since);
        registered[slot] = Some((now + HEARTBEAT_TIMEOUT, since));
        let alive = |nodes: &[Option<_>]| nodes.iter().flatten().count() as u64;
        (Share { index: alive(&registered[..slot]), of: alive(&registered) }, since)
    }
}

impl NodeStore {
    pub(crate) fn new(store: &Arc<SimStore>, index: u64, clock: Clock) -> Self {
        let membership = Mutex::new(Arc::new(Membership::new(HEARTBEAT_TIMEOUT)));
        Self { store: Arc::clone(store), index, clock, membership }
    }

    /// Registers the node as if it had joined before the start, by `long` and the time that a new node waits for its
    /// share.
    pub(crate) fn join_before_start(&self, long: Span, ahead: Span) {
        let (start, of) = (self.store.start, self.store.nodes());
        let before = long.as_micros().saturating_add(4 * HEARTBEAT_TIMEOUT.as_micros());
        let joined = Timestamp::from_micros(start.as_micros().saturating_sub(before));
        let (share, since) = (Share { index: self.index, of }, joined.as_micros());
        let slot = usize::try_from(self.index).unwrap_or(usize::MAX);
        if let Some(registered) = self.store.registered.lock().get_mut(slot) {
            *registered = Some((start + HEARTBEAT_TIMEOUT, since));
        }
        let mut membership = self.membership.lock();
        let membership = Arc::make_mut(&mut membership);
        // Two heartbeats replace all in between: the last one arrives before the first share begins.
        for (sent, received) in [(joined, joined), (start, joined + Span::MICROSECOND)] {
            let (sent, received) = (sent + ahead, received + ahead);
            membership.on_heartbeat(HeartbeatReply { sent, received, share, since });
        }
    }

    /// Sends a heartbeat at `now`. Returns whether the store replied.
    pub(crate) fn heartbeat(&self, now: Timestamp, ahead: Span) -> bool {
        if self.store.faults.is_down(self.store.start, now) {
            return false;
        }
        let ((share, since), at) = (self.store.register(self.index, now), now + ahead);
        let reply = HeartbeatReply { sent: at, received: at, share, since };
        Arc::make_mut(&mut self.membership.lock()).on_heartbeat(reply);
        true
    }
}

impl Store for NodeStore {
    fn keyer(&self) -> Keyer {
        // All nodes derive the same keys, in every run of a simulation.
        Keyer::Local { seed: [7; 32] }
    }

    async fn charge(&self, charges: &[Charge<'_>], mode: ChargeMode) -> ChargeResults {
        match self.store.available() {
            Ok(store) => store.charge(charges, mode).await,
            Err(error) => charges.iter().map(|_| ChargeResult::Failed(error.clone())).collect(),
        }
    }

    fn supports_leases(&self) -> bool {
        true
    }

    async fn lease(
        &self,
        requests: &[(Key, Arc<Limit>, LeaseRequest)],
    ) -> Vec<Result<LeaseGrant, StoreError>> {
        let store = match self.store.available() {
            Ok(store) => store,
            Err(error) => return vec![Err(error); requests.len()],
        };
        if !self.store.read_only.load(Ordering::Relaxed) {
            return store.lease(requests).await;
        }
        let read = |(key, limit, request): &(Key, Arc<Limit>, LeaseRequest)| {
            (*key, Arc::clone(limit), LeaseRequest { cost: 0, ..request.clone() })
        };
        store.lease(&requests.iter().map(read).collect::<Vec<_>>()).await
    }

    fn share(&self) -> Share {
        Share { index: self.index, of: self.store.nodes() }
    }

    fn membership_view(&self) -> Option<MembershipView> {
        let membership = Arc::clone(&self.membership.lock());
        Some(MembershipView { at: self.clock.now(), membership })
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        self.store.available()?.refund(refunds).await
    }

    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>) {
        if let Ok(store) = self.store.available() {
            for refund in &refunds {
                store.refund_one(refund);
            }
        }
    }

    async fn renew(&self, slots: &[Refund]) -> Result<usize, StoreError> {
        self.store.available()?.renew(slots).await
    }

    async fn reset(&self, key: Key) -> Result<(), StoreError> {
        self.store.available()?.reset(key).await
    }
}
