//! Concurrency: how many are in flight at once, and who holds which slot.
//!
//! Whoever is admitted takes slots and gives them back by name; a holder that dies loses them after
//! `hold`, unless it renews them. Bound: the amount at any instant, as long as holders finish or renew
//! within their hold. Memory grows with the amount, so that is bounded.

use crate::algorithm::{Bound, Limit, Meter, State};
use crate::decision::Slip;
use crate::quota::{Quota, QuotaError};
use crate::time::{Span, Timestamp};

/// The numbers of a limit in flight, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Concurrency {
    quota: Quota,
    hold: Span,
}

/// Slots that were taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// What a release has to name: the instant of taking them, or the next one that no other slot of
    /// the client has or had.
    pub id: Timestamp,
    /// When the holder loses them.
    pub until: Timestamp,
    /// How many.
    pub count: u64,
}

/// The slots in use, by id.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Slots {
    taken: Vec<Slot>,
    used: u64,
    last: Timestamp,
}

impl Slots {
    /// These slots, oldest id first, after `last` was given out as an id.
    #[must_use]
    pub fn new(taken: impl IntoIterator<Item = Slot>, last: Timestamp) -> Self {
        let taken: Vec<Slot> = taken.into_iter().filter(|slot| slot.count > 0).collect();
        let used = taken.iter().map(|slot| slot.count).sum();
        Self { taken, used, last }
    }

    /// The slots in use, oldest id first.
    #[must_use]
    pub fn taken(&self) -> &[Slot] {
        &self.taken
    }

    /// How many are in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used
    }

    /// The id that was given out last. No later one is at or before it, so that who releases twice
    /// never releases somebody else's.
    #[must_use]
    pub fn last(&self) -> Timestamp {
        self.last
    }

    fn place(&self, slip: &Slip) -> Option<usize> {
        self.taken.binary_search_by_key(&slip.at, |slot| slot.id).ok()
    }
}

impl From<Slots> for State {
    fn from(slots: Slots) -> Self {
        Self::Slots(slots)
    }
}

impl Concurrency {
    /// The largest amount: each slot is remembered on its own.
    pub const MAX_AMOUNT: u64 = 10_000;
    /// How long a slot is held unless told otherwise.
    pub const HOLD: Span = Span::MINUTE;
    /// The shortest and the longest hold.
    pub const HOLDS: (Span, Span) = (Span::SECOND, Span::HOUR);

    /// The quota's amount in flight, each of which is lost after `hold`.
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

    /// After how long a holder that does not renew loses its slot.
    #[must_use]
    pub fn hold(&self) -> Span {
        self.hold
    }
}

impl Meter for Concurrency {
    type State = Slots;

    fn own(state: &mut State) -> Option<&mut Slots> {
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

    fn advance(&self, slots: &mut Slots, now: Timestamp) -> Timestamp {
        if slots.taken.iter().any(|slot| slot.until <= now) {
            slots.taken.retain(|slot| slot.until > now);
            slots.used = slots.taken.iter().map(|slot| slot.count).sum();
        }
        now
    }

    fn admits(&self, slots: &Slots, now: Timestamp, cost: u64) -> bool {
        cost <= self.remaining(slots, now)
    }

    fn spend(&self, slots: &mut Slots, now: Timestamp, cost: u64) -> Slip {
        let id = now.max(slots.last + Span::MICROSECOND);
        slots.taken.push(Slot { id, until: now + self.hold, count: cost });
        slots.used += cost;
        slots.last = id;
        self.newest(slots, now)
    }

    fn remaining(&self, slots: &Slots, _: Timestamp) -> u64 {
        self.quota.amount().saturating_sub(slots.used)
    }

    /// The earliest end of a hold that frees enough, though most slots are released before that.
    fn admits_at(&self, slots: &Slots, now: Timestamp, cost: u64) -> Timestamp {
        let mut ends: Vec<(Timestamp, u64)> =
            slots.taken.iter().map(|slot| (slot.until, slot.count)).collect();
        ends.sort_unstable();
        let (mut used, mut instant) = (slots.used, now);
        for (until, count) in ends {
            if cost <= self.quota.amount().saturating_sub(used) {
                break;
            }
            used -= count;
            instant = until;
        }
        instant
    }

    fn full_at(&self, slots: &Slots) -> Timestamp {
        slots.taken.iter().map(|slot| slot.until).max().unwrap_or(Timestamp::EPOCH)
    }

    /// Not before its last id is past: the next one has to be another.
    fn whole_at(&self, slots: &Slots) -> Timestamp {
        if slots.last == Timestamp::EPOCH {
            return self.full_at(slots);
        }
        self.full_at(slots).max(slots.last + Span::MICROSECOND)
    }

    /// Only the slots that the slip names, and only if they are still held.
    fn refund(&self, slots: &mut Slots, _: Timestamp, slip: &Slip, cost: u64) -> bool {
        let Some(place) = slots.place(slip) else {
            return false;
        };
        let Some(slot) = slots.taken.get_mut(place) else {
            return false;
        };
        let freed = cost.min(slot.count);
        slot.count -= freed;
        slots.used -= freed;
        if slot.count == 0 {
            slots.taken.remove(place);
        }
        freed > 0
    }

    fn newest(&self, slots: &Slots, now: Timestamp) -> Slip {
        let newest = slots.taken.last();
        let (at, until) = newest.map_or((now, now), |slot| (slot.id, slot.until));
        Slip { at, until, parts: 0 }
    }

    /// Nothing: who can't name a slot does not hold it, and who does is still at work.
    fn give_back(&self, _: &mut Slots, _: Timestamp, _: u64) -> bool {
        false
    }

    /// Whoever is in flight stays so, under the hold it came with.
    fn adopt(&self, old: &Self, slots: &Slots, now: Timestamp) -> Slots {
        let mut slots = slots.clone();
        old.advance(&mut slots, now);
        slots
    }
}

impl Limit {
    /// Holds slots on, from `now` for the hold of the limit `charged` that they were taken under.
    /// Whether they are still held: what expired or was released is gone for good.
    pub fn renew(&self, state: &mut State, now: Timestamp, charged: &Self, slip: &Slip) -> bool {
        let (Self::Concurrency(meter), Self::Concurrency(charged)) = (self, charged) else {
            return false;
        };
        meter.on(state, |slots| {
            meter.advance(slots, now);
            let place = slots.place(slip);
            let slot = place.and_then(|place| slots.taken.get_mut(place));
            slot.map(|slot| slot.until = slot.until.max(now + charged.hold)).is_some()
        })
    }

    /// Whether what is charged is held until it is released by name.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self, Self::Concurrency(_))
    }
}
