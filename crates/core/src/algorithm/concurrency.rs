//! Concurrency: the number of requests in flight, and the slots that they hold.
//!
//! An admitted request takes slots and releases them by id. Slots that are not renewed expire after
//! `hold`. Bound: the amount at any instant, as long as every holder releases or renews within its hold
//! and the store keeps its data. A renewal of a slot that expired, or that the store lost, inserts it
//! again, above the amount if needed; new requests are denied until they fit. Memory grows with the
//! amount, so the amount is bounded.

use crate::algorithm::{Bound, HeapUse, Meter, State};
use crate::outcome::RefundToken;
use crate::quota::{Quota, QuotaError};
use crate::time::{Span, Timestamp};

/// The validated parameters of a limit in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    quota: Quota,
    hold: Span,
}

/// Slots that were taken together, or the tombstone of slots that were released.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// The id that a release names: the instant of the charge, or the next one that no other slot of the client has or
    /// had.
    pub id: Timestamp,
    /// The time at which they expire; for a tombstone the time of the release.
    pub until: Timestamp,
    /// Number of slots; 0 for a tombstone.
    pub count: u64,
}

impl Slot {
    /// Returns whether it counts at `now`.
    fn is_held(&self, now: Timestamp) -> bool {
        self.until > now && self.count > 0
    }

    fn has_expired(&self, now: Timestamp) -> bool {
        self.until <= now && self.count > 0
    }
}

/// The slots of one client by id: those in use, those that expired lately, and tombstones.
///
/// An absent id was released if the state is complete from that id on. Else it may have expired long
/// ago, or the store lost it, and a renewal inserts it again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SlotSet {
    taken: Vec<Slot>,
    last: Timestamp,
    complete_from: Timestamp,
}

impl SlotSet {
    /// Returns a state that was read from a store; slots are ordered by id.
    #[must_use]
    pub fn new(
        taken: impl IntoIterator<Item = Slot>,
        last: Timestamp,
        complete_from: Timestamp,
    ) -> Self {
        Self { taken: taken.into_iter().collect(), last, complete_from }
    }

    /// Returns all slots and tombstones, oldest id first.
    #[must_use]
    pub fn taken(&self) -> &[Slot] {
        &self.taken
    }

    /// Returns the number of slots in use at `now`.
    #[must_use]
    pub fn used(&self, now: Timestamp) -> u64 {
        self.held(now).map(|slot| slot.count).sum()
    }

    /// Returns the latest id, or the instant of the latest release. Every new id is after it, so that a second release
    /// of an id never releases the slot of another request.
    #[must_use]
    pub fn last(&self) -> Timestamp {
        self.last
    }

    /// Returns the id from which on every slot is known: one that is absent was released. An earlier one may have
    /// expired or been lost.
    #[must_use]
    pub fn complete_from(&self) -> Timestamp {
        self.complete_from
    }

    /// Returns the memory of slots and tombstones.
    pub(crate) fn heap_use(&self) -> HeapUse {
        HeapUse::of::<Slot>(self.taken.len(), self.taken.capacity())
    }

    /// Releases the memory of past slots, if the present ones need less than a quarter of it.
    pub(crate) fn shrink(&mut self) {
        if self.taken.len() < self.taken.capacity() / 4 {
            self.taken.shrink_to(self.taken.len() * 2);
        }
    }

    fn held(&self, now: Timestamp) -> impl Iterator<Item = &Slot> {
        self.taken.iter().filter(move |slot| slot.is_held(now))
    }

    fn find(&self, id: Timestamp) -> Result<usize, usize> {
        self.taken.binary_search_by_key(&id, |slot| slot.id)
    }

    /// Returns whether an absent slot is known to be released.
    fn was_released(&self, id: Timestamp) -> bool {
        self.complete_from <= id && id <= self.last
    }

    /// Returns whether a release has to leave a tombstone: the state may drop this id before a renewal in flight
    /// arrives.
    fn needs_tombstone(&self, id: Timestamp, now: Timestamp) -> bool {
        let newer = self.taken.iter().rev().take_while(|slot| slot.id >= id);
        id < self.complete_from || newer.into_iter().any(|slot| slot.has_expired(now))
    }

