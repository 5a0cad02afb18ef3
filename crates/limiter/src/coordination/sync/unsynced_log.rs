//! Usage of one client that one node has admitted and the store has not confirmed.

use smallvec::SmallVec;
use tidegate_core::{LeaseId, Limit, State, Timestamp, UnreportedUsage};

/// Most windows with an entry of their own. The oldest entry is merged into the next one.
const MAX_WINDOWS: usize = 8;

/// Unconfirmed usage, by window.
#[derive(Debug, Default)]
pub(crate) struct UnsyncedLog {
    /// Oldest first.
    entries: LogEntries,
    /// The id of an unconfirmed report. The store keeps a total for each id, so a repeated report counts once.
    report_id: Option<LeaseId>,
}

/// Usage in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogEntry {
    /// The last instant of the window; far in the future for a limit without windows.
    pub(crate) until: Timestamp,
    pub(crate) amount: u64,
}

pub(crate) type LogEntries = SmallVec<[LogEntry; 1]>;

impl UnsyncedLog {
    pub(crate) fn total(&self) -> u64 {
        self.entries.iter().map(|entry| entry.amount).fold(0, u64::saturating_add)
    }

    /// Adds usage in the window that ends at `until`.
    #[inline]
    pub(crate) fn add(&mut self, until: Timestamp, amount: u64) {
        match self.entries.last_mut() {
            Some(entry) if entry.until >= until => {
                entry.amount = entry.amount.saturating_add(amount);
            }
            _ => self.entries.push(LogEntry { until, amount }),
        }
        if self.entries.len() > MAX_WINDOWS {
            let oldest = self.entries.remove(0);
            self.entries.iter_mut().take(1).for_each(|entry| entry.amount += oldest.amount);
        }
    }

    /// Removes usage. Returns `false` if the log no longer has it.
    pub(crate) fn remove(&mut self, until: Timestamp, amount: u64) -> bool {
        let entry = self.entries.iter_mut().find(|entry| entry.until >= until);
        let Some(entry) = entry.filter(|entry| entry.amount >= amount) else { return false };
        entry.amount -= amount;
        true
    }

    /// Returns the id of a report, the usage as running totals, and the entries that it covers. Unconfirmed usage is
    /// reported again under the id of its first report.
    pub(crate) fn report(
        &mut self,
        new_id: LeaseId,
    ) -> (LeaseId, SmallVec<[UnreportedUsage; 1]>, LogEntries) {
        self.entries.retain(|entry| entry.amount > 0);
        if self.entries.is_empty() && self.report_id.is_none() {
            return (new_id, SmallVec::new(), LogEntries::new());
        }
        let report_id = *self.report_id.get_or_insert(new_id);
        let mut total = 0;
        let unreported = self.entries.iter().map(|entry| {
            total += entry.amount;
            UnreportedUsage { at: entry.until, total }
        });
        (report_id, unreported.collect(), self.entries.clone())
    }

    /// Removes entries that the store has confirmed. Later usage is reported under another id.
    pub(crate) fn confirm(&mut self, confirmed: &[LogEntry]) {
        for reported in confirmed {
            let mut rest = reported.amount;
            // An entry may have been merged into a later one since the report.
            for entry in self.entries.iter_mut().filter(|entry| entry.until >= reported.until) {
                let part = rest.min(entry.amount);
                entry.amount -= part;
                rest -= part;
            }
        }
        self.entries.retain(|entry| entry.amount > 0);
        self.report_id = None;
    }

    /// Charges all usage to a state that lacks it, at the store's time.
    pub(crate) fn charge(&self, limit: &Limit, state: &mut State, now: Timestamp) {
        for entry in &self.entries {
            limit.count(state, now, entry.until, entry.amount);
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
    fn unconfirmed_usage_is_reported_again_under_its_id_as_a_total() {
        let mut log = UnsyncedLog::default();
        log.add(at(1), 5);
        let (report_id, unreported, _) = log.report(id(1));
        assert_eq!(
            (report_id, unreported.as_slice()),
            (id(1), &[UnreportedUsage { at: at(1), total: 5 }][..])
        );
        log.add(at(1), 1);
        log.add(at(2), 3);
        let (report_id, unreported, reported) = log.report(id(2));
        let totals =
            [UnreportedUsage { at: at(1), total: 6 }, UnreportedUsage { at: at(2), total: 9 }];
        assert_eq!((report_id, unreported.as_slice()), (id(1), &totals[..]));
        log.add(at(2), 4);
        log.confirm(&reported);
        let (report_id, unreported, _) = log.report(id(3));
        assert_eq!(
            (report_id, unreported.as_slice()),
            (id(3), &[UnreportedUsage { at: at(2), total: 4 }][..])
        );
    }

    #[test]
    fn old_windows_are_merged_and_no_usage_is_lost() {
        let mut log = UnsyncedLog::default();
        (1..=6).for_each(|second| log.add(at(second), second));
        let (_, _, reported) = log.report(id(1));
        (7..=20).for_each(|second| log.add(at(second), second));
        assert_eq!((log.total(), log.entries.len()), ((1..=20).sum::<u64>(), MAX_WINDOWS));
        log.confirm(&reported);
        assert_eq!(log.total(), (7..=20).sum::<u64>());
    }

    #[test]
    fn removed_usage_is_not_reported() {
        let mut log = UnsyncedLog::default();
        log.add(at(1), 5);
        assert!(log.remove(at(1), 5));
        assert!(!log.remove(at(1), 1));
        let (report_id, unreported, _) = log.report(id(9));
        assert!(report_id == id(9) && unreported.is_empty() && log.report_id.is_none());
    }
}
