//! The refill rate of a bucket, as the exact time in which one token refills.
//!
//! A token refills in window / amount microseconds, which is rarely a whole number. Times are therefore kept as
//! microseconds and parts of a microsecond; an addition is two additions and a carry. Every number stays below 2^53, so
//! Lua's doubles add and compare them exactly too. Only the node multiplies and divides, in 128 bits.

use crate::algorithm::flat_bucket::FlatBucket;
use crate::algorithm::leasable::MAX_DEBT;
use crate::quota::{Quota, QuotaError};
use crate::time::{Span, Timestamp};

/// An instant or a length of time, finer than a microsecond. The default is the epoch, or zero.
///
/// The number of parts per microsecond depends on the limit, so times of different limits are not comparable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PreciseTime {
    /// Whole microseconds, for an instant since the epoch.
    pub micros: u64,
    /// Parts of the next microsecond.
    pub parts: u64,
}

impl PreciseTime {
    /// Returns the first whole microsecond that is not before this instant.
    #[inline]
    pub(crate) fn ceil(self) -> Timestamp {
        Timestamp::from_micros(self.micros.saturating_add(u64::from(self.parts > 0)))
    }
}

impl From<Timestamp> for PreciseTime {
    fn from(instant: Timestamp) -> Self {
        Self { micros: instant.as_micros(), parts: 0 }
    }
}

/// The rate at which a bucket of `capacity` tokens refills.
///
/// The state of a bucket is a single instant, called `due`: the time at which it is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct RefillRate {
    /// One token refills in `period / parts` microseconds, a fraction in lowest terms. With an amount of 0 it is the
    /// window.
    period: u64,
    /// Parts per microsecond.
    parts: u64,
    capacity: u64,
    /// Time in which one token refills.
    token_time: PreciseTime,
    /// Time in which an empty bucket fills.
    depth: PreciseTime,
}

impl RefillRate {
    pub(crate) fn new(quota: &Quota, capacity: u64) -> Result<Self, QuotaError> {
        quota.validate()?;
        let window = quota.window();
        if quota.amount() == 0 {
            let zero = PreciseTime::default();
            return Ok(Self {
                period: window.as_micros(),
                parts: 1,
                capacity: 0,
                token_time: zero,
                depth: zero,
            });
        }
        // The capacity has the same bounds as a burst.
        quota.burst(capacity).validate()?;
        let divisor = gcd(window.as_micros(), quota.amount());
        let (period, parts) = (window.as_micros() / divisor, quota.amount() / divisor);
        let zero = PreciseTime::default();
        let mut rate = Self { period, parts, capacity, token_time: zero, depth: zero };
        rate.token_time = rate.exact_span(1);
        rate.depth = rate.exact_span(capacity);
        Ok(rate)
    }

    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Returns the time in which an empty bucket fills.
    #[inline]
    pub(crate) fn depth(&self) -> PreciseTime {
        self.depth
    }

    /// Returns the parts per microsecond.
    #[inline]
    pub(crate) fn parts(&self) -> u64 {
        self.parts
    }

    /// Returns the same rate for states that are stored in one integer; `None` if they do not fit.
    pub(crate) fn flat(&self) -> Option<FlatBucket> {
        FlatBucket::new(self.parts, self.period, self.capacity)
    }

    /// Returns the time in which `cost` tokens refill.
    #[inline]
    pub(crate) fn span(&self, cost: u64) -> PreciseTime {
        if cost == 1 { self.token_time } else { self.exact_span(cost) }
    }

    fn exact_span(&self, cost: u64) -> PreciseTime {
        self.time_of(u128::from(cost) * u128::from(self.period))
    }

    /// Converts a number of parts to a time.
    fn time_of(&self, total: u128) -> PreciseTime {
        let parts = u128::from(self.parts);
        PreciseTime {
            micros: u64::try_from(total / parts).unwrap_or(u64::MAX),
            parts: u64::try_from(total % parts).unwrap_or(0),
        }
    }