    /// Marks the start of a fresh state, which has no record of earlier ids.
    fn begin(&mut self, now: Timestamp) {
        if self.complete_from == Timestamp::EPOCH {
            self.complete_from = now;
        }
    }

    /// Inserts a slot or tombstone of an unknown id.
    fn insert(&mut self, place: usize, slot: Slot, now: Timestamp) {
        self.begin(now);
        self.complete_from = self.complete_from.max(slot.id + Span::MICROSECOND);
        self.last = self.last.max(slot.id);
        self.taken.insert(place, slot);
    }
}

impl From<SlotSet> for State {
    fn from(slots: SlotSet) -> Self {
        Self::Slots(slots)
    }
}

impl Concurrency {
    /// The largest amount: each slot is stored on its own.
    pub const MAX_AMOUNT: u64 = 10_000;
    /// Default time after which a slot expires unless it is renewed.
    pub const HOLD: Span = Span::MINUTE;
    /// The shortest and the longest hold.
    pub const HOLDS: (Span, Span) = Quota::SLOT_TTL_RANGE;
    /// Least time for which a release is recorded, so that a late renewal does not insert the slot again. No store
    /// waits longer for the reply to a renewal.
    pub const RELEASE_MEMORY: Span = Span::MINUTE;
    /// The most expired slots and tombstones of one client. With more, all of them are dropped.
    pub const MAX_EXPIRED: usize = 1_024;
    /// The most slots of one client to which a renewal may add one that is unknown.
    pub const MAX_SLOTS: usize = 20_000;

    /// Returns a limit of the quota's amount in flight, with slots that expire after `hold`.
    ///
    /// # Errors
    /// A quota that is not [in flight](Quota::in_flight), an amount above
    /// [`MAX_AMOUNT`](Self::MAX_AMOUNT), or a hold out of range.
    pub fn new(quota: Quota, hold: Span) -> Result<Self, QuotaError> {
        if quota.explicit_burst().is_some() {
            return Err(QuotaError::NoBurst { algorithm: "concurrency" });
        }
        if !quota.is_in_flight() {
            return Err(QuotaError::NotInFlight { found: quota });
        }
        if quota.amount() > Self::MAX_AMOUNT {
            return Err(QuotaError::TooManySlots { found: quota.amount(), max: Self::MAX_AMOUNT });
        }
        let (shortest, longest) = Self::HOLDS;
        if hold < shortest || hold > longest {
            return Err(QuotaError::Hold { found: hold });
        }
        Ok(Self { quota, hold })
    }

    /// Returns the time after which a slot expires unless it is renewed.
    #[must_use]
    pub fn hold(&self) -> Span {
        self.hold
    }

    /// Renews slots for the hold of the limit `charged` that they were taken under. Returns whether they are held.
    pub(crate) fn renew(
        &self,
        slots: &mut SlotSet,
        now: Timestamp,
        charged: &Self,
        refund_token: &RefundToken,
        cost: u64,
    ) -> bool {
        self.advance(slots, now);
        let (id, until) = (refund_token.at, now + charged.hold);
        let count = cost.min(charged.capacity());
        match slots.find(id) {
            Ok(place) => match slots.taken.get_mut(place).filter(|slot| slot.count > 0) {
                Some(slot) => slot.until = slot.until.max(until),
                None => return false,
            },
            Err(_) if count == 0 || slots.was_released(id) => return false,
            Err(_) if slots.taken.len() >= Self::MAX_SLOTS => return false,
            Err(place) => slots.insert(place, Slot { id, until, count }, now),
        }
        true
    }
}

impl Meter for Concurrency {
    type State = SlotSet;

    fn own_state(state: &mut State) -> Option<&mut SlotSet> {
        if let State::Slots(slots) = state { Some(slots) } else { None }
    }

    fn quota(&self) -> &Quota {
        &self.quota
    }

    fn capacity(&self) -> u64 {
        self.quota.amount()
    }

    fn bound(&self) -> Bound {
        Bound { most: self.quota.amount(), window: Span::ZERO, aligned: None }
    }

