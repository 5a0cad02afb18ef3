//! The pace of a bucket: exactly how long one token takes, and when a bucket is full again.
//!
//! A token takes window / amount microseconds, which is rarely whole. Times are therefore kept as
//! microseconds plus a count of parts, where `parts` of them make a microsecond; adding is two
//! additions and a carry. Every number stays below 2^53, so Lua's doubles add and compare them
//! exactly too. Only the node multiplies and divides, in 128 bits.

use crate::algorithm::flat_bucket::FlatBucket;
use crate::algorithm::leasable::MAX_DEBT;
use crate::quota::{Quota, QuotaError};
use crate::time::{Span, Timestamp};

/// An instant finer than a microsecond: when a bucket is full again. The default is long ago.
///
/// How many parts make a microsecond depends on the limit that the state belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Due {
    /// Whole microseconds since the epoch.
    pub micros: u64,
    /// Parts of the next microsecond.
    pub parts: u64,
}

impl Due {
    /// The first whole microsecond that is not before this instant.
    #[inline]
    pub(crate) fn ceil(self) -> Timestamp {
        Timestamp::from_micros(self.micros.saturating_add(u64::from(self.parts > 0)))
    }
}

impl From<Timestamp> for Due {
    fn from(instant: Timestamp) -> Self {
        Self { micros: instant.as_micros(), parts: 0 }
    }
}

/// How fast a bucket of `capacity` tokens refills.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pace {
    /// One token takes `period / parts` microseconds, in lowest terms. Without tokens, the window.
    period: u64,
    parts: u64,
    capacity: u64,
    /// How long one token takes.
    one: Due,
    /// How long a whole bucket takes.
    depth: Due,
}

impl Pace {
    pub(crate) fn new(quota: &Quota, capacity: u64) -> Result<Self, QuotaError> {
        quota.validate()?;
        let window = quota.window();
        if quota.amount() == 0 {
            let zero = Due::default();
            return Ok(Self {
                period: window.as_micros(),
                parts: 1,
                capacity: 0,
                one: zero,
                depth: zero,
            });
        }
        // A capacity that passes for a burst passes here.
        quota.burst(capacity).validate()?;
        let shared = gcd(window.as_micros(), quota.amount());
        let (period, parts) = (window.as_micros() / shared, quota.amount() / shared);
        let zero = Due::default();
        let mut pace = Self { period, parts, capacity, one: zero, depth: zero };
        pace.one = pace.take(1);
        pace.depth = pace.take(capacity);
        Ok(pace)
    }

    #[inline]
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// How long a whole bucket takes.
    #[inline]
    pub(crate) fn depth(&self) -> Due {
        self.depth
    }

    /// How many parts make a microsecond.
    #[inline]
    pub(crate) fn parts(&self) -> u64 {
        self.parts
    }

    /// The same pace for states in one integer, if it allows for them.
    pub(crate) fn flat(&self) -> Option<FlatBucket> {
        FlatBucket::new(self.parts, self.period, self.capacity)
    }

    /// How long `cost` tokens take.
    #[inline]
    pub(crate) fn span(&self, cost: u64) -> Due {
        if cost == 1 { self.one } else { self.take(cost) }
    }

    fn take(&self, cost: u64) -> Due {
        self.due_of(u128::from(cost) * u128::from(self.period))
    }

    fn due_of(&self, count: u128) -> Due {
        let parts = u128::from(self.parts);
        Due {
            micros: u64::try_from(count / parts).unwrap_or(u64::MAX),
            parts: u64::try_from(count % parts).unwrap_or(0),
        }
    }

    fn in_parts(&self, span: Due) -> u128 {
        u128::from(span.micros) * u128::from(self.parts) + u128::from(span.parts)
    }

    #[inline]
    pub(crate) fn add(&self, instant: Due, span: Due) -> Due {
        let parts = instant.parts + span.parts;
        let carry = parts >= self.parts;
        Due {
            micros: instant.micros.saturating_add(span.micros).saturating_add(u64::from(carry)),
            parts: if carry { parts - self.parts } else { parts },
        }
    }

    /// `later` minus `earlier`; zero when it is not later.
    #[inline]
    pub(crate) fn minus(&self, later: Due, earlier: Due) -> Due {
        if later <= earlier {
            return Due::default();
        }
        let borrow = later.parts < earlier.parts;
        Due {
            micros: later.micros - earlier.micros - u64::from(borrow),
            parts: if borrow { later.parts + self.parts } else { later.parts } - earlier.parts,
        }
    }

    /// The bucket after `cost` tokens left it.
    #[inline]
    pub(crate) fn after(&self, due: Due, now: Timestamp, cost: u64) -> Due {
        self.add(due.max(now.into()), self.span(cost))
    }

