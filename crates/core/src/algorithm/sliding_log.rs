//! Sliding log: every admission of the trailing window, with its time.
//!
//! Bound: the amount in any window, exactly. Memory grows with the amount, so the amount is bounded.

use std::collections::VecDeque;

use crate::algorithm::fixed_window::without_burst;
use crate::algorithm::{Bound, HeapUse, Meter, State};
use crate::outcome::RefundToken;
use crate::quota::{Quota, QuotaError};
use crate::time::Timestamp;

/// The validated parameters of a sliding log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    quota: Quota,
}

/// The amounts spent in the trailing window, oldest first; one entry per instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdmissionLog {
    entries: VecDeque<(Timestamp, u64)>,
    spent: u64,
}

impl AdmissionLog {
    /// Returns a log of these entries, oldest first, no two at one instant.
    #[must_use]
    pub fn new(entries: impl IntoIterator<Item = (Timestamp, u64)>) -> Self {
        let entries: VecDeque<_> = entries.into_iter().filter(|(_, cost)| *cost > 0).collect();
        let spent = entries.iter().map(|(_, cost)| cost).sum();
        Self { entries, spent }
    }

    /// Returns the instants and amounts, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = (Timestamp, u64)> {
        self.entries.iter().copied()
    }

    /// Returns the sum of all entries.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    /// Returns the memory of the entries.
    pub(crate) fn heap_use(&self) -> HeapUse {
        HeapUse::of::<(Timestamp, u64)>(self.entries.len(), self.entries.capacity())
    }

    /// Releases the memory of past entries, if the present ones need less than a quarter of it.
    pub(crate) fn shrink(&mut self) {
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Returns the entries of both logs. For an instant in both, the larger entry counts.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut entries: Vec<(Timestamp, u64)> = self.entries().chain(other.entries()).collect();
        // Of two entries of one instant the larger comes first and stays.
        entries.sort_unstable_by_key(|(instant, cost)| (*instant, u64::MAX - cost));
        entries.dedup_by_key(|(instant, _)| *instant);
        Self::new(entries)
    }

    /// Returns this log with another entry at `now`, so that the sum is at least `spent`.
    pub(crate) fn raised_to(&self, spent: u64, now: Timestamp) -> Self {
        let missing = spent.saturating_sub(self.spent());
        let mut entries: Vec<(Timestamp, u64)> = self.entries().collect();
        match entries.last_mut() {
            Some((last, cost)) if *last >= now => *cost += missing,
            _ => entries.push((now, missing)),
        }
        Self::new(entries)
    }
}

impl From<AdmissionLog> for State {
    fn from(log: AdmissionLog) -> Self {
        Self::Log(log)
    }
}

impl SlidingLog {
    /// The largest amount: each unit of it may need an entry of its own.
    pub const MAX_AMOUNT: u64 = 10_000;

    /// Returns a limit of the quota's amount in any window.
    ///
    /// # Errors
    /// A number that can't be counted exactly, an amount above [`MAX_AMOUNT`](Self::MAX_AMOUNT), or
    /// a burst, which a log does not have.
    pub fn new(quota: Quota) -> Result<Self, QuotaError> {
        let quota = without_burst(quota, "sliding_log")?;
        if quota.amount() > Self::MAX_AMOUNT {
            return Err(QuotaError::LogTooLong { found: quota.amount(), max: Self::MAX_AMOUNT });
        }
        Ok(Self { quota })
    }
}

impl Meter for SlidingLog {
    type State = AdmissionLog;

    fn own_state(state: &mut State) -> Option<&mut AdmissionLog> {
        if let State::Log(log) = state { Some(log) } else { None }
    }

    fn quota(&self) -> &Quota {
        &self.quota
    }

    fn capacity(&self) -> u64 {
        self.quota.amount()
    }

    fn bound(&self) -> Bound {
        Bound { most: self.quota.amount(), window: self.quota.window(), aligned: None }
    }

    fn advance(&self, log: &mut AdmissionLog, now: Timestamp) -> Timestamp {
        while let Some(&(at, cost)) = log.entries.front() {
            if at + self.quota.window() > now {
                break;
            }
            log.entries.pop_front();
            log.spent -= cost;
        }
        log.entries.back().map_or(now, |&(last, _)| now.max(last))
    }

    fn admits(&self, log: &AdmissionLog, _: Timestamp, cost: u64) -> bool {
        cost <= self.quota.amount().saturating_sub(log.spent)
    }

    fn spend(&self, log: &mut AdmissionLog, now: Timestamp, cost: u64) -> RefundToken {
        log.spent += cost;
        match log.entries.back_mut() {
            Some((last, spent)) if *last == now => *spent += cost,
            _ => log.entries.push_back((now, cost)),
        }
        self.latest_refund_token(log, now)
    }

    fn remaining(&self, log: &AdmissionLog, _: Timestamp) -> u64 {
        self.quota.amount().saturating_sub(log.spent)
    }

    fn admits_at(&self, log: &AdmissionLog, now: Timestamp, cost: u64) -> Timestamp {
        let mut spent = log.spent;
        let mut instant = now;
        for &(at, freed) in &log.entries {
            if cost <= self.quota.amount().saturating_sub(spent) {
                break;
            }
            spent -= freed;
            instant = at + self.quota.window();
        }
        instant
    }

    fn expires_at(&self, log: &AdmissionLog) -> Timestamp {
        log.entries.back().map_or(Timestamp::EPOCH, |&(last, _)| last + self.quota.window())
    }

    fn refund(
        &self,
        log: &mut AdmissionLog,
        _: Timestamp,
        refund_token: &RefundToken,
        cost: u64,
    ) -> bool {
        let Ok(index) = log.entries.binary_search_by_key(&refund_token.at, |&(at, _)| at) else {
            return false;
        };
        let Some((_, spent)) = log.entries.get_mut(index) else {
            return false;
        };
        let taken = cost.min(*spent);
        *spent -= taken;
        log.spent -= taken;
        if *spent == 0 {
            log.entries.remove(index);
        }
        taken > 0
    }

    fn latest_refund_token(&self, log: &AdmissionLog, now: Timestamp) -> RefundToken {
        let at = log.entries.back().map_or(now, |&(last, _)| last);
        RefundToken { at, until: at + self.quota.window(), parts: 0 }
    }

    /// Refunds one entry after another, the newest first.
    fn refund_latest(&self, log: &mut AdmissionLog, _: Timestamp, cost: u64) -> bool {
        let mut wanted = cost;
        while wanted > 0
            && let Some((_, spent)) = log.entries.back_mut()
        {
            let taken = wanted.min(*spent);
            *spent -= taken;
            log.spent -= taken;
            wanted -= taken;
            if *spent == 0 {
                log.entries.pop_back();
            }
        }
        wanted < cost
    }

    /// Keeps the entries that still count.
    fn migrate(&self, old: &Self, log: &AdmissionLog, now: Timestamp) -> AdmissionLog {
        let mut log = log.clone();
        old.advance(&mut log, now);
        log
    }
}
