//! One client's limit in several parts, so that several servers share one busy client.
//!
//! Parts are charged in turn. One that has not enough left borrows: the others are tried before the
//! client is denied, and a cost that fits into none of them is gathered from several, all of it or
//! nothing. Parts add up to the limit, and each is exact, so the limit is.

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

/// How often it is tried to gather a cost from several parts while others take from them.
const ROUNDS: usize = 3;

/// Most clients of one part of the cache. A full part is emptied.
const MAX_CACHED_CLIENTS: usize = 1_024;

/// Limits in parts.
pub(crate) struct Shards {
    limits: LimitShares,
    turn: AtomicU64,
    /// The parts of recent clients: to find them takes a while.
    known: ShardedMap<HashMap<Key, Known>>,
}

struct Known {
    whole: Arc<Limit>,
    parts: Arc<[LimitPart]>,
}

impl Shards {
    pub(crate) fn new() -> Self {
        // Nodes that start together do not walk in step.
        let turn = AtomicU64::new(RandomState::new().hash_one(0));
        Self { limits: LimitShares::default(), turn, known: ShardedMap::default() }
    }

    fn shard_set<S: Store>(
        &self,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        of: u8,
    ) -> ShardSet {
        ShardSet::new(self.parts(store, key, limit, of))
    }

    fn parts<S: Store>(
        &self,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        of: u8,
    ) -> Arc<[LimitPart]> {
        let shard = self.known.shard(key);
        let fits = |known: &&Known| {
            let same = Arc::ptr_eq(&known.whole, limit) || known.whole == *limit;
            same && known.parts.len() == usize::from(of)
        };
        if let Some(known) = shard.read().get(&key).filter(fits) {
            return Arc::clone(&known.parts);
        }
        let part = |(index, key): (u64, Key)| LimitPart {
            key,
            limit: self.limits.of(limit, Share { index, of: of.into() }),
        };
        let parts: Arc<[LimitPart]> = (0..).zip(store.parts(key, of)).map(part).collect();
        let mut shard = shard.write();
        if shard.len() >= MAX_CACHED_CLIENTS {
            shard.clear();
        }
        shard.insert(key, Known { whole: Arc::clone(limit), parts: Arc::clone(&parts) });
        parts
    }

    /// Where to begin. Two clients that alternate still meet every part.
    fn first(&self, of: usize) -> usize {
        let turn = self.turn.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
        let spread = u128::try_from(of).map_or(0, |of| (u128::from(turn) * of) >> 64);
        usize::try_from(spread).unwrap_or(0)
    }

    /// Charges a client, or looks at it, within the time that the store gives a check.
    ///
    /// # Errors
    /// A part could not be asked, and without it there is not enough; or it is not known whether one was
    /// charged.
    pub(crate) async fn charge<S: Store>(
        &self,
        store: &Arc<S>,
        of: u8,
        charge: &Charge<'_>,
        mode: ChargeMode,
        taken: &mut LocalCharges,
    ) -> Result<Outcome, StoreError> {
        let charging = self.borrow(store, of, charge, mode, taken);
        let Some(after) = store.timeout() else { return charging.await };
        // Each part that is asked has that time; all of them together have no more.
        let told = tokio::time::timeout(after, charging).await;
        told.unwrap_or_else(|_| Err(StoreError::Timeout { store: "store".into(), after }))
    }

    async fn borrow<S: Store>(
        &self,
        store: &Arc<S>,
        of: u8,
        charge: &Charge<'_>,
        mode: ChargeMode,
        taken: &mut LocalCharges,
    ) -> Result<Outcome, StoreError> {
        let mut shards = self.shard_set(store, charge.key, charge.limit, of);
        if mode == ChargeMode::Peek {
            let failed = shards.peek(store, charge, |_| true).await;
            return shards.combined_outcome(charge, &ShardsResult::Peeked, failed);
        }
        let (count, mut failed, mut wait) = (shards.parts.len(), None, None::<Span>);
        let first = self.first(count);
        for place in (first..count).chain(0..first) {
            if shards.parts[place].limit.capacity() < charge.cost {
                continue;
            }
            let outcome = match shards.charge_one(store, charge, place).await {
                Ok(outcome) => outcome,
                Err(error @ StoreError::Unavailable { .. }) => {
                    // Nothing was done there.
                    failed = Some(error);
                    continue;
                }
                Err(error) => return Err(error),
            };
            if let Some(refund_token) = outcome.refund_token() {
                taken.push(LocalCharge::Stored(
                    shards.parts[place].refund(charge.cost, Some(refund_token)),
                ));
                return shards.combined_outcome(charge, &ShardsResult::Spent, None);
            }
            let told = outcome.retry_after();
            wait = wait.into_iter().chain(told).min();
        }
        if charge.cost > 1 {
            // What was heard of a part is fresh enough; those that never have room are looked at.
            let mut wanted: fn(Option<&Outcome>) -> bool = |seen| seen.is_none();
            for _ in 0..ROUNDS {
                failed = shards.peek(store, charge, wanted).await.or(failed);
                if shards.left() < charge.cost {
                    break;
                }
                if shards.charge_several(store, charge, taken).await? {
                    return shards.combined_outcome(charge, &ShardsResult::Spent, None);
                }
                wanted = |_| true;
            }
        }
        shards.combined_outcome(charge, &ShardsResult::Denied(wait), failed)
    }

    /// What is to be told to which part so that up to a cost is given back of what was spent last.
    ///
    /// # Errors
    /// A part could not be asked what was spent from it.
    pub(crate) async fn refunds_of_latest<S: Store>(
        &self,
        store: &Arc<S>,
        of: u8,
        refund: &Refund,
    ) -> Result<Vec<Refund>, StoreError> {
        let Refund { key, limit, .. } = refund;
        let mut shards = self.shard_set(store, *key, limit, of);
        let charge = Charge { key: *key, overflow_key: *key, limit, cost: 0, independent: true };
        if let Some(error) = shards.peek(store, &charge, |_| true).await {
            return Err(error);
        }
        let mut rest = refund.cost;
        let refunds = shards.parts.iter().zip(&shards.seen).map(|(part, seen)| {
            let left = seen.map_or(0, |outcome| outcome.remaining);
            let cost = part.limit.capacity().saturating_sub(left).min(rest);
            rest -= cost;
            part.refund(cost, None)
        });
        Ok(refunds.filter(|refund| refund.cost > 0).collect())
    }

    /// Forgets what was spent from any part.
    ///
    /// # Errors
    /// The store did not confirm it for one of them.
    pub(crate) async fn forget<S: Store>(
        &self,
        store: &Arc<S>,
        of: u8,
        key: Key,
    ) -> Result<(), StoreError> {
        let mut confirmed = Ok(());
        for part in store.parts(key, of) {
            let forgotten = store.forget(part).await;
            confirmed = confirmed.and(forgotten);
        }
        confirmed
    }
}

impl std::fmt::Debug for Shards {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shards").finish_non_exhaustive()
    }
}
