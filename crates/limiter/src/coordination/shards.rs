//! One client's limit in several parts, so that several servers share the load of a busy client.
//!
//! Each request starts with another part. If that part has too few tokens, the others are tried before the client is
//! denied. A cost that fits into no single part is charged to several, all of it or nothing. Each part is exact, and
//! the parts add up to the limit, so the limit is exact too.

mod shard_set;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::{Key, Limit, Outcome, Span};

use self::shard_set::{LimitPart, ShardSet, ShardsResult};
use super::{LocalCharge, LocalCharges};
use crate::limit_shares::LimitShares;
use crate::sharded_map::ShardedMap;
use crate::store::{Charge, ChargeMode, Refund, Share, Store, StoreError};

/// Most attempts to charge one cost to several parts. An attempt fails if concurrent requests take the tokens.
const MAX_ATTEMPTS: usize = 3;

/// Most clients in one shard of the cache. A full shard is emptied.
const MAX_CACHED_CLIENTS: usize = 1_024;

/// Charges limits with `accuracy: sharded`.
pub(crate) struct ShardedLimits {
    limits: LimitShares,
    /// Selects the part that the next request starts with.
    rotation: AtomicU64,
    /// The parts of recent clients. They are cached because placing a key on each server is slow.
    cache: ShardedMap<HashMap<Key, CachedParts>>,
}

struct CachedParts {
    whole: Arc<Limit>,
    parts: Arc<[LimitPart]>,
}

impl ShardedLimits {
    pub(crate) fn new() -> Self {
        // A random start: nodes that start together should not charge the same part at the same time.
        let rotation = AtomicU64::new(RandomState::new().hash_one(0));
        Self { limits: LimitShares::default(), rotation, cache: ShardedMap::default() }
    }

    fn shard_set<S: Store>(
        &self,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        count: u8,
    ) -> ShardSet {
        ShardSet::new(self.parts(store, key, limit, count))
    }

    fn parts<S: Store>(
        &self,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        count: u8,
    ) -> Arc<[LimitPart]> {
        let shard = self.cache.shard(key);
        let is_current = |cached: &&CachedParts| {
            let same = Arc::ptr_eq(&cached.whole, limit) || cached.whole == *limit;
            same && cached.parts.len() == usize::from(count)
        };
        if let Some(cached) = shard.read().get(&key).filter(is_current) {
            return Arc::clone(&cached.parts);
        }
        let part = |(index, key): (u64, Key)| LimitPart {
            key,
            limit: self.limits.share(limit, Share { index, of: count.into() }),
        };
        let parts: Arc<[LimitPart]> = (0..).zip(store.parts(key, count)).map(part).collect();
        let mut shard = shard.write();
        if shard.len() >= MAX_CACHED_CLIENTS {
            shard.clear();
        }
        shard.insert(key, CachedParts { whole: Arc::clone(limit), parts: Arc::clone(&parts) });
        parts
    }

    /// Returns the index of the part to charge first. Each of two alternating clients still starts with every part.
    fn first_part(&self, count: usize) -> usize {
        let position = self.rotation.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let index = u128::try_from(count).map_or(0, |count| (u128::from(position) * count) >> 64);
        usize::try_from(index).unwrap_or(0)
    }

    /// Charges a client, or peeks, within the timeout of the store.
    ///
    /// # Errors
    /// A part is unreachable and the others have too few tokens, or it is unknown whether a part was charged.
    pub(crate) async fn charge<S: Store>(
        &self,
        store: &Arc<S>,
        count: u8,
        charge: &Charge<'_>,
        mode: ChargeMode,
        charges: &mut LocalCharges,
    ) -> Result<Outcome, StoreError> {
        let charging = self.charge_parts(store, count, charge, mode, charges);
        let Some(after) = store.timeout() else { return charging.await };
        // The store applies its timeout to each call; this one bounds all calls together.
        let outcome = tokio::time::timeout(after, charging).await;
        outcome.unwrap_or_else(|_| Err(StoreError::Timeout { store: "store".into(), after }))
    }

