//! Token bucket: capacity `burst`, refilled continuously, full at the start.
//!
//! Kept as the one instant at which the bucket is full again (the form known as GCRA). Bound:
//! burst + rate x t in any span t, charges that were refunded not counted.

use crate::algorithm::flat_bucket::FlatBucket;
use crate::algorithm::leasable::LeasableAlgorithm;
use crate::algorithm::pace::{Due, Pace};
use crate::algorithm::{Bound, Meter, State};
use crate::outcome::Slip;
use crate::quota::{Quota, QuotaError};
use crate::time::Timestamp;

/// A token bucket's numbers, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TokenBucket {
    quota: Quota,
    pace: Pace,
    pub(crate) flat: Option<FlatBucket>,
}

impl TokenBucket {
    pub(crate) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// A bucket of the quota's burst, or of its amount when it names none.
    ///
    /// # Errors
    /// A number that can't be counted exactly.
    pub fn new(quota: Quota) -> Result<Self, QuotaError> {
        let capacity = quota.explicit_burst().unwrap_or(quota.amount());
        let pace = Pace::new(&quota, capacity)?;
        Ok(Self { quota, pace, flat: pace.flat() })
    }
}

/// How full a bucket is. The default is full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Level {
    /// When it is full again.
    pub due: Due,
    /// What refunds gave back, as a length of time, since slips that still count were handed out.
    ///
    /// A slip names the instant at which its charge will have refilled. A refund makes that earlier
    /// for whoever was charged later, so slips count from a line that refunds don't move: `due` plus
    /// this. Slips from before the refunded charge are then held to have refilled earlier than they
    /// did, and may give back less than they could; never more.
    pub returned: Due,
}

impl From<Level> for State {
    fn from(level: Level) -> Self {
        Self::Tokens(level)
    }
}

impl Meter for TokenBucket {
    type State = Level;

    fn own(state: &mut State) -> Option<&mut Level> {
        if let State::Tokens(level) = state { Some(level) } else { None }
    }

    fn quota(&self) -> &Quota {
        &self.quota
    }

    #[inline]
    fn capacity(&self) -> u64 {
        self.pace.capacity()
    }

    fn bound(&self) -> Bound {
        let most = self.capacity() + self.quota.amount();
        Bound { most, window: self.quota.window(), aligned: None }
    }

    #[inline]
    fn advance(&self, level: &mut Level, now: Timestamp) -> Timestamp {
        if level.returned != Due::default() && self.forgets_at(level) <= now.into() {
            level.returned = Due::default();
        }
        now
    }

    #[inline]
    fn admits(&self, level: &Level, now: Timestamp, cost: u64) -> bool {
        self.pace.admits(level.due, now, cost)
    }

    #[inline]
    fn spend(&self, level: &mut Level, now: Timestamp, cost: u64) -> Slip {
        level.due = self.pace.after(level.due, now, cost);
        self.newest(level, now)
    }

    #[inline]
    fn remaining(&self, level: &Level, now: Timestamp) -> u64 {
        self.pace.remaining(level.due, now)
    }

    fn admits_at(&self, level: &Level, now: Timestamp, cost: u64) -> Timestamp {
        self.pace.admits_at(level.due, now, cost)
    }

    #[inline]
    fn full_at(&self, level: &Level) -> Timestamp {
        level.due.ceil()
    }

    #[inline]
    fn whole_at(&self, level: &Level) -> Timestamp {
        self.forgets_at(level).ceil()
    }

    fn refund(&self, level: &mut Level, now: Timestamp, slip: &Slip, cost: u64) -> bool {
        if cost > self.capacity() || slip.parts >= self.pace.parts() {
            return false;
        }
        let until = Due { micros: slip.until.as_micros(), parts: slip.parts };
        let is_last = until == self.forgets_at(level);
        let until = self.pace.minus(until, level.returned);
        let used = self.pace.minus(level.due, now.into());
        let given = self.pace.unhealed(until, now, cost).min(used);
        level.due = self.pace.minus(level.due, given);
        // Nothing was charged after the last charge, so no slip counts from it.
        if !is_last {
            level.returned = self.pace.add(level.returned, given);
        }
        given > Due::default()
    }

    #[inline]
    fn newest(&self, level: &Level, now: Timestamp) -> Slip {
        let until = self.forgets_at(level);
        Slip { at: now, until: Timestamp::from_micros(until.micros), parts: until.parts }
    }

    fn adopt(&self, old: &Self, level: &Level, now: Timestamp) -> Level {
        // Slips of the old limit are not honoured, so there is nothing to count them from.
        Level { due: self.pace.keep_fraction(&old.pace, level.due, now), returned: Due::default() }
    }
}

impl TokenBucket {
    /// From when on no slip can give anything back.
    #[inline]
    fn forgets_at(&self, level: &Level) -> Due {
        self.pace.add(level.due, level.returned)
    }
}

impl LeasableAlgorithm for TokenBucket {
    fn owe(&self, level: &mut Level, at: Timestamp, amount: u64) {
        if amount > 0 {
            level.due = self.pace.owing(level.due, at, amount);
        }
    }

    fn count(&self, level: &mut Level, now: Timestamp, _: Timestamp, amount: u64) {
        if amount > 0 {
            level.due = self.pace.counting(level.due, now, amount);
        }
    }

    fn countable(&self) -> u64 {
        self.pace.countable()
    }

    fn ends(&self, _: &Level) -> Option<Timestamp> {
        None
    }
}
