//! A limit and a cost as plain numbers, for the scripts of a store.

use super::PreciseTime;

/// The numbers of one charge, each below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ChargeTerms {
    /// The numbers of a token bucket or a leaky bucket.
    Bucket {
        /// Parts per microsecond.
        parts: u64,
        /// Time in which an empty bucket fills. For a request with a longest wait in a leaky bucket, the latest end of
        /// its slot if that is less.
        depth: PreciseTime,
        /// Time in which the cost refills.
        cost: PreciseTime,
    },
    /// The numbers of a window, a log, or slots in flight.
    Window {
        /// The window in microseconds, or the time after which a slot expires.
        window: u64,
        /// The amount per window, or in flight.
        amount: u64,
        /// The cost of the request.
        cost: u64,
    },
}
