//! Keys that several threads fight over.
//!
//! Their buckets are split into purses, one for each thread, so that threads decide without taking
//! turns; `docs/decisions/0012-hot-keys.md` says how and why that is exact. A key is hot once threads
//! have waited for each other on it often enough in a short while, and no longer when only one still
//! comes, or when anybody does something else with it than charge it alone.

mod bucket;
mod charging;
mod purse;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tidegate_core::algorithm::FlatBucket;
use tidegate_core::{Key, Limit, Span, Timestamp};

use self::bucket::{HotBucket, PURSES};
use super::Lock;
use super::shard::{Common, Shard};
use super::slot::{spread, upper};

/// How many keys can be hot at the same time; each has one place where it may be.
const PLACES: usize = 64;
/// A key is hot when threads waited for each other on it this often ...
const OFTEN: u32 = 4;
/// ... within this time.
const SHORT_WHILE: Span = Span::from_millis(100);
/// A hot key at which nobody has looked for this long makes room for another.
const LONG_WHILE: Span = Span::SECOND;

/// Which keys are hot.
pub(crate) struct HotKeys {
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
    pub(crate) fn may_have(&self, key: Key) -> bool {
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
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        let taken = self.taken.0.load(Ordering::Relaxed);
        let places = self.places.iter().enumerate().filter(move |(at, _)| taken >> at & 1 != 0);
        places.filter_map(|(_, place)| place.bucket.get()?.tenant().map(|(key, _)| key))
    }

    /// Bytes taken by buckets for hot keys.
    pub(crate) fn bytes(&self) -> usize {
        let made = self.places.iter().filter(|place| place.bucket.get().is_some());
        made.count() * size_of::<HotBucket>()
    }
}

/// A limit's numbers for buckets that can be split.
#[inline]
fn flat_of(limit: &Limit) -> Option<&FlatBucket> {
    if let Limit::TokenBucket(bucket) = limit { bucket.flat() } else { None }
}

/// The number of this thread's purses: threads that come after each other have different ones.
#[inline]
pub(crate) fn own_purse() -> usize {
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
