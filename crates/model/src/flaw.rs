//! Violations of the protocol, one rule of the decision page each.

/// A violated rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolFlaw {
    /// Leased tokens are charged at the grant, and the bucket refills while they are unspent.
    ChargedAhead,
    /// The TTL of a lease starts when the grant arrives, not when the request was sent.
    TtlFromReply,
    /// A node continues to spend a lease that it reported as closed.
    ClosedUsedAgain,
    /// A duplicated report releases a lease twice.
    ReturnedTwice,
    /// The store frees the tokens of a lease at the end of its TTL, without a margin.
    NoMargin,
    /// The store adds a report to earlier reports, although reports are totals.
    ReportAdded,
    /// A node uses a grant that arrives after the TTL of its lease.
    LateGrantUsed,
    /// An expired lease counts as unspent.
    ExpiredNotCharged,
    /// A restarted node reuses the ids of its earlier leases.
    IdsReused,
    /// A node's clock stops while its machine sleeps.
    ClockStopsInSleep,
    /// A lease may be used until the end of its window, without a margin.
    WindowToItsEnd,
    /// The store's clock jumps forward.
    StoreClockJumps,
    /// The bound does not include the tokens that the store lost.
    LossNotTolerated,
    /// The key of the leases expires when the last lease ends.
    LeaseKeyEndsWithLease,
    /// The time to live of the leases' key is not renewed when only the state changes.
    LeaseKeyNotRenewed,
    /// The key of the state expires with the state alone, although tokens are leased.
    StateKeyEndsAlone,
}
