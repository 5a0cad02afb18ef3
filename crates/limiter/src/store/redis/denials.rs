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
        if self.longest.is_zero() {
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
        if self.longest.is_zero() || matches!(**limit, Limit::LeakyBucket(_)) {
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
