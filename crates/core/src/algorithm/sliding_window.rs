//! Sliding window: two counters, the previous window's weighted by how much of it still counts.
//!
//! At a point of the current window, the previous one is taken to have been spent evenly, and the
//! share of it that the trailing window still covers counts. Bound: the amount in each aligned
//! window, less than twice that in the worst trailing one, near the amount on even traffic.

use crate::algorithm::fixed_window::{owed, window_end, without_burst};
use crate::algorithm::leasable::LeasableAlgorithm;
use crate::algorithm::{Bound, Meter, State};
use crate::outcome::Slip;
use crate::quota::{Quota, QuotaError};
use crate::time::{Span, Timestamp};

/// A sliding window's numbers, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingWindow {
    quota: Quota,
}

/// What was spent in the window that ends at `end`, and in the one before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// The first instant after the current window.
    pub end: Timestamp,
    /// Spent in the current window.
    pub current: u64,
    /// Spent in the window before.
    pub previous: u64,
}

impl From<Counts> for State {
    fn from(counts: Counts) -> Self {
        Self::Sliding(counts)
    }
}

impl SlidingWindow {
    /// The quota's amount in a trailing window.
    ///
    /// # Errors
    /// A number that can't be counted exactly, or a burst, which a window does not have.
    pub fn new(quota: Quota) -> Result<Self, QuotaError> {
        Ok(Self { quota: without_burst(quota, "sliding_window")? })
    }

    pub(crate) fn window_end(&self, now: Timestamp) -> Timestamp {
        window_end(&self.quota, now)
    }

    fn owe_up_to(&self, counts: &mut Counts, at: Timestamp, amount: u64, most: u64) {
        let end = self.window_end(at);
        if end >= counts.end {
            counts.current = owed(counts.current, amount, most);
        } else if end + self.quota.window() == counts.end {
            counts.previous = owed(counts.previous, amount, most);
        }
    }

    fn window(&self) -> u128 {
        u128::from(self.quota.window().as_micros().max(1))
    }

    /// Tokens x microseconds of the previous window that still count, out of `window` for each token.
    fn carried(&self, counts: &Counts, now: Timestamp) -> u128 {
        u128::from(counts.previous) * u128::from(counts.end.since(now).as_micros())
    }

    /// How long before the end of a window `previous` weighs no more than `room` tokens.
    fn lead(&self, room: u64, previous: u64) -> Span {
        let lead = u128::from(room) * self.window() / u128::from(previous.max(1));
        Span::from_micros(u64::try_from(lead).unwrap_or(u64::MAX)).min(self.quota.window())
    }
}

impl Meter for SlidingWindow {
    type State = Counts;

    fn own(state: &mut State) -> Option<&mut Counts> {
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

    fn advance(&self, counts: &mut Counts, now: Timestamp) -> Timestamp {
        let end = window_end(&self.quota, now);
        if counts.end < end {
            let adjacent = counts.end + self.quota.window() == end;
            let previous = if adjacent { counts.current } else { 0 };
            *counts = Counts { end, current: 0, previous };
        }
        now.max(counts.end - self.quota.window())
    }

    fn admits(&self, counts: &Counts, now: Timestamp, cost: u64) -> bool {
        let spent = counts.current.saturating_add(cost);
        match self.quota.amount().checked_sub(spent) {
            Some(room) => self.carried(counts, now) <= u128::from(room) * self.window(),
            None => false,
        }
    }

    fn spend(&self, counts: &mut Counts, now: Timestamp, cost: u64) -> Slip {
        counts.current += cost;
        self.newest(counts, now)
    }

    fn remaining(&self, counts: &Counts, now: Timestamp) -> u64 {
        let carried = self.carried(counts, now).div_ceil(self.window());
        let spent = u128::from(counts.current) + carried;
        u64::try_from(u128::from(self.quota.amount()).saturating_sub(spent)).unwrap_or(0)
    }

    fn admits_at(&self, counts: &Counts, now: Timestamp, cost: u64) -> Timestamp {
        if self.admits(counts, now, cost) {
            return now;
        }
        let Counts { end, current, previous } = *counts;
        match self.quota.amount().checked_sub(current.saturating_add(cost)) {
            Some(room) => end - self.lead(room, previous),
            None => {
                let room = self.quota.amount().saturating_sub(cost);
                end + self.quota.window() - self.lead(room, current)
            }
        }
    }

    fn whole_at(&self, counts: &Counts) -> Timestamp {
        match counts {
            Counts { current: 0, previous: 0, .. } => Timestamp::EPOCH,
            Counts { current: 0, end, .. } => *end,
            Counts { end, .. } => *end + self.quota.window(),
        }
    }

    fn refund(&self, counts: &mut Counts, _: Timestamp, slip: &Slip, cost: u64) -> bool {
        let spent = if slip.until == counts.end {
            &mut counts.current
        } else if slip.until + self.quota.window() == counts.end {
            &mut counts.previous
        } else {
            return false;
        };
        let taken = cost.min(*spent);
        *spent -= taken;
        taken > 0
    }

    fn newest(&self, counts: &Counts, now: Timestamp) -> Slip {
        Slip { at: now, until: counts.end, parts: 0 }
    }

    /// What counts now goes on counting. In a window of another length the previous count would get
    /// another weight all at once, so what it weighs now counts as spent in this window.
    fn adopt(&self, old: &Self, counts: &Counts, now: Timestamp) -> Counts {
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
    /// What was spent in the window before counts there.
    fn owe(&self, counts: &mut Counts, at: Timestamp, amount: u64) {
        self.owe_up_to(counts, at, amount, self.quota.amount());
    }

    fn count(&self, counts: &mut Counts, _: Timestamp, at: Timestamp, amount: u64) {
        self.owe_up_to(counts, at, amount, self.countable());
    }

    fn countable(&self) -> u64 {
        Quota::MAX_AMOUNT
    }

    fn ends(&self, counts: &Counts) -> Option<Timestamp> {
        Some(counts.end)
    }
}
