//! What one node has admitted for one client, and the store is not known to know.

use smallvec::SmallVec;
use tidegate_core::{HoldId, Limit, Owed, State, Timestamp};

/// The most windows that are kept apart; older ones count with the next.
const MOST: usize = 8;

/// Admitted here and not known there.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    /// Oldest first.
    lines: Lines,
    /// The name under which some of it was told, as long as nobody confirmed it.
    name: Option<HoldId>,
}

/// What was admitted in one window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The last instant of that window; far away if there are none.
    pub(super) until: Timestamp,
    pub(super) amount: u64,
}

pub(super) type Lines = SmallVec<[Line; 1]>;

impl Ledger {
    pub(super) fn total(&self) -> u64 {
        self.lines.iter().map(|line| line.amount).fold(0, u64::saturating_add)
    }

    /// Writes down what was admitted in the window that lasts until then.
    #[inline]
    pub(super) fn add(&mut self, until: Timestamp, amount: u64) {
        match self.lines.last_mut() {
            Some(line) if line.until >= until => line.amount = line.amount.saturating_add(amount),
            _ => self.lines.push(Line { until, amount }),
        }
        if self.lines.len() > MOST {
            let oldest = self.lines.remove(0);
            self.lines.iter_mut().take(1).for_each(|line| line.amount += oldest.amount);
        }
    }

    /// Takes back what was written down a moment ago. Whether it is still there.
    pub(super) fn take_back(&mut self, until: Timestamp, amount: u64) -> bool {
        let line = self.lines.iter_mut().find(|line| line.until >= until);
        let Some(line) = line.filter(|line| line.amount >= amount) else { return false };
        line.amount -= amount;
        true
    }

    /// What to tell the store, under which name, and which lines that is. All that was not confirmed is told
    /// again, as totals.
    pub(super) fn tell(&mut self, fresh: HoldId) -> (HoldId, SmallVec<[Owed; 1]>, Lines) {
        self.lines.retain(|line| line.amount > 0);
        if self.lines.is_empty() && self.name.is_none() {
            return (fresh, SmallVec::new(), Lines::new());
        }
        let name = *self.name.get_or_insert(fresh);
        let mut total = 0;
        let owed = self.lines.iter().map(|line| {
            total += line.amount;
            Owed { at: line.until, total }
        });
        (name, owed.collect(), self.lines.clone())
    }

    /// The store knows of these lines. What came since is told under another name.
    pub(super) fn confirm(&mut self, told: &[Line]) {
        for known in told {
            let mut open = known.amount;
            // Lines may have been put together since, into a later one.
            for line in self.lines.iter_mut().filter(|line| line.until >= known.until) {
                let part = open.min(line.amount);
                line.amount -= part;
                open -= part;
            }
        }
        self.lines.retain(|line| line.amount > 0);
        self.name = None;
    }

    /// Counts all of it on a state that does not have it, at the store's time.
    pub(super) fn count(&self, limit: &Limit, state: &mut State, now: Timestamp) {
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

    fn id(number: u32) -> HoldId {
        HoldId { node: 1, number }
    }

    #[test]
    fn what_was_not_confirmed_is_told_again_under_its_name_as_a_total() {
        let mut ledger = Ledger::default();
        ledger.add(at(1), 5);
        let (name, owed, _) = ledger.tell(id(1));
        assert_eq!((name, owed.as_slice()), (id(1), &[Owed { at: at(1), total: 5 }][..]));
        ledger.add(at(1), 1);
        ledger.add(at(2), 3);
        let (name, owed, told) = ledger.tell(id(2));
        let totals = [Owed { at: at(1), total: 6 }, Owed { at: at(2), total: 9 }];
        assert_eq!((name, owed.as_slice()), (id(1), &totals[..]));
        ledger.add(at(2), 4);
        ledger.confirm(&told);
        let (name, owed, _) = ledger.tell(id(3));
        assert_eq!((name, owed.as_slice()), (id(3), &[Owed { at: at(2), total: 4 }][..]));
    }

    #[test]
    fn many_windows_are_put_together_and_nothing_is_lost() {
        let mut ledger = Ledger::default();
        (1..=6).for_each(|second| ledger.add(at(second), second));
        let (_, _, told) = ledger.tell(id(1));
        (7..=20).for_each(|second| ledger.add(at(second), second));
        assert_eq!((ledger.total(), ledger.lines.len()), ((1..=20).sum::<u64>(), MOST));
        ledger.confirm(&told);
        assert_eq!(ledger.total(), (7..=20).sum::<u64>());
    }

    #[test]
    fn what_is_taken_back_is_not_told() {
        let mut ledger = Ledger::default();
        ledger.add(at(1), 5);
        assert!(ledger.take_back(at(1), 5));
        assert!(!ledger.take_back(at(1), 1));
        let (name, owed, _) = ledger.tell(id(9));
        assert!(name == id(9) && owed.is_empty() && ledger.name.is_none());
    }
}
