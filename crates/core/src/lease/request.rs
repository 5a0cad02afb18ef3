//! One lease request of a node: the usage that it reports, the cost of a check, and the lease that it requests.

use smallvec::SmallVec;

use super::{Lease, LeaseId, LeaseSet, clock_margin, grant_size, usable_ttl};
use crate::algorithm::{LeasableAlgorithm, Limit, Meter, State};
use crate::outcome::{Outcome, Verdict};
use crate::time::{Span, Timestamp};

/// The usage of one lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UsageReport {
    /// The id of the lease.
    pub id: LeaseId,
    /// The total of tokens that were spent from it so far.
    pub spent: u64,
    /// Set if nothing more will be spent from it: its unspent tokens are released.
    pub closed: bool,
}

/// Usage that a node admitted without a request to the store.
///
/// A node reports running totals under an id. Beside the state, the store records the total that was reported under the
/// id. Usage that is reported twice, because a reply was lost, therefore counts once. The proof is in
/// `docs/decisions/0013-synced-split-and-shards.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreportedUsage {
    /// The time of the last admission, by the store's clock. A window limit counts the usage in the window of this time,
    /// or of the store's current time if that is earlier. A bucket counts it at the store's current time.
    pub at: Timestamp,
    /// The running total under the id, up to this time.
    pub total: u64,
}

/// A request of a node for a lease, with its reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The cost of the check; 0 only peeks.
    pub cost: u64,
    /// The most tokens to lease; 0 for none.
    pub requested: u64,
    /// The id of the new lease, or the id under which the unreported usage is recorded.
    pub id: LeaseId,
    /// Usage that the node admitted without the store, as running totals, oldest first. The part that was reported
    /// before under the same id is not counted again. A request with unreported usage gets no lease.
    pub unreported: SmallVec<[UnreportedUsage; 1]>,
    /// The usage of earlier leases.
    pub reports: SmallVec<[UsageReport; 2]>,
    /// The time for which the node may use the lease, without the [`clock_margin`]; or the lifetime of the record of
    /// reported usage. At most [`Lease::MAX_TTL`].
    pub ttl: Span,
    /// The number of nodes, as far as this node knows.
    pub fleet_size: u64,
}

/// The reply to a lease request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// The outcome of the check; a peek for a cost of 0. Existing leases count as spent in it, the new lease does not.
    /// Its waits are estimates, since a lease may be released.
    pub outcome: Outcome,
    /// The number of tokens that are leased to the node now; 0 for none.
    pub granted: u64,
    /// The time for which the node may use them, from the moment at which it sent the request.
    pub ttl: Span,
    /// The state of the client afterwards; `None` if the limit does not [support leases](Limit::supports_leases).
    pub snapshot: Option<StateSnapshot>,
}

/// The state of a client in the store at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSnapshot {
    /// The time of the state. It equals `clock`, unless the clock was set back to before the latest counted window: then
    /// it is the start of that window.
    pub at: Timestamp,
    /// The store's clock. It can be set back.
    pub clock: Timestamp,
    /// The state at `at`.
    pub state: State,
}

impl Limit {
    /// Returns whether nodes can lease tokens of this limit.
    #[must_use]
    pub fn supports_leases(&self) -> bool {
        matches!(self, Self::TokenBucket(_) | Self::FixedWindow(_) | Self::SlidingWindow(_))
    }

    /// Applies a lease request in one step at `now`: expiry, unreported usage, reports, the cost and a new lease, in
    /// this order.
    ///
    /// Usage and leases together never exceed the capacity, unless there is unreported usage. A limit that does not
    /// [support leases](Self::supports_leases) charges the cost, and ignores the rest of the request.
    ///
    /// # When the limit changes
    /// The state is [migrated](Self::migrate); leases stay as they are, since their nodes do not have the new limit
    /// yet. Each counts under the new limit, for its capacity at most. The admissions after a change therefore exceed
    /// the new limit by no more than was leased at that moment, and by nothing if usage and leases fit under the new
    /// limit together.
    pub fn apply_lease_request(
        &self,
        state: &mut State,
        leases: &mut LeaseSet,
        now: Timestamp,
        request: &LeaseRequest,
    ) -> LeaseGrant {
        match self {
            Self::TokenBucket(meter) => {
                meter.with_own_state(state, |own| apply(meter, own, leases, now, request))
            }
            Self::FixedWindow(meter) => {
                meter.with_own_state(state, |own| apply(meter, own, leases, now, request))
            }
            Self::SlidingWindow(meter) => {
                meter.with_own_state(state, |own| apply(meter, own, leases, now, request))
            }
            Self::LeakyBucket(_) | Self::SlidingLog(_) | Self::Concurrency(_) => {
                let outcome = self.charge(state, now, request.cost);
                LeaseGrant { outcome, granted: 0, ttl: Span::ZERO, snapshot: None }
            }
        }
    }

