//! A token bucket whose tokens are in the purses of the threads that fight over it.
//!
//! What is free is handed out in full, since it can be called in at any time: a purse that can't
//! decide calls in all of them, counts what was spent at the instants at which it was, decides from
//! the whole and hands out again. Tokens in purses keep their room in the bucket, so refill never
//! replaces tokens that somebody still holds.

use std::sync::Arc;

use smallvec::SmallVec;
use spin::Yield;
use spin::mutex::SpinMutexGuard;
use tidegate_core::algorithm::FlatBucket;
use tidegate_core::{Key, Limit, Outcome, Span, Timestamp};

use super::super::Lock;
use super::super::slot::Narrow;
use super::purse::{Entry, Purse, Terms};
use super::{Sign, flat_of};
use crate::store::Charge;

/// How many purses a bucket has. With more threads than that, some share one.
pub(crate) const PURSES: usize = 16;

/// After this long it is looked whether several threads still come, and which.
const WATCH: Span = Span::from_millis(100);

/// Room for one hot key at a time: its bucket, in purses.
#[derive(Default)]
pub(crate) struct HotBucket {
    purses: [Line; PURSES],
    books: Lock<Option<Books>>,
}

/// A purse and its lock on cache lines of their own, which a neighbour's are not fetched with.
#[repr(align(128))]
#[derive(Default)]
struct Line(Lock<Purse>);

/// What is known of a hot key apart from its purses.
#[derive(Debug)]
struct Books {
    key: Key,
    limit: Arc<Limit>,
    /// The slot that it had, and gets back; its state is without what purses have spent.
    slot: Narrow,
    /// Purses that are handed out, a bit each.
    out: u16,
    /// Purses whose threads have come by since the watch began.
    seen: u16,
    watch_ends: Timestamp,
    /// Time does not run backwards here.
    latest: Timestamp,
}

/// What the whole bucket decided.
pub(crate) struct Decided {
    pub(crate) outcome: Outcome,
    /// The slot of a bucket that several threads no longer come to, and that is in purses no longer.
    pub(crate) cooled: Option<Narrow>,
}

type PurseGuard<'a> = SpinMutexGuard<'a, Purse, Yield>;
type Purses<'a> = SmallVec<[(u16, PurseGuard<'a>); PURSES]>;

