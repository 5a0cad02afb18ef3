//! One part of the store: its tables, and room for its share of the keys.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tidegate_core::algorithm::TokenBucket;
use tidegate_core::{Key, Limit, Meter, Quota, Span, State, Timestamp};

use super::slot::{LIMITS, Narrow, Wide, spread};
use super::table::Table;

/// What every shard needs to know.
#[derive(Debug)]
pub(crate) struct Common {
    /// Narrow slots count time from here.
    pub(crate) base: Timestamp,
    /// Most keys in one shard.
    pub(crate) room: usize,
    /// Keys that were dropped because they no longer said anything.
    pub(crate) expired: AtomicU64,
    limits: boxcar::Vec<TokenBucket>,
    numbers: RwLock<HashMap<Quota, u16>>,
}

impl Common {
    pub(crate) fn new(base: Timestamp, room: usize) -> Self {
        let limits = boxcar::Vec::new();
        Self { base, room, expired: AtomicU64::new(0), limits, numbers: RwLock::default() }
    }

    /// Counts keys that were dropped because they no longer said anything.
    fn note_expired(&self, keys: usize) {
        if keys > 0 {
            self.expired.fetch_add(keys as u64, Ordering::Relaxed);
        }
    }

    /// The number of a limit, if it has one or can still get one.
    fn number(&self, bucket: &TokenBucket) -> Option<u16> {
        // Most stores know a handful of limits, and looking at those takes no lock.
        let first = self.limits.iter().take(8);
        if let Some((place, _)) =
            first.into_iter().find(|(_, known)| known.quota() == bucket.quota())
        {
            return u16::try_from(place + 1).ok();
        }
        let known = self.numbers.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = known.get(bucket.quota()) {
            return Some(number);
        }
        drop(known);
        let mut numbers = self.numbers.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(&number) = numbers.get(bucket.quota()) {
            return Some(number);
        }
        if numbers.len() == LIMITS {
            return None;
        }
        let number = u16::try_from(self.limits.push(*bucket) + 1).ok()?;
        numbers.insert(*bucket.quota(), number);
        Some(number)
    }

    #[inline]
    fn limit(&self, number: u16) -> Option<&TokenBucket> {
        self.limits.get(usize::from(number).wrapping_sub(1))
    }

    /// The limit of a narrow slot, and its state in the exact form.
    fn exact(&self, slot: &Narrow) -> Option<(Limit, State)> {
        let bucket = self.limit(slot.limit())?;
        let level = bucket.flat()?.level(slot.due, self.base);
        Some((Limit::TokenBucket(*bucket), State::Tokens(level)))
    }

    /// A slot for a state, if it has a narrow one.
    fn narrow(&self, key: Key, limit: &Limit, state: &State) -> Option<Narrow> {
        let (Limit::TokenBucket(bucket), State::Tokens(level)) = (limit, state) else {
            return None;
        };
        let due = bucket.flat()?.flatten(level, self.base)?;
        Some(Narrow::new(key, self.number(bucket)?, due))
    }

    /// From when on a narrow slot says nothing. One whose state is elsewhere stays.
    fn expires_at(&self, slot: &Narrow) -> Timestamp {
        if slot.is_lent() {
            return Timestamp::from_micros(u64::MAX - GRACE.as_micros());
        }
        let flat = self.limit(slot.limit()).and_then(TokenBucket::flat);
        flat.map_or(Timestamp::EPOCH, |flat| flat.expires_at(slot.due, self.base))
    }
}

/// There is no room for a newcomer: everything kept is still needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

/// How long a bucket stays after it is full again, as long as there is room. Who comes every now and
/// then finds it in place instead of making it anew each time.
const GRACE: Span = Span::from_secs(10);

#[derive(Debug, Default)]
pub(crate) struct Shard {
    narrow: Table<Narrow>,
    /// Behind a pointer, so that a shard and its lock fit one cache line.
    wide: Option<Box<Table<Wide>>>,
    /// Nothing kept is over before this instant, as far as the last look at everything told.
    quiet_until: Timestamp,
}

impl Shard {
    pub(crate) fn keys(&self) -> usize {
        self.narrow.len() + self.wide.as_ref().map_or(0, |wide| wide.len())
    }

    pub(crate) fn bytes(&self) -> usize {
        let of_wide = |wide: &Table<Wide>| wide.bytes() + size_of::<Table<Wide>>();
        self.narrow.bytes() + self.wide.as_deref().map_or(0, of_wide)
    }

    /// Where the narrow slots are and how many, for prefetching.
    pub(crate) fn span(&self) -> (usize, usize) {
        self.narrow.span()
    }

    /// The state of a bucket that is kept narrow under the limit it is charged for.
    ///
    /// What nearly every check finds; whatever is otherwise takes the way through `visit`.
    #[inline]
    pub(crate) fn flat_state(
        &mut self,
        common: &Common,
        key: Key,
        bucket: &TokenBucket,
    ) -> Option<&mut u64> {
        let place = self.narrow.find(spread(key), |slot| slot.is(key))?;
        let slot = self.narrow.at(place);
        let same = common.limit(slot.limit())?.quota() == bucket.quota();
        same.then_some(&mut slot.due)
    }

