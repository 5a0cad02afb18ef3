//! Token bucket: capacity `burst`, refilled continuously, full at the start.
//!
//! The state is the instant at which the bucket is full again (GCRA). Bound: burst + rate x t in any span t, without
//! the charges that were refunded.

use crate::algorithm::flat_bucket::FlatBucket;
use crate::algorithm::leasable::LeasableAlgorithm;
use crate::algorithm::refill_rate::{PreciseTime, RefillRate};
use crate::algorithm::{Bound, Meter, State};
use crate::outcome::RefundToken;
use crate::quota::{Quota, QuotaError};
use crate::time::Timestamp;

/// The validated parameters of a token bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    quota: Quota,
    rate: RefillRate,
    pub(crate) flat: Option<FlatBucket>,
}

impl TokenBucket {
    pub(crate) fn rate(&self) -> &RefillRate {
        &self.rate
    }

    /// Returns a bucket with the capacity of the quota's burst, or of its amount if it has no burst.
    ///
    /// # Errors
    /// A number that can't be counted exactly.
    pub fn new(quota: Quota) -> Result<Self, QuotaError> {
        let capacity = quota.explicit_burst().unwrap_or(quota.amount());
        let rate = RefillRate::new(&quota, capacity)?;
        Ok(Self { quota, rate, flat: rate.flat() })
    }
}

/// The fill level of a bucket. The default is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BucketLevel {
    /// The instant at which it is full again.
    pub due: PreciseTime,
    /// The sum of refunds, as a length of time, that valid refund tokens do not include.
    ///
    /// A refund token contains the instant at which its charge will have refilled. A refund makes that instant earlier
    /// for later charges. Refund tokens are therefore relative to `due` plus this sum, which refunds do not change.
    /// Charges before the refunded one then seem to refill earlier than they do: their tokens may refund less than they
    /// could, never more.
    pub returned: PreciseTime,
}

impl From<BucketLevel> for State {
    fn from(level: BucketLevel) -> Self {
        Self::Tokens(level)
    }
}

impl Meter for TokenBucket {
    type State = BucketLevel;

    fn own_state(state: &mut State) -> Option<&mut BucketLevel> {
        if let State::Tokens(level) = state { Some(level) } else { None }
    }

    fn quota(&self) -> &Quota {
        &self.quota
    }

    #[inline]
    fn capacity(&self) -> u64 {
        self.rate.capacity()
    }

    fn bound(&self) -> Bound {
        let most = self.capacity() + self.quota.amount();
        Bound { most, window: self.quota.window(), aligned: None }
    }

    #[inline]
    fn advance(&self, level: &mut BucketLevel, now: Timestamp) -> Timestamp {
        if level.returned != PreciseTime::default() && self.refunds_end_at(level) <= now.into() {
            level.returned = PreciseTime::default();
        }
        now
    }

    #[inline]
    fn admits(&self, level: &BucketLevel, now: Timestamp, cost: u64) -> bool {
        self.rate.admits(level.due, now, cost)
    }

    #[inline]
    fn spend(&self, level: &mut BucketLevel, now: Timestamp, cost: u64) -> RefundToken {
        level.due = self.rate.due_after(level.due, now, cost);
        self.latest_refund_token(level, now)
    }

    #[inline]
    fn remaining(&self, level: &BucketLevel, now: Timestamp) -> u64 {
        self.rate.remaining(level.due, now)
    }

    fn admits_at(&self, level: &BucketLevel, now: Timestamp, cost: u64) -> Timestamp {
        self.rate.admits_at(level.due, now, cost)
    }

    #[inline]
    fn full_at(&self, level: &BucketLevel) -> Timestamp {
        level.due.ceil()
    }

    #[inline]
    fn expires_at(&self, level: &BucketLevel) -> Timestamp {
        self.refunds_end_at(level).ceil()
    }

    fn refund(
        &self,
        level: &mut BucketLevel,
        now: Timestamp,
        refund_token: &RefundToken,
        cost: u64,
    ) -> bool {
        if cost > self.capacity() || refund_token.parts >= self.rate.parts() {
            return false;
        }
        let until =
            PreciseTime { micros: refund_token.until.as_micros(), parts: refund_token.parts };
        let is_last = until == self.refunds_end_at(level);
        let until = self.rate.minus(until, level.returned);
        let used = self.rate.minus(level.due, now.into());
        let given = self.rate.not_refilled(until, now, cost).min(used);
        level.due = self.rate.minus(level.due, given);
        // There is no charge after the last one, so no refund token depends on it.
        if !is_last {
            level.returned = self.rate.add(level.returned, given);
        }
        given > PreciseTime::default()
    }

    #[inline]
    fn latest_refund_token(&self, level: &BucketLevel, now: Timestamp) -> RefundToken {
        let until = self.refunds_end_at(level);
        RefundToken { at: now, until: Timestamp::from_micros(until.micros), parts: until.parts }
    }

    fn migrate(&self, old: &Self, level: &BucketLevel, now: Timestamp) -> BucketLevel {
        // Refund tokens of the old limit are not accepted, so the sum of refunds is not needed.
        BucketLevel {
            due: self.rate.keep_fraction(&old.rate, level.due, now),
            returned: PreciseTime::default(),
        }
    }
}

impl TokenBucket {
    /// Returns the time from which on no refund token refunds anything.
    #[inline]
    fn refunds_end_at(&self, level: &BucketLevel) -> PreciseTime {
        self.rate.add(level.due, level.returned)
    }
}

impl LeasableAlgorithm for TokenBucket {
    fn force_spend(&self, level: &mut BucketLevel, at: Timestamp, amount: u64) {
        if amount > 0 {
            level.due = self.rate.force_spend(level.due, at, amount);
        }
    }

    fn count(&self, level: &mut BucketLevel, now: Timestamp, _: Timestamp, amount: u64) {
        if amount > 0 {
            level.due = self.rate.count_usage(level.due, now, amount);
        }
    }

    fn countable(&self) -> u64 {
        self.rate.countable()
    }

    fn max_lease_end(&self, _: &BucketLevel) -> Option<Timestamp> {
        None
    }
}