impl HotBucket {
    /// The purse of a thread.
    #[inline]
    pub(crate) fn purse(&self, number: usize) -> PurseGuard<'_> {
        self.purses[number % PURSES].0.lock()
    }

    /// Takes a key in with the slot that it has, unless there is another.
    ///
    /// Only for who has the lock of the key's shard.
    pub(crate) fn move_in(
        &self,
        (key, limit): (Key, &Arc<Limit>),
        now: Timestamp,
        sign: &Sign<'_>,
        slot: impl FnOnce() -> Option<Narrow>,
    ) {
        let mut books = self.books.lock();
        if books.is_none()
            && let Some(slot) = slot()
        {
            let (limit, watch_ends) = (Arc::clone(limit), now + WATCH);
            *books = Some(Books { key, limit, slot, out: 0, seen: 0, watch_ends, latest: now });
            sign.put_up(key);
        }
    }

    /// The key that is here, and when it was to be looked at.
    pub(crate) fn tenant(&self) -> Option<(Key, Timestamp)> {
        self.books.lock().as_ref().map(|books| (books.key, books.watch_ends))
    }

    /// Decides a charge from the whole bucket, for the thread of a purse. `None` if the bucket is not
    /// in purses under this limit, or can't be charged this late.
    ///
    /// Only for who has the lock of the key's shard.
    pub(crate) fn charge_whole(
        &self,
        purse: usize,
        charge: &Charge<'_>,
        base: Timestamp,
        now: Timestamp,
        sign: &Sign<'_>,
    ) -> Option<Decided> {
        let mut kept = self.books.lock();
        let books = kept.as_mut().filter(|books| books.key == charge.key)?;
        let flat = flat_of(charge.limit).filter(|flat| now.since(base) <= flat.reach())?;
        if !Arc::ptr_eq(&books.limit, charge.limit) && books.limit != *charge.limit {
            return None;
        }
        // Purses know the limit by where it is: it stays there until they are called in.
        let _known = std::mem::replace(&mut books.limit, Arc::clone(charge.limit));
        let own = 1 << (purse % PURSES);
        books.out |= own;
        let (mut purses, mut busy) = self.call_in(books, flat, base);
        busy |= own;
        books.seen |= busy;
        books.latest = books.latest.max(now);
        let now = books.latest;
        let outcome = flat.charge(&mut books.slot.due, base, now, charge.cost);
        if now >= books.watch_ends {
            if books.seen.count_ones() < 2 {
                let cooled = Some(books.slot);
                *kept = None;
                sign.take_down();
                return Some(Decided { outcome, cooled });
            }
            books.out = std::mem::take(&mut books.seen);
            books.watch_ends = now + WATCH;
        }
        books.hand_out(&mut purses, busy, (flat, base), outcome.remaining);
        if let Some((_, purse)) = purses.iter_mut().find(|(bit, _)| *bit == own) {
            purse.note_use();
        }
        Some(Decided { outcome, cooled: None })
    }

    /// Calls in every purse, for good. The slot of the key, with all that was spent, if it is here.
    ///
    /// Only for who has the lock of the key's shard.
    pub(crate) fn dissolve(&self, key: Key, base: Timestamp, sign: &Sign<'_>) -> Option<Narrow> {
        let mut kept = self.books.lock();
        let mut books = kept.take_if(|books| books.key == key)?;
        sign.take_down();
        let limit = Arc::clone(&books.limit);
        if let Some(flat) = flat_of(&limit) {
            self.call_in(&mut books, flat, base);
        }
        Some(books.slot)
    }

    /// Counts what purses have spent. The purses, closed and locked, and those that were used.
    fn call_in(&self, books: &mut Books, flat: &FlatBucket, base: Timestamp) -> (Purses<'_>, u16) {
        let (mut purses, mut busy) = (Purses::new(), 0);
        let mut noted: SmallVec<[Entry; 4 * PURSES]> = SmallVec::new();
        for (place, purse) in self.purses.iter().enumerate() {
            let bit = 1 << place;
            if books.out & bit == 0 {
                continue;
            }
            let mut purse = purse.0.lock();
            let spent = purse.call_in();
            if spent.used {
                busy |= bit;
            }
            // Spent before the bucket was full, so it adds to what was owed, whenever it was.
            flat.count(&mut books.slot.due, base, base, spent.steadily);
            noted.extend_from_slice(spent.noted);
            purses.push((bit, purse));
        }
        noted.sort_unstable();
        for (at, cost) in noted {
            flat.count(&mut books.slot.due, base, at, cost);
            books.latest = books.latest.max(at);
        }
        (purses, busy)
    }
}

impl Books {
    /// Hands what is free out again, in even parts to those whose threads have come.
    fn hand_out(
        &self,
        purses: &mut Purses<'_>,
        busy: u16,
        (flat, base): (&FlatBucket, Timestamp),
        free: u64,
    ) {
        let due = self.slot.due;
        let terms = Terms {
            key: self.key,
            limit: &self.limit,
            from: self.latest,
            until: self.watch_ends.min(base + flat.reach()),
            due,
            steady: flat.last_not_full(due, base),
        };
        let busy = busy & self.out;
        let part = free / u64::from(busy.count_ones()).max(1);
        for (bit, purse) in purses.iter_mut().filter(|(bit, _)| self.out & bit != 0) {
            let tokens = if busy & *bit == 0 { 0 } else { part };
            purse.hand_out(&terms, tokens, part == 0 || busy == *bit);
        }
    }
}
