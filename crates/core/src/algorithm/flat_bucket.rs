//! A token bucket in one integer, which saves memory and time in a store.
//!
//! It is the same bucket as [`TokenBucket`]. Its instant is counted in parts of a microsecond since a base that the
//! store chooses, so a decision is one multiplication, an addition, a comparison and a division. It fits 64 bits if a
//! microsecond has few enough parts, until [`FlatBucket::reach`] after the base. Beyond that, and for states with
//! refunds, a store uses the exact form.

use crate::algorithm::refill_rate::PreciseTime;
use crate::algorithm::token_bucket::{BucketLevel, TokenBucket};
use crate::outcome::{Outcome, RefundToken, Verdict};
use crate::time::{Span, Timestamp};

/// The parameters of a token bucket, for states in one integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlatBucket {
    /// Parts per microsecond.
    parts: u64,
    /// Parts in which one token refills.
    period: u64,
    capacity: u64,
    /// Parts in which an empty bucket fills.
    depth: u64,
    /// Time after the base until which a state fits.
    reach: Span,
}

impl FlatBucket {
    pub(crate) fn new(parts: u64, period: u64, capacity: u64) -> Option<Self> {
        const ROOM: u64 = u64::MAX / 2;
        let depth = capacity.checked_mul(period).filter(|depth| *depth <= ROOM / 2)?;
        let reach = Span::from_micros((ROOM - depth) / parts.max(1));
        // A flat state is only useful if it fits for at least a year.
        let lasts = reach >= Span::DAY.checked_mul(365)?;
        (lasts && capacity > 0).then_some(Self { parts, period, capacity, depth, reach })
    }

    /// Returns the time after the base until which a bucket can be charged.
    #[inline]
    #[must_use]
    pub fn reach(&self) -> Span {
        self.reach
    }

    /// Spends `cost` if it fits; 0 only peeks. `now` is at most [`reach`](Self::reach) after `base`.
    #[inline]
    pub fn charge(&self, due: &mut u64, base: Timestamp, now: Timestamp, cost: u64) -> Outcome {
        let since = now.since(base).as_micros().wrapping_mul(self.parts);
        let used = due.saturating_sub(since);
        let asked = cost.max(1);
        if asked > self.capacity {
            return self.outcome(used, Verdict::Deny { retry_after: None });
        }
        let after = used + asked * self.period;
        if after > self.depth {
            let wait = Some(self.micros(after - self.depth).max(Span::MICROSECOND));
            return self.outcome(used, Verdict::Deny { retry_after: wait });
        }
        if cost == 0 {
            return self.outcome(used, Verdict::Allow { delay: Span::ZERO, refund_token: None });
        }
        *due = since + after;
        let full = self.at(*due, base);
        let until = Timestamp::from_micros(full.micros);
        let refund_token = Some(RefundToken { at: now, until, parts: full.parts });
        self.outcome(after, Verdict::Allow { delay: Span::ZERO, refund_token })
    }

    /// Returns whether [`charge`](Self::charge) would admit a cost.
    #[inline]
    #[must_use]
    pub fn admits(&self, due: u64, base: Timestamp, now: Timestamp, cost: u64) -> bool {
        let since = now.since(base).as_micros().wrapping_mul(self.parts);
        let asked = cost.max(1);
        asked <= self.capacity && due.saturating_sub(since) + asked * self.period <= self.depth
    }

    /// Counts a charge at `at` of tokens that were reserved before.
    ///
    /// If charges are counted in the order of time, the state is the same as after charging them one by one.
    #[inline]
    pub fn count(&self, due: &mut u64, base: Timestamp, at: Timestamp, cost: u64) {
        let since = at.since(base).as_micros().wrapping_mul(self.parts);
        *due = since.max(*due) + cost * self.period;
    }

    /// Returns the last instant at which a bucket in this state is not full. Until then the order and the times of
    /// charges make no difference.
    #[inline]
    #[must_use]
    pub fn last_not_full(&self, due: u64, base: Timestamp) -> Timestamp {
        Timestamp::from_micros(self.at(due, base).micros)
    }

    #[inline]
    fn outcome(&self, used: u64, verdict: Verdict) -> Outcome {
        let remaining = self.depth.saturating_sub(used) / self.period;
        Outcome { limit: self.capacity, remaining, reset_after: self.micros(used), verdict }
    }