    /// Returns the time from which on a state and its leases equal a fresh state without leases.
    #[must_use]
    pub fn settled_at(&self, state: &State, leases: &LeaseSet) -> Timestamp {
        fn settled<M: LeasableAlgorithm>(
            meter: &M,
            state: &mut M::State,
            leases: &LeaseSet,
        ) -> Timestamp {
            let mut leases_end = Timestamp::EPOCH;
            // In the order in which a store counts them, oldest first, which is not the order of their ends.
            for lease in leases.iter() {
                leases_end = leases_end.max(lease.until);
                meter.advance(state, lease.last_use());
                meter.force_spend(state, lease.last_use(), lease.unspent(meter.capacity()));
            }
            meter.expires_at(state).max(leases_end)
        }
        let mut state = state.clone();
        match self {
            Self::TokenBucket(meter) => {
                meter.with_own_state(&mut state, |own| settled(meter, own, leases))
            }
            Self::FixedWindow(meter) => {
                meter.with_own_state(&mut state, |own| settled(meter, own, leases))
            }
            Self::SlidingWindow(meter) => {
                meter.with_own_state(&mut state, |own| settled(meter, own, leases))
            }
            Self::LeakyBucket(_) | Self::SlidingLog(_) | Self::Concurrency(_) => {
                self.expires_at(&mut state)
            }
        }
    }
}

/// Applies a request to the state of one algorithm, see [`Limit::apply_lease_request`].
fn apply<M: LeasableAlgorithm>(
    meter: &M,
    state: &mut M::State,
    leases: &mut LeaseSet,
    now: Timestamp,
    request: &LeaseRequest,
) -> LeaseGrant {
    let (own_now, capacity) = (meter.advance(state, now), meter.capacity());
    leases.expire(now, |lease| meter.force_spend(state, lease.last_use(), lease.unspent(capacity)));
    count_unreported(meter, state, leases, own_now, request);
    for report in &request.reports {
        let new = leases.apply_report(report, capacity);
        meter.force_spend(state, own_now, new);
    }
    // The cost must fit even if all leases are spent.
    let mut with_leases = state.clone();
    meter.force_spend(&mut with_leases, own_now, leases.reserved(capacity));
    let mut outcome = meter.charge(&mut with_leases, now, request.cost);
    if let Verdict::Allow { refund_token: Some(refund_token), .. } = &mut outcome.verdict {
        *refund_token = meter.spend(state, own_now, request.cost);
    }
    let (granted, ttl) =
        grant(request, leases, outcome.remaining, own_now, meter.max_lease_end(state));
    let snapshot = Some(StateSnapshot { at: own_now, clock: now, state: state.clone().into() });
    LeaseGrant { outcome, granted, ttl, snapshot }
}

/// Counts the part of the usage that was not reported before, and records the total under the id.
fn count_unreported<M: LeasableAlgorithm>(
    meter: &M,
    state: &mut M::State,
    leases: &mut LeaseSet,
    now: Timestamp,
    request: &LeaseRequest,
) {
    if request.unreported.is_empty() {
        return;
    }
    let mut counted = leases.get(request.id).map_or(0, |mark| mark.spent);
    for usage in &request.unreported {
        let total = usage.total.min(meter.countable());
        meter.count(state, now, usage.at.min(now), total.saturating_sub(counted));
        counted = counted.max(total);
    }
    let until = now + request.ttl.min(Lease::MAX_TTL);
    leases.mark(Lease { id: request.id, amount: counted, spent: counted, until });
}

/// Leases a part of the free tokens. Returns their number, and the time for which they may be used.
fn grant(
    request: &LeaseRequest,
    leases: &mut LeaseSet,
    free: u64,
    now: Timestamp,
    max_end: Option<Timestamp>,
) -> (u64, Span) {
    const NO_LEASE: (u64, Span) = (0, Span::ZERO);
    if request.requested == 0 || !request.unreported.is_empty() {
        return NO_LEASE;
    }
    let ttl = request.ttl.min(Lease::MAX_TTL);
    if let Some(existing) = leases.get(request.id) {
        if existing.is_mark() {
            return NO_LEASE;
        }
        // A repeated request: its reply is for the same lease, with the same end.
        return (existing.amount, ttl.min(usable_ttl(existing.until.since(now))));
    }
    let ttl = max_end.map_or(ttl, |end| ttl.min(usable_ttl(end.since(now))));
    let amount = grant_size(request.requested, free, request.fleet_size);
    if amount == 0 || ttl.is_zero() {
        return NO_LEASE;
    }
    let until = now + ttl + clock_margin(ttl);
    let added = leases.add(Lease { id: request.id, amount, spent: 0, until });
    if added { (amount, ttl) } else { NO_LEASE }
}
