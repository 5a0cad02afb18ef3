//! Spending remembered in this process: sharded, in integers, under fingerprints instead of keys.
//!
//! What has expired goes a few slots at a time as new keys come, and shard by shard when
//! [`MemoryStore::sweep`] is called; nothing ever stops the whole store. At its cap the store
//! forgets nobody who is still being limited: newcomers share a few buckets per rule instead.

mod hot;
mod lease_table;
mod prefetch;
mod shard;
mod slot;
mod table;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use smallvec::SmallVec;
use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use tidegate_core::{Key, Keyer, LeaseGrant, LeaseRequest, Limit, Outcome, State, Timestamp};

use self::hot::HotKeys;
use self::lease_table::LeaseTable;
use self::prefetch::prefetch;
use self::shard::{Common, Full, Shard};
use self::slot::{Narrow, spread, upper};
use super::{Charge, ChargeMode, ChargeResult, ChargeResults, Outcomes, Refund, Store, StoreError};
use crate::clock::Clock;

/// A lock held for the few nanoseconds of one decision, or the microseconds of a shard growing.
///
/// Giving such a lock back costs a plain store, where a lock that parks its waiters pays for a second
/// atomic exchange; a waiter yields its processor, so a holder that was preempted gets to run.
type Lock<T> = SpinMutex<T, Yield>;
type Guard<'a> = SpinMutexGuard<'a, Shard, Yield>;

/// Keeps what clients have spent in this process's memory.
pub struct MemoryStore {
    shards: Box<[Cell]>,
    /// For each shard, where its slots are.
    hints: Box<[Hint]>,
    /// How far to shift a key's upper half to get its shard.
    shift: u32,
    common: Common,
    clock: Clock,
    lease_table: LeaseTable,
    hot: HotKeys,
    seed: [u8; 32],
    overflowed: AtomicU64,
    next_sweep: AtomicUsize,
}

/// A shard and its lock on a cache line of their own.
#[repr(align(64))]
#[derive(Default)]
struct Cell(Lock<Shard>);

/// Where a shard's narrow slots were when last seen, and how many; read without the shard's lock.
///
/// Address and count share one word, so that all of a store's hints stay in the nearest cache. A
/// hint that is stale, or wrong because a number did not fit, costs a prefetch of no use.
#[derive(Default)]
struct Hint(AtomicU64);

impl Hint {
    const COUNT_BITS: u32 = 16;

    #[inline]
    fn note(&self, shard: &Shard) {
        let (address, count) = shard.span();
        let count = count.min((1 << Self::COUNT_BITS) - 1);
        self.0.store(((address as u64) << Self::COUNT_BITS) | count as u64, Ordering::Relaxed);
    }

    /// The address at which a key's slot probably is.
    #[inline]
    fn address(&self, key: Key) -> usize {
        let hint = self.0.load(Ordering::Relaxed);
        let count = (hint & ((1 << Self::COUNT_BITS) - 1)) as usize;
        let offset = table::home(spread(key), count) * size_of::<Narrow>();
        ((hint >> Self::COUNT_BITS) as usize).wrapping_add(offset)
    }
}

