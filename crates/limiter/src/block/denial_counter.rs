//! Counts denials, and decides which clients a penalty blocks.

use std::sync::Arc;

use tidegate_core::{Algorithm, Key, Limit, Quota, Timestamp};
use tidegate_rules::{Penalty, RuleSet};

use crate::clock::Clock;
use crate::store::Charge;
use crate::store::memory::MemoryStore;

/// The denials of this node's clients, per rule and in windows aligned to the clock.
///
/// A penalty is due only if the threshold was reached within one window. For a client that continues at that rate, it
/// is due at the end of the first whole window at the latest.
#[derive(Debug)]
pub(crate) struct DenialCounter {
    counts: MemoryStore,
}

impl DenialCounter {
    /// Most clients that are counted at a time. Further clients are denied but not counted, because counting them
    /// together could block one client for the requests of another.
    const MAX_CLIENTS: usize = 100_000;
    /// The key of clients that are not counted. Its count is never read.
    const OVERFLOW_KEY: Key = Key::from_u128(0);

    /// Returns the counter of a set of rules: `None` if no rule has a penalty, `existing` if there is one.
    pub(crate) fn for_rules(
        rules: &RuleSet,
        existing: Option<&Arc<Self>>,
        clock: &Clock,
    ) -> Option<Arc<Self>> {
        let has_penalties = rules.rules().iter().any(|rule| rule.penalty().is_some());
        let counter = || existing.map_or_else(|| Arc::new(Self::new(clock.clone())), Arc::clone);
        has_penalties.then(counter)
    }

    fn new(clock: Clock) -> Self {
        Self { counts: MemoryStore::with_max_keys(Self::MAX_CLIENTS, clock) }
    }

    /// Counts a denial by `limit` for the client with this key. Returns whether the threshold is reached; the count
    /// then restarts. The threshold is divided by `fleet_size`, because each node counts its own denials.
    pub(crate) fn is_due(
        &self,
        key: Key,
        penalty: &Penalty,
        limit: &Limit,
        fleet_size: u64,
        now: Timestamp,
    ) -> bool {
        let quota = Quota::per(penalty.threshold(limit, fleet_size), penalty.within());
        // A penalty is validated when it is created, so its quota is valid.
        let Ok(limit) = Limit::new(Algorithm::FixedWindow, quota) else { return false };
        let (limit, overflow_key) = (Arc::new(limit), Self::OVERFLOW_KEY);
        let charge = Charge { key, overflow_key, limit: &limit, cost: 1, independent: true };
        let outcome = self.counts.charge_one(&charge, now);
        // A charge to the overflow key has no refund token.
        let due = outcome.remaining == 0 && outcome.refund_token().is_some();
        if due {
            self.counts.reset_one(key);
        }
        due
    }

    /// Resets the count of a client.
    pub(crate) fn reset(&self, key: Key) {
        self.counts.reset_one(key);
    }

    /// Removes expired counts from a part of the counter. `parts` calls cover all of it.
    pub(crate) fn sweep(&self, parts: usize) {
        self.counts.sweep(self.counts.shards().div_ceil(parts.max(1)));
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::Span;
    use tidegate_rules::DenialThreshold;

    use super::*;
    use crate::clock::ManualClock;

    fn ten_in_a_minute() -> (Penalty, Limit) {
        let penalty = Penalty::new(DenialThreshold::Times(2), Span::MINUTE, Span::HOUR).unwrap();
        (penalty, Limit::new(Algorithm::TokenBucket, Quota::per_second(5)).unwrap())
    }

    #[test]
    fn penalty_is_due_at_the_threshold_and_the_count_restarts() {
        let time = ManualClock::default();
        let (counts, now) = (DenialCounter::new(time.clock()), time.clock().now());
        let (penalty, limit) = ten_in_a_minute();
        let due = |key| counts.is_due(Key::from_u128(key), &penalty, &limit, 1, now);
        for _ in 0..3 {
            assert_eq!((0..10).map(|_| due(1)).filter(|due| *due).count(), 1);
        }
        assert!((0..9).all(|_| !due(2)));
        assert!((0..9).all(|_| !due(1)));
        assert!(due(2) && due(1));
    }

    #[test]
    fn denials_of_different_windows_do_not_add_up() {
        let time = ManualClock::default();
        let counts = DenialCounter::new(time.clock());
        let (penalty, limit) = ten_in_a_minute();
        for _ in 0..50 {
            for _ in 0..9 {
                assert!(!counts.is_due(Key::from_u128(1), &penalty, &limit, 1, time.clock().now()));
            }
            time.advance(Span::MINUTE);
        }
    }

    #[test]
    fn client_beyond_the_maximum_is_not_counted() {
        let time = ManualClock::default();
        let counts = DenialCounter { counts: MemoryStore::with_max_keys(2, time.clock()) };
        let (penalty, limit) = ten_in_a_minute();
        let due = |key| counts.is_due(Key::from_u128(key), &penalty, &limit, 1, time.clock().now());
        let (first, second, late) = (1_001, 1_002, 1_003);
        assert!(!due(first) && !due(second));
        assert!((0..1_000).all(|_| !due(late)));
        for counted in [first, second] {
            assert!((0..8).all(|_| !due(counted)) && due(counted));
        }
        // The counts of the first two clients were reset, so another client fits.
        assert!((0..9).all(|_| !due(late)) && due(late));
    }
}
