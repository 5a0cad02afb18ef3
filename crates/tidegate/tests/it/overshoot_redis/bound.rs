//! What an algorithm may admit in a span of the server's own time.

use std::ops::RangeInclusive;

use tidegate::Algorithm;

/// The windows of all rules here.
pub(crate) const HOUR: u64 = 3_600_000_000;

/// A span of the server's clock, in microseconds since the epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elapsed {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Elapsed {
    /// What a rate of `amount` per hour makes of it, in whole tokens.
    fn refill(self, amount: u64) -> u64 {
        let tokens = u128::from(amount) * u128::from(self.to - self.from) / u128::from(HOUR);
        u64::try_from(tokens).unwrap()
    }

    /// How many hours of the epoch began within it.
    fn boundaries(self) -> u64 {
        self.to / HOUR - self.from / HOUR
    }
}

/// How many of ever more requests `amount` per hour admits to a client that had spent nothing.
pub(crate) fn admits(algorithm: Algorithm, amount: u64, span: Elapsed) -> RangeInclusive<u64> {
    let most = match algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket { .. } => amount + span.refill(amount),
        Algorithm::FixedWindow => amount * (1 + span.boundaries()),
        // The window before weighs less and less; what that frees is rounded down each time.
        Algorithm::SlidingWindow if span.boundaries() > 0 => amount + span.refill(amount) + 1,
        Algorithm::SlidingWindow | Algorithm::SlidingLog | Algorithm::Concurrency { .. } => amount,
    };
    amount..=most
}
