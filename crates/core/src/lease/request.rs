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
    /// The tokens spent of it so far, in all.
    pub spent: u64,
    /// Set if no more is spent of it: its rest is free again.
    pub closed: bool,
}

/// Usage that a node admitted without a request to the store.
///
/// A node reports running totals under an id, and the store records beside the state how much was reported under it:
/// usage that is reported again, because a reply was lost, counts once. The proof that this is enough is in
/// `docs/decisions/0013-synced-split-and-shards.md`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnreportedUsage {
    /// The time of the last admission, by the store's clock: it counts in that window, unless it is later than now.
    /// A bucket counts it now.
    pub at: Timestamp,
    /// The total by then, of all that is reported under one id.
    pub total: u64,
}

/// A request of a node for a lease, with its reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRequest {
    /// The cost of the check; 0 only peeks.
    pub cost: u64,
    /// The most tokens to lease; 0 for none.
    pub requested: u64,
    /// The id of that lease, or of the unreported usage.
    pub id: LeaseId,
    /// Usage that the node admitted on its own, as running totals, oldest first. Usage reported under the same id
    /// before counts once. A request with unreported usage gets no lease.
    pub unreported: SmallVec<[UnreportedUsage; 1]>,
    /// The usage of earlier leases.
    pub reports: SmallVec<[UsageReport; 2]>,
    /// The lifetime of the lease, without the margin, or of the record of reported usage; at most
    /// [`Lease::MAX_TTL`].
    pub ttl: Span,
    /// The number of nodes, as far as this node knows.
    pub fleet_size: u64,
}

/// The reply to a lease request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// The outcome of the cost; a peek for a cost of 0. Leases of other nodes count as spent in it, the new lease
    /// does not yet. Its waits are estimates, since a lease may be released.
    pub outcome: Outcome,
    /// The number of tokens that are leased to the node now; 0 for none.
    pub granted: u64,
    /// The time for which it may use them, from the moment of the request.
    pub ttl: Span,
    /// The state of the client afterwards; `None` if the limit does not [support leases](Limit::supports_leases).
    pub snapshot: Option<StateSnapshot>,
}

/// The state of a client in the store at one instant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateSnapshot {
    /// The client's own time. For windows it stays at the start of the latest one that was counted in while the
    /// store's clock is behind that.
    pub at: Timestamp,
    /// The store's clock. It can be set back.
    pub clock: Timestamp,
    /// The state at that time.
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
            let mut over = Timestamp::EPOCH;
            // In the order in which they will be counted, which is not the order of their ends.
            for lease in leases.iter() {
                over = over.max(lease.until);
                meter.advance(state, lease.last_use());
                meter.force_spend(state, lease.last_use(), lease.unspent(meter.capacity()));
            }
            meter.expires_at(state).max(over)
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
    // A cost fits if it would after all leases were spent.
    let mut spent = state.clone();
    meter.force_spend(&mut spent, own_now, leases.reserved(capacity));
    let mut outcome = meter.charge(&mut spent, now, request.cost);
    if let Verdict::Allow { refund_token: Some(refund_token), .. } = &mut outcome.verdict {
        *refund_token = meter.spend(state, own_now, request.cost);
    }
    let (granted, ttl) =
        grant(request, leases, outcome.remaining, own_now, meter.max_lease_end(state));
    let snapshot = Some(StateSnapshot { at: own_now, clock: now, state: state.clone().into() });
    LeaseGrant { outcome, granted, ttl, snapshot }
}

/// Counts the usage that was not reported before, and records the total.
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
    let mut known = leases.get(request.id).map_or(0, |mark| mark.spent);
    for usage in &request.unreported {
        let total = usage.total.min(meter.countable());
        meter.count(state, now, usage.at.min(now), total.saturating_sub(known));
        known = known.max(total);
    }
    let until = now + request.ttl.min(Lease::MAX_TTL);
    leases.mark(Lease { id: request.id, amount: known, spent: known, until });
}

/// Leases a part of the free tokens. Returns their number, and the time for which they may be used.
fn grant(
    request: &LeaseRequest,
    leases: &mut LeaseSet,
    free: u64,
    now: Timestamp,
    ends: Option<Timestamp>,
) -> (u64, Span) {
    const NOTHING: (u64, Span) = (0, Span::ZERO);
    if request.requested == 0 || !request.unreported.is_empty() {
        return NOTHING;
    }
    let ttl = request.ttl.min(Lease::MAX_TTL);
    if let Some(known) = leases.get(request.id) {
        if known.is_mark() {
            return NOTHING;
        }
        // Requested twice: both replies are for the same lease and the same end.
        return (known.amount, ttl.min(usable_ttl(known.until.since(now))));
    }
    let ttl = ends.map_or(ttl, |end| ttl.min(usable_ttl(end.since(now))));
    let amount = grant_size(request.requested, free, request.fleet_size);
    if amount == 0 || ttl.is_zero() {
        return NOTHING;
    }
    let until = now + ttl + clock_margin(ttl);
    let added = leases.add(Lease { id: request.id, amount, spent: 0, until });
    if added { (amount, ttl) } else { NOTHING }
}
