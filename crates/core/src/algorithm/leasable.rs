//! Algorithms with tokens that nodes can lease.

use super::Meter;
use crate::quota::Quota;
use crate::time::{Span, Timestamp};

/// The longest debt of a bucket: the time until it is empty, from where it refills.
pub(crate) const MAX_DEBT: Span = Quota::MAX_FILL;

/// An algorithm with tokens that nodes can lease.
pub(crate) trait LeasableAlgorithm: Meter {
    /// Counts `amount` as spent at `at`, whether or not it fits.
    ///
    /// `at` may lie before the instant to which the state was advanced: a lease counts when it
    /// expired, which may be noticed later. As long as the limit stays the same the amount always fits,
    /// because the lease reserved it. After a change of limit, or beside nodes that ignore leases, it may
    /// not: a window then counts as used up, and a bucket owes at most another bucket.
    fn force_spend(&self, state: &mut Self::State, at: Timestamp, amount: u64);

    /// Counts all of `amount`, which was admitted at `at`, whether or not it fits: an excess delays later requests. A
    /// bucket spends it `now`, since its state at `at` is not known. At most
    /// [`countable`](Self::countable) at once.
    fn count(&self, state: &mut Self::State, now: Timestamp, at: Timestamp, amount: u64);

    /// Returns the most tokens that any store can count at once.
    fn countable(&self) -> u64;

    /// Returns the latest end of a lease, if the state bounds it.
    fn max_lease_end(&self, state: &Self::State) -> Option<Timestamp>;
}
