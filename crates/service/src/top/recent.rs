//! What one group of threads has seen lately: two sketches per rule, forgotten after a while.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::sync::Arc;

use tidegate_core::{Span, Timestamp};

use super::client::Client;
use super::sketch::{Row, Sketch};
use super::{By, Seen};

/// What is shown covers the half under way and the whole one before it.
const HALF: Span = Span::MINUTE;

/// Rules with sketches of their own; those behind them share a pair.
const OWN: usize = 64;

/// A client, and the place of the rule that counts it.
pub(crate) type Counted = (usize, Arc<Client>);

/// Two halves of time, each with what was seen in it.
#[derive(Debug, Default)]
pub(crate) struct Recent {
    /// Which half is under way, counted from the epoch.
    half: u64,
    now: Half,
    before: Half,
}

/// By the place of the rule; the shared pair under [`OWN`].
type Half = HashMap<usize, Pair>;

#[derive(Debug, Default)]
struct Pair {
    traffic: Sketch<Counted>,
    denials: Sketch<Counted>,
}

impl Recent {
    /// Counts a check `weight` times. `client` is asked for when it has no row yet; a check that is of
    /// no one client counts nothing.
    pub(crate) fn add(&mut self, seen: Seen, weight: u64, client: impl Fn() -> Option<Client>) {
        self.turn(half_of(seen.at));
        let pair = self.now.entry(seen.place.min(OWN)).or_default();
        // Rules that share a sketch do not share rows.
        let key = seen.key ^ spread(seen.place);
        let found = OnceCell::new();
        let counted = || found.get_or_init(|| Some((seen.place, Arc::new(client()?)))).clone();
        pair.traffic.add(key, weight, counted);
        if seen.denied {
            pair.denials.add(key, weight, counted);
        }
    }

    /// Forgets what was seen of a rule, and of those that share a pair with it.
    pub(crate) fn forget(&mut self, place: usize) {
        self.now.remove(&place.min(OWN));
        self.before.remove(&place.min(OWN));
    }

    /// The rows of a rule, or of all rules, that are not forgotten at `at`. A client may have one in
    /// each half.
    pub(crate) fn rows(
        &self,
        by: By,
        place: Option<usize>,
        at: Timestamp,
    ) -> impl Iterator<Item = Row<'_, Counted>> {
        let half = half_of(at);
        // No check may have come since a half ended.
        let halves = [(self.half, &self.now), (self.half.saturating_sub(1), &self.before)];
        let lately = halves.into_iter().filter(move |(of, _)| half.saturating_sub(*of) <= 1);
        let pairs = lately.flat_map(|(_, half)| half.values());
        let sketches = pairs.map(move |pair| match by {
            By::Traffic => &pair.traffic,
            By::Denials => &pair.denials,
        });
        let rows = sketches.flat_map(Sketch::rows);
        rows.filter(move |row| place.is_none_or(|place| place == row.item.0))
    }

    fn turn(&mut self, half: u64) {
        // Threads read the time one after another: one that is late goes on with the half under way.
        if half <= self.half {
            return;
        }
        let ended = std::mem::take(&mut self.now);
        self.before = if half == self.half + 1 { ended } else { Half::default() };
        self.half = half;
    }
}

/// From when on what is shown at `at` was counted.
pub(crate) fn since(at: Timestamp) -> Timestamp {
    let start = half_of(at).saturating_sub(1).saturating_mul(HALF.as_micros());
    Timestamp::from_micros(start)
}

fn half_of(at: Timestamp) -> u64 {
    at.as_micros() / HALF.as_micros()
}

fn spread(place: usize) -> u64 {
    (place as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
mod tests {
    use tidegate_limiter::block::Subject;

    use super::*;

    fn client(key: u64) -> Client {
        let digest = u128::from(key).to_be_bytes();
        Client {
            subject: Subject::Client { attributes: ["user".into()].into(), digest },
            name: None,
        }
    }

    fn see(recent: &mut Recent, place: usize, key: u64, denied: bool, at: Timestamp) {
        recent.add(Seen { place, key, denied, at }, 1, || Some(client(key)));
    }

    fn counts(recent: &Recent, by: By, place: Option<usize>, at: Timestamp) -> Vec<(usize, u64)> {
        let mut rows: Vec<(usize, u64)> =
            recent.rows(by, place, at).map(|row| (row.item.0, row.count)).collect();
        rows.sort_unstable();
        rows
    }

    #[test]
    fn what_was_seen_is_forgotten_in_the_second_half_after_it() {
        let (mut recent, start) = (Recent::default(), Timestamp::from_secs(6_000_000_000 / 100));
        assert_eq!(half_of(start) * 60, start.as_secs_ceil());
        let minute = |count| start + HALF.checked_mul(count).unwrap();
        see(&mut recent, 0, 1, false, start);
        see(&mut recent, 0, 1, true, minute(1));
        let all = |recent: &Recent, at| counts(recent, By::Traffic, None, at);
        assert_eq!(all(&recent, minute(1)), [(0, 1), (0, 1)]);
        assert_eq!(since(minute(1)), start);
        // Nobody came since, and it is over all the same.
        assert_eq!(all(&recent, minute(2)), [(0, 1)]);
        assert_eq!(all(&recent, minute(3)), []);
        see(&mut recent, 0, 2, false, minute(9));
        assert_eq!(all(&recent, minute(9)), [(0, 1)]);
        assert_eq!(counts(&recent, By::Denials, None, minute(9)), []);
        // Late by a little, and counted where the others are.
        see(&mut recent, 0, 2, false, minute(8));
        assert_eq!(all(&recent, minute(9)), [(0, 2)]);
    }

    #[test]
    fn rules_keep_their_clients_apart_also_in_a_shared_sketch() {
        let (mut recent, at) = (Recent::default(), Timestamp::from_secs(60));
        for place in [0, 1, OWN, OWN + 1] {
            for _ in 0..=place {
                see(&mut recent, place, 5, place == 1, at);
            }
        }
        for place in [0, 1, OWN, OWN + 1] {
            let count = place as u64 + 1;
            assert_eq!(counts(&recent, By::Traffic, Some(place), at), [(place, count)]);
        }
        assert_eq!(counts(&recent, By::Traffic, None, at).len(), 4);
        assert_eq!(counts(&recent, By::Denials, None, at), [(1, 2)]);
    }

    #[test]
    fn who_is_nobody_is_not_counted() {
        let (mut recent, at) = (Recent::default(), Timestamp::from_secs(60));
        recent.add(Seen { place: 0, key: 1, denied: true, at }, 1, || None);
        assert_eq!(counts(&recent, By::Traffic, None, at), []);
    }
}
