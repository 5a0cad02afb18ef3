//! The two shapes in which one client's state is kept: 24 bytes when it fits, more when it must.

use std::sync::Arc;

use tidegate_core::algorithm::token_bucket::Level;
use tidegate_core::algorithm::{Due, TokenBucket};
use tidegate_core::{Key, Limit, State, Timestamp};

use super::table::Slot;

/// A token bucket in 24 bytes: fingerprint, limit and when it is full.
///
/// Of the key's 128 bits the upper twelve choose the shard; their place is taken by the number of
/// the limit. Zero there means a vacant slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct Narrow {
    tag: u64,
    spread: u64,
    /// Microseconds since the store's base in the upper 48 bits, parts of one in the lower 16.
    due: u64,
}

/// How many limits narrow slots can tell apart.
pub(super) const LIMITS: usize = (1 << 12) - 1;
const TAG_BITS: u32 = 52;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;
const PART_BITS: u32 = 16;

impl Narrow {
    /// Whether buckets of this limit can be narrow: others need finer parts of a microsecond.
    #[inline]
    pub(super) fn suits(bucket: &TokenBucket) -> bool {
        bucket.parts() <= 1 << PART_BITS
    }

    /// A narrow slot for a bucket, if its state fits.
    #[inline]
    pub(super) fn pack(key: Key, limit: u16, level: &Level, base: Timestamp) -> Option<Self> {
        let due = Self::pack_due(level, base)?;
        let tag = (u64::from(limit) << TAG_BITS) | (upper(key) & TAG_MASK);
        Some(Self { tag, spread: spread(key), due })
    }

    #[inline]
    fn pack_due(level: &Level, base: Timestamp) -> Option<u64> {
        let micros = level.due.micros.saturating_sub(base.as_micros());
        let fits = micros < 1 << (64 - PART_BITS)
            && level.due.micros >= base.as_micros()
            && level.due.parts < 1 << PART_BITS
            && level.returned == Due::default();
        fits.then_some((micros << PART_BITS) | level.due.parts)
    }

    #[inline]
    pub(super) fn level(&self, base: Timestamp) -> Level {
        let due = Due {
            micros: base.as_micros() + (self.due >> PART_BITS),
            parts: self.due & ((1 << PART_BITS) - 1),
        };
        Level { due, returned: Due::default() }
    }

    /// Keeps another state of the same client, if it fits.
    #[inline]
    pub(super) fn set(&mut self, limit: u16, level: &Level, base: Timestamp) -> bool {
        let Some(due) = Self::pack_due(level, base) else { return false };
        self.due = due;
        self.tag = (u64::from(limit) << TAG_BITS) | (self.tag & TAG_MASK);
        true
    }

    #[inline]
    pub(super) fn limit(&self) -> u16 {
        (self.tag >> TAG_BITS) as u16
    }

    #[inline]
    pub(super) fn is(&self, key: Key) -> bool {
        self.spread == spread(key)
            && (self.tag & TAG_MASK) == (upper(key) & TAG_MASK)
            && !self.is_vacant()
    }

    /// From when on the slot says nothing.
    pub(super) fn whole_at(&self, base: Timestamp) -> Timestamp {
        let due = self.level(base).due;
        Timestamp::from_micros(due.micros + u64::from(due.parts > 0))
    }
}

impl Slot for Narrow {
    fn vacant() -> Self {
        Self { tag: 0, spread: 0, due: 0 }
    }

    #[inline]
    fn is_vacant(&self) -> bool {
        self.tag >> TAG_BITS == 0
    }

    #[inline]
    fn spread(&self) -> u64 {
        self.spread
    }
}

/// Any state of any limit.
#[derive(Debug)]
pub(super) struct Wide {
    key: Key,
    whole_at: Timestamp,
    held: Option<(Arc<Limit>, State)>,
}

