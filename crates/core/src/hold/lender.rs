//! What an algorithm has to know so that some of it can be held.

use crate::algorithm::Meter;
use crate::time::Timestamp;

/// An algorithm of which nodes can hold a part.
pub(crate) trait Lender: Meter {
    /// Counts `amount` as spent at `at`, whether or not it fits.
    ///
    /// `at` may lie before the instant to which the state was advanced: a hold counts when its time
    /// was over, which may be noticed later. As long as the limit stays the same what is owed always
    /// fits, because it had its room. After a change of limit, or beside nodes that don't look at
    /// holds, it may not: a window then counts as used up, and a bucket owes at most another bucket.
    fn owe(&self, state: &mut Self::State, at: Timestamp, amount: u64);

    /// Counts `amount`, which was admitted at `at`, whether or not it fits, and all of it: what was admitted
    /// too much is paid back. A bucket spends it `now`, for what it was at `at` is not known. At most [`countable`](Self::countable) at once.
    fn count(&self, state: &mut Self::State, now: Timestamp, at: Timestamp, amount: u64);

    /// The most tokens that any store can count at once.
    fn countable(&self) -> u64;

    /// When a hold ends at the latest, if that does not depend on it alone.
    fn ends(&self, state: &Self::State) -> Option<Timestamp>;
}
