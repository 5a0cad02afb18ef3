//! Algorithms of which nodes can hold a part ahead of use.

use super::Meter;
use crate::quota::Quota;
use crate::time::{Span, Timestamp};

/// The longest time that a bucket may be in debt, besides being empty.
pub(crate) const MAX_DEBT: Span = Quota::MAX_FILL;

/// An algorithm of which nodes can hold a part.
pub(crate) trait LeasableAlgorithm: Meter {
    /// Counts `amount` as spent at `at`, whether or not it fits.
    ///
    /// `at` may lie before the instant to which the state was advanced: a lease counts when it
    /// expired, which may be noticed later. As long as the limit stays the same the amount always fits,
    /// because the lease reserved it. After a change of limit, or beside nodes that ignore leases, it may
    /// not: a window then counts as used up, and a bucket owes at most another bucket.
    fn owe(&self, state: &mut Self::State, at: Timestamp, amount: u64);

    /// Counts `amount`, which was admitted at `at`, whether or not it fits, and all of it: an excess
    /// is paid back. A bucket spends it `now`, since its state at `at` is not known. At most
    /// [`countable`](Self::countable) at once.
    fn count(&self, state: &mut Self::State, now: Timestamp, at: Timestamp, amount: u64);

    /// Returns the most tokens that any store can count at once.
    fn countable(&self) -> u64;

    /// Returns the latest end of a lease, if the state bounds it.
    fn ends(&self, state: &Self::State) -> Option<Timestamp>;
}
