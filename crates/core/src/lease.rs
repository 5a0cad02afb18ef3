//! Leases: tokens that a node may spend without a request to the store, and usage that it reports afterwards.
//!
//! Leased tokens are reserved: free is the limit less the usage less what is leased and not reported.
//! [`Limit::apply_lease_request`](crate::Limit::apply_lease_request) applies expiry, reports, a cost and a new lease in
//! one step. The proof that it never admits more than the limit is in `docs/decisions/0011-leases.md`.

mod request;

use crate::time::{Span, Timestamp};

pub use request::{LeaseGrant, LeaseRequest, StateSnapshot, UnreportedUsage, UsageReport};

/// The id of a lease, unique in the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LeaseId {
    /// The node that requested it.
    pub node: u64,
    /// The number of the lease among those of that node.
    pub number: u32,
}

/// Tokens that one node may spend until the lease ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Its id.
    pub id: LeaseId,
    /// The number of tokens that were granted.
    pub amount: u64,
    /// The number of them that were reported as spent.
    pub spent: u64,
    /// The time at which the rest counts as spent, by the store's clock. In a window at most the window's end.
    pub until: Timestamp,
}

impl Lease {
    /// The longest lifetime; a lease that is requested for longer is granted for this long.
    pub const MAX_TTL: Span = Span::HOUR;

    /// Returns the tokens that it reserves under a limit of this capacity. A lease from before the limit
    /// was lowered counts for the capacity at most.
    #[must_use]
    pub fn unspent(&self, capacity: u64) -> u64 {
        self.amount.min(capacity).saturating_sub(self.spent.min(capacity))
    }

    /// Returns whether it reserves nothing, and only records the usage that was reported under its id.
    #[must_use]
    pub fn is_mark(&self) -> bool {
        self.spent == self.amount
    }

    /// Returns the last instant at which a node can have spent from it.
    fn last_use(&self) -> Timestamp {
        self.until - Span::MICROSECOND
    }
}

/// Returns the time by which the store keeps a lease longer than the node may use it: clocks may differ by one part
/// in a hundred, and some time passes between a node's clock and its reply.
#[must_use]
pub const fn clock_margin(ttl: Span) -> Span {
    Span::from_micros((ttl.as_micros() / 100).saturating_add(10_000))
}

/// Returns the time for which a node may use a lease that the store keeps for `kept`: that and its [`clock_margin`]
/// fit into it.
#[must_use]
pub const fn usable_ttl(kept: Span) -> Span {
    let beyond = kept.as_micros().saturating_sub(10_000);
    // As 100 / 101 of it, without multiplying a number that may be large.
    Span::from_micros(beyond / 101 * 100 + beyond % 101 * 100 / 101)
}

/// Returns the largest of `requested`, `requested / 2`, `requested / 4`, … that fits into `free` and is at most one
/// token or half of an even share of it: the first node to request does not get the last tokens of a limit.
#[must_use]
pub fn grant_size(requested: u64, free: u64, fleet_size: u64) -> u64 {
    let share = free / fleet_size.max(1).saturating_mul(2);
    let most = share.max(1).min(free);
    let mut size = requested;
    while size > most {
        size /= 2;
    }
    size
}

/// The leases of one client under one limit, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaseSet {
    list: Vec<Lease>,
}

impl LeaseSet {
    /// The most leases of one client. With so many, no new one is granted.
    pub const MAX_LEASES: usize = 64;

    /// Returns the leases, oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Lease> {
        self.list.iter()
    }

    /// Returns whether there is no lease.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// Returns the bytes that the list of leases allocates.
    #[must_use]
    pub fn heap_bytes(&self) -> usize {
        self.list.capacity() * size_of::<Lease>()
    }

    /// Returns the lease with this id.
    #[must_use]
    pub fn get(&self, id: LeaseId) -> Option<&Lease> {
        self.list.iter().find(|lease| lease.id == id)
    }

    /// Returns the tokens that are reserved under a limit of this capacity: never more than that.
    #[must_use]
    pub fn reserved(&self, capacity: u64) -> u64 {
        let unspent = self.list.iter().map(|lease| lease.unspent(capacity));
        unspent.fold(0, u64::saturating_add).min(capacity)
    }

    /// Removes the leases that have expired at `now`, oldest first.
    fn expire(&mut self, now: Timestamp, mut expired: impl FnMut(&Lease)) {
        self.list.retain(|lease| {
            let is_over = lease.until <= now;
            if is_over {
                expired(lease);
            }
            !is_over
        });
    }

    /// Applies a report. Returns the spent tokens that were not reported before.
    fn apply_report(&mut self, report: &UsageReport, capacity: u64) -> u64 {
        let Some(place) = self.list.iter().position(|lease| lease.id == report.id) else {
            return 0;
        };
        let Some(lease) = self.list.get_mut(place) else { return 0 };
        let before = lease.unspent(capacity);
        lease.spent = report.spent.min(lease.amount).max(lease.spent);
        let new = before.saturating_sub(lease.unspent(capacity));
        if report.closed || lease.spent == lease.amount {
            self.list.remove(place);
        }
        new
    }

    /// Adds a lease, unless there are too many already. Returns whether it was added.
    fn add(&mut self, lease: Lease) -> bool {
        let has_room = self.list.len() < Self::MAX_LEASES;
        if has_room {
            self.list.push(lease);
        }
        has_room
    }

    /// Records how much usage was reported under an id. Earlier marks of the same node are dropped: their reports
    /// were confirmed, or the node would have continued under their id.
    ///
    /// With too many leases already it is not recorded, and a repeated report would count again.
    fn mark(&mut self, mark: Lease) {
        let stale = |lease: &Lease| lease.is_mark() && lease.id.node == mark.id.node;
        self.list.retain(|lease| lease.id != mark.id && !stale(lease));
        self.add(mark);
    }
}

/// From a list that is oldest first. Leases beyond [`LeaseSet::MAX_LEASES`] are left out.
impl FromIterator<Lease> for LeaseSet {
    fn from_iter<I: IntoIterator<Item = Lease>>(leases: I) -> Self {
        Self { list: leases.into_iter().take(Self::MAX_LEASES).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usable_ttl_and_its_margin_fit_into_the_kept_time() {
        for kept in (0..60_000).chain([1_000_000, 3_600_000_000, u64::MAX]) {
            let ttl = usable_ttl(Span::from_micros(kept));
            let used = u128::from(ttl.as_micros()) + u128::from(clock_margin(ttl).as_micros());
            assert!(ttl.is_zero() || used <= u128::from(kept), "{kept}");
        }
        assert_eq!(usable_ttl(Span::from_micros(10_000)), Span::ZERO);
        assert_eq!(usable_ttl(Span::from_micros(1_020_000)), Span::from_millis(1_000));
    }

    #[test]
    fn grant_is_half_of_an_even_share_or_one_token() {
        assert_eq!(grant_size(100, 1_000, 1), 100);
        assert_eq!(grant_size(100, 100, 1), 50);
        assert_eq!(grant_size(100, 100, 4), 12);
        assert_eq!(grant_size(100, 3, 8), 1);
        assert_eq!(grant_size(100, 0, 8), 0);
        assert_eq!(grant_size(0, 100, 0), 0);
        assert_eq!(grant_size(u64::MAX, u64::MAX, u64::MAX), 1);
    }
}
