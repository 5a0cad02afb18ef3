//! The counts of one shard of threads: two sketches per rule, for the current and the previous minute.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::{Span, Timestamp};

use super::client::ClientIdentity;
use super::sketch::{Sketch, SketchRow};
use super::{ObservedCheck, RankBy};

/// Length of a window. A ranking covers the current window and the whole previous one.
const WINDOW: Span = Span::MINUTE;

/// Most rules with sketches of their own; rules with higher numbers share one pair.
const MAX_SEPARATE_RULES: usize = 64;

/// The number of a rule, and a client that it counts.
pub(crate) type RuleClient = (usize, Arc<ClientIdentity>);

/// The counts of the current and of the previous window.
#[derive(Debug, Default)]
pub(crate) struct RecentCounts {
    /// The current window, counted from the epoch.
    window: u64,
    current: WindowSketches,
    previous: WindowSketches,
}

/// Sketches by the number of the rule; the shared pair is under [`MAX_SEPARATE_RULES`].
type WindowSketches = HashMap<usize, SketchPair>;

#[derive(Debug, Default)]
struct SketchPair {
    traffic: Sketch<RuleClient>,
    denials: Sketch<RuleClient>,
}

impl RecentCounts {
    /// Counts a check `weight` times. `client` is called if the client has no row yet; if it returns `None`, the check
    /// is not counted.
    pub(crate) fn add(
        &mut self,
        check: ObservedCheck,
        weight: u64,
        client: impl Fn() -> Option<ClientIdentity>,
    ) {
        self.roll_window(window_of(check.at));
        let pair = self.current.entry(check.number.min(MAX_SEPARATE_RULES)).or_default();
        // Rules that share a sketch do not share rows.
        let key = check.key ^ spread(check.number);
        let found = OnceCell::new();
        let counted = || found.get_or_init(|| Some((check.number, Arc::new(client()?)))).clone();
        pair.traffic.add(key, weight, counted);
        if check.denied {
            pair.denials.add(key, weight, counted);
        }
    }

    /// Clears the counts of a rule, and of the rules that share its sketches.
    pub(crate) fn clear_rule(&mut self, number: usize) {
        self.current.remove(&number.min(MAX_SEPARATE_RULES));
        self.previous.remove(&number.min(MAX_SEPARATE_RULES));
    }

    /// Returns the rows of a rule, or of all rules, in the windows that a ranking at `at` covers. A client may have a row
    /// in each window.
    pub(crate) fn rows(
        &self,
        by: RankBy,
        number: Option<usize>,
        at: Timestamp,
    ) -> impl Iterator<Item = SketchRow<'_, RuleClient>> {
        let now = window_of(at);
        // Windows roll only when a check is counted, so both may be over.
        let windows =
            [(self.window, &self.current), (self.window.saturating_sub(1), &self.previous)];
        let covered =
            windows.into_iter().filter(move |(window, _)| now.saturating_sub(*window) <= 1);
        let pairs = covered.flat_map(|(_, sketches)| sketches.values());
        let sketches = pairs.map(move |pair| match by {
            RankBy::Traffic => &pair.traffic,
            RankBy::Denials => &pair.denials,
        });
        let rows = sketches.flat_map(Sketch::rows);
        rows.filter(move |row| number.is_none_or(|number| number == row.item.0))
    }

    fn roll_window(&mut self, window: u64) {
        // A thread that read the clock before another rolled the window counts in the current one.
        if window <= self.window {
            return;
        }
        let ended = std::mem::take(&mut self.current);
        self.previous = if window == self.window + 1 { ended } else { WindowSketches::default() };
        self.window = window;
    }
}

/// Returns the start of the period that a ranking at `at` covers.
pub(crate) fn period_start(at: Timestamp) -> Timestamp {
    let start = window_of(at).saturating_sub(1).saturating_mul(WINDOW.as_micros());
    Timestamp::from_micros(start)
}

fn window_of(at: Timestamp) -> u64 {
    at.as_micros() / WINDOW.as_micros()
}

fn spread(number: usize) -> u64 {
    (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::block::Subject;

    use super::*;

    fn client(key: u64) -> ClientIdentity {
        let digest = u128::from(key).to_be_bytes();
        ClientIdentity {
            subject: Subject::Client { attributes: ["user".into()].into(), digest },
            name: None,
        }
    }

    fn observe(recent: &mut RecentCounts, number: usize, key: u64, denied: bool, at: Timestamp) {
        recent.add(ObservedCheck { number, key, denied, at }, 1, || Some(client(key)));
    }

    fn counts(
        recent: &RecentCounts,
        by: RankBy,
        number: Option<usize>,
        at: Timestamp,
    ) -> Vec<(usize, u64)> {
        let mut rows: Vec<(usize, u64)> =
            recent.rows(by, number, at).map(|row| (row.item.0, row.count)).collect();
        rows.sort_unstable();
        rows
    }

    #[test]
    fn counts_expire_two_windows_later() {
        let (mut recent, start) =
            (RecentCounts::default(), Timestamp::from_secs(6_000_000_000 / 100));
        assert_eq!(window_of(start) * 60, start.as_secs_ceil());
        let minute = |count| start + WINDOW.checked_mul(count).unwrap();
        observe(&mut recent, 0, 1, false, start);
        observe(&mut recent, 0, 1, true, minute(1));
        let all = |recent: &RecentCounts, at| counts(recent, RankBy::Traffic, None, at);
        assert_eq!(all(&recent, minute(1)), [(0, 1), (0, 1)]);
        assert_eq!(period_start(minute(1)), start);
        // The window expires also without further checks.
        assert_eq!(all(&recent, minute(2)), [(0, 1)]);
        assert_eq!(all(&recent, minute(3)), []);
        observe(&mut recent, 0, 2, false, minute(9));
        assert_eq!(all(&recent, minute(9)), [(0, 1)]);
        assert_eq!(counts(&recent, RankBy::Denials, None, minute(9)), []);
        // A check with an older time is counted in the current window.
        observe(&mut recent, 0, 2, false, minute(8));
        assert_eq!(all(&recent, minute(9)), [(0, 2)]);
    }

    #[test]
    fn rules_in_a_shared_sketch_have_separate_rows() {
        let (mut recent, at) = (RecentCounts::default(), Timestamp::from_secs(60));
        for number in [0, 1, MAX_SEPARATE_RULES, MAX_SEPARATE_RULES + 1] {
            for _ in 0..=number {
                observe(&mut recent, number, 5, number == 1, at);
            }
        }
        for number in [0, 1, MAX_SEPARATE_RULES, MAX_SEPARATE_RULES + 1] {
            let count = number as u64 + 1;
            assert_eq!(counts(&recent, RankBy::Traffic, Some(number), at), [(number, count)]);
        }
        assert_eq!(counts(&recent, RankBy::Traffic, None, at).len(), 4);
        assert_eq!(counts(&recent, RankBy::Denials, None, at), [(1, 2)]);
    }

    #[test]
    fn check_without_a_client_is_not_counted() {
        let (mut recent, at) = (RecentCounts::default(), Timestamp::from_secs(60));
        recent.add(ObservedCheck { number: 0, key: 1, denied: true, at }, 1, || None);
        assert_eq!(counts(&recent, RankBy::Traffic, None, at), []);
    }
}
