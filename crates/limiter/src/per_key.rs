//! One limit with a bucket per key, for code without a rules file.

use std::sync::Arc;

use tidegate_core::{Key, Limit, Outcome, Scope, Span, Timestamp, Verdict};

use crate::clock::Clock;
use crate::limiter::RefundGuard;
#[cfg(feature = "tower")]
use crate::limiter::{Admission, Receipt};
use crate::store::memory::MemoryStore;
use crate::store::{Charge, Refund, Store};

/// A handle with one limit for each key.
///
/// Made by [`Limiter::per_key`](crate::Limiter::per_key), or by
/// [`Limiter::rule`](crate::Limiter::rule) for one rule of a set. Clones share their buckets.
///
/// ```
/// use tidegate::{Limiter, Quota};
///
/// let api = Limiter::per_key(Quota::per_second(100).burst(200))?;
/// let outcome = api.check("user_42");
/// assert!(outcome.is_allowed());
/// assert_eq!(outcome.remaining, 199);
/// # Ok::<(), tidegate::error::QuotaError>(())
/// ```
#[derive(Debug)]
pub struct PerKey<S = MemoryStore> {
    store: Arc<S>,
    clock: Clock,
    scope: Scope,
    overflow_key: Key,
    limit: Arc<Limit>,
}

impl<S> Clone for PerKey<S> {
    fn clone(&self) -> Self {
        Self {
            store: Arc::clone(&self.store),
            clock: self.clock.clone(),
            scope: self.scope.clone(),
            overflow_key: self.overflow_key,
            limit: Arc::clone(&self.limit),
        }
    }
}

/// The number of keys with memory prefetched together. Processors limit the number of outstanding fetches.
const PREFETCH_BATCH: usize = 16;

impl<S: Store> PerKey<S> {
    pub(crate) fn new(store: Arc<S>, clock: Clock, scope: Scope, limit: Arc<Limit>) -> Self {
        let overflow_key = scope.overflow_key();
        Self { store, clock, scope, overflow_key, limit }
    }

    /// Returns the limit of each key.
    #[must_use]
    pub fn limit(&self) -> &Arc<Limit> {
        &self.limit
    }

    /// Returns the clock of the decisions.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline]
    fn key(&self, key: &[u8]) -> Key {
        self.scope.key_of_value(key)
    }

    #[inline]
    fn charge_of(&self, key: Key, cost: u64) -> Charge<'_> {
        Charge {
            key,
            overflow_key: self.overflow_key,
            limit: &self.limit,
            cost,
            independent: false,
        }
    }
}

impl PerKey<MemoryStore> {
    /// Spends 1 for `key` if it fits.
    #[inline]
    pub fn check(&self, key: impl AsRef<[u8]>) -> Outcome {
        self.charge(key, 1)
    }

    /// Spends `cost` for `key` if it fits; a cost of 0 only peeks.
    #[inline]
    pub fn charge(&self, key: impl AsRef<[u8]>, cost: u64) -> Outcome {
        let key = self.key(key.as_ref());
        self.store.charge_one(&self.charge_of(key, cost), self.clock.now())
    }

    /// Spends 1 for each of `keys` if it fits, in order, all at one instant.
    ///
    /// This is faster than single checks: the clock is read once, and memory is prefetched.
    pub fn check_many<K: AsRef<[u8]>>(&self, keys: &[K]) -> Vec<Outcome> {
        let now = self.clock.now();
        let mut outcomes = Vec::with_capacity(keys.len());
        for batch in keys.chunks(PREFETCH_BATCH) {
            let mut hashed = [self.overflow_key; PREFETCH_BATCH];
            for (key, hashed) in batch.iter().zip(&mut hashed) {
                *hashed = self.key(key.as_ref());
                self.store.prefetch(*hashed);
            }
            let hashed = hashed[..batch.len()].iter();
            outcomes.extend(hashed.map(|key| self.store.charge_one(&self.charge_of(*key, 1), now)));
        }
        outcomes
    }

