//! A token bucket in one integer, for a store whose memory and time are scarce.
//!
//! The same bucket as [`TokenBucket`], with its one instant counted in parts of a microsecond since a
//! base of the store's choosing, so that a decision is one multiplication, an addition, a comparison
//! and a division. It fits 64 bits for every limit whose pace has few enough parts, for as long as
//! [`FlatBucket::reach`] says; whoever needs more, or has refunds to account for, uses the exact form.

use crate::algorithm::pace::Due;
use crate::algorithm::token_bucket::{Level, TokenBucket};
use crate::outcome::{Outcome, Slip, Verdict};
use crate::time::{Span, Timestamp};

/// A token bucket's numbers, for states in one integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlatBucket {
    /// Parts that make a microsecond.
    parts: u64,
    /// Parts that one token takes.
    period: u64,
    capacity: u64,
    /// Parts that a whole bucket takes.
    depth: u64,
    /// How long after the base a state still fits.
    reach: Span,
}

impl FlatBucket {
    pub(crate) fn new(parts: u64, period: u64, capacity: u64) -> Option<Self> {
        const ROOM: u64 = u64::MAX / 2;
        let depth = capacity.checked_mul(period).filter(|depth| *depth <= ROOM / 2)?;
        let reach = Span::from_micros((ROOM - depth) / parts.max(1));
        // A state that would have to be widened within a year is not worth narrowing.
        let lasts = reach >= Span::DAY.checked_mul(365)?;
        (lasts && capacity > 0).then_some(Self { parts, period, capacity, depth, reach })
    }

    /// How long after the base a bucket can be charged.
    #[inline]
    #[must_use]
    pub fn reach(&self) -> Span {
        self.reach
    }

    /// Spends `cost` if it fits; 0 only looks. `now` is at most [`reach`](Self::reach) after `base`.
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
            return self.outcome(used, Verdict::Allow { delay: Span::ZERO, slip: None });
        }
        *due = since + after;
        let full = self.at(*due, base);
        let until = Timestamp::from_micros(full.micros);
        let slip = Some(Slip { at: now, until, parts: full.parts });
        self.outcome(after, Verdict::Allow { delay: Span::ZERO, slip })
    }

    /// Whether [`charge`](Self::charge) would admit a cost.
    #[inline]
    #[must_use]
    pub fn admits(&self, due: u64, base: Timestamp, now: Timestamp, cost: u64) -> bool {
        let since = now.since(base).as_micros().wrapping_mul(self.parts);
        let asked = cost.max(1);
        asked <= self.capacity && due.saturating_sub(since) + asked * self.period <= self.depth
    }

    /// Counts what was spent at `at` from tokens of this bucket that had been set aside.
    ///
    /// Counted in the order of time, charges leave the state that they would have left one by one.
    #[inline]
    pub fn count(&self, due: &mut u64, base: Timestamp, at: Timestamp, cost: u64) {
        let since = at.since(base).as_micros().wrapping_mul(self.parts);
        *due = since.max(*due) + cost * self.period;
    }

    /// The last instant at which a bucket in this state is not full. Until then it makes no difference
    /// in which order, and when, charges come.
    #[inline]
    #[must_use]
    pub fn last_owing(&self, due: u64, base: Timestamp) -> Timestamp {
        Timestamp::from_micros(self.at(due, base).micros)
    }

    #[inline]
    fn outcome(&self, used: u64, verdict: Verdict) -> Outcome {
        let remaining = self.depth.saturating_sub(used) / self.period;
        Outcome { limit: self.capacity, remaining, reset_after: self.micros(used), verdict }
    }

    /// Parts as microseconds, rounded up.
    #[inline]
    fn micros(&self, parts: u64) -> Span {
        // Most paces are whole microseconds, and a division costs more than asking.
        Span::from_micros(if self.parts == 1 { parts } else { parts.div_ceil(self.parts) })
    }

    #[inline]
    fn at(&self, due: u64, base: Timestamp) -> Due {
        let (micros, parts) =
            if self.parts == 1 { (due, 0) } else { (due / self.parts, due % self.parts) };
        Due { micros: base.as_micros() + micros, parts }
    }

    /// The exact form of a state.
    #[must_use]
    pub fn level(&self, due: u64, base: Timestamp) -> Level {
        Level { due: self.at(due, base), returned: Due::default() }
    }

    /// The flat form of a state, if it has one.
    #[must_use]
    pub fn flatten(&self, level: &Level, base: Timestamp) -> Option<u64> {
        let since = level.due.micros.checked_sub(base.as_micros())?;
        let fits = since <= self.reach.as_micros() && level.returned == Due::default();
        fits.then(|| since * self.parts + level.due.parts)
    }

    /// From when on a state says nothing.
    #[inline]
    #[must_use]
    pub fn whole_at(&self, due: u64, base: Timestamp) -> Timestamp {
        base + self.micros(due)
    }
}

impl TokenBucket {
    /// The numbers for states in one integer, if this bucket has such states.
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
        fn flat_and_exact_buckets_give_the_same_answers(
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
            let (mut now, mut due, mut level) = (base, 0, Level::default());
            for (wait, cost) in steps {
                now = now + Span::from_micros(wait);
                let mut counted = due;
                let admits = flat.admits(due, base, now, cost);
                let outcome = flat.charge(&mut due, base, now, cost);
                prop_assert_eq!(outcome, exact.charge(&mut level, now, cost));
                prop_assert_eq!(outcome.is_allowed(), admits);
                if outcome.slip().is_some() {
                    flat.count(&mut counted, base, now, cost);
                    prop_assert_eq!(counted, due);
                    prop_assert!(now <= flat.last_owing(due, base));
                }
                if flat.whole_at(due, base) > now {
                    prop_assert_eq!(flat.level(due, base), level);
                    prop_assert_eq!(flat.flatten(&level, base), Some(due));
                    prop_assert_eq!(flat.whole_at(due, base), exact.whole_at(&level));
                }
            }
        }
    }

    #[test]
    fn the_common_limits_are_flat_and_the_extreme_ones_are_not() {
        let flat = |quota: Quota| TokenBucket::new(quota).unwrap().flat().is_some();
        assert!(flat(Quota::per_second(100).burst(200)));
        assert!(flat(Quota::per_minute(1000)));
        assert!(flat(Quota::per_second(10_000_000)));
        assert!(flat(Quota::per_day(1_000_000)));
        assert!(!flat(Quota::per(999_999_999_989, Span::from_secs(2_592_000))));
        assert!(!flat(Quota::per_second(0)));
    }

    #[test]
    fn a_state_at_the_end_of_its_reach_still_answers() {
        let exact = TokenBucket::new(Quota::per_second(9_973)).unwrap();
        let flat = exact.flat().unwrap();
        let base = Timestamp::EPOCH;
        let now = base + flat.reach();
        let (mut due, mut level) = (0, Level::default());
        for cost in [9_000, 973, 1] {
            let exact = exact.charge(&mut level, now, cost);
            assert_eq!(flat.charge(&mut due, base, now, cost), exact);
        }
    }
}
