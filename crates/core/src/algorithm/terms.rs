//! A limit and a cost in the plain numbers that a store's own code adds and compares.

use super::{Due, Limit};
use crate::time::Span;

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

impl Limit {
    /// The numbers of a charge of `cost`, or of giving that much back. One above the capacity counts
    /// as the capacity: it never fits, and no more is given back at once.
    #[must_use]
    pub fn terms(&self, cost: u64) -> Terms {
        let quota = self.quota();
        let within = |window: Span| {
            let amount = quota.amount();
            Terms::Window { window: window.as_micros(), amount, cost: cost.min(amount) }
        };
        let (pace, depth) = match self {
            Self::TokenBucket(bucket) => (bucket.pace(), bucket.pace().depth()),
            Self::LeakyBucket(bucket) => (bucket.pace(), bucket.depth_for(cost)),
            Self::FixedWindow(_) | Self::SlidingWindow(_) | Self::SlidingLog(_) => {
                return within(quota.window());
            }
            Self::Concurrency(meter) => return within(meter.hold()),
        };
        let cost = pace.span(cost.min(self.capacity()));
        Terms::Bucket { parts: pace.parts(), depth, cost }
    }
}