    /// Lends out the slot of a bucket that [`flat_state`](Self::flat_state) finds. Until it is put back,
    /// nothing but its place is here.
    pub(crate) fn lend(
        &mut self,
        common: &Common,
        key: Key,
        bucket: &TokenBucket,
    ) -> Option<Narrow> {
        self.flat_state(common, key, bucket)?;
        let place = self.narrow.find(spread(key), |slot| slot.is(key))?;
        let slot = self.narrow.at(place);
        let kept = *slot;
        *slot = kept.lent();
        Some(kept)
    }

    /// Whether the slot of a key is lent out.
    pub(crate) fn has_lent(&mut self, key: Key) -> bool {
        let place = self.narrow.find(spread(key), |slot| slot.is(key));
        place.is_some_and(|place| self.narrow.at(place).is_lent())
    }

    /// Puts a slot back that was lent out.
    pub(crate) fn put_back(&mut self, key: Key, kept: Narrow) {
        if let Some(place) = self.narrow.find(spread(key), |slot| slot.is(key)) {
            *self.narrow.at(place) = kept;
            // Nobody has looked whether it is over.
            self.quiet_until = Timestamp::EPOCH;
        }
    }

    /// Runs `work` on the state of `key` under `limit`, and keeps what it leaves.
    ///
    /// A key that is not kept starts fresh, and is kept only if `work` leaves something to keep.
    pub(crate) fn visit<R>(
        &mut self,
        common: &Common,
        key: Key,
        limit: &Arc<Limit>,
        now: Timestamp,
        exempt: bool,
        work: impl FnOnce(&Limit, &mut State) -> R,
    ) -> Result<R, Full> {
        if let Some(slot) = self.wide_slot(key) {
            return slot.visit(limit, now, work).ok_or(Full);
        }
        let mut state = match self.narrow.find(spread(key), |slot| slot.is(key)) {
            Some(place) => {
                let slot = self.narrow.remove(place);
                match common.exact(&slot) {
                    Some((old, state)) if old == **limit => state,
                    Some((old, state)) => limit.migrate(&old, &state, now),
                    None => limit.fresh(),
                }
            }
            None if exempt || self.has_room(common, now) => limit.fresh(),
            None => return Err(Full),
        };
        let result = work(limit, &mut state);
        self.keep(common, key, limit, state, now);
        Ok(result)
    }

    /// Runs `work` on the state of `key` and the limit that it is under, if the key is kept.
    pub(crate) fn visit_as_is<R>(
        &mut self,
        common: &Common,
        key: Key,
        now: Timestamp,
        work: impl FnOnce(&Limit, &mut State) -> R,
    ) -> Option<R> {
        if let Some(slot) = self.wide_slot(key) {
            return slot.visit_as_is(work);
        }
        let place = self.narrow.find(spread(key), |slot| slot.is(key))?;
        let (limit, mut state) = common.exact(self.narrow.at(place))?;
        let result = work(&limit, &mut state);
        self.narrow.remove(place);
        self.keep(common, key, &Arc::new(limit), state, now);
        Some(result)
    }

    /// Adds the state of a key that is not kept, unless it says nothing.
    fn keep(
        &mut self,
        common: &Common,
        key: Key,
        limit: &Arc<Limit>,
        mut state: State,
        now: Timestamp,
    ) {
        if limit.expires_at(&mut state) <= now {
            return;
        }
        if let Some(slot) = common.narrow(key, limit, &state) {
            common.note_expired(
                self.narrow.insert(slot, |slot| common.expires_at(slot) + GRACE <= now),
            );
            return;
        }
        let slot = Wide::new(key, Arc::clone(limit), state);
        let wide = self.wide.get_or_insert_default();
        common.note_expired(wide.insert(slot, |slot| slot.expires_at() + GRACE <= now));
    }

    pub(crate) fn forget(&mut self, key: Key) {
        if let Some(place) = self.narrow.find(spread(key), |slot| slot.is(key)) {
            self.narrow.remove(place);
        }
        if let Some(wide) = &mut self.wide
            && let Some(place) = wide.find(spread(key), |slot| slot.is(key))
        {
            wide.remove(place);
        }
    }

    fn wide_slot(&mut self, key: Key) -> Option<&mut Wide> {
        let wide = self.wide.as_mut()?;
        let place = wide.find(spread(key), |slot| slot.is(key))?;
        Some(wide.at(place))
    }

    /// Whether a newcomer fits, after dropping what is over if it takes that.
    fn has_room(&mut self, common: &Common, now: Timestamp) -> bool {
        if self.keys() < common.room {
            return true;
        }
        if now < self.quiet_until {
            return false;
        }
        self.sweep(common, now);
        self.keys() < common.room
    }

    /// Drops all that is over. How many keys that was.
    pub(crate) fn sweep(&mut self, common: &Common, now: Timestamp) -> usize {
        let earliest = std::cell::Cell::new(Timestamp::from_micros(u64::MAX));
        let over = |expires_at: Timestamp| {
            let over = expires_at <= now;
            if !over {
                earliest.set(earliest.get().min(expires_at));
            }
            over
        };
        let mut dropped = self.narrow.sweep_all(|slot| over(common.expires_at(slot)));
        if let Some(wide) = &mut self.wide {
            dropped += wide.sweep_all(|slot| over(slot.expires_at()));
        }
        self.wide.take_if(|wide| wide.len() == 0);
        self.quiet_until = earliest.get();
        common.note_expired(dropped);
        dropped
    }
}
