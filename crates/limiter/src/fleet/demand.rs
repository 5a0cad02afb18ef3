//! How much a client asks for, so that as much is held for it as it will use soon.

use tidegate_core::{Span, Timestamp};

/// How long is counted before it is looked at.
const WINDOW: Span = Span::from_millis(100);
/// How far ahead tokens are held.
const AHEAD: Span = Span::SECOND;

/// A rate that follows what is asked for, in tokens.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Demand {
    /// When counting began.
    since: Timestamp,
    counted: u64,
    /// What came in [`AHEAD`] lately, about.
    ahead: u64,
}

impl Demand {
    /// Counts what is asked for, whether or not there is enough.
    #[inline]
    pub(super) fn note(&mut self, now: Timestamp, cost: u64) {
        if now.since(self.since) >= WINDOW {
            self.turn(now);
        }
        self.counted = self.counted.saturating_add(cost);
    }

    /// How much to hold: what the client will use soon, or nothing if that is less than `few`.
    pub(super) fn ahead(&mut self, now: Timestamp, few: u64) -> u64 {
        if now.since(self.since) >= WINDOW {
            self.turn(now);
        }
        // A client that has just begun is believed at once: what it asked for in one window.
        let most = self.ahead.max(self.counted);
        if most < few { 0 } else { most }
    }

    fn turn(&mut self, now: Timestamp) {
        let passed = u128::from(now.since(self.since).as_micros().max(1));
        let seen = u128::from(self.counted) * u128::from(AHEAD.as_micros()) / passed;
        let seen = u64::try_from(seen).unwrap_or(u64::MAX);
        // Up at once, down by half: who pauses for a moment is not forgotten.
        self.ahead = seen.max(self.ahead / 2).min(seen.saturating_mul(4).max(seen));
        (self.since, self.counted) = (now, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FEW: u64 = 8;

    fn at(millis: u64) -> Timestamp {
        Timestamp::from_secs(1_000) + Span::from_millis(millis)
    }

    /// What is held for a client that asks for one token every so often, after a while.
    fn held(every: Span, count: u64) -> u64 {
        let (mut demand, mut now) = (Demand::default(), at(0));
        for _ in 0..count {
            demand.note(now, 1);
            now = now + every;
        }
        demand.ahead(now, FEW)
    }

    #[test]
    fn a_client_that_comes_seldom_is_held_nothing() {
        assert_eq!(held(Span::from_secs(1_800), 10), 0);
        assert_eq!(held(Span::from_millis(150), 50), 0);
    }

    #[test]
    fn a_busy_one_is_held_what_it_uses_in_a_second() {
        let held = held(Span::from_micros(20), 100_000);
        assert!((40_000..=60_000).contains(&held), "{held}");
    }

    #[test]
    fn one_that_has_just_begun_is_believed_and_one_that_stops_forgotten() {
        let mut demand = Demand::default();
        (0..10).for_each(|_| demand.note(at(0), 1));
        assert_eq!(demand.ahead(at(0), FEW), 10);
        assert!(demand.ahead(at(100), FEW) >= 10);
        assert_eq!(demand.ahead(at(60_000), FEW), 0);
    }
}
