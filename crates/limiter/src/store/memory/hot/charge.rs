//! Charges to a key that is hot, becomes hot, or was hot.

use tidegate_core::algorithm::FlatBucket;
use tidegate_core::{Key, Outcome, Timestamp};

use super::bucket::{ShareGuard, WholeDecision};
use super::flat_bucket;
use crate::store::Charge;
use crate::store::memory::shard::StoreShard;
use crate::store::memory::{MemoryStore, ShardGuard};

impl MemoryStore {
    /// Charges a key that may be hot, for the thread of a share.
    #[inline(never)]
    pub(crate) fn charge_hot(
        &self,
        charge: &Charge<'_>,
        now: Timestamp,
        share_index: usize,
    ) -> Outcome {
        match self.spend_share(charge, now, share_index) {
            Some((flat, mut share, now)) => {
                flat.charge(share.due(), self.shared.base, now, charge.cost)
            }
            None => self.charge_hot_slow(charge, now, share_index),
        }
    }

    /// Spends tokens of a thread's share. Returns what decides the charge, or `None` if the share can't
    /// decide it.
    ///
    /// The caller charges, because an outcome that is returned as an option is copied once more.
    #[inline]
    fn spend_share<'s>(
        &'s self,
        charge: &'s Charge<'_>,
        now: Timestamp,
        share_index: usize,
    ) -> Option<(&'s FlatBucket, ShareGuard<'s>, Timestamp)> {
        let flat = flat_bucket(charge.limit)?;
        let mut share = self.hot.bucket(charge.key)?.share(share_index);
        let now = share.try_spend(charge, flat, self.shared.base, now)?;
        Some((flat, share, now))
    }

    /// Charges a key that may be hot, after the share could not decide.
    #[cold]
    fn charge_hot_slow(&self, charge: &Charge<'_>, now: Timestamp, share_index: usize) -> Outcome {
        let index = self.shard_index(charge.key);
        let mut shard = match self.shards[index].0.try_lock() {
            Some(shard) => shard,
            None => {
                let shard = self.shards[index].0.lock();
                // The previous holder of the lock may have distributed enough tokens to this share.
                if let Some((flat, mut share, now)) = self.spend_share(charge, now, share_index) {
                    return flat.charge(share.due(), self.shared.base, now, charge.cost);
                }
                shard
            }
        };
        match self.charge_moved_out(&mut shard, charge, now, || share_index) {
            Some(outcome) => outcome,
            None => self.charge_fast(index, shard, charge, now),
        }
    }

    /// Charges the whole bucket of a hot key. Returns `None` if the key is not hot, or has just cooled
    /// down.
    pub(crate) fn charge_moved_out(
        &self,
        shard: &mut StoreShard,
        charge: &Charge<'_>,
        now: Timestamp,
        share_index: impl FnOnce() -> usize,
    ) -> Option<Outcome> {
        if !self.hot.may_contain(charge.key) || !shard.is_moved_out(charge.key) {
            return None;
        }
        let (flag, hot) = (self.hot.flag(charge.key), self.hot.bucket(charge.key)?);
        let decision = hot.charge_whole(share_index(), charge, self.shared.base, now, &flag);
        let Some(WholeDecision { outcome, cooled }) = decision else {
            self.cool_down(shard, charge.key);
            return None;
        };
        if let Some(entry) = cooled {
            shard.move_back(charge.key, entry);
        }
        Some(outcome)
    }

    /// Charges a key while another thread holds the lock of its shard.
    #[cold]
    pub(crate) fn charge_contended(
        &self,
        index: usize,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Outcome {
        let hot = flat_bucket(charge.limit).is_some() && self.hot.count_wait(charge.key, now);
        if hot && let Some(idle) = self.hot.idle_occupant(charge.key, now) {
            // Locking the shard of the idle key cools it down and frees its place.
            drop(self.lock_shard(idle));
        }
        let mut shard = self.shards[index].0.lock();
        if hot {
            self.hot.insert(&mut shard, &self.shared, (charge.key, charge.limit), now);
        }
        self.charge_fast(index, shard, charge, now)
    }

    /// Locks the shard of a key and moves the whole state of the key into it. Returns its index too.
    pub(crate) fn lock_shard(&self, key: Key) -> (usize, ShardGuard<'_>) {
        let index = self.shard_index(key);
        let mut shard = self.shards[index].0.lock();
        self.cool_down(&mut shard, key);
        (index, shard)
    }

    /// Moves the whole state of a key back into its shard, if the key is hot.
    pub(crate) fn cool_down(&self, shard: &mut StoreShard, key: Key) {
        if self.hot.may_contain(key)
            && shard.is_moved_out(key)
            && let Some(hot) = self.hot.bucket(key)
            && let Some(entry) = hot.close(key, self.shared.base, &self.hot.flag(key))
        {
            shard.move_back(key, entry);
        }
    }
}
