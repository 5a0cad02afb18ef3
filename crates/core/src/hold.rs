//! Tokens that a node holds ahead of use, so that it can decide without asking; and those that it owes,
//! because it decided without asking and without holding any.
//!
//! What is held keeps its room: free is the limit less what is used less what is held and not
//! reported. [`Limit::ask`](crate::Limit::ask) decides expiry, reports, a cost and a new hold in one
//! step; why that never admits more than the limit is in `docs/decisions/0011-leases.md`.

mod ask;

use crate::time::{Span, Timestamp};

pub use ask::{Ask, Granted, Owed, Report, Standing};

/// Names a hold: unlike any other of the fleet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct HoldId {
    /// The node that asked for it.
    pub node: u64,
    /// Which of that node's holds it is.
    pub number: u32,
}

/// Tokens that are one node's to spend for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hold {
    /// Its name.
    pub id: HoldId,
    /// How many tokens were granted.
    pub amount: u64,
    /// How many of them are known to be spent.
    pub spent: u64,
    /// When the rest counts as spent, by the store's clock. In a window at most the window's end.
    pub until: Timestamp,
}

impl Hold {
    /// The longest time to live of a hold; one that is asked for longer is granted for this long.
    pub const LONGEST: Span = Span::HOUR;

    /// How much of it keeps its room under a limit of this capacity. A hold from before the limit
    /// was lowered counts for the capacity at the most.
    #[must_use]
    pub fn rest(&self, capacity: u64) -> u64 {
        self.amount.min(capacity).saturating_sub(self.spent.min(capacity))
    }

    /// Whether it holds nothing, and only says what was told under its name.
    #[must_use]
    pub fn is_mark(&self) -> bool {
        self.spent == self.amount
    }

    /// The last instant at which a node can have spent from it.
    fn last_use(&self) -> Timestamp {
        self.until - Span::MICROSECOND
    }
}

/// By how much the store keeps a hold longer than the node may use it: clocks may run differently
/// by one part in a hundred, and a node takes a moment between its clock and its answer.
#[must_use]
pub const fn margin(life: Span) -> Span {
    Span::from_micros((life.as_micros() / 100).saturating_add(10_000))
}

/// How long a node may use what the store keeps for `kept`: that and its [`margin`] fit into it.
#[must_use]
pub const fn usable(kept: Span) -> Span {
    let beyond = kept.as_micros().saturating_sub(10_000);
    // As 100 / 101 of it, without multiplying what may be long.
    Span::from_micros(beyond / 101 * 100 + beyond % 101 * 100 / 101)
}

/// The largest of `want`, `want / 2`, `want / 4`, … that fits into `free` and is at most one token or
/// half of an even share of it: the last tokens of a limit are not kept by who asked first.
#[must_use]
pub fn portion(want: u64, free: u64, nodes: u64) -> u64 {
    let share = free / nodes.max(1).saturating_mul(2);
    let most = share.max(1).min(free);
    let mut portion = want;
    while portion > most {
        portion /= 2;
    }
    portion
}

/// What is held of one client's limit, oldest first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holds {
    list: Vec<Hold>,
}

impl Holds {
    /// The most holds of one client. When there are so many, nothing new is held.
    pub const MOST: usize = 64;

    /// Oldest first.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Hold> {
        self.list.iter()
    }

    /// Whether nothing is held.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }

    /// The hold of that name.
    #[must_use]
    pub fn get(&self, id: HoldId) -> Option<&Hold> {
        self.list.iter().find(|hold| hold.id == id)
    }

    /// How many tokens keep their room under a limit of this capacity: never more than that.
    #[must_use]
    pub fn held(&self, capacity: u64) -> u64 {
        let rests = self.list.iter().map(|hold| hold.rest(capacity));
        rests.fold(0, u64::saturating_add).min(capacity)
    }

    /// Takes out what is over at `now`, oldest first.
    fn expire(&mut self, now: Timestamp, mut over: impl FnMut(&Hold)) {
        self.list.retain(|hold| {
            let is_over = hold.until <= now;
            if is_over {
                over(hold);
            }
            !is_over
        });
    }

    /// Takes a report, and returns how much of it was not known.
    fn settle(&mut self, report: &Report, capacity: u64) -> u64 {
        let Some(place) = self.list.iter().position(|hold| hold.id == report.id) else { return 0 };
        let Some(hold) = self.list.get_mut(place) else { return 0 };
        let before = hold.rest(capacity);
        hold.spent = report.spent.min(hold.amount).max(hold.spent);
        let news = before.saturating_sub(hold.rest(capacity));
        if report.closed || hold.spent == hold.amount {
            self.list.remove(place);
        }
        news
    }

    /// Holds tokens for one more node, unless there are too many holds already. Whether it did.
    fn add(&mut self, hold: Hold) -> bool {
        let has_room = self.list.len() < Self::MOST;
        if has_room {
            self.list.push(hold);
        }
        has_room
    }

    /// Remembers how much was told under a name. What the same node told under others is known to be
    /// heard, or it would have gone on with that name.
    ///
    /// With too many holds already it is not remembered, and would count again if it were told again.
    fn mark(&mut self, mark: Hold) {
        let stale = |hold: &Hold| hold.is_mark() && hold.id.node == mark.id.node;
        self.list.retain(|hold| hold.id != mark.id && !stale(hold));
        self.add(mark);
    }
}

/// From a list that is oldest first. What is more than [`Holds::MOST`] is left out.
impl FromIterator<Hold> for Holds {
    fn from_iter<I: IntoIterator<Item = Hold>>(holds: I) -> Self {
        Self { list: holds.into_iter().take(Self::MOST).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_usable_and_its_margin_fit_into_what_is_kept() {
        for kept in (0..60_000).chain([1_000_000, 3_600_000_000, u64::MAX]) {
            let life = usable(Span::from_micros(kept));
            let used = u128::from(life.as_micros()) + u128::from(margin(life).as_micros());
            assert!(life.is_zero() || used <= u128::from(kept), "{kept}");
        }
        assert_eq!(usable(Span::from_micros(10_000)), Span::ZERO);
        assert_eq!(usable(Span::from_micros(1_020_000)), Span::from_millis(1_000));
    }

    #[test]
    fn a_portion_is_half_of_an_even_share_or_one_token() {
        assert_eq!(portion(100, 1_000, 1), 100);
        assert_eq!(portion(100, 100, 1), 50);
        assert_eq!(portion(100, 100, 4), 12);
        assert_eq!(portion(100, 3, 8), 1);
        assert_eq!(portion(100, 0, 8), 0);
        assert_eq!(portion(0, 100, 0), 0);
        assert_eq!(portion(u64::MAX, u64::MAX, u64::MAX), 1);
    }
}