    fn advance(&self, slots: &mut SlotSet, now: Timestamp) -> Timestamp {
        let over = slots.taken.iter().filter(|slot| slot.until <= now).count();
        if over > 0 {
            let keep = if over > Self::MAX_EXPIRED { Span::ZERO } else { Self::RELEASE_MEMORY };
            let mut complete_from = slots.complete_from;
            slots.taken.retain(|slot| {
                let keeps = slot.until + keep > now;
                if !keeps && slot.count > 0 {
                    complete_from = complete_from.max(slot.id + Span::MICROSECOND);
                }
                keeps
            });
            slots.complete_from = complete_from;
        }
        now
    }

    fn admits(&self, slots: &SlotSet, now: Timestamp, cost: u64) -> bool {
        cost <= self.remaining(slots, now)
    }

    fn spend(&self, slots: &mut SlotSet, now: Timestamp, cost: u64) -> RefundToken {
        let id = now.max(slots.last + Span::MICROSECOND);
        slots.begin(now);
        slots.taken.push(Slot { id, until: now + self.hold, count: cost });
        slots.last = id;
        self.latest_refund_token(slots, now)
    }

    fn remaining(&self, slots: &SlotSet, now: Timestamp) -> u64 {
        self.quota.amount().saturating_sub(slots.used(now))
    }

    /// Returns the earliest expiry that frees enough slots. Most slots are released before that.
    fn admits_at(&self, slots: &SlotSet, now: Timestamp, cost: u64) -> Timestamp {
        let mut ends: Vec<(Timestamp, u64)> =
            slots.held(now).map(|slot| (slot.until, slot.count)).collect();
        ends.sort_unstable();
        let (mut used, mut instant) = (slots.used(now), now);
        for (until, count) in ends {
            if cost <= self.quota.amount().saturating_sub(used) {
                break;
            }
            used -= count;
            instant = until;
        }
        instant
    }

    fn full_at(&self, slots: &SlotSet) -> Timestamp {
        let held = slots.taken.iter().filter(|slot| slot.count > 0);
        held.map(|slot| slot.until).max().unwrap_or(Timestamp::EPOCH)
    }

    /// Returns the end of [`RELEASE_MEMORY`](Self::RELEASE_MEMORY) after the last slot.
    fn expires_at(&self, slots: &SlotSet) -> Timestamp {
        if slots.last == Timestamp::EPOCH {
            return Timestamp::EPOCH;
        }
        let ends = slots.taken.iter().map(|slot| slot.until);
        ends.fold(slots.last, Timestamp::max) + Self::RELEASE_MEMORY
    }

    /// Releases the slots of the refund token, if they are held.
    fn refund(
        &self,
        slots: &mut SlotSet,
        now: Timestamp,
        refund_token: &RefundToken,
        cost: u64,
    ) -> bool {
        let id = refund_token.at;
        let tombstone = Slot { id, until: now, count: 0 };
        let place = match slots.find(id) {
            Ok(place) => place,
            Err(_) if cost == 0 || slots.was_released(id) => return false,
            Err(place) => {
                slots.insert(place, tombstone, now);
                slots.last = slots.last.max(now);
                return false;
            }
        };
        let keeps_tombstone = slots.needs_tombstone(id, now);
        let Some(slot) = slots.taken.get_mut(place) else { return false };
        let freed = cost.min(slot.count);
        if freed == 0 {
            return false;
        }
        let was_held = slot.is_held(now);
        slot.count -= freed;
        slots.last = slots.last.max(now);
        if slot.count == 0 && keeps_tombstone {
            *slot = tombstone;
        } else if slot.count == 0 {
            slots.taken.remove(place);
        }
        was_held
    }

    fn latest_refund_token(&self, slots: &SlotSet, now: Timestamp) -> RefundToken {
        let newest = slots.taken.last();
        let (at, until) = newest.map_or((now, now), |slot| (slot.id, slot.until));
        RefundToken { at, until, parts: 0 }
    }

    /// Refunds nothing: slots are released by id only, since each belongs to a request in flight.
    fn refund_latest(&self, _: &mut SlotSet, _: Timestamp, _: u64) -> bool {
        false
    }

    /// Keeps all slots with the expiry that they have.
    fn migrate(&self, old: &Self, slots: &SlotSet, now: Timestamp) -> SlotSet {
        let mut slots = slots.clone();
        old.advance(&mut slots, now);
        slots
    }
}
