//! Algorithms with tokens that nodes can lease.

use super::Meter;
use crate::quota::Quota;
use crate::time::{Span, Timestamp};

/// The longest debt of a bucket, as the time in which it is repaid: the bucket has 0 tokens after it, and then refills.
pub(crate) const MAX_DEBT: Span = Quota::MAX_FILL;

/// An algorithm with tokens that nodes can lease.
pub(crate) trait LeasableAlgorithm: Meter {
    /// Counts `amount` as spent at `at`, whether or not it fits.
    ///
    /// `at` may lie before the instant to which the state was advanced: an expired lease counts at its end, and the
    /// next request may find it later. The amount fits as long as the limit is unchanged, because the lease reserved
    /// it. It may not fit after a change of the limit, or if other nodes ignore leases. Then a window is used up, and
    /// the debt of a bucket is at most its capacity.
    fn force_spend(&self, state: &mut Self::State, at: Timestamp, amount: u64);

    /// Counts all of `amount`, which a node admitted at `at`. What does not fit delays later requests. A bucket spends it
    /// at `now`, because its state at `at` is not known. `amount` is at most [`countable`](Self::countable).
    fn count(&self, state: &mut Self::State, now: Timestamp, at: Timestamp, amount: u64);

    /// Returns the largest amount that every store can [count](Self::count) in one call.
    fn countable(&self) -> u64;

    /// Returns the latest possible end of a new lease; `None` if the state does not bound it.
    fn max_lease_end(&self, state: &Self::State) -> Option<Timestamp>;
}
