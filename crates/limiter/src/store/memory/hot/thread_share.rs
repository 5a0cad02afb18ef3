//! One thread's part of a hot bucket: tokens that it spends without other threads.

use std::sync::Arc;

use tidegate_core::algorithm::FlatBucket;
use tidegate_core::{Key, Limit, Timestamp};

use crate::store::Charge;

/// The total that was spent at one instant.
pub(crate) type TimedCharge = (Timestamp, u64);

/// Instants that a share can store. The next one causes a reclaim.
const MAX_INSTANTS: usize = 8;

/// Tokens for one thread, and the part of them that it has spent.
///
/// Every charge that a share admits fits the whole bucket. A share denies only if no other share has
/// tokens: then it has the state of the whole bucket.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct ThreadShare {
    key: Key,
    /// The address of the bucket's limit. The hot bucket keeps the limit alive while the share is open.
    limit: usize,
    /// The share is closed from this instant on.
    until: Timestamp,
    /// Tokens that are not spent yet.
    tokens: u64,
    /// The instant at which the bucket is full again, in the compact form. It omits what other shares
    /// have spent since the distribution.
    due: u64,
    /// The time of the latest charge. The share's time never decreases.
    latest: Timestamp,
    /// The last instant at which the bucket is not full even if no share spends anything. Until then the
    /// order of charges does not matter.
    order_independent_until: Timestamp,
    /// The total that this share has spent until then.
    spent: u64,
    /// No other share has tokens.
    is_only_holder: bool,
    /// The share was used since the distribution.
    used: bool,
    /// The number of valid items in `timed`.
    timed_count: usize,
    /// Charges after `order_independent_until`, by instant. The last field, because most shares have none
    /// when they are reclaimed.
    timed: [TimedCharge; MAX_INSTANTS],
}

/// The key, the limit and the bucket's state at the time of a distribution.
#[derive(Clone, Copy)]
pub(crate) struct ShareTerms<'a> {
    pub(crate) key: Key,
    pub(crate) limit: &'a Arc<Limit>,
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
    /// The instant at which the bucket is full if no share spends anything, in the compact form.
    pub(crate) due: u64,
    /// The last instant at which the bucket is not full in that case.
    pub(crate) order_independent_until: Timestamp,
}

/// The usage of a share between its distribution and its reclaim.
#[derive(Debug)]
pub(crate) struct ShareUsage<'a> {
    /// The total spent while the bucket was not full, so that the order does not matter.
    pub(crate) order_independent: u64,
    /// Later charges, in the order of time.
    pub(crate) timed: &'a [TimedCharge],
    /// The share was used since the distribution.
    pub(crate) used: bool,
}

impl Default for ThreadShare {
    /// Returns a closed share.
    fn default() -> Self {
        Self {
            key: Key::from_u128(0),
            limit: 0,
            until: Timestamp::EPOCH,
            tokens: 0,
            due: 0,
            latest: Timestamp::EPOCH,
            order_independent_until: Timestamp::EPOCH,
            spent: 0,
            is_only_holder: false,
            used: false,
            timed_count: 0,
            timed: [(Timestamp::EPOCH, 0); MAX_INSTANTS],
        }
    }
}

impl ThreadShare {
    /// Takes the tokens of a charge, if the share can decide it. Returns the instant at which the caller
    /// charges [`due`](Self::due), or `None` if only the whole bucket can decide.
    ///
    /// The verdict equals that of the whole bucket. The other fields of an admission omit what other
    /// shares have spent since the distribution. `remaining` may be too high by the tokens that they hold.
    /// The refund token may return less than possible, never more.
    #[inline]
    pub(crate) fn try_spend(
        &mut self,
        charge: &Charge<'_>,
        flat: &FlatBucket,
        base: Timestamp,
        now: Timestamp,
    ) -> Option<Timestamp> {
        let is_same = self.key == charge.key && self.limit == Arc::as_ptr(charge.limit).addr();
        if now >= self.until || !is_same {
            return None;
        }
        let now = now.max(self.latest);
        self.used = true;
        // A peek has cost 0, which wraps around to more than any share holds.
        if charge.cost.wrapping_sub(1) < self.tokens {
            if now <= self.order_independent_until {
                self.spent += charge.cost;
            } else if !self.record(now, charge.cost) {
                return None;
            }
            self.tokens -= charge.cost;
            return Some(now);
        }
        // A charge that fits the whole bucket may need tokens of other shares, so a reclaim decides it.
        let denies = || !flat.admits(self.due, base, now, charge.cost);
        (self.is_only_holder && (charge.cost == 0 || denies())).then_some(now)
    }

    /// Returns the state that this share knows of the bucket, to be charged after
    /// [`try_spend`](Self::try_spend).
    #[inline]
    pub(crate) fn due(&mut self) -> &mut u64 {
        &mut self.due
    }

    /// Records a charge with its instant. Returns `false` if [`MAX_INSTANTS`] are in use.
    #[inline]
    fn record(&mut self, now: Timestamp, cost: u64) -> bool {
        if self.timed_count > 0
            && let (at, spent) = &mut self.timed[self.timed_count - 1]
            && *at == now
        {
            *spent += cost;
            return true;
        }
        let Some(charge) = self.timed.get_mut(self.timed_count) else { return false };
        *charge = (now, cost);
        self.timed_count += 1;
        self.latest = now;
        true
    }

    /// Marks the share as used by a charge that the whole bucket decided.
    pub(crate) fn mark_used(&mut self) {
        self.used = true;
    }

    /// Closes the share and takes its unspent tokens. Returns its usage.
    pub(crate) fn reclaim(&mut self) -> ShareUsage<'_> {
        self.until = Timestamp::EPOCH;
        self.tokens = 0;
        ShareUsage {
            order_independent: std::mem::take(&mut self.spent),
            timed: &self.timed[..std::mem::take(&mut self.timed_count)],
            used: std::mem::take(&mut self.used),
        }
    }

    /// Opens a reclaimed share with tokens that no other share has. `is_only_holder` is true if no other
    /// share has any.
    pub(crate) fn distribute(&mut self, terms: &ShareTerms<'_>, tokens: u64, is_only_holder: bool) {
        self.key = terms.key;
        self.limit = Arc::as_ptr(terms.limit).addr();
        self.until = terms.until;
        self.tokens = tokens;
        self.due = terms.due;
        self.latest = terms.from;
        self.order_independent_until = terms.order_independent_until;
        self.is_only_holder = is_only_holder;
    }
}