    /// Converts parts to microseconds, rounded up.
    #[inline]
    fn micros(&self, parts: u64) -> Span {
        // Most rates are whole microseconds, and a division costs more than a comparison.
        Span::from_micros(if self.parts == 1 { parts } else { parts.div_ceil(self.parts) })
    }

    #[inline]
    fn at(&self, due: u64, base: Timestamp) -> PreciseTime {
        let (micros, parts) =
            if self.parts == 1 { (due, 0) } else { (due / self.parts, due % self.parts) };
        PreciseTime { micros: base.as_micros() + micros, parts }
    }

    /// Returns the exact form of a state.
    #[must_use]
    pub fn level(&self, due: u64, base: Timestamp) -> BucketLevel {
        BucketLevel { due: self.at(due, base), returned: PreciseTime::default() }
    }

    /// Returns the flat form of a state, if it has one.
    #[must_use]
    pub fn flatten(&self, level: &BucketLevel, base: Timestamp) -> Option<u64> {
        let since = level.due.micros.checked_sub(base.as_micros())?;
        let fits = since <= self.reach.as_micros() && level.returned == PreciseTime::default();
        fits.then(|| since * self.parts + level.due.parts)
    }

    /// Returns the time from which on a state equals a fresh one.
    #[inline]
    #[must_use]
    pub fn expires_at(&self, due: u64, base: Timestamp) -> Timestamp {
        base + self.micros(due)
    }
}

impl TokenBucket {
    /// Returns the parameters for states in one integer; `None` if states do not fit.
    #[inline]
    #[must_use]
    pub fn flat(&self) -> Option<&FlatBucket> {
        self.flat.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::Meter;
    use crate::quota::Quota;

    proptest! {
        #[test]
        fn flat_and_exact_buckets_have_the_same_outcomes(
            amount in prop_oneof![1u64..50, 1u64..100_000, Just(10_000_000)],
            window in prop_oneof![Just(1_000_000u64), Just(60_000_000), 1_000u64..100_000_000],
            burst in proptest::option::of(1u64..1000),
            steps in proptest::collection::vec((0u64..2_000_000, 0u64..30), 1..50),
        ) {
            let quota = Quota::per(amount, Span::from_micros(window));
            let quota = burst.map_or(quota, |burst| quota.burst(burst));
            let exact = TokenBucket::new(quota).unwrap();
            let Some(flat) = exact.flat() else { return Ok(()) };
            let base = Timestamp::from_micros(1_780_000_000_123_457);
            let (mut now, mut due, mut level) = (base, 0, BucketLevel::default());
            for (wait, cost) in steps {
                now = now + Span::from_micros(wait);
                let mut counted = due;
                let admits = flat.admits(due, base, now, cost);
                let outcome = flat.charge(&mut due, base, now, cost);
                prop_assert_eq!(outcome, exact.charge(&mut level, now, cost));
                prop_assert_eq!(outcome.is_allowed(), admits);
                if outcome.refund_token().is_some() {
                    flat.count(&mut counted, base, now, cost);
                    prop_assert_eq!(counted, due);
                    prop_assert!(now <= flat.last_not_full(due, base));
                }
                if flat.expires_at(due, base) > now {
                    prop_assert_eq!(flat.level(due, base), level);
                    prop_assert_eq!(flat.flatten(&level, base), Some(due));
                    prop_assert_eq!(flat.expires_at(due, base), exact.expires_at(&level));
                }
            }
        }
    }

    #[test]
    fn common_limits_are_flat_and_extreme_ones_are_not() {
        let flat = |quota: Quota| TokenBucket::new(quota).unwrap().flat().is_some();
        assert!(flat(Quota::per_second(100).burst(200)));
        assert!(flat(Quota::per_minute(1000)));
        assert!(flat(Quota::per_second(10_000_000)));
        assert!(flat(Quota::per_day(1_000_000)));
        assert!(!flat(Quota::per(999_999_999_989, Span::from_secs(2_592_000))));
        assert!(!flat(Quota::per_second(0)));
    }

    #[test]
    fn state_at_the_end_of_its_reach_has_exact_outcomes() {
        let exact = TokenBucket::new(Quota::per_second(9_973)).unwrap();
        let flat = exact.flat().unwrap();
        let base = Timestamp::EPOCH;
        let now = base + flat.reach();
        let (mut due, mut level) = (0, BucketLevel::default());
        for cost in [9_000, 973, 1] {
            let exact = exact.charge(&mut level, now, cost);
            assert_eq!(flat.charge(&mut due, base, now, cost), exact);
        }
    }
}