    /// Converts a time to a number of parts.
    fn parts_of(&self, span: PreciseTime) -> u128 {
        u128::from(span.micros) * u128::from(self.parts) + u128::from(span.parts)
    }

    #[inline]
    pub(crate) fn add(&self, instant: PreciseTime, span: PreciseTime) -> PreciseTime {
        let parts = instant.parts + span.parts;
        let carry = parts >= self.parts;
        PreciseTime {
            micros: instant.micros.saturating_add(span.micros).saturating_add(u64::from(carry)),
            parts: if carry { parts - self.parts } else { parts },
        }
    }

    /// Returns `later` minus `earlier`; zero if it is not later.
    #[inline]
    pub(crate) fn minus(&self, later: PreciseTime, earlier: PreciseTime) -> PreciseTime {
        if later <= earlier {
            return PreciseTime::default();
        }
        let borrow = later.parts < earlier.parts;
        PreciseTime {
            micros: later.micros - earlier.micros - u64::from(borrow),
            parts: if borrow { later.parts + self.parts } else { later.parts } - earlier.parts,
        }
    }

    /// Returns the time at which a bucket is full after `cost` tokens were spent at `now`.
    #[inline]
    pub(crate) fn due_after(&self, due: PreciseTime, now: Timestamp, cost: u64) -> PreciseTime {
        self.add(due.max(now.into()), self.span(cost))
    }

    /// Returns the time at which a bucket is full after `cost` tokens were spent at `at`, whether or not it had them.
    /// Its debt is at most the capacity.
    pub(crate) fn force_spend(&self, due: PreciseTime, at: Timestamp, cost: u64) -> PreciseTime {
        let latest = self.add(self.add(at.into(), self.depth), self.depth);
        due.max(self.due_after(due, at, cost.min(self.capacity)).min(latest))
    }

    /// Returns the time at which a bucket is full after `amount` tokens were spent at `at`, whether or not it had them.
    /// Its debt lasts at most [`MAX_DEBT`].
    pub(crate) fn count_usage(&self, due: PreciseTime, at: Timestamp, amount: u64) -> PreciseTime {
        let latest = self.add((at + MAX_DEBT).into(), self.depth);
        due.max(self.due_after(due, at, amount).min(latest))
    }

    /// Returns the number of tokens that refill in [`MAX_DEBT`].
    pub(crate) fn countable(&self) -> u64 {
        if self.capacity == 0 {
            return 0;
        }
        let debt = u128::from(MAX_DEBT.as_micros()) * u128::from(self.parts);
        let tokens = debt / u128::from(self.period);
        u64::try_from(tokens).unwrap_or(u64::MAX).min(Quota::MAX_AMOUNT)
    }

    /// Returns whether a bucket has `cost` tokens at `now`.
    #[inline]
    pub(crate) fn admits(&self, due: PreciseTime, now: Timestamp, cost: u64) -> bool {
        self.due_after(due, now, cost) <= self.add(now.into(), self.depth)
    }

    /// Returns the number of whole tokens that a bucket has at `now`.
    #[inline]
    pub(crate) fn remaining(&self, due: PreciseTime, now: Timestamp) -> u64 {
        let used = self.minus(due, now.into());
        if used == PreciseTime::default() {
            return self.capacity;
        }
        let left = self.minus(self.depth, used);
        match left.micros.checked_mul(self.parts).and_then(|parts| parts.checked_add(left.parts)) {
            Some(parts) => parts / self.period,
            None => {
                let tokens = self.parts_of(left) / u128::from(self.period);
                u64::try_from(tokens).unwrap_or(self.capacity)
            }
        }
    }

    /// Returns the first instant, `now` or later, at which a bucket has `cost` tokens.
    pub(crate) fn admits_at(&self, due: PreciseTime, now: Timestamp, cost: u64) -> Timestamp {
        let due_after = self.due_after(due, now, cost);
        self.minus(due_after, self.depth).ceil().max(now)
    }