impl Wide {
    pub(super) fn new(key: Key, limit: Arc<Limit>, mut state: State) -> Self {
        let whole_at = limit.whole_at(&mut state);
        Self { key, whole_at, held: Some((limit, state)) }
    }

    pub(super) fn is(&self, key: Key) -> bool {
        self.key == key && self.held.is_some()
    }

    /// From when on the slot says nothing.
    pub(super) fn whole_at(&self) -> Timestamp {
        self.whole_at
    }

    /// Runs `work` on the state, brought under `limit` first if it was under another.
    pub(super) fn visit<R>(
        &mut self,
        limit: &Arc<Limit>,
        now: Timestamp,
        work: impl FnOnce(&Limit, &mut State) -> R,
    ) -> Option<R> {
        let (held, state) = self.held.as_mut()?;
        if !Arc::ptr_eq(held, limit) && held != limit {
            *state = limit.adopt(held, state, now);
            *held = Arc::clone(limit);
        }
        let result = work(limit, state);
        self.whole_at = limit.whole_at(state);
        Some(result)
    }

    /// Runs `work` on the limit that the state is under, and on the state.
    pub(super) fn visit_as_is<R>(
        &mut self,
        work: impl FnOnce(&Limit, &mut State) -> R,
    ) -> Option<R> {
        let (held, state) = self.held.as_mut()?;
        let result = work(held, state);
        self.whole_at = held.whole_at(state);
        Some(result)
    }
}

impl Slot for Wide {
    fn vacant() -> Self {
        Self { key: Key::from_u128(0), whole_at: Timestamp::EPOCH, held: None }
    }

    fn is_vacant(&self) -> bool {
        self.held.is_none()
    }

    fn spread(&self) -> u64 {
        spread(self.key)
    }
}

/// The key's lower half: where it stands in a table.
#[inline]
pub(super) fn spread(key: Key) -> u64 {
    key.as_u128() as u64
}

/// The key's upper half: which shard, and the rest of the fingerprint.
#[inline]
pub(super) fn upper(key: Key) -> u64 {
    (key.as_u128() >> 64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_core::{Meter, Quota, Span};

    use super::*;

    #[test]
    fn a_token_bucket_takes_24_bytes() {
        assert_eq!(size_of::<Narrow>(), 24);
    }

    proptest! {
        #[test]
        fn a_narrow_slot_gives_back_what_it_was_given(
            key: u128, limit in 1u16..4096, micros in 0u64..1 << 49, parts in 0u64..1 << 17,
        ) {
            let (key, base) = (Key::from_u128(key), Timestamp::from_secs(1_780_000_000));
            let due = Due { micros: base.as_micros() + micros, parts };
            let level = Level { due, returned: Due::default() };
            let slot = Narrow::pack(key, limit, &level, base);
            prop_assert_eq!(slot.is_some(), micros < 1 << 48 && parts < 1 << 16);
            if let Some(slot) = slot {
                prop_assert!(slot.is(key) && !slot.is_vacant());
                prop_assert_eq!((slot.limit(), slot.level(base)), (limit, level));
                prop_assert!(!slot.is(Key::from_u128(key.as_u128() ^ 1)));
                prop_assert!(!slot.is(Key::from_u128(key.as_u128() ^ (1 << 100))));
            }
        }
    }

    #[test]
    fn a_bucket_with_refunds_behind_it_is_not_narrow() {
        let bucket = TokenBucket::new(Quota::per_second(10)).unwrap();
        let now = Timestamp::from_secs(1_780_000_000);
        let mut level = Level::default();
        let first = bucket.charge(&mut level, now, 5).slip().unwrap();
        bucket.charge(&mut level, now, 1);
        let key = Key::from_u128(1 << 70);
        assert!(Narrow::pack(key, 1, &level, now).is_some());
        assert!(bucket.refund(&mut level, now + Span::from_millis(1), &first, 5));
        assert!(Narrow::pack(key, 1, &level, now).is_none());
    }
}
