//! Usage that one node has admitted for one client and the store has not confirmed.

use smallvec::SmallVec;
use tidegate_core::{LeaseId, Limit, State, Timestamp, UnreportedUsage};

/// Most windows with an entry of their own; older ones count with the next.
const MAX_WINDOWS: usize = 8;

/// Unconfirmed usage, by window.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedLog {
    /// Oldest first.
    lines: LogEntries,
    /// The id under which some of it was reported, until the store confirms it.
    name: Option<LeaseId>,
}

/// Usage in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    /// The last instant of that window; far in the future for a limit without windows.
    pub(crate) until: Timestamp,
    pub(crate) amount: u64,
}

pub(crate) type LogEntries = SmallVec<[LogEntry; 1]>;

impl UnsyncedLog {
    pub(crate) fn total(&self) -> u64 {
        self.lines.iter().map(|line| line.amount).fold(0, u64::saturating_add)
    }

    /// Adds usage in the window that lasts until then.
    #[inline]
    pub(crate) fn add(&mut self, until: Timestamp, amount: u64) {
        match self.lines.last_mut() {
            Some(line) if line.until >= until => line.amount = line.amount.saturating_add(amount),
            _ => self.lines.push(LogEntry { until, amount }),
        }
        if self.lines.len() > MAX_WINDOWS {
            let oldest = self.lines.remove(0);
            self.lines.iter_mut().take(1).for_each(|line| line.amount += oldest.amount);
        }
    }

    /// Removes usage. Returns whether it was still there.
    pub(crate) fn take_back(&mut self, until: Timestamp, amount: u64) -> bool {
        let line = self.lines.iter_mut().find(|line| line.until >= until);
        let Some(line) = line.filter(|line| line.amount >= amount) else { return false };
        line.amount -= amount;
        true
    }

    /// Returns the id of a report, the usage as totals, and the entries that it covers. All that was not
    /// confirmed is reported again.
    pub(crate) fn report(
        &mut self,
        fresh: LeaseId,
    ) -> (LeaseId, SmallVec<[UnreportedUsage; 1]>, LogEntries) {
        self.lines.retain(|line| line.amount > 0);
        if self.lines.is_empty() && self.name.is_none() {
            return (fresh, SmallVec::new(), LogEntries::new());
        }
        let name = *self.name.get_or_insert(fresh);
        let mut total = 0;
        let unreported = self.lines.iter().map(|line| {
            total += line.amount;
            UnreportedUsage { at: line.until, total }
        });
        (name, unreported.collect(), self.lines.clone())
    }

    /// Removes entries that the store has confirmed. Later usage is reported under another id.
    pub(crate) fn confirm(&mut self, told: &[LogEntry]) {
        for known in told {
            let mut open = known.amount;
            // Entries may have been merged into a later one since.
            for line in self.lines.iter_mut().filter(|line| line.until >= known.until) {
                let part = open.min(line.amount);
                line.amount -= part;
                open -= part;
            }
        }
        self.lines.retain(|line| line.amount > 0);
        self.name = None;
    }

    /// Adds all usage to a state that lacks it, at the store's time.
    pub(crate) fn count(&self, limit: &Limit, state: &mut State, now: Timestamp) {
        for line in &self.lines {
            limit.count(state, now, line.until, line.amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_secs(seconds)
    }

    fn id(number: u32) -> LeaseId {
        LeaseId { node: 1, number }
    }

    #[test]
    fn what_was_not_confirmed_is_told_again_under_its_name_as_a_total() {
        let mut log = UnsyncedLog::default();
        log.add(at(1), 5);
        let (name, unreported, _) = log.report(id(1));
        assert_eq!(
            (name, unreported.as_slice()),
            (id(1), &[UnreportedUsage { at: at(1), total: 5 }][..])
        );
        log.add(at(1), 1);
        log.add(at(2), 3);
        let (name, unreported, told) = log.report(id(2));
        let totals =
            [UnreportedUsage { at: at(1), total: 6 }, UnreportedUsage { at: at(2), total: 9 }];
        assert_eq!((name, unreported.as_slice()), (id(1), &totals[..]));
        log.add(at(2), 4);
        log.confirm(&told);
        let (name, unreported, _) = log.report(id(3));
        assert_eq!(
            (name, unreported.as_slice()),
            (id(3), &[UnreportedUsage { at: at(2), total: 4 }][..])
        );
    }

    #[test]
    fn many_windows_are_put_together_and_nothing_is_lost() {
        let mut log = UnsyncedLog::default();
        (1..=6).for_each(|second| log.add(at(second), second));
        let (_, _, told) = log.report(id(1));
        (7..=20).for_each(|second| log.add(at(second), second));
        assert_eq!((log.total(), log.lines.len()), ((1..=20).sum::<u64>(), MAX_WINDOWS));
        log.confirm(&told);
        assert_eq!(log.total(), (7..=20).sum::<u64>());
    }

    #[test]
    fn what_is_taken_back_is_not_told() {
        let mut log = UnsyncedLog::default();
        log.add(at(1), 5);
        assert!(log.take_back(at(1), 5));
        assert!(!log.take_back(at(1), 1));
        let (name, unreported, _) = log.report(id(9));
        assert!(name == id(9) && unreported.is_empty() && log.name.is_none());
    }
}