    /// Returns the outcome that a charge of 1 for `key` would have, and spends nothing.
    pub fn peek(&self, key: impl AsRef<[u8]>) -> Outcome {
        let key = self.key(key.as_ref());
        self.store.peek_one(&self.charge_of(key, 1), self.clock.now())
    }

    /// Refunds a charge of `cost` as far as it still counts. Returns whether anything was refunded.
    ///
    /// The caller must refund each outcome at most once; this is not checked.
    pub fn refund(&self, key: impl AsRef<[u8]>, cost: u64, outcome: &Outcome) -> bool {
        let refund = outcome.refund_token().map(|refund_token| Refund {
            key: self.key(key.as_ref()),
            limit: Arc::clone(&self.limit),
            cost,
            refund_token: Some(refund_token),
        });
        refund.is_some_and(|refund| self.store.refund_one(&refund))
    }

    /// Resets `key`, so that its limit is full again.
    pub fn reset(&self, key: impl AsRef<[u8]>) {
        self.store.reset_one(self.key(key.as_ref()));
    }

    /// Spends `cost` for `key`, and waits until it fits.
    ///
    /// There is no queue: after a wait, the first caller that retries gets the tokens. Only a leaky bucket
    /// has a queue. If the future is dropped while it waits in it, its place is freed if it is the last.
    ///
    /// # Errors
    /// The cost is more than the limit ever admits.
    pub async fn acquire(
        &self,
        key: impl AsRef<[u8]>,
        cost: u64,
    ) -> Result<Outcome, ExceedsCapacity> {
        let key = key.as_ref();
        loop {
            let outcome = self.charge(key, cost);
            // Read after the charge: a wait counted from before it would end too early.
            let now = self.clock.now();
            match outcome.verdict {
                Verdict::Allow { delay: Span::ZERO, .. } => return Ok(outcome),
                Verdict::Allow { delay, refund_token } => {
                    let refunds = refund_token.map(|refund_token| Refund {
                        key: self.key(key),
                        limit: Arc::clone(&self.limit),
                        cost,
                        refund_token: Some(refund_token),
                    });
                    let guard = RefundGuard::new(&self.store, refunds.into_iter().collect());
                    self.clock.sleep_until(now + delay).await;
                    guard.disarm();
                    return Ok(outcome);
                }
                Verdict::Deny { retry_after: Some(wait) } => {
                    self.clock.sleep_until(now + wait).await;
                }
                Verdict::Deny { retry_after: None } => {
                    return Err(ExceedsCapacity { cost, limit: outcome.limit });
                }
            }
        }
    }

    /// Spends 1 for `key` if it fits within a wait of `max_wait`. The admission refunds it if it is dropped
    /// before its start. Without a wait and without slots in flight, nothing is refunded.
    #[cfg(feature = "tower")]
    pub(crate) fn admit(&self, key: impl AsRef<[u8]>, max_wait: Span) -> (Outcome, Admission) {
        let key = self.key(key.as_ref());
        let shortened = self.limit.with_max_wait(max_wait).map(Arc::new);
        let limit = shortened.as_ref().unwrap_or(&self.limit);
        let charge = Charge { limit, ..self.charge_of(key, 1) };
        let outcome = self.store.charge_one(&charge, self.clock.now());
        if outcome.delay().is_zero() && !limit.is_concurrency() {
            return (outcome, Admission::default());
        }
        let refund = |refund_token| Refund {
            key,
            limit: Arc::clone(limit),
            cost: 1,
            refund_token: Some(refund_token),
        };
        let receipt: Receipt = outcome.refund_token().map(refund).into_iter().collect();
        (outcome, Admission::new(&self.store, &self.clock, None, receipt, outcome.delay()))
    }

    /// Returns the store of the handle.
    #[must_use]
    pub fn store(&self) -> &Arc<MemoryStore> {
        &self.store
    }

    /// Returns the time of the handle's clock.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }
}

/// The error for a cost above the capacity of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cost of {cost} never fits a limit of {limit}")]
pub struct ExceedsCapacity {
    /// The requested cost.
    pub cost: u64,
    /// The capacity of the limit.
    pub limit: u64,
}
