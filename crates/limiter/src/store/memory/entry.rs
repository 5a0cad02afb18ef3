//! Entries of the tables: compact ones of 24 bytes for most token buckets, and full ones for all other states.

use std::sync::Arc;

use tidegate_core::{Key, Limit, State, Timestamp};

use super::table::TableEntry;

/// A token bucket in 24 bytes: the key, the number of the limit, and the instant at which the bucket is full.
///
/// The upper 12 of the key's 128 bits select the shard, so the entry omits them. It stores the number of
/// the limit in their place; 0 means a vacant slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CompactEntry {
    /// The number of the limit (12 bits) and the high half of the key (52 bits).
    tag: u64,
    low_half: u64,
    /// The state of the bucket in the form of [`FlatBucket`](tidegate_core::algorithm::FlatBucket).
    pub(crate) due: u64,
}

/// The number of limits that compact entries can refer to. Of the 12-bit numbers, 0 and [`MOVED_OUT`] are reserved.
pub(crate) const MAX_NUMBERED_LIMITS: usize = (1 << 12) - 2;
/// Replaces the number of the limit while a hot key has the state of this entry.
const MOVED_OUT: u16 = (1 << 12) - 1;
/// Bits of the key in a tag; the number of the limit is above them.
const TAG_KEY_BITS: u32 = 52;
const TAG_KEY_MASK: u64 = (1 << TAG_KEY_BITS) - 1;

impl CompactEntry {
    pub(crate) fn new(key: Key, limit_number: u16, due: u64) -> Self {
        let tag = (u64::from(limit_number) << TAG_KEY_BITS) | (high_half(key) & TAG_KEY_MASK);
        Self { tag, low_half: low_half(key), due }
    }

    /// Returns the entry that occupies the slot while a hot key has the state.
    pub(crate) fn moved_out(self) -> Self {
        Self { tag: (u64::from(MOVED_OUT) << TAG_KEY_BITS) | (self.tag & TAG_KEY_MASK), ..self }
    }

    pub(crate) fn is_moved_out(&self) -> bool {
        self.limit_number() == MOVED_OUT
    }

    #[inline]
    pub(crate) fn limit_number(&self) -> u16 {
        (self.tag >> TAG_KEY_BITS) as u16
    }

    #[inline]
    pub(crate) fn has_key(&self, key: Key) -> bool {
        self.low_half == low_half(key)
            && (self.tag & TAG_KEY_MASK) == (high_half(key) & TAG_KEY_MASK)
            && !self.is_vacant()
    }
}

impl TableEntry for CompactEntry {
    fn vacant() -> Self {
        Self { tag: 0, low_half: 0, due: 0 }
    }

    #[inline]
    fn is_vacant(&self) -> bool {
        self.tag >> TAG_KEY_BITS == 0
    }

    #[inline]
    fn low_half(&self) -> u64 {
        self.low_half
    }
}

/// An entry for any state of any limit.
#[derive(Debug)]
pub(crate) struct FullEntry {
    key: Key,
    expires_at: Timestamp,
    /// The limit and the state; `None` in a vacant slot.
    content: Option<(Arc<Limit>, State)>,
}

impl FullEntry {
    pub(crate) fn new(key: Key, limit: Arc<Limit>, mut state: State) -> Self {
        let expires_at = limit.expires_at(&mut state);
        Self { key, expires_at, content: Some((limit, state)) }
    }

    pub(crate) fn has_key(&self, key: Key) -> bool {
        self.key == key && self.content.is_some()
    }

    /// Returns the instant from which on the state equals a fresh one, so that the entry can be removed.
    pub(crate) fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// Runs `work` on the state. A state of another limit is migrated to `limit` first. Returns `None` for a vacant entry.
    pub(crate) fn update<R>(
        &mut self,
        limit: &Arc<Limit>,
        now: Timestamp,
        work: impl FnOnce(&Limit, &mut State) -> R,
    ) -> Option<R> {
        let (current, state) = self.content.as_mut()?;
        if !Arc::ptr_eq(current, limit) && current != limit {
            *state = limit.migrate(current, state, now);
            *current = Arc::clone(limit);
        }
        let result = work(limit, state);
        self.expires_at = limit.expires_at(state);
        Some(result)
    }

    /// Runs `work` on the state under its current limit. Returns `None` for a vacant entry.
    pub(crate) fn update_existing<R>(
        &mut self,
        work: impl FnOnce(&Limit, &mut State) -> R,
    ) -> Option<R> {
        let (current, state) = self.content.as_mut()?;
        let result = work(current, state);
        self.expires_at = current.expires_at(state);
        Some(result)
    }

    /// Drops what no longer counts, and releases its memory.
    pub(crate) fn shrink(&mut self, now: Timestamp) {
        if let Some((limit, state)) = &mut self.content {
            // Every test of a state removes expired parts first.
            limit.admits(state, now, 1);
            state.shrink();
        }
    }
}

impl TableEntry for FullEntry {
    fn vacant() -> Self {
        Self { key: Key::from_u128(0), expires_at: Timestamp::EPOCH, content: None }
    }

    fn is_vacant(&self) -> bool {
        self.content.is_none()
    }

    fn low_half(&self) -> u64 {
        low_half(self.key)
    }

    fn heap_bytes(&self) -> usize {
        self.content.as_ref().map_or(0, |(_, state)| state.heap_use().bytes)
    }
}

/// Returns the low half of a key, which selects the slot in a table.
#[inline]
pub(crate) fn low_half(key: Key) -> u64 {
    key.as_u128() as u64
}

/// Returns the high half of a key, which selects the shard.
#[inline]
pub(crate) fn high_half(key: Key) -> u64 {
    (key.as_u128() >> 64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn compact_entry_has_24_bytes() {
        assert_eq!(size_of::<CompactEntry>(), 24);
    }

    proptest! {
        #[test]
        fn compact_entry_matches_only_its_key_and_returns_its_limit(key: u128, limit in 1u16..4096, due: u64) {
            let entry = CompactEntry::new(Key::from_u128(key), limit, due);
            prop_assert!(entry.has_key(Key::from_u128(key)) && !entry.is_vacant());
            prop_assert_eq!((entry.limit_number(), entry.due), (limit, due));
            prop_assert!(entry.moved_out().has_key(Key::from_u128(key)) && entry.moved_out().is_moved_out());
            prop_assert_eq!(entry.is_moved_out(), limit == 4095);
            for bit in 0..116 {
                prop_assert!(!entry.has_key(Key::from_u128(key ^ (1 << bit))));
            }
        }
    }
}
