//! Sliding log: every admission of the trailing window, remembered with its time.
//!
//! Bound: the amount in any window, exactly. Memory grows with the amount, so that is bounded.

use std::collections::VecDeque;

use crate::algorithm::fixed_window::without_burst;
use crate::algorithm::{Bound, Meter, State};
use crate::outcome::Slip;
use crate::quota::{Quota, QuotaError};
use crate::time::Timestamp;

/// A sliding log's numbers, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlidingLog {
    quota: Quota,
}

/// What was spent when, oldest first; one entry per instant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: VecDeque<(Timestamp, u64)>,
    spent: u64,
}

impl Log {
    /// A log of these entries, oldest first, no two at one instant.
    #[must_use]
    pub fn new(entries: impl IntoIterator<Item = (Timestamp, u64)>) -> Self {
        let entries: VecDeque<_> = entries.into_iter().filter(|(_, cost)| *cost > 0).collect();
        let spent = entries.iter().map(|(_, cost)| cost).sum();
        Self { entries, spent }
    }

    /// What was spent when, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = (Timestamp, u64)> {
        self.entries.iter().copied()
    }

    /// How much was spent in all.
    pub(crate) fn spent(&self) -> u64 {
        self.spent
    }

    /// Returns what was spent at each instant in either log, an instant of both once.
    pub(crate) fn union(&self, other: &Self) -> Self {
        let mut entries: Vec<(Timestamp, u64)> = self.entries().chain(other.entries()).collect();
        // Of two entries of one instant the larger comes first and stays.
        entries.sort_unstable_by_key(|(instant, cost)| (*instant, u64::MAX - cost));
        entries.dedup_by_key(|(instant, _)| *instant);
        Self::new(entries)
    }

    /// Returns this log with as much spent at `now` as is missing to `spent` in all.
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

impl From<Log> for State {
    fn from(log: Log) -> Self {
        Self::Log(log)
    }
}

impl SlidingLog {
    /// The largest amount: each unit of it may have to be remembered on its own.
    pub const MAX_AMOUNT: u64 = 10_000;

    /// The quota's amount in any of its windows.
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
    type State = Log;

    fn own(state: &mut State) -> Option<&mut Log> {
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

    fn advance(&self, log: &mut Log, now: Timestamp) -> Timestamp {
        while let Some(&(at, cost)) = log.entries.front() {
            if at + self.quota.window() > now {
                break;
            }
            log.entries.pop_front();
            log.spent -= cost;
        }
        log.entries.back().map_or(now, |&(last, _)| now.max(last))
    }

    fn admits(&self, log: &Log, _: Timestamp, cost: u64) -> bool {
        cost <= self.quota.amount().saturating_sub(log.spent)
    }

    fn spend(&self, log: &mut Log, now: Timestamp, cost: u64) -> Slip {
        log.spent += cost;
        match log.entries.back_mut() {
            Some((last, spent)) if *last == now => *spent += cost,
            _ => log.entries.push_back((now, cost)),
        }
        self.newest(log, now)
    }

    fn remaining(&self, log: &Log, _: Timestamp) -> u64 {
        self.quota.amount().saturating_sub(log.spent)
    }

    fn admits_at(&self, log: &Log, now: Timestamp, cost: u64) -> Timestamp {
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

    fn whole_at(&self, log: &Log) -> Timestamp {
        log.entries.back().map_or(Timestamp::EPOCH, |&(last, _)| last + self.quota.window())
    }

    fn refund(&self, log: &mut Log, _: Timestamp, slip: &Slip, cost: u64) -> bool {
        let Ok(index) = log.entries.binary_search_by_key(&slip.at, |&(at, _)| at) else {
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

    fn newest(&self, log: &Log, now: Timestamp) -> Slip {
        let at = log.entries.back().map_or(now, |&(last, _)| last);
        Slip { at, until: at + self.quota.window(), parts: 0 }
    }

    /// One entry after another, the newest first.
    fn give_back(&self, log: &mut Log, _: Timestamp, cost: u64) -> bool {
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

    /// The entries that still count stay.
    fn adopt(&self, old: &Self, log: &Log, now: Timestamp) -> Log {
        let mut log = log.clone();
        old.advance(&mut log, now);
        log
    }
}
