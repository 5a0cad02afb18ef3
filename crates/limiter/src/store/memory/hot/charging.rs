//! The ways of a charge to a key that is hot, becomes so, or was.

use tidegate_core::{Key, Outcome, Timestamp};

use super::super::shard::Shard;
use super::super::{Guard, MemoryStore};
use super::bucket::Decided;
use super::flat_of;
use crate::store::Charge;

impl MemoryStore {
    /// Charges a key that may be hot, for the thread of a purse.
    #[inline(never)]
    pub(crate) fn charge_hot(&self, charge: &Charge<'_>, now: Timestamp, purse: usize) -> Outcome {
        if let Some(flat) = flat_of(charge.limit)
            && let Some(hot) = self.hot.bucket(charge.key)
        {
            let mut purse = hot.purse(purse);
            if let Some(now) = purse.pay(charge, flat, self.common.base, now) {
                return flat.charge(purse.due(), self.common.base, now, charge.cost);
            }
        }
        self.charge_unpaid(charge, now, purse)
    }

    /// Charges a key that may be hot, and whose purse could not decide.
    #[cold]
    fn charge_unpaid(&self, charge: &Charge<'_>, now: Timestamp, purse: usize) -> Outcome {
        let place = self.place(charge.key);
        let mut shard = match self.shards[place].0.try_lock() {
            Some(shard) => shard,
            None => {
                let shard = self.shards[place].0.lock();
                // Who was there before may have handed out what this thread needs.
                if let Some(flat) = flat_of(charge.limit)
                    && let Some(hot) = self.hot.bucket(charge.key)
                    && let mut purse = hot.purse(purse)
                    && let Some(now) = purse.pay(charge, flat, self.common.base, now)
                {
                    return flat.charge(purse.due(), self.common.base, now, charge.cost);
                }
                shard
            }
        };
        match self.charge_lent(&mut shard, charge, now, || purse) {
            Some(outcome) => outcome,
            None => self.charge_in(place, shard, charge, now),
        }
    }

    /// Charges the whole bucket of a key that is hot. `None` if it is not, or is not any more.
    pub(crate) fn charge_lent(
        &self,
        shard: &mut Shard,
        charge: &Charge<'_>,
        now: Timestamp,
        purse: impl FnOnce() -> usize,
    ) -> Option<Outcome> {
        if !self.hot.may_have(charge.key) || !shard.has_lent(charge.key) {
            return None;
        }
        let (sign, hot) = (self.hot.sign(charge.key), self.hot.bucket(charge.key)?);
        let decided = hot.charge_whole(purse(), charge, self.common.base, now, &sign);
        let Some(Decided { outcome, cooled }) = decided else {
            self.recall(shard, charge.key);
            return None;
        };
        if let Some(slot) = cooled {
            shard.put_back(charge.key, slot);
        }
        Some(outcome)
    }

    /// Charges a key whose shard another thread is using.
    #[cold]
    pub(crate) fn charge_contended(
        &self,
        place: usize,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Outcome {
        let hot = flat_of(charge.limit).is_some() && self.hot.note_wait(charge.key, now);
        if hot && let Some(other) = self.hot.in_the_way(charge.key, now) {
            drop(self.open(other));
        }
        let mut shard = self.shards[place].0.lock();
        if hot {
            self.hot.put(&mut shard, &self.common, (charge.key, charge.limit), now);
        }
        self.charge_in(place, shard, charge, now)
    }

    /// The shard of a key, locked, with all of the key's state in it.
    pub(crate) fn open(&self, key: Key) -> (usize, Guard<'_>) {
        let place = self.place(key);
        let mut shard = self.shards[place].0.lock();
        self.recall(&mut shard, key);
        (place, shard)
    }

    /// Brings all of a key's state back into its shard.
    pub(crate) fn recall(&self, shard: &mut Shard, key: Key) {
        if self.hot.may_have(key)
            && shard.has_lent(key)
            && let Some(hot) = self.hot.bucket(key)
            && let Some(slot) = hot.dissolve(key, self.common.base, &self.hot.sign(key))
        {
            shard.put_back(key, slot);
        }
    }
}
