//! Counts the denials of clients, and decides which of them are blocked.

use std::sync::Arc;

use tidegate_core::{Algorithm, Key, Limit, Quota, Timestamp};
use tidegate_rules::Penalty;

use crate::clock::Clock;
use crate::store::Charge;
use crate::store::memory::MemoryStore;

/// The denials of this node's clients, per rule and in windows aligned to the clock.
///
/// A client that is due had that many requests denied within one window, never fewer. A client that continues at such
/// a rate is due at the end of its first whole window at the latest.
#[derive(Debug)]
pub(crate) struct DenialCounter {
    counts: MemoryStore,
}

impl DenialCounter {
    /// Most clients that are counted at a time. When there are more, the rest is not counted: they
    /// are denied all the same, and a block must never be for what others did.
    const MAX_CLIENTS: usize = 100_000;
    /// The key that counts clients without room. It is never read.
    const NOWHERE: Key = Key::from_u128(0);

    pub(crate) fn new(clock: Clock) -> Self {
        Self { counts: MemoryStore::with_max_keys(Self::MAX_CLIENTS, clock) }
    }

    /// Counts a request that `limit` denied to the client with this key. Returns whether it is one too many;
    /// counting then begins anew. Each of `fleet_size` nodes counts its share of a client's denials.
    pub(crate) fn is_due(
        &self,
        key: Key,
        penalty: &Penalty,
        limit: &Limit,
        fleet_size: u64,
        now: Timestamp,
    ) -> bool {
        let quota = Quota::per(penalty.threshold(limit, fleet_size), penalty.within());
        // Both numbers are within a quota's bounds, or there would be no penalty.
        let Ok(limit) = Limit::new(Algorithm::FixedWindow, quota) else { return false };
        let (limit, overflow_key) = (Arc::new(limit), Self::NOWHERE);
        let charge = Charge { key, overflow_key, limit: &limit, cost: 1, independent: true };
        let outcome = self.counts.charge_one(&charge, now);
        // What is counted for several clients together has no refund token.
        let due = outcome.remaining == 0 && outcome.refund_token().is_some();
        if due {
            self.counts.forget_one(key);
        }
        due
    }

    pub(crate) fn forget(&self, key: Key) {
        self.counts.forget_one(key);
    }

    /// Drops what is over from a part of the counts: all of them after `parts` calls.
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
    fn the_last_of_too_many_denials_is_due_and_counting_begins_anew() {
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
    fn denials_that_are_further_apart_do_not_add_up() {
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
    fn a_client_that_there_is_no_room_to_count_is_never_due() {
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
        // Those that were counted made room.
        assert!((0..9).all(|_| !due(late)) && due(late));
    }
}
