//! Fixed window: one counter per window, windows aligned to the Unix epoch.
//!
//! Bound: the amount in each window, and so up to twice that around a boundary.

use crate::algorithm::leasable::LeasableAlgorithm;
use crate::algorithm::{Bound, Meter, State};
use crate::outcome::Slip;
use crate::quota::{Quota, QuotaError};
use crate::time::Timestamp;

/// A fixed window's numbers, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    quota: Quota,
}

/// What was spent in the window that ends at `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// The first instant after the window.
    pub end: Timestamp,
    /// What was spent in it.
    pub spent: u64,
}

impl From<Count> for State {
    fn from(count: Count) -> Self {
        Self::Fixed(count)
    }
}

impl FixedWindow {
    /// The quota's amount in each of its windows.
    ///
    /// # Errors
    /// A number that can't be counted exactly, or a burst, which a window does not have.
    pub fn new(quota: Quota) -> Result<Self, QuotaError> {
        Ok(Self { quota: without_burst(quota, "fixed_window")? })
    }

    pub(crate) fn window_end(&self, now: Timestamp) -> Timestamp {
        window_end(&self.quota, now)
    }
}

pub(crate) fn without_burst(quota: Quota, algorithm: &'static str) -> Result<Quota, QuotaError> {
    quota.validate()?;
    match quota.explicit_burst() {
        Some(_) => Err(QuotaError::NoBurst { algorithm }),
        None => Ok(quota),
    }
}

/// The end of the aligned window that `now` is in.
pub(crate) fn window_end(quota: &Quota, now: Timestamp) -> Timestamp {
    let window = quota.window().as_micros().max(1);
    let start = now.as_micros() - now.as_micros() % window;
    Timestamp::from_micros(start) + quota.window()
}

impl Meter for FixedWindow {
    type State = Count;

    fn own(state: &mut State) -> Option<&mut Count> {
        if let State::Fixed(count) = state { Some(count) } else { None }
    }

    fn quota(&self) -> &Quota {
        &self.quota
    }

    fn capacity(&self) -> u64 {
        self.quota.amount()
    }

    fn bound(&self) -> Bound {
        let amount = self.quota.amount();
        Bound { most: 2 * amount, window: self.quota.window(), aligned: Some(amount) }
    }

    fn advance(&self, count: &mut Count, now: Timestamp) -> Timestamp {
        let end = window_end(&self.quota, now);
        if count.end < end {
            *count = Count { end, spent: 0 };
        }
        // A window that is ahead of `now` was opened by a later reading of the clock.
        now.max(count.end - self.quota.window())
    }

    fn admits(&self, count: &Count, _: Timestamp, cost: u64) -> bool {
        cost <= self.quota.amount().saturating_sub(count.spent)
    }

    fn spend(&self, count: &mut Count, now: Timestamp, cost: u64) -> Slip {
        count.spent += cost;
        self.newest(count, now)
    }

    fn remaining(&self, count: &Count, _: Timestamp) -> u64 {
        self.quota.amount().saturating_sub(count.spent)
    }

    fn admits_at(&self, count: &Count, now: Timestamp, cost: u64) -> Timestamp {
        if self.admits(count, now, cost) { now } else { count.end }
    }

    fn whole_at(&self, count: &Count) -> Timestamp {
        if count.spent == 0 { Timestamp::EPOCH } else { count.end }
    }

    fn refund(&self, count: &mut Count, _: Timestamp, slip: &Slip, cost: u64) -> bool {
        if count.end != slip.until {
            return false;
        }
        let taken = cost.min(count.spent);
        count.spent -= taken;
        taken > 0
    }

    fn newest(&self, count: &Count, now: Timestamp) -> Slip {
        Slip { at: now, until: count.end, parts: 0 }
    }

    /// What counts now goes on counting, in the window that this limit has now.
    fn adopt(&self, old: &Self, count: &Count, now: Timestamp) -> Count {
        let mut count = *count;
        old.advance(&mut count, now);
        if old.quota.window() != self.quota.window() {
            count.end = window_end(&self.quota, now);
        }
        count
    }
}

impl LeasableAlgorithm for FixedWindow {
    /// What was spent in a window that is over is forgotten with it.
    fn owe(&self, count: &mut Count, at: Timestamp, amount: u64) {
        if window_end(&self.quota, at) >= count.end {
            count.spent = owed(count.spent, amount, self.quota.amount());
        }
    }

    fn count(&self, count: &mut Count, _: Timestamp, at: Timestamp, amount: u64) {
        if self.window_end(at) >= count.end {
            count.spent = owed(count.spent, amount, self.countable());
        }
    }

    fn countable(&self) -> u64 {
        Quota::MAX_AMOUNT
    }

    fn ends(&self, count: &Count) -> Option<Timestamp> {
        Some(count.end)
    }
}

/// A window's count with `amount` more, whether or not that fits, up to `most`.
pub(crate) fn owed(spent: u64, amount: u64, most: u64) -> u64 {
    spent.saturating_add(amount).min(most).max(spent)
}