    /// Returns the part of a charge of `cost` that has not refilled by now. After the charge the bucket was to be full
    /// at `spent_until`.
    ///
    /// Without the charge, and without other requests, the bucket would be this much fuller now. Other requests can
    /// only increase the part that has not refilled. A refund of this much therefore admits nothing that the limit
    /// would not have admitted without the charge.
    pub(crate) fn not_refilled(
        &self,
        spent_until: PreciseTime,
        now: Timestamp,
        cost: u64,
    ) -> PreciseTime {
        self.minus(spent_until, now.into()).min(self.span(cost))
    }

    /// Returns the start of the slot of a request of `cost` in a leaky bucket; the slot ends at `due`.
    pub(crate) fn slot_start(&self, due: PreciseTime, cost: u64) -> PreciseTime {
        self.minus(due, self.span(cost))
    }

    /// Converts the state of a bucket of rate `old`: the same fraction of this bucket is used, rounded up to a part.
    pub(crate) fn keep_fraction(
        &self,
        old: &Self,
        due: PreciseTime,
        now: Timestamp,
    ) -> PreciseTime {
        let used = old.parts_of(old.minus(due, now.into()));
        if used == 0 {
            return PreciseTime::default();
        }
        let used = rescale_up(used, old.fill_parts(), self.fill_parts());
        self.add(now.into(), self.time_of(used))
    }

    /// Returns the number of parts in which an empty bucket fills.
    ///
    /// For a limit of zero it is the window: such a bucket has no tokens, and still keeps the used fraction of a
    /// client, since its limit may be raised again.
    fn fill_parts(&self) -> u128 {
        if self.capacity == 0 { u128::from(self.period) } else { self.parts_of(self.depth) }
    }

    /// Converts an instant of rate `old` to the same instant in parts of this rate, rounded up to a part.
    pub(crate) fn keep_instant(&self, old: &Self, due: PreciseTime) -> PreciseTime {
        let parts = u128::from(due.parts) * u128::from(self.parts);
        let parts = parts.div_ceil(u128::from(old.parts));
        self.add(PreciseTime { parts: 0, ..due }, self.time_of(parts))
    }

    /// Returns the time in which one token refills, rounded up to the next microsecond.
    pub(crate) fn interval(&self) -> Span {
        self.token_time.ceil().since(Timestamp::EPOCH)
    }
}

fn gcd(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// Returns `value` x `to` / `from`, rounded up, without overflow. `value` is at most `from`, and both are below 2^127.
fn rescale_up(value: u128, from: u128, to: u128) -> u128 {
    if value >= from {
        return to;
    }
    // Long multiplication that divides as it goes: after each bit of `to` the invariant
    // value x (bits so far) = quotient x from + rest holds, with rest < from.
    let (mut quotient, mut rest) = (0u128, 0u128);
    for bit in (0..u128::BITS - to.leading_zeros()).rev() {
        quotient *= 2;
        rest *= 2;
        if rest >= from {
            rest -= from;
            quotient += 1;
        }
        if (to >> bit) & 1 == 1 {
            rest += value;
            if rest >= from {
                rest -= from;
                quotient += 1;
            }
        }
    }
    quotient + u128::from(rest > 0)
}

#[cfg(test)]
mod tests {
    use num_bigint::BigUint;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn rescaling_matches_big_integers(
            a in 0u128..1 << 110, b in 1u128..1 << 110, to in 0u128..1 << 110,
        ) {
            let (value, from) = (a.min(b), a.max(b));
            let product = BigUint::from(value) * BigUint::from(to);
            let expected = (product + BigUint::from(from - 1)) / BigUint::from(from);
            prop_assert_eq!(BigUint::from(rescale_up(value, from, to)), expected);
        }
    }
}