    /// The bucket after `cost` tokens left it at `at`, whether or not it had them. It owes at most
    /// another bucket for that.
    pub(crate) fn owing(&self, due: Due, at: Timestamp, cost: u64) -> Due {
        let most = self.add(self.add(at.into(), self.depth), self.depth);
        due.max(self.after(due, at, cost.min(self.capacity)).min(most))
    }

    /// The bucket after `amount` tokens were taken from it at `at`, whether or not it had them. It is in
    /// debt for so long, and for [`MAX_DEBT`] at the most.
    pub(crate) fn counting(&self, due: Due, at: Timestamp, amount: u64) -> Due {
        let most = self.add((at + MAX_DEBT).into(), self.depth);
        due.max(self.after(due, at, amount).min(most))
    }

    /// How many tokens come back in [`MAX_DEBT`].
    pub(crate) fn countable(&self) -> u64 {
        if self.capacity == 0 {
            return 0;
        }
        let debt = u128::from(MAX_DEBT.as_micros()) * u128::from(self.parts);
        let tokens = debt / u128::from(self.period);
        u64::try_from(tokens).unwrap_or(u64::MAX).min(Quota::MAX_AMOUNT)
    }

    #[inline]
    pub(crate) fn admits(&self, due: Due, now: Timestamp, cost: u64) -> bool {
        self.after(due, now, cost) <= self.add(now.into(), self.depth)
    }

    #[inline]
    pub(crate) fn remaining(&self, due: Due, now: Timestamp) -> u64 {
        let used = self.minus(due, now.into());
        if used == Due::default() {
            return self.capacity;
        }
        let left = self.minus(self.depth, used);
        match left.micros.checked_mul(self.parts).and_then(|parts| parts.checked_add(left.parts)) {
            Some(parts) => parts / self.period,
            None => {
                let tokens = self.in_parts(left) / u128::from(self.period);
                u64::try_from(tokens).unwrap_or(self.capacity)
            }
        }
    }

    pub(crate) fn admits_at(&self, due: Due, now: Timestamp, cost: u64) -> Timestamp {
        let wanted = self.after(due, now, cost);
        self.minus(wanted, self.depth).ceil().max(now)
    }

    /// How much of a charge of `cost`, made when the bucket was to be full at `spent_until`, has not
    /// refilled by now.
    ///
    /// Without the charge, a bucket that nobody else touched would be this much fuller now; whoever
    /// else came can only have kept more of it unhealed. Giving back just that much admits nothing
    /// that the limit would not have admitted without the charge.
    pub(crate) fn unhealed(&self, spent_until: Due, now: Timestamp, cost: u64) -> Due {
        self.minus(spent_until, now.into()).min(self.span(cost))
    }

    /// The start of the slot that ends at `due`.
    pub(crate) fn before(&self, due: Due, cost: u64) -> Due {
        self.minus(due, self.span(cost))
    }

    /// The instant at which a bucket of this pace is full that is used to the same fraction, at most a
    /// part later.
    pub(crate) fn keep_fraction(&self, old: &Self, due: Due, now: Timestamp) -> Due {
        let used = old.in_parts(old.minus(due, now.into()));
        if used == 0 {
            return Due::default();
        }
        let used = rescale_up(used, old.whole(), self.whole());
        self.add(now.into(), self.due_of(used))
    }

    /// How many parts the bucket takes from empty to full.
    ///
    /// One of a limit of zero has no tokens and can still be used up, by a client that comes from
    /// another limit and may go back: it takes the window.
    fn whole(&self) -> u128 {
        if self.capacity == 0 { u128::from(self.period) } else { self.in_parts(self.depth) }
    }

    /// The same instant in parts of this pace, at most a part later.
    pub(crate) fn keep_instant(&self, old: &Self, due: Due) -> Due {
        let parts = u128::from(due.parts) * u128::from(self.parts);
        let parts = parts.div_ceil(u128::from(old.parts));
        self.add(Due { parts: 0, ..due }, self.due_of(parts))
    }

    /// One token's time, rounded up to the next microsecond.
    pub(crate) fn interval(&self) -> Span {
        self.one.ceil().since(Timestamp::EPOCH)
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
        fn rescaling_agrees_with_big_integers(
            a in 0u128..1 << 110, b in 1u128..1 << 110, to in 0u128..1 << 110,
        ) {
            let (value, from) = (a.min(b), a.max(b));
            let product = BigUint::from(value) * BigUint::from(to);
            let expected = (product + BigUint::from(from - 1)) / BigUint::from(from);
            prop_assert_eq!(BigUint::from(rescale_up(value, from, to)), expected);
        }
    }
}
