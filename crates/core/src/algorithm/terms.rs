//! A limit and a cost in the plain numbers that a store's own code adds and compares.

use super::Due;

/// The numbers of one charge, each below 2^53.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Terms {
    /// Of a token bucket or a leaky bucket.
    Bucket {
        /// How many parts make a microsecond.
        parts: u64,
        /// How long a whole bucket takes to fill; of a leaky bucket whose request will not wait for
        /// all of it, as much as it will.
        depth: Due,
        /// How long the cost takes.
        cost: Due,
    },
    /// Of a window, a log, or slots in flight.
    Window {
        /// The window in microseconds, or how long a slot is held.
        window: u64,
        /// What may be spent in it, or be in flight.
        amount: u64,
        /// What the request costs.
        cost: u64,
    },
}
