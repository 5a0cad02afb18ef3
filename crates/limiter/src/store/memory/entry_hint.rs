//! The probable address of an entry, for prefetching.

use std::sync::atomic::{AtomicU64, Ordering};

use tidegate_core::Key;

use super::entry::{CompactEntry, low_half};
use super::shard::StoreShard;
use super::table::home_slot;

/// The address and the number of a shard's compact slots, read without the shard's lock.
///
/// Both share one word, so that the hints of a whole store fit the nearest cache. A hint that is stale, or
/// wrong because a number did not fit, only causes a useless prefetch.
#[derive(Default)]
pub(crate) struct EntryHint(AtomicU64);

impl EntryHint {
    const COUNT_BITS: u32 = 16;

    #[inline]
    pub(crate) fn update(&self, shard: &StoreShard) {
        let (address, count) = shard.compact_slots();
        let count = count.min((1 << Self::COUNT_BITS) - 1);
        self.0.store(((address as u64) << Self::COUNT_BITS) | count as u64, Ordering::Relaxed);
    }

    /// Returns the address at which the entry of a key probably is.
    #[inline]
    pub(crate) fn address(&self, key: Key) -> usize {
        let hint = self.0.load(Ordering::Relaxed);
        let count = (hint & ((1 << Self::COUNT_BITS) - 1)) as usize;
        let offset = home_slot(low_half(key), count) * size_of::<CompactEntry>();
        ((hint >> Self::COUNT_BITS) as usize).wrapping_add(offset)
    }
}
