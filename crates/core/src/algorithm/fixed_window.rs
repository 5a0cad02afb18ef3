//! Fixed window: one counter per window, windows aligned to the Unix epoch.
//!
//! Bound: the amount in each window, therefore up to twice the amount around a boundary.

use crate::algorithm::leasable::LeasableAlgorithm;
use crate::algorithm::{Bound, Meter, State};
use crate::outcome::RefundToken;
use crate::quota::{Quota, QuotaError};
use crate::time::Timestamp;

/// The validated parameters of a fixed window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FixedWindow {
    quota: Quota,
}

/// The amount spent in the window that ends at `end`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCount {
    /// The first instant after the window.
    pub end: Timestamp,
    /// The amount spent in it.
    pub spent: u64,
}

impl From<WindowCount> for State {
    fn from(count: WindowCount) -> Self {
        Self::Fixed(count)
    }
}

impl FixedWindow {
    /// Returns a limit of the quota's amount in each of its windows.
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

/// Returns the end of the aligned window that `now` is in.
pub(crate) fn window_end(quota: &Quota, now: Timestamp) -> Timestamp {
    let window = quota.window().as_micros().max(1);
    let start = now.as_micros() - now.as_micros() % window;
    Timestamp::from_micros(start) + quota.window()
}

impl Meter for FixedWindow {
    type State = WindowCount;

    fn own_state(state: &mut State) -> Option<&mut WindowCount> {
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

    fn advance(&self, count: &mut WindowCount, now: Timestamp) -> Timestamp {
        let end = window_end(&self.quota, now);
        if count.end < end {
            *count = WindowCount { end, spent: 0 };
        }
        // A window that is ahead of `now` was opened by a later reading of the clock.
        now.max(count.end - self.quota.window())
    }

    fn admits(&self, count: &WindowCount, _: Timestamp, cost: u64) -> bool {
        cost <= self.quota.amount().saturating_sub(count.spent)
    }

    fn spend(&self, count: &mut WindowCount, now: Timestamp, cost: u64) -> RefundToken {
        count.spent += cost;
        self.latest_refund_token(count, now)
    }

    fn remaining(&self, count: &WindowCount, _: Timestamp) -> u64 {
        self.quota.amount().saturating_sub(count.spent)
    }

    fn admits_at(&self, count: &WindowCount, now: Timestamp, cost: u64) -> Timestamp {
        if self.admits(count, now, cost) { now } else { count.end }
    }

    fn expires_at(&self, count: &WindowCount) -> Timestamp {
        if count.spent == 0 { Timestamp::EPOCH } else { count.end }
    }

    fn refund(
        &self,
        count: &mut WindowCount,
        _: Timestamp,
        refund_token: &RefundToken,
        cost: u64,
    ) -> bool {
        if count.end != refund_token.until {
            return false;
        }
        let taken = cost.min(count.spent);
        count.spent -= taken;
        taken > 0
    }

    fn latest_refund_token(&self, count: &WindowCount, now: Timestamp) -> RefundToken {
        RefundToken { at: now, until: count.end, parts: 0 }
    }

    /// Keeps the count, in the current window of this limit.
    fn migrate(&self, old: &Self, count: &WindowCount, now: Timestamp) -> WindowCount {
        let mut count = *count;
        old.advance(&mut count, now);
        if old.quota.window() != self.quota.window() {
            count.end = window_end(&self.quota, now);
        }
        count
    }
}

impl LeasableAlgorithm for FixedWindow {
    /// Ignores usage of a window that has ended.
    fn force_spend(&self, count: &mut WindowCount, at: Timestamp, amount: u64) {
        if window_end(&self.quota, at) >= count.end {
            count.spent = add_up_to(count.spent, amount, self.quota.amount());
        }
    }

    fn count(&self, count: &mut WindowCount, _: Timestamp, at: Timestamp, amount: u64) {
        if self.window_end(at) >= count.end {
            count.spent = add_up_to(count.spent, amount, self.countable());
        }
    }

    fn countable(&self) -> u64 {
        Quota::MAX_AMOUNT
    }

    fn max_lease_end(&self, count: &WindowCount) -> Option<Timestamp> {
        Some(count.end)
    }
}

/// Returns a window's count plus `amount`, at most `most`. A count above `most` stays.
pub(crate) fn add_up_to(spent: u64, amount: u64, most: u64) -> u64 {
    spent.saturating_add(amount).min(most).max(spent)
}
