//! Denials that are repeated without a call to the store.
//!
//! A client that was denied is denied until its wait is over: only a refund, a deleted counter or a changed limit
//! gives it tokens earlier. A node repeats the denial for at most a second. A cheaper request may fit, so it is sent
//! to the store. A limit that can shrink by itself, such as a queue, is never cached.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::{Key, Limit, Outcome, Span, Verdict};
use tokio::time::Instant;

use tidegate_limiter::sharded_map::ShardedMap;

/// Denials of one shard. When it is full, expired ones are removed; without any, all are.
const MAX_PER_SHARD: usize = 4_096;

/// Denials that are repeated without a call to the store.
#[derive(Debug)]
pub(crate) struct DenialCache {
    max_ttl: Duration,
    denials: ShardedMap<HashMap<Key, CachedDenial>>,
}

#[derive(Debug)]
struct CachedDenial {
    limit: Arc<Limit>,
    cost: u64,
    outcome: Outcome,
    /// The time when the denied call was sent.
    sent: Instant,
    until: Instant,
}

impl DenialCache {
    pub(crate) fn new(max_ttl: Duration) -> Self {
        Self { max_ttl, denials: ShardedMap::default() }
    }

    /// Returns the denial of a request that can't fit, because one that cost no more did not.
    pub(crate) fn get(
        &self,
        key: Key,
        limit: &Arc<Limit>,
        cost: u64,
        now: Instant,
    ) -> Option<Outcome> {
        // A cost that never fits is denied without a wait, by the limit itself.
        if self.max_ttl.is_zero() || cost > limit.capacity() {
            return None;
        }
        let shard = self.denials.shard(key).read();
        let denial = shard.get(&key)?;
        let same = Arc::ptr_eq(&denial.limit, limit) || denial.limit == *limit;
        if !same || cost.max(1) < denial.cost || now >= denial.until {
            return None;
        }
        let passed =
            Span::from_micros(u64::try_from((now - denial.sent).as_micros()).unwrap_or(u64::MAX));
        let mut outcome = denial.outcome;
        outcome.reset_after = outcome.reset_after.saturating_sub(passed);
        // A dearer request waits at least as long; how much longer, only the store knows.
        if let Verdict::Deny { retry_after: Some(wait) } = &mut outcome.verdict {
            *wait = wait.saturating_sub(passed).max(Span::MICROSECOND);
        }
        Some(outcome)
    }

    /// Caches the outcome of a call sent at `sent`, if it is a denial.
    pub(crate) fn record(
        &self,
        key: Key,
        limit: &Arc<Limit>,
        cost: u64,
        outcome: &Outcome,
        sent: Instant,
    ) {
        let Some(wait) = outcome.retry_after() else { return };
        let until = sent + Duration::from(wait).min(self.max_ttl);
        let shrinks = matches!(**limit, Limit::LeakyBucket(_) | Limit::Concurrency(_));
        if self.max_ttl.is_zero() || shrinks {
            return;
        }
        let mut shard = self.denials.shard(key).write();
        if shard.len() >= MAX_PER_SHARD && !shard.contains_key(&key) {
            shard.retain(|_, denial| denial.until > sent);
            if shard.len() >= MAX_PER_SHARD {
                shard.clear();
            }
        }
        let denial = CachedDenial {
            limit: Arc::clone(limit),
            cost: cost.max(1),
            outcome: *outcome,
            sent,
            until,
        };
        shard.insert(key, denial);
    }

    /// Removes the denial of a key.
    pub(crate) fn remove(&self, key: Key) {
        self.denials.shard(key).write().remove(&key);
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
    fn denial_is_cached_for_its_wait_and_at_most_a_second() {
        let (denials, limit) = (DenialCache::new(SECOND), limit(Algorithm::TokenBucket));
        let (asked, key) = (Instant::now(), Key::from_u128(1));
        denials.record(key, &limit, 1, &denied(30), asked);
        let later = denials.get(key, &limit, 1, asked + SECOND / 2).unwrap();
        assert_eq!(later.retry_after(), Some(Span::from_millis(29_500)));
        assert_eq!(later.reset_after, Span::from_millis(59_500));
        assert_eq!(denials.get(key, &limit, 1, asked + SECOND), None);
        let mut short = denied(0);
        short.verdict = Verdict::Deny { retry_after: Some(Span::from_millis(100)) };
        denials.record(key, &limit, 1, &short, asked);
        assert_eq!(denials.get(key, &limit, 1, asked + SECOND / 10), None);
    }

    #[test]
    fn cached_denial_applies_to_the_same_or_a_higher_cost_only() {
        let (denials, bucket) = (DenialCache::new(SECOND), limit(Algorithm::TokenBucket));
        let (now, key) = (Instant::now(), Key::from_u128(1));
        denials.record(key, &bucket, 3, &denied(30), now);
        assert!(denials.get(key, &bucket, 3, now).is_some());
        assert!(denials.get(key, &bucket, 9, now).is_some());
        assert_eq!(denials.get(key, &bucket, 2, now), None, "a cheaper one may fit");
        assert_eq!(denials.get(key, &bucket, 0, now), None, "a look asks for one");
        assert_eq!(denials.get(key, &bucket, 11, now), None, "what never fits has no wait");
        assert_eq!(denials.get(key, &limit(Algorithm::FixedWindow), 3, now), None);
        assert_eq!(denials.get(Key::from_u128(2), &bucket, 3, now), None);
        denials.remove(key);
        assert_eq!(denials.get(key, &bucket, 3, now), None);
    }

    #[test]
    fn denial_of_a_limit_that_can_shrink_is_never_cached() {
        let (denials, now) = (DenialCache::new(SECOND), Instant::now());
        let queue = limit(Algorithm::LeakyBucket { queue: 3 });
        let slots = Algorithm::Concurrency { hold: Span::MINUTE };
        let slots = Arc::new(Limit::new(slots, Quota::in_flight(3)).unwrap());
        for limit in [queue, slots] {
            denials.record(Key::from_u128(1), &limit, 1, &denied(30), now);
            assert_eq!(denials.get(Key::from_u128(1), &limit, 1, now), None);
        }
    }

    #[test]
    fn full_cache_evicts_instead_of_growing() {
        let (denials, limit) = (DenialCache::new(SECOND), limit(Algorithm::TokenBucket));
        let now = Instant::now();
        // All of them in one shard.
        for number in 0..2 * MAX_PER_SHARD as u128 {
            denials.record(Key::from_u128(number << 8), &limit, 1, &denied(30), now);
        }
        assert!(denials.denials.shards().iter().all(|shard| shard.read().len() <= MAX_PER_SHARD));
    }
}
