//! The state of the model. Times are remaining ticks.

use crate::algorithm::UsageGauge;

/// Maximum number of nodes in a fleet.
pub const MAX_NODES: usize = 3;
/// Maximum number of leases of one client in the store.
pub const MAX_STORED_LEASES: usize = 4;
/// Maximum number of leases that a node uses at once.
pub const MAX_HELD_LEASES: usize = 2;

/// A lease in the store. An amount of 0 means no lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct StoredLease {
    /// The node that holds it.
    pub node: u8,
    /// Its id, unique for the node.
    pub id: u8,
    /// Tokens that were granted.
    pub amount: u8,
    /// Tokens that are reported spent.
    pub spent: u8,
    /// Ticks of the store's clock until it expires.
    pub left: u8,
    /// The TTL in the grant, in ticks since the request.
    pub ttl: u8,
    /// Closed but still stored; only a flawed store does that.
    pub closed: bool,
}

/// The state of the client in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreState {
    /// Used tokens.
    pub used: UsageGauge,
    /// The leases.
    pub leases: [StoredLease; MAX_STORED_LEASES],
    /// The keys that contain them, in fleets with expiring keys.
    pub keys: StoreKeys,
}

/// The two keys of a client. An ended lease is charged when the next request arrives; until then both keys are needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreKeys {
    /// Used tokens in the key of the state, without leases that ended since the last request.
    pub state: UsageGauge,
    /// Tokens of those ended leases, in the key of the leases.
    pub ended: UsageGauge,
    /// Ticks until the key of the state expires; 0 for none.
    pub state_left: u8,
    /// Ticks until the key of the leases expires; 0 for none.
    pub leases_left: u8,
}

/// A lease at its node. An amount of 0 means no lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct HeldLease {
    /// Its id.
    pub id: u8,
    /// Tokens that were granted.
    pub amount: u8,
    /// Tokens that are spent.
    pub spent: u8,
    /// Ticks of the node's clock for which it may be used.
    pub left: u8,
}

/// A report of a node on a lease. Id 0 means no report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct UsageReport {
    /// The id of the lease.
    pub id: u8,
    /// The total number of its spent tokens.
    pub spent: u8,
    /// True if the node releases the rest.
    pub closed: bool,
}

/// A request that waits for its reply. Id 0 means none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct PendingRequest {
    /// The id of the requested lease.
    pub id: u8,
    /// Ticks of the node's clock since the request.
    pub age: u8,
}

/// The state of a node and of its clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct NodeState {
    /// The pending request.
    pub pending: PendingRequest,
    /// The leases that it holds.
    pub leases: [HeldLease; MAX_HELD_LEASES],
    /// The last lease that it closed, which is reported again.
    pub closed: UsageReport,
    /// Ticks until its clock may drift again.
    pub ticks_until_drift: u8,
}

/// A message in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeaseMessage {
    /// To the store.
    Request {
        /// The sender.
        node: u8,
        /// The id of the requested lease.
        id: u8,
        /// Tokens that the store decides directly.
        cost: u8,
        /// Requested tokens.
        requested: u8,
        /// Usage of earlier leases.
        reports: [UsageReport; MAX_HELD_LEASES + 1],
    },
    /// To the node.
    Grant {
        /// The receiver.
        node: u8,
        /// The id of the lease.
        id: u8,
        /// Its tokens.
        amount: u8,
        /// Ticks for which it may be used, from the request on.
        ttl: u8,
    },
}

/// The state of the whole fleet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FleetState {
    /// Ticks into the window.
    pub window_tick: u8,
    /// The store.
    pub store: StoreState,
    /// The replica that replaces the store at a failover.
    pub replica: Option<StoreState>,
    /// True after a failover.
    pub failed: bool,
    /// The nodes.
    pub nodes: [NodeState; MAX_NODES],
    /// Messages in flight, sorted.
    pub in_flight: Vec<LeaseMessage>,
    /// The tokens that were really admitted.
    pub admitted: UsageGauge,
    /// Parts of tokens that the store lost.
    pub lost: u16,
}

impl NodeState {
    /// Returns whether the node has no state.
    pub fn is_blank(&self) -> bool {
        Self { ticks_until_drift: self.ticks_until_drift, ..Self::default() } == *self
    }
}

impl StoreState {
    /// Returns the index of a lease.
    pub fn find(&self, node: u8, id: u8) -> Option<usize> {
        self.leases
            .iter()
            .position(|lease| lease.amount > 0 && lease.node == node && lease.id == id)
    }

    /// Returns the leased tokens that are not reported as spent.
    pub fn held(&self) -> u8 {
        self.leases.iter().map(|lease| lease.amount - lease.spent).sum()
    }
}
