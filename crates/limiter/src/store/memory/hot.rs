//! Hot keys: keys with contention between threads.
//!
//! The bucket of a hot key is divided into thread shares, so that threads decide without waiting for each
//! other. `docs/decisions/0012-hot-keys.md` explains why this is exact. A key becomes hot after
//! [`HOT_AFTER_WAITS`] waits for its shard's lock within [`HOT_WINDOW`]. It cools down when only one
//! thread still uses it, or at any operation other than a charge of this key alone.

mod bucket;
mod charge;
#[cfg(test)]
mod tests;
mod thread_share;

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use tidegate_core::algorithm::FlatBucket;
use tidegate_core::{Key, Limit, Span, Timestamp};

use self::bucket::{HotBucket, SHARES_PER_KEY};
use super::SpinLock;
use super::entry::{high_half, low_half};
use super::shard::{StoreShard, StoreShared};

/// Keys that can be hot at the same time. The hash of a key selects its only possible place.
const MAX_HOT_KEYS: usize = 64;
/// A key becomes hot after this many waits within [`HOT_WINDOW`].
const HOT_AFTER_WAITS: u32 = 4;
/// The time in which waits for a key are counted.
const HOT_WINDOW: Span = Span::from_millis(100);
/// If another key needs the place of a hot key, the hot key is evicted this long after the end of its
/// activity window.
const IDLE_EVICT_AFTER: Span = Span::SECOND;

/// The hot keys of a store.
pub(crate) struct HotKeys {
    occupied: OccupiedPlaces,
    places: Box<[HotPlace]>,
}

/// One bit per place, set while a key occupies it. Every check reads it, so it has its own cache line,
/// which seldom changes.
#[repr(align(64))]
#[derive(Default)]
struct OccupiedPlaces(AtomicU64);

/// A place for one hot key at a time.
#[derive(Default)]
struct HotPlace {
    /// The high half of the key that occupies the place, or 0.
    tag: AtomicU64,
    /// Allocated for the first hot key and reused for the next.
    bucket: OnceLock<Box<HotBucket>>,
    contention: SpinLock<ContentionCounter>,
}

/// Counts how often threads waited for one key in the current window.
#[derive(Default)]
struct ContentionCounter {
    tag: u64,
    since: Timestamp,
    waits: u32,
}

impl ContentionCounter {
    /// Counts a wait. Returns whether the key has enough waits to become hot.
    fn count(&mut self, key: Key, now: Timestamp) -> bool {
        if self.tag != high_half(key) || now.since(self.since) > HOT_WINDOW {
            *self = Self { tag: high_half(key), since: now, waits: 0 };
        }
        self.waits += 1;
        self.waits >= HOT_AFTER_WAITS
    }
}

/// Marks a place as occupied by a key. Changed only under the lock of the place's bucket state.
struct HotFlag<'a> {
    occupied: &'a AtomicU64,
    bit: u64,
    tag: &'a AtomicU64,
}

impl HotFlag<'_> {
    fn set(&self, key: Key) {
        self.tag.store(high_half(key), Ordering::Relaxed);
        self.occupied.fetch_or(self.bit, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.occupied.fetch_and(!self.bit, Ordering::Relaxed);
        self.tag.store(0, Ordering::Relaxed);
    }
}

impl Default for HotKeys {
    fn default() -> Self {
        let places = (0..MAX_HOT_KEYS).map(|_| HotPlace::default()).collect();
        Self { occupied: OccupiedPlaces::default(), places }
    }
}

impl HotKeys {
    #[inline]
    fn index(key: Key) -> usize {
        low_half(key) as usize % MAX_HOT_KEYS
    }

    /// Returns whether the key may be hot. While the caller holds the lock of the key's shard, `false` is
    /// certain.
    #[inline]
    pub(crate) fn may_contain(&self, key: Key) -> bool {
        self.occupied.0.load(Ordering::Relaxed) & (1 << Self::index(key)) != 0
    }

    /// Returns the bucket that probably has the key.
    #[inline]
    fn bucket(&self, key: Key) -> Option<&HotBucket> {
        let place = &self.places[Self::index(key)];
        if place.tag.load(Ordering::Relaxed) != high_half(key) {
            return None;
        }
        place.bucket.get().map(|bucket| &**bucket)
    }

    /// Counts that a thread waited for another. Returns whether the key should become hot.
    fn count_wait(&self, key: Key, now: Timestamp) -> bool {
        // If this lock is taken too, the wait is not counted: the counter must not add contention.
        let contention = self.places[Self::index(key)].contention.try_lock();
        contention.is_some_and(|mut contention| contention.count(key, now))
    }

    /// Returns the key that occupies the place of this one, if it has been idle for
    /// [`IDLE_EVICT_AFTER`].
    fn idle_occupant(&self, key: Key, now: Timestamp) -> Option<Key> {
        let bucket = self.places[Self::index(key)].bucket.get()?;
        let (occupant, window_ends) = bucket.occupant()?;
        (window_ends + IDLE_EVICT_AFTER <= now).then_some(occupant)
    }

    /// Makes a key hot, if its place is free and its state is a compact entry under this limit.
    fn insert(
        &self,
        shard: &mut StoreShard,
        shared: &StoreShared,
        (key, limit): (Key, &Arc<Limit>),
        now: Timestamp,
    ) {
        let hot = self.places[Self::index(key)].bucket.get_or_init(Box::default);
        let move_out = || match &**limit {
            Limit::TokenBucket(bucket) => shard.move_out(shared, key, bucket),
            _ => None,
        };
        hot.move_in((key, limit), now, &self.flag(key), move_out);
    }

    fn flag(&self, key: Key) -> HotFlag<'_> {
        let index = Self::index(key);
        HotFlag { occupied: &self.occupied.0, bit: 1 << index, tag: &self.places[index].tag }
    }

    /// Returns the hot keys.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> {
        let occupied = self.occupied.0.load(Ordering::Relaxed);
        let places = self.places.iter().enumerate();
        let places = places.filter(move |(index, _)| occupied >> index & 1 != 0);
        places.filter_map(|(_, place)| place.bucket.get()?.occupant().map(|(key, _)| key))
    }

    /// Returns the size of all allocated buckets of hot keys.
    pub(crate) fn bytes(&self) -> usize {
        let allocated = self.places.iter().filter(|place| place.bucket.get().is_some());
        allocated.count() * size_of::<HotBucket>()
    }
}

/// Returns the compact form of a limit, if it has one. Only such buckets can be divided.
#[inline]
fn flat_bucket(limit: &Limit) -> Option<&FlatBucket> {
    if let Limit::TokenBucket(bucket) = limit { bucket.flat() } else { None }
}

/// Returns the index of this thread's share in every hot bucket. Threads get indices in turn.
#[inline]
pub(crate) fn thread_share_index() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static OWN: Cell<usize> = const { Cell::new(usize::MAX) };
    }
    OWN.with(|own| {
        if own.get() == usize::MAX {
            own.set(NEXT.fetch_add(1, Ordering::Relaxed) % SHARES_PER_KEY);
        }
        own.get()
    })
}
