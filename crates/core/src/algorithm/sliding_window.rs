//! Sliding window: two counters. The one of the previous window is weighted by the part that still counts.
//!
//! The usage of the previous window is assumed to be even, and the part of it that the trailing window covers counts.
//! Bound: the amount in each aligned window, less than twice that in the worst trailing one, near the amount on even
//! traffic.

use crate::algorithm::fixed_window::{add_up_to, window_end, without_burst};
use crate::algorithm::leasable::LeasableAlgorithm;
use crate::algorithm::{Bound, Meter, State};
use crate::outcome::RefundToken;
use crate::quota::{Quota, QuotaError};
use crate::time::{Span, Timestamp};

/// The validated parameters of a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    quota: Quota,
}

/// The amounts spent in the window that ends at `end`, and in the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WindowCounts {
    /// The first instant after the current window.
    pub end: Timestamp,
    /// The amount spent in the current window.
    pub current: u64,
    /// The amount spent in the window before.
    pub previous: u64,
}

impl From<WindowCounts> for State {
    fn from(counts: WindowCounts) -> Self {
        Self::Sliding(counts)
    }
}

impl SlidingWindow {
    /// Returns a limit of the quota's amount in a trailing window.
    ///
    /// # Errors
    /// A number that can't be counted exactly, or a burst, which a window does not have.
    pub fn new(quota: Quota) -> Result<Self, QuotaError> {
        Ok(Self { quota: without_burst(quota, "sliding_window")? })
    }

    pub(crate) fn window_end(&self, now: Timestamp) -> Timestamp {
        window_end(&self.quota, now)
    }

    fn force_spend_up_to(&self, counts: &mut WindowCounts, at: Timestamp, amount: u64, most: u64) {
        let end = self.window_end(at);
        if end >= counts.end {
            counts.current = add_up_to(counts.current, amount, most);
        } else if end + self.quota.window() == counts.end {
            counts.previous = add_up_to(counts.previous, amount, most);
        }
    }

    fn window(&self) -> u128 {
        u128::from(self.quota.window().as_micros().max(1))
    }

    /// Returns the tokens of the previous window that still count, multiplied by the window in microseconds.
    fn carried(&self, counts: &WindowCounts, now: Timestamp) -> u128 {
        u128::from(counts.previous) * u128::from(counts.end.since(now).as_micros())
    }

    /// Returns the time before the end of a window from which on `previous` counts for at most `room` tokens.
    fn lead(&self, room: u64, previous: u64) -> Span {
        let lead = u128::from(room) * self.window() / u128::from(previous.max(1));
        Span::from_micros(u64::try_from(lead).unwrap_or(u64::MAX)).min(self.quota.window())
    }
}

impl Meter for SlidingWindow {
    type State = WindowCounts;

    fn own_state(state: &mut State) -> Option<&mut WindowCounts> {
        if let State::Sliding(counts) = state { Some(counts) } else { None }
    }

    fn quota(&self) -> &Quota {
        &self.quota
    }

    fn capacity(&self) -> u64 {
        self.quota.amount()
    }

    fn bound(&self) -> Bound {
        let amount = self.quota.amount();
        // Spending all at the end of one window leaves less than all for the window after it.
        let most = (2 * amount).saturating_sub(1);
        Bound { most, window: self.quota.window(), aligned: Some(amount) }
    }

    fn advance(&self, counts: &mut WindowCounts, now: Timestamp) -> Timestamp {
        let end = window_end(&self.quota, now);
        if counts.end < end {
            let adjacent = counts.end + self.quota.window() == end;
            let previous = if adjacent { counts.current } else { 0 };
            *counts = WindowCounts { end, current: 0, previous };
        }
        now.max(counts.end - self.quota.window())
    }

    fn admits(&self, counts: &WindowCounts, now: Timestamp, cost: u64) -> bool {
        let spent = counts.current.saturating_add(cost);
        match self.quota.amount().checked_sub(spent) {
            Some(room) => self.carried(counts, now) <= u128::from(room) * self.window(),
            None => false,
        }
    }

    fn spend(&self, counts: &mut WindowCounts, now: Timestamp, cost: u64) -> RefundToken {
        counts.current += cost;
        self.latest_refund_token(counts, now)
    }

    fn remaining(&self, counts: &WindowCounts, now: Timestamp) -> u64 {
        let carried = self.carried(counts, now).div_ceil(self.window());
        let spent = u128::from(counts.current) + carried;
        u64::try_from(u128::from(self.quota.amount()).saturating_sub(spent)).unwrap_or(0)
    }

    fn admits_at(&self, counts: &WindowCounts, now: Timestamp, cost: u64) -> Timestamp {
        if self.admits(counts, now, cost) {
            return now;
        }
        let WindowCounts { end, current, previous } = *counts;
        match self.quota.amount().checked_sub(current.saturating_add(cost)) {
            Some(room) => end - self.lead(room, previous),
            None => {
                let room = self.quota.amount().saturating_sub(cost);
                end + self.quota.window() - self.lead(room, current)
            }
        }
    }

    fn expires_at(&self, counts: &WindowCounts) -> Timestamp {
        match counts {
            WindowCounts { current: 0, previous: 0, .. } => Timestamp::EPOCH,
            WindowCounts { current: 0, end, .. } => *end,
            WindowCounts { end, .. } => *end + self.quota.window(),
        }
    }

    fn refund(
        &self,
        counts: &mut WindowCounts,
        _: Timestamp,
        refund_token: &RefundToken,
        cost: u64,
    ) -> bool {
        let spent = if refund_token.until == counts.end {
            &mut counts.current
        } else if refund_token.until + self.quota.window() == counts.end {
            &mut counts.previous
        } else {
            return false;
        };
        let taken = cost.min(*spent);
        *spent -= taken;
        taken > 0
    }

    fn latest_refund_token(&self, counts: &WindowCounts, now: Timestamp) -> RefundToken {
        RefundToken { at: now, until: counts.end, parts: 0 }
    }

    /// Keeps the counts. In a window of another length the weight of the previous count would jump, so its weighted
    /// amount counts as spent in the current window.
    fn migrate(&self, old: &Self, counts: &WindowCounts, now: Timestamp) -> WindowCounts {
        let mut counts = *counts;
        old.advance(&mut counts, now);
        if old.quota.window() != self.quota.window() {
            let carried = old.carried(&counts, now).div_ceil(old.window());
            let carried = u64::try_from(carried).unwrap_or(u64::MAX);
            counts.current = counts.current.saturating_add(carried);
            counts.previous = 0;
            counts.end = window_end(&self.quota, now);
        }
        counts
    }
}

impl LeasableAlgorithm for SlidingWindow {
    /// Counts usage of the previous window there.
    fn force_spend(&self, counts: &mut WindowCounts, at: Timestamp, amount: u64) {
        self.force_spend_up_to(counts, at, amount, self.quota.amount());
    }

    fn count(&self, counts: &mut WindowCounts, _: Timestamp, at: Timestamp, amount: u64) {
        self.force_spend_up_to(counts, at, amount, self.countable());
    }

    fn countable(&self) -> u64 {
        Quota::MAX_AMOUNT
    }

    fn max_lease_end(&self, counts: &WindowCounts) -> Option<Timestamp> {
        Some(counts.end)
    }
}
