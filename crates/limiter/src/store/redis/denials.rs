//! Denials that need not be asked for again.
//!
//! A client that was denied is denied until its wait is over: nobody can give it tokens earlier
//! except by a refund, a forgotten counter or a changed limit. For a second at most the node says so
//! itself. A cheaper request may fit, so it asks; a queue or whatever else can shrink by itself is
//! never remembered.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tidegate_core::{Key, Limit, Outcome, Span, Verdict};
use tokio::time::Instant;

const SHARDS: usize = 64;
/// Most denials kept in one shard. When it is full, those that are over go; then all of them.
const ROOM: usize = 4_096;

#[derive(Debug)]
pub(super) struct Denials {
    longest: Duration,
    shards: Vec<Mutex<HashMap<Key, Denial>>>,
}

#[derive(Debug)]
struct Denial {
    limit: Arc<Limit>,
    cost: u64,
    outcome: Outcome,
    /// When the call was sent that was denied.
    asked: Instant,
    until: Instant,
}

impl Denials {
    pub(super) fn new(longest: Duration) -> Self {
        let mut shards = Vec::new();
        shards.resize_with(SHARDS, Mutex::default);
        Self { longest, shards }
    }

    fn shard(&self, key: Key) -> &Mutex<HashMap<Key, Denial>> {
        let [.., last] = key.as_u128().to_be_bytes();
        &self.shards[usize::from(last) % SHARDS]
    }

    /// What a request is told that can't fit, because one that cost no more did not.
    pub(super) fn find(
        &self,
        key: Key,
        limit: &Arc<Limit>,
        cost: u64,
        now: Instant,
    ) -> Option<Outcome> {
        // What never fits has no wait, and is told so by who knows the limit.
        if self.longest.is_zero() || cost > limit.capacity() {
            return None;
        }
        let shard = self.shard(key).lock();
        let denial = shard.get(&key)?;
        let same = Arc::ptr_eq(&denial.limit, limit) || denial.limit == *limit;
        if !same || cost.max(1) < denial.cost || now >= denial.until {
            return None;
        }
        let passed =
            Span::from_micros(u64::try_from((now - denial.asked).as_micros()).unwrap_or(u64::MAX));
        let mut outcome = denial.outcome;
        outcome.reset_after = outcome.reset_after.saturating_sub(passed);
        // A dearer request waits at least as long; how much longer, the store would have to say.
        if let Verdict::Deny { retry_after: Some(wait) } = &mut outcome.verdict {
            *wait = wait.saturating_sub(passed).max(Span::MICROSECOND);
        }
        Some(outcome)
    }

    /// Remembers a denial of a call sent at `asked`.
    pub(super) fn note(
        &self,
        key: Key,
        limit: &Arc<Limit>,
        cost: u64,
        outcome: &Outcome,
        asked: Instant,
    ) {
        let Some(wait) = outcome.retry_after() else { return };
        let until = asked + Duration::from(wait).min(self.longest);
        let shrinks = matches!(**limit, Limit::LeakyBucket(_) | Limit::Concurrency(_));
        if self.longest.is_zero() || shrinks {
            return;
        }
        let mut shard = self.shard(key).lock();
        if shard.len() >= ROOM && !shard.contains_key(&key) {
            shard.retain(|_, denial| denial.until > asked);
            if shard.len() >= ROOM {
                shard.clear();
            }
        }
        let denial =
            Denial { limit: Arc::clone(limit), cost: cost.max(1), outcome: *outcome, asked, until };
        shard.insert(key, denial);
    }

    /// Forgets what is known of a key.
    pub(super) fn clear(&self, key: Key) {
        self.shard(key).lock().remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Quota};

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn limit(algorithm: Algorithm) -> Arc<Limit> {
        Arc::new(Limit::new(algorithm, Quota::per_minute(10)).unwrap())
    }

    fn denied(seconds: u64) -> Outcome {
        let verdict = Verdict::Deny { retry_after: Some(Span::from_secs(seconds)) };
        Outcome { limit: 10, remaining: 0, reset_after: Span::from_secs(60), verdict }
    }

    #[test]
    fn a_denial_holds_for_its_wait_and_a_second_at_most() {
        let (denials, limit) = (Denials::new(SECOND), limit(Algorithm::TokenBucket));
        let (asked, key) = (Instant::now(), Key::from_u128(1));
        denials.note(key, &limit, 1, &denied(30), asked);
        let later = denials.find(key, &limit, 1, asked + SECOND / 2).unwrap();
        assert_eq!(later.retry_after(), Some(Span::from_millis(29_500)));
        assert_eq!(later.reset_after, Span::from_millis(59_500));
        assert_eq!(denials.find(key, &limit, 1, asked + SECOND), None);
        let mut short = denied(0);
        short.verdict = Verdict::Deny { retry_after: Some(Span::from_millis(100)) };
        denials.note(key, &limit, 1, &short, asked);
        assert_eq!(denials.find(key, &limit, 1, asked + SECOND / 10), None);
    }

    #[test]
    fn only_who_costs_as_much_is_denied_from_memory() {
        let (denials, bucket) = (Denials::new(SECOND), limit(Algorithm::TokenBucket));
        let (now, key) = (Instant::now(), Key::from_u128(1));
        denials.note(key, &bucket, 3, &denied(30), now);
        assert!(denials.find(key, &bucket, 3, now).is_some());
        assert!(denials.find(key, &bucket, 9, now).is_some());
        assert_eq!(denials.find(key, &bucket, 2, now), None, "a cheaper one may fit");
        assert_eq!(denials.find(key, &bucket, 0, now), None, "a look asks for one");
        assert_eq!(denials.find(key, &bucket, 11, now), None, "what never fits has no wait");
        assert_eq!(denials.find(key, &limit(Algorithm::FixedWindow), 3, now), None);
        assert_eq!(denials.find(Key::from_u128(2), &bucket, 3, now), None);
        denials.clear(key);
        assert_eq!(denials.find(key, &bucket, 3, now), None);
    }

    #[test]
    fn a_queue_that_may_shrink_by_itself_is_never_remembered() {
        let (denials, now) = (Denials::new(SECOND), Instant::now());
        let queue = limit(Algorithm::LeakyBucket { queue: 3 });
        let slots = Algorithm::Concurrency { hold: Span::MINUTE };
        let slots = Arc::new(Limit::new(slots, Quota::in_flight(3)).unwrap());
        for limit in [queue, slots] {
            denials.note(Key::from_u128(1), &limit, 1, &denied(30), now);
            assert_eq!(denials.find(Key::from_u128(1), &limit, 1, now), None);
        }
    }

    #[test]
    fn a_full_memory_forgets_rather_than_grows() {
        let (denials, limit) = (Denials::new(SECOND), limit(Algorithm::TokenBucket));
        let now = Instant::now();
        // All of them in one shard.
        for number in 0..2 * ROOM as u128 {
            denials.note(Key::from_u128(number << 8), &limit, 1, &denied(30), now);
        }
        assert!(denials.shards.iter().all(|shard| shard.lock().len() <= ROOM));
    }
}