/// How full a store is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUse {
    /// Clients with a bucket of their own.
    pub keys: usize,
    /// Bytes of the tables that hold them, vacant slots included.
    pub bytes: usize,
    /// Most keys that the store has room for.
    pub max_keys: usize,
    /// Charges that went to shared buckets since the start because the store was full.
    pub overflowed: u64,
    /// Keys that were dropped since the start because they no longer said anything. Nobody who is
    /// being limited is ever dropped.
    pub expired: u64,
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// How many keys a store keeps unless told otherwise.
    pub const DEFAULT_MAX_KEYS: usize = 10_000_000;
    /// Buckets that newcomers to one rule share when there is no room for their own.
    pub const OVERFLOW_BUCKETS: u64 = 16;

    const MAX_SHARDS: usize = 4096;
    const KEYS_PER_SHARD: usize = 64;

    /// An empty store with room for [`DEFAULT_MAX_KEYS`](Self::DEFAULT_MAX_KEYS). Memory is taken as
    /// keys come.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self::with_max_keys(Self::DEFAULT_MAX_KEYS, clock)
    }

    /// An empty store with room for `max_keys`, at least one.
    ///
    /// Each shard has room for its even share of them, so some may be full a little earlier.
    #[must_use]
    pub fn with_max_keys(max_keys: usize, clock: Clock) -> Self {
        let max_keys = max_keys.max(1);
        let shards = (max_keys / Self::KEYS_PER_SHARD).clamp(1, Self::MAX_SHARDS);
        let shards = 1usize << shards.ilog2();
        Self {
            shards: (0..shards).map(|_| Cell::default()).collect(),
            hints: (0..shards).map(|_| Hint::default()).collect(),
            shift: 64 - shards.trailing_zeros(),
            common: Common::new(clock.now(), max_keys.div_ceil(shards)),
            clock,
            lease_table: LeaseTable::default(),
            hot: HotKeys::default(),
            seed: random_seed(),
            overflowed: AtomicU64::new(0),
            next_sweep: AtomicUsize::new(0),
        }
    }

    /// The store's clock.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline]
    fn place(&self, key: Key) -> usize {
        // One shard would shift by all 64 bits, which is its whole width.
        upper(key).checked_shr(self.shift).unwrap_or(0) as usize
    }

    /// Hints that `key` will be asked for soon.
    #[inline]
    pub(crate) fn prefetch(&self, key: Key) {
        let place = self.place(key);
        prefetch(std::ptr::from_ref(&self.shards[place]) as usize);
        let address = self.hints[place].address(key);
        prefetch(address);
        // Probing goes upwards, and one slot in three reaches into the next line anyway.
        prefetch(address.wrapping_add(64));
    }

    /// Charges one key. Synchronous: memory does not make anybody wait.
    #[inline]
    pub fn charge_one(&self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        if self.hot.may_have(charge.key) {
            return self.charge_hot(charge, now, hot::own_purse());
        }
        let place = self.place(charge.key);
        match self.shards[place].0.try_lock() {
            Some(shard) => self.charge_in(place, shard, charge, now),
            None => self.charge_contended(place, charge, now),
        }
    }

    /// Charges one key in its shard.
    #[inline]
    fn charge_in(
        &self,
        place: usize,
        mut shard: Guard<'_>,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Outcome {
        if let Limit::TokenBucket(bucket) = &**charge.limit
            && let Some(flat) = bucket.flat()
            && now.since(self.common.base) <= flat.reach()
            && let Some(due) = shard.flat_state(&self.common, charge.key, bucket)
        {
            return flat.charge(due, self.common.base, now, charge.cost);
        }
        self.charge_rare(place, shard, charge, now)
    }

    /// Charges one key in any state.
    #[cold]
    fn charge_rare(
        &self,
        place: usize,
        mut shard: Guard<'_>,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Outcome {
        if let Some(outcome) = self.charge_lent(&mut shard, charge, now, hot::own_purse) {
            return outcome;
        }
        let work = |limit: &Limit, state: &mut State| limit.charge(state, now, charge.cost);
        match shard.visit(&self.common, charge.key, charge.limit, now, false, work) {
            Ok(outcome) => {
                self.hints[place].note(&shard);
                outcome
            }
            Err(Full) => {
                drop(shard);
                self.charge_shared(charge, now)
            }
        }
    }

    /// Charges the bucket that a newcomer shares with others.
    #[cold]
    fn charge_shared(&self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        let key = self.overflow(charge);
        let (place, mut shard) = self.open(key);
        let work = |limit: &Limit, state: &mut State| limit.charge(state, now, charge.cost);
        let outcome = shard.visit(&self.common, key, charge.limit, now, true, work);
        self.hints[place].note(&shard);
        match outcome {
            // What others share is not one client's to take back.
            Ok(outcome) => outcome.non_refundable(),
            // An exempt key always has room.
            Err(Full) => charge.limit.peek(&mut charge.limit.fresh(), now, u64::MAX),
        }
    }

    /// The bucket that a newcomer shares, counted.
    fn overflow(&self, charge: &Charge<'_>) -> Key {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        charge.overflow_key.offset(spread(charge.key) % Self::OVERFLOW_BUCKETS)
    }

    /// Answers what [`charge_one`](Self::charge_one) would, and spends nothing. Synchronous.
    pub fn peek_one(&self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        self.charge_at(std::slice::from_ref(charge), ChargeMode::Peek, now)[0]
    }

    /// Charges every key of one request, or none of them, or peeks. Synchronous.
    pub fn charge_all(&self, charges: &[Charge<'_>], mode: ChargeMode) -> Outcomes {
        let now = self.clock.now();
        match (charges, mode) {
            ([charge], ChargeMode::Spend) => Outcomes::from_slice(&[self.charge_one(charge, now)]),
            _ => self.charge_at(charges, mode, now),
        }
    }

    fn charge_at(&self, charges: &[Charge<'_>], mode: ChargeMode, now: Timestamp) -> Outcomes {
        let mut keys: SmallVec<[(Key, bool); 8]> =
            charges.iter().map(|charge| (charge.key, false)).collect();
        loop {
            match self.charge_locked(charges, &keys, mode, now) {
                Ok(outcomes) => return outcomes,
                // A newcomer without room: the same again with the bucket it shares.
                Err(place) => keys[place] = (self.overflow(&charges[place]), true),
            }
        }
    }

    /// Locks the shards of all keys, and charges them. The place of a key without room, if there is
    /// one; nothing was spent then.
    fn charge_locked(
        &self,
        charges: &[Charge<'_>],
        keys: &[(Key, bool)],
        mode: ChargeMode,
        now: Timestamp,
    ) -> Result<Outcomes, usize> {
        // Every call takes its locks in the same order, so no two can wait for each other.
        let mut places: SmallVec<[usize; 8]> =
            keys.iter().map(|(key, _)| self.place(*key)).collect();
        places.sort_unstable();
        places.dedup();
        let mut guards: SmallVec<[Guard<'_>; 8]> =
            places.iter().map(|place| self.shards[*place].0.lock()).collect();
        let guard_of = |key: Key| places.binary_search(&self.place(key)).unwrap_or(0);
        for (key, _) in keys {
            self.recall(&mut guards[guard_of(*key)], *key);
        }

        let mut all_fit = true;
        let mut asked: SmallVec<[(u64, bool); 8]> = SmallVec::new();
        for (index, charge) in charges.iter().enumerate() {
            let (key, exempt) = keys[index];
            // Charges of the same bucket add up.
            let earlier = charges[..index].iter().zip(keys);
            let cost = earlier
                .filter(|(other, (same, _))| {
                    *same == key && other.independent == charge.independent
                })
                .fold(charge.cost, |sum, (other, _)| sum.saturating_add(other.cost));
            let work = |limit: &Limit, state: &mut State| limit.admits(state, now, cost);
            let shard = &mut guards[guard_of(key)];
            let fits = shard
                .visit(&self.common, key, charge.limit, now, exempt, work)
                .map_err(|Full| index)?;
            all_fit &= fits || charge.independent;
            asked.push((cost, fits));
        }
        let outcomes = charges.iter().zip(keys).zip(&asked).map(|((charge, key), (cost, fits))| {
            let (key, shared) = *key;
            let fits = if charge.independent { *fits } else { all_fit };
            let spend = fits && mode == ChargeMode::Spend;
            let work = |limit: &Limit, state: &mut State| match spend {
                true => limit.charge(state, now, charge.cost),
                false => limit.peek(state, now, *cost),
            };
            let shard = &mut guards[guard_of(key)];
            match shard.visit(&self.common, key, charge.limit, now, true, work) {
                Ok(outcome) if shared => outcome.non_refundable(),
                Ok(outcome) => outcome,
                // An exempt key always has room.
                Err(Full) => charge.limit.peek(&mut charge.limit.fresh(), now, u64::MAX),
            }
        });
        let outcomes = outcomes.collect();
        for (place, guard) in places.iter().zip(&guards) {
            self.hints[*place].note(guard);
        }
        Ok(outcomes)
    }

    /// Takes one charge back as far as it still counts. Whether it gave anything back.
    pub fn refund_one(&self, refund: &Refund) -> bool {
        let now = self.clock.now();
        self.amend(refund, now, |limit, state| refund.take_back(limit, state, now))
    }

    /// Renews slots in flight, or inserts them again. Returns whether they are held.
    pub fn renew_one(&self, slots: &Refund) -> bool {
        let now = self.clock.now();
        self.amend(slots, now, |limit, state| slots.renew(limit, state, now))
    }

    /// Runs `work` on the state of a charge, under the limit that it is kept under. Slots in flight of which
    /// nothing is kept start with a fresh state.
    fn amend(
        &self,
        charge: &Refund,
        now: Timestamp,
        work: impl Fn(&Limit, &mut State) -> bool,
    ) -> bool {
        let (place, mut shard) = self.open(charge.key);
        let mut given = shard.visit_as_is(&self.common, charge.key, now, &work);
        if given.is_none() && charge.limit.is_concurrency() && charge.refund_token.is_some() {
            // Exempt: living holders and releases are counted also where new clients have no room.
            let visited = shard.visit(&self.common, charge.key, &charge.limit, now, true, &work);
            given = visited.ok();
        }
        self.hints[place].note(&shard);
        given.unwrap_or(false)
    }

    /// Forgets what a key has spent. Synchronous.
    pub fn forget_one(&self, key: Key) {
        self.open(key).1.forget(key);
    }

    /// Drops what has expired from the next few shards. How many keys that were.
    ///
    /// Each call holds one shard at a time, for microseconds. Call it now and then so that memory
    /// shrinks when traffic does; while new keys come, they do this work in passing.
    pub fn sweep(&self, shards: usize) -> usize {
        let now = self.clock.now();
        let mut dropped = 0;
        for _ in 0..shards.min(self.shards.len()) {
            let place = self.next_sweep.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            let mut shard = self.shards[place].0.lock();
            for key in self.hot.keys().filter(|key| self.place(*key) == place) {
                self.recall(&mut shard, key);
            }
            dropped += shard.sweep(&self.common, now);
            self.hints[place].note(&shard);
        }
        dropped
    }

    /// How many shards there are to sweep.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// How full the store is. Looks at every shard in turn.
    #[must_use]
    pub fn usage(&self) -> MemoryUse {
        let mut usage = MemoryUse {
            max_keys: self.common.room * self.shards.len(),
            overflowed: self.overflowed.load(Ordering::Relaxed),
            expired: self.common.expired.load(Ordering::Relaxed),
            bytes: self.hot.bytes(),
            ..MemoryUse::default()
        };
        for cell in &self.shards {
            let shard = cell.0.lock();
            usage.keys += shard.keys();
            usage.bytes += shard.bytes();
        }
        usage
    }
}

/// Bytes that nobody outside of this process can know.
fn random_seed() -> [u8; 32] {
    // The standard library seeds its hash maps from the system; four of its hashes make 256 bits.
    let mut seed = [0; 32];
    for part in seed.as_chunks_mut::<8>().0 {
        *part = RandomState::new().hash_one(0).to_le_bytes();
    }
    seed
}

// A check takes its shard's lock and finds the table on the same line.
const _: () = assert!(size_of::<Cell>() == 64);

impl Store for MemoryStore {
    fn keyer(&self) -> Keyer {
        Keyer::Local { seed: self.seed }
    }

    async fn charge(&self, charges: &[Charge<'_>], mode: ChargeMode) -> ChargeResults {
        if let ([charge], ChargeMode::Spend) = (charges, mode) {
            let mut answers = ChargeResults::new();
            answers.push(ChargeResult::Outcome(self.charge_one(charge, self.clock.now())));
            return answers;
        }
        self.charge_all(charges, mode).into_iter().map(ChargeResult::Outcome).collect()
    }

    async fn lease(
        &self,
        requests: &[(Key, Arc<Limit>, LeaseRequest)],
    ) -> Vec<Result<LeaseGrant, StoreError>> {
        requests.iter().map(|(key, limit, request)| self.lease_one(*key, limit, request)).collect()
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        Ok(refunds.iter().filter(|refund| self.refund_one(refund)).count())
    }

    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>) {
        for refund in &refunds {
            self.refund_one(refund);
        }
    }

    async fn renew(&self, slots: &[Refund]) -> Result<usize, StoreError> {
        Ok(slots.iter().filter(|slots| self.renew_one(slots)).count())
    }

    async fn forget(&self, key: Key) -> Result<(), StoreError> {
        self.forget_one(key);
        Ok(())
    }
}
