//! Keys that several threads fight over.
//!
//! Their buckets are split into purses, one for each thread, so that threads decide without taking
//! turns; `docs/decisions/0012-hot-keys.md` says how and why that is exact. A key is hot once threads
//! have waited for each other on it often enough in a short while, and no longer when only one still
//! comes, or when anybody does something else with it than charge it alone.

mod bucket;
mod purse;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tidegate_core::algorithm::FlatBucket;
use tidegate_core::{Key, Limit, Outcome, Span, Timestamp};

use self::bucket::{Decided, HotBucket, PURSES};
use super::shard::{Common, Shard};
use super::slot::{spread, upper};
use super::{Guard, Lock, MemoryStore};
use crate::store::Charge;

/// How many keys can be hot at the same time; each has one place where it may be.
const PLACES: usize = 64;
/// A key is hot when threads waited for each other on it this often ...
const OFTEN: u32 = 4;
/// ... within this time.
const SHORT_WHILE: Span = Span::from_millis(10);
/// A hot key at which nobody has looked for this long makes room for another.
const LONG_WHILE: Span = Span::SECOND;

/// Which keys are hot.
pub(super) struct HotKeys {
    taken: Taken,
    places: Box<[Place]>,
}

/// A bit for each place that has a key; read by every check, so on a cache line that seldom changes.
#[repr(align(64))]
#[derive(Default)]
struct Taken(AtomicU64);

#[derive(Default)]
struct Place {
    /// The upper half of the key that is here.
    tag: AtomicU64,
    /// Made for the first hot key, and kept for the next.
    bucket: OnceLock<Box<HotBucket>>,
    suspect: Lock<Suspect>,
}

/// A key that threads wait for each other on.
#[derive(Default)]
struct Suspect {
    tag: u64,
    since: Timestamp,
    times: u32,
}

impl Suspect {
    /// Counts one more wait. Whether they are enough.
    fn note(&mut self, key: Key, now: Timestamp) -> bool {
        if self.tag != upper(key) || now.since(self.since) > SHORT_WHILE {
            *self = Self { tag: upper(key), since: now, times: 0 };
        }
        self.times += 1;
        self.times >= OFTEN
    }
}

/// Says at a place which key is there. Put up and taken down together with what it says.
struct Sign<'a> {
    taken: &'a AtomicU64,
    bit: u64,
    tag: &'a AtomicU64,
}

impl Sign<'_> {
    fn put_up(&self, key: Key) {
        self.tag.store(upper(key), Ordering::Relaxed);
        self.taken.fetch_or(self.bit, Ordering::Relaxed);
    }

    fn take_down(&self) {
        self.taken.fetch_and(!self.bit, Ordering::Relaxed);
        self.tag.store(0, Ordering::Relaxed);
    }
}

impl Default for HotKeys {
    fn default() -> Self {
        let places = (0..PLACES).map(|_| Place::default()).collect();
        Self { taken: Taken::default(), places }
    }
}

impl HotKeys {
    #[inline]
    fn index(key: Key) -> usize {
        spread(key) as usize % PLACES
    }

    /// Whether the key may be hot. Who has the lock of its shard and hears no can rely on it.
    #[inline]
    pub(super) fn may_have(&self, key: Key) -> bool {
        self.taken.0.load(Ordering::Relaxed) & (1 << Self::index(key)) != 0
    }

    /// The bucket in which the key probably is.
    #[inline]
    fn bucket(&self, key: Key) -> Option<&HotBucket> {
        let place = &self.places[Self::index(key)];
        if place.tag.load(Ordering::Relaxed) != upper(key) {
            return None;
        }
        place.bucket.get().map(|bucket| &**bucket)
    }

    /// Counts that a thread had to wait for another. Whether the key is hot then.
    fn note_wait(&self, key: Key, now: Timestamp) -> bool {
        // Who would have to wait here, too, need not be counted.
        let suspect = self.places[Self::index(key)].suspect.try_lock();
        suspect.is_some_and(|mut suspect| suspect.note(key, now))
    }

    /// The key at whose place this one would be, if it is long since anybody looked at it.
    fn in_the_way(&self, key: Key, now: Timestamp) -> Option<Key> {
        let bucket = self.places[Self::index(key)].bucket.get()?;
        let (other, watched) = bucket.tenant()?;
        (watched + LONG_WHILE <= now).then_some(other)
    }

    /// Makes a key hot, if its place is vacant and it has a state that can be split.
    fn put(
        &self,
        shard: &mut Shard,
        common: &Common,
        (key, limit): (Key, &Arc<Limit>),
        now: Timestamp,
    ) {
        let hot = self.places[Self::index(key)].bucket.get_or_init(Box::default);
        let lend = || match &**limit {
            Limit::TokenBucket(bucket) => shard.lend(common, key, bucket),
            _ => None,
        };
        hot.move_in((key, limit), now, &self.sign(key), lend);
    }

    fn sign(&self, key: Key) -> Sign<'_> {
        let index = Self::index(key);
        Sign { taken: &self.taken.0, bit: 1 << index, tag: &self.places[index].tag }
    }

    /// The keys that are hot.
    pub(super) fn keys(&self) -> impl Iterator<Item = Key> {
        let taken = self.taken.0.load(Ordering::Relaxed);
        let places = self.places.iter().enumerate().filter(move |(at, _)| taken >> at & 1 != 0);
        places.filter_map(|(_, place)| place.bucket.get()?.tenant().map(|(key, _)| key))
    }

    /// Bytes taken by buckets for hot keys.
    pub(super) fn bytes(&self) -> usize {
        let made = self.places.iter().filter(|place| place.bucket.get().is_some());
        made.count() * size_of::<HotBucket>()
    }
}

impl MemoryStore {
    /// Charges a key that may be hot, for the thread of a purse.
    #[inline(never)]
    pub(super) fn charge_hot(&self, charge: &Charge<'_>, now: Timestamp, purse: usize) -> Outcome {
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
    pub(super) fn charge_lent(
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
    pub(super) fn charge_contended(
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
    pub(super) fn open(&self, key: Key) -> (usize, Guard<'_>) {
        let place = self.place(key);
        let mut shard = self.shards[place].0.lock();
        self.recall(&mut shard, key);
        (place, shard)
    }

    /// Brings all of a key's state back into its shard.
    pub(super) fn recall(&self, shard: &mut Shard, key: Key) {
        if self.hot.may_have(key)
            && shard.has_lent(key)
            && let Some(hot) = self.hot.bucket(key)
            && let Some(slot) = hot.dissolve(key, self.common.base, &self.hot.sign(key))
        {
            shard.put_back(key, slot);
        }
    }
}

/// A limit's numbers for buckets that can be split.
#[inline]
fn flat_of(limit: &Limit) -> Option<&FlatBucket> {
    if let Limit::TokenBucket(bucket) = limit { bucket.flat() } else { None }
}

/// The number of this thread's purses: threads that come after each other have different ones.
#[inline]
pub(super) fn own_purse() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % PURSES);
        }
        own.get()
    })
}
