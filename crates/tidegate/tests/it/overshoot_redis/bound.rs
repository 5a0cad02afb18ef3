//! Bounds of the admissions of an algorithm during a span of the server clock.

use std::ops::RangeInclusive;

use tidegate::Algorithm;

/// The window of all rules in this test.
pub(crate) const HOUR_MICROS: u64 = 3_600_000_000;

/// A span of the server's clock, in microseconds since the epoch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elapsed {
    pub(crate) from: u64,
    pub(crate) to: u64,
}

impl Elapsed {
    /// Returns the whole tokens that a rate of `amount` per hour refills during the span.
    fn refilled_tokens(self, amount: u64) -> u64 {
        let tokens = u128::from(amount) * u128::from(self.to - self.from) / u128::from(HOUR_MICROS);
        u64::try_from(tokens).unwrap()
    }

    /// Returns the number of hour boundaries within the span.
    fn hour_boundaries(self) -> u64 {
        self.to / HOUR_MICROS - self.from / HOUR_MICROS
    }
}

/// Returns how many requests of a new client a limit of `amount` per hour may admit, if more are sent than it admits.
pub(crate) fn admission_bounds(
    algorithm: Algorithm,
    amount: u64,
    span: Elapsed,
) -> RangeInclusive<u64> {
    let max = match algorithm {
        Algorithm::TokenBucket | Algorithm::LeakyBucket { .. } => {
            amount + span.refilled_tokens(amount)
        }
        Algorithm::FixedWindow => amount * (1 + span.hour_boundaries()),
        // The weight of the previous window decreases; the capacity that this frees is rounded down.
        Algorithm::SlidingWindow if span.hour_boundaries() > 0 => {
            amount + span.refilled_tokens(amount) + 1
        }
        Algorithm::SlidingWindow | Algorithm::SlidingLog | Algorithm::Concurrency { .. } => amount,
    };
    amount..=max
}
