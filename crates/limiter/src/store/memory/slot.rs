//! The two shapes in which one client's state is kept: 24 bytes when it fits, more when it must.

use std::sync::Arc;

use tidegate_core::{Key, Limit, State, Timestamp};

use super::table::Slot;

/// A token bucket in 24 bytes: fingerprint, limit and when it is full.
///
/// Of the key's 128 bits the upper twelve choose the shard; their place is taken by the number of
/// the limit. Zero there means a vacant slot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Narrow {
    tag: u64,
    spread: u64,
    /// The bucket's state as its limit's [`FlatBucket`](tidegate_core::algorithm::FlatBucket) counts it.
    pub(crate) due: u64,
}

/// How many limits narrow slots can tell apart.
pub(crate) const LIMITS: usize = (1 << 12) - 2;
/// In place of a limit's number: the state of this slot is elsewhere, with a hot key.
const LENT: u16 = (1 << 12) - 1;
const TAG_BITS: u32 = 52;
const TAG_MASK: u64 = (1 << TAG_BITS) - 1;

impl Narrow {
    pub(crate) fn new(key: Key, limit: u16, due: u64) -> Self {
        let tag = (u64::from(limit) << TAG_BITS) | (upper(key) & TAG_MASK);
        Self { tag, spread: spread(key), due }
    }

    /// The slot that keeps the place of this one while its state is elsewhere.
    pub(crate) fn lent(self) -> Self {
        Self { tag: (u64::from(LENT) << TAG_BITS) | (self.tag & TAG_MASK), ..self }
    }

    pub(crate) fn is_lent(&self) -> bool {
        self.limit() == LENT
    }

    #[inline]
    pub(crate) fn limit(&self) -> u16 {
        (self.tag >> TAG_BITS) as u16
    }

    #[inline]
    pub(crate) fn is(&self, key: Key) -> bool {
        self.spread == spread(key)
            && (self.tag & TAG_MASK) == (upper(key) & TAG_MASK)
            && !self.is_vacant()
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
pub(crate) struct Wide {
    key: Key,
    expires_at: Timestamp,
    held: Option<(Arc<Limit>, State)>,
}

impl Wide {
    pub(crate) fn new(key: Key, limit: Arc<Limit>, mut state: State) -> Self {
        let expires_at = limit.expires_at(&mut state);
        Self { key, expires_at, held: Some((limit, state)) }
    }

    pub(crate) fn is(&self, key: Key) -> bool {
        self.key == key && self.held.is_some()
    }

    /// From when on the slot says nothing.
    pub(crate) fn expires_at(&self) -> Timestamp {
        self.expires_at
    }

    /// Runs `work` on the state, brought under `limit` first if it was under another.
    pub(crate) fn visit<R>(
        &mut self,
        limit: &Arc<Limit>,
        now: Timestamp,
        work: impl FnOnce(&Limit, &mut State) -> R,
    ) -> Option<R> {
        let (held, state) = self.held.as_mut()?;
        if !Arc::ptr_eq(held, limit) && held != limit {
            *state = limit.migrate(held, state, now);
            *held = Arc::clone(limit);
        }
        let result = work(limit, state);
        self.expires_at = limit.expires_at(state);
        Some(result)
    }

    /// Runs `work` on the limit that the state is under, and on the state.
    pub(crate) fn visit_as_is<R>(
        &mut self,
        work: impl FnOnce(&Limit, &mut State) -> R,
    ) -> Option<R> {
        let (held, state) = self.held.as_mut()?;
        let result = work(held, state);
        self.expires_at = held.expires_at(state);
        Some(result)
    }
}

impl Slot for Wide {
    fn vacant() -> Self {
        Self { key: Key::from_u128(0), expires_at: Timestamp::EPOCH, held: None }
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
pub(crate) fn spread(key: Key) -> u64 {
    key.as_u128() as u64
}

/// The key's upper half: which shard, and the rest of the fingerprint.
#[inline]
pub(crate) fn upper(key: Key) -> u64 {
    (key.as_u128() >> 64) as u64
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_token_bucket_takes_24_bytes() {
        assert_eq!(size_of::<Narrow>(), 24);
    }

    proptest! {
        #[test]
        fn a_narrow_slot_knows_its_key_and_limit(key: u128, limit in 1u16..4096, due: u64) {
            let slot = Narrow::new(Key::from_u128(key), limit, due);
            prop_assert!(slot.is(Key::from_u128(key)) && !slot.is_vacant());
            prop_assert_eq!((slot.limit(), slot.due), (limit, due));
            prop_assert!(slot.lent().is(Key::from_u128(key)) && slot.lent().is_lent());
            prop_assert_eq!(slot.is_lent(), limit == 4095);
            for bit in 0..116 {
                prop_assert!(!slot.is(Key::from_u128(key ^ (1 << bit))));
            }
        }
    }
}