    async fn charge_parts<S: Store>(
        &self,
        store: &Arc<S>,
        count: u8,
        charge: &Charge<'_>,
        mode: ChargeMode,
        charges: &mut LocalCharges,
    ) -> Result<Outcome, StoreError> {
        let mut shards = self.shard_set(store, charge.key, charge.limit, count);
        if mode == ChargeMode::Peek {
            let failed = shards.peek(store, charge, |_| true).await;
            return shards.combined_outcome(charge, &ShardsResult::Peeked, failed);
        }
        let (count, mut failed, mut wait) = (shards.parts.len(), None, None::<Span>);
        let first = self.first_part(count);
        for index in (first..count).chain(0..first) {
            if shards.parts[index].limit.capacity() < charge.cost {
                continue;
            }
            let outcome = match shards.charge_one(store, charge, index).await {
                Ok(outcome) => outcome,
                Err(error @ StoreError::Unavailable { .. }) => {
                    // This error means that the part was not charged, so the next one can be tried.
                    failed = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Some(refund_token) = outcome.refund_token() {
                let refund = shards.parts[index].refund(charge.cost, Some(refund_token));
                charges.push(LocalCharge::Stored(refund));
                return shards.combined_outcome(charge, &ShardsResult::Spent, None);
            }
            wait = wait.into_iter().chain(outcome.retry_after()).min();
        }
        if charge.cost > 1 {
            // The first attempt peeks only at parts without an outcome: too small for the whole cost, or unreachable.
            let mut wanted: fn(Option<&Outcome>) -> bool = |outcome| outcome.is_none();
            for _ in 0..MAX_ATTEMPTS {
                failed = shards.peek(store, charge, wanted).await.or(failed);
                if shards.remaining() < charge.cost {
                    break;
                }
                if shards.charge_several(store, charge, charges).await? {
                    return shards.combined_outcome(charge, &ShardsResult::Spent, None);
                }
                wanted = |_| true;
            }
        }
        shards.combined_outcome(charge, &ShardsResult::Denied(wait), failed)
    }

    /// Returns the refunds of the parts that together refund the latest usage, up to the cost of `refund`.
    ///
    /// # Errors
    /// A part is unreachable, so its usage is unknown.
    pub(crate) async fn plan_latest_refund<S: Store>(
        &self,
        store: &Arc<S>,
        count: u8,
        refund: &Refund,
    ) -> Result<Vec<Refund>, StoreError> {
        let Refund { key, limit, .. } = refund;
        let mut shards = self.shard_set(store, *key, limit, count);
        let charge = Charge { key: *key, overflow_key: *key, limit, cost: 0, independent: true };
        if let Some(error) = shards.peek(store, &charge, |_| true).await {
            return Err(error);
        }
        let mut rest = refund.cost;
        let refunds = shards.parts.iter().zip(&shards.outcomes).map(|(part, outcome)| {
            let remaining = outcome.map_or(0, |outcome| outcome.remaining);
            let cost = part.limit.capacity().saturating_sub(remaining).min(rest);
            rest -= cost;
            part.refund(cost, None)
        });
        Ok(refunds.filter(|refund| refund.cost > 0).collect())
    }

    /// Resets the usage of all parts.
    ///
    /// # Errors
    /// The store did not confirm the reset of a part. The others are reset even so.
    pub(crate) async fn reset<S: Store>(
        &self,
        store: &Arc<S>,
        count: u8,
        key: Key,
    ) -> Result<(), StoreError> {
        let mut confirmed = Ok(());
        for part in store.parts(key, count) {
            let reset = store.reset(part).await;
            confirmed = confirmed.and(reset);
        }
        confirmed
    }
}

impl std::fmt::Debug for ShardedLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShardedLimits").finish_non_exhaustive()
    }
}
