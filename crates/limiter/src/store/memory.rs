//! A store in the memory of this process: sharded, in integers, by hashes of the keys.
//!
//! Expired entries are removed when a table grows for new keys, and shard by shard by
//! [`MemoryStore::sweep`]. No operation locks the whole store. A full store never evicts a client that is
//! being limited: new clients share a few overflow buckets per rule instead. If the log or the slots in
//! flight of a client can't grow, the client is denied, as if it had reached its limit.

#[cfg(test)]
mod budget_tests;
mod entry;
mod entry_hint;
mod hot;
mod lease_table;
mod memory_use;
mod prefetch;
mod shard;
mod table;

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use smallvec::SmallVec;
use spin::Yield;
use spin::mutex::{SpinMutex, SpinMutexGuard};
use tidegate_core::{Key, Keyer, LeaseGrant, LeaseRequest, Limit, Outcome, State, Timestamp};

use self::entry::{high_half, low_half};
use self::entry_hint::EntryHint;
use self::hot::HotKeys;
use self::lease_table::LeaseTable;
pub use self::memory_use::MemoryUse;
use self::prefetch::prefetch;
use self::shard::{ShardFull, StoreShard, StoreShared};
use super::{Charge, ChargeMode, ChargeResult, ChargeResults, Outcomes, Refund, Store, StoreError};
use crate::clock::Clock;

/// A lock that is held for the nanoseconds of one decision, or the microseconds in which a shard grows.
///
/// Its release is a plain store; a lock that parks its waiters needs a second atomic exchange. A waiter
/// yields its processor, so that a preempted holder can run.
type SpinLock<T> = SpinMutex<T, Yield>;
type ShardGuard<'a> = SpinMutexGuard<'a, StoreShard, Yield>;

/// A store in the memory of this process.
pub struct MemoryStore {
    shards: Box<[PaddedShard]>,
    /// For each shard, the location of its compact entries.
    hints: Box<[EntryHint]>,
    /// The shift of a key's high half that gives its shard.
    shift: u32,
    shared: StoreShared,
    clock: Clock,
    lease_table: LeaseTable,
    hot: HotKeys,
    seed: [u8; 32],
    overflowed: AtomicU64,
    growth_denied: AtomicU64,
    next_sweep: AtomicUsize,
}

/// A shard and its lock, on their own cache line.
#[repr(align(64))]
#[derive(Default)]
struct PaddedShard(SpinLock<StoreShard>);

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("usage", &self.usage()).finish_non_exhaustive()
    }
}

impl MemoryStore {
    /// The default capacity of a store in keys.
    pub const DEFAULT_MAX_KEYS: usize = 10_000_000;
    /// The default capacity in bytes for each key. A token bucket needs 30 to 38 bytes, vacant slots included.
    pub const DEFAULT_BYTES_PER_KEY: usize = 64;
    /// The least default capacity in bytes, so that a store for few keys has room for long logs.
    pub const MIN_DEFAULT_BYTES: usize = 16 * 1024 * 1024;
    /// Overflow buckets per rule, which new clients share when the store is full.
    pub const OVERFLOW_BUCKETS: u64 = 16;

    const MAX_SHARDS: usize = 4096;
    const KEYS_PER_SHARD: usize = 64;

    /// Makes an empty store for [`DEFAULT_MAX_KEYS`](Self::DEFAULT_MAX_KEYS). Memory is allocated as keys are
    /// added.
    #[must_use]
    pub fn new(clock: Clock) -> Self {
        Self::with_max_keys(Self::DEFAULT_MAX_KEYS, clock)
    }

    /// Makes an empty store for `max_keys`, at least one, and the bytes of
    /// [`default_max_bytes`](Self::default_max_bytes).
    ///
    /// Each shard has an equal part of the keys, so some shards may be full a little earlier.
    #[must_use]
    pub fn with_max_keys(max_keys: usize, clock: Clock) -> Self {
        Self::with_capacity(max_keys, Self::default_max_bytes(max_keys), clock)
    }

    /// Returns the default capacity in bytes of a store for `max_keys`.
    #[must_use]
    pub fn default_max_bytes(max_keys: usize) -> usize {
        max_keys.saturating_mul(Self::DEFAULT_BYTES_PER_KEY).max(Self::MIN_DEFAULT_BYTES)
    }

    /// Makes an empty store for `max_keys`, at least one, and `max_bytes` of tables, logs and slots in flight. The store
    /// is full when it reaches either.
    ///
    /// Overflow buckets, renewals and releases of slots, and leases are stored in a full store too. They exceed
    /// `max_bytes` by 16 buckets per rule, each with the log or slots of a client, and by at most 350 bytes for each slot that
    /// is renewed after its hold has ended. [`usage`](Self::usage) includes them.
    #[must_use]
    pub fn with_capacity(max_keys: usize, max_bytes: usize, clock: Clock) -> Self {
        let max_keys = max_keys.max(1);
        let shards = (max_keys / Self::KEYS_PER_SHARD).clamp(1, Self::MAX_SHARDS);
        let shards = 1usize << shards.ilog2();
        Self {
            shards: (0..shards).map(|_| PaddedShard::default()).collect(),
            hints: (0..shards).map(|_| EntryHint::default()).collect(),
            shift: 64 - shards.trailing_zeros(),
            shared: StoreShared::new(clock.now(), max_keys.div_ceil(shards), max_bytes),
            clock,
            lease_table: LeaseTable::default(),
            hot: HotKeys::default(),
            seed: random_seed(),
            overflowed: AtomicU64::new(0),
            growth_denied: AtomicU64::new(0),
            next_sweep: AtomicUsize::new(0),
        }
    }

    /// Returns the clock of the store.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    #[inline]
    fn shard_index(&self, key: Key) -> usize {
        // With one shard the shift is 64 bits, the whole width, which `>>` does not allow.
        high_half(key).checked_shr(self.shift).unwrap_or(0) as usize
    }

    /// Prefetches the memory that a charge of `key` needs.
    #[inline]
    pub fn prefetch(&self, key: Key) {
        let index = self.shard_index(key);
        prefetch(std::ptr::from_ref(&self.shards[index]) as usize);
        let address = self.hints[index].address(key);
        prefetch(address);
        // Probing continues upwards, and one entry in three extends into the next line anyway.
        prefetch(address.wrapping_add(64));
    }

    /// Charges one key, synchronously.
    #[inline]
    pub fn charge_one(&self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        if self.hot.may_contain(charge.key) {
            return self.charge_hot(charge, now, hot::thread_share_index());
        }
        let index = self.shard_index(charge.key);
        match self.shards[index].0.try_lock() {
            Some(shard) => self.charge_fast(index, shard, charge, now),
            None => self.charge_contended(index, charge, now),
        }
    }

    /// Charges a compact entry under the same limit, or calls [`charge_slow`](Self::charge_slow).
    #[inline]
    fn charge_fast(
        &self,
        index: usize,
        mut shard: ShardGuard<'_>,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Outcome {
        if let Limit::TokenBucket(bucket) = &**charge.limit
            && let Some(flat) = bucket.flat()
            && now.since(self.shared.base) <= flat.reach()
            && let Some(due) = shard.compact_state(&self.shared, charge.key, bucket)
        {
            return flat.charge(due, self.shared.base, now, charge.cost);
        }
        self.charge_slow(index, shard, charge, now)
    }

    /// Charges a key in any state: hot, new, full entry, or under another limit.
    #[cold]
    fn charge_slow(
        &self,
        index: usize,
        mut shard: ShardGuard<'_>,
        charge: &Charge<'_>,
        now: Timestamp,
    ) -> Outcome {
        if let Some(outcome) =
            self.charge_moved_out(&mut shard, charge, now, hot::thread_share_index)
        {
            return outcome;
        }
        let work = |limit: &Limit, state: &mut State| match self.can_grow(limit, state, now) {
            true => limit.charge(state, now, charge.cost),
            false => {
                let cost = unavailable_cost(limit, state, now, charge.cost);
                limit.peek(state, now, cost)
            }
        };
        match shard.update(&self.shared, charge.key, charge.limit, now, false, work) {
            Ok(outcome) => {
                self.hints[index].update(&shard);
                outcome
            }
            Err(ShardFull) => {
                drop(shard);
                self.charge_overflow(charge, now)
            }
        }
    }

    /// Returns whether the state has room for another admission. Counts a denial if it has not.
    fn can_grow(&self, limit: &Limit, state: &mut State, now: Timestamp) -> bool {
        let fits = |state: &State| self.shared.fits(state.heap_use().growth);
        if fits(state) {
            return true;
        }
        // Removes expired parts of the state. Their memory can be used again.
        limit.admits(state, now, 1);
        let fits = fits(state);
        if !fits {
            self.growth_denied.fetch_add(1, Ordering::Relaxed);
        }
        fits
    }

    /// Charges the overflow bucket of a new key.
    #[cold]
    fn charge_overflow(&self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        let key = self.overflow_key(charge);
        let (index, mut shard) = self.lock_shard(key);
        let work = |limit: &Limit, state: &mut State| limit.charge(state, now, charge.cost);
        let outcome = shard.update(&self.shared, key, charge.limit, now, true, work);
        self.hints[index].update(&shard);
        match outcome {
            // Several clients share the bucket, so no single client may refund it.
            Ok(outcome) => outcome.non_refundable(),
            // An exempt key always has room.
            Err(ShardFull) => charge.limit.peek(&mut charge.limit.fresh(), now, u64::MAX),
        }
    }

    /// Returns the key of the overflow bucket for a new key, and counts the overflow.
    fn overflow_key(&self, charge: &Charge<'_>) -> Key {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        charge.overflow_key.offset(low_half(charge.key) % Self::OVERFLOW_BUCKETS)
    }

    /// Returns the outcome that [`charge_one`](Self::charge_one) would have, and spends nothing.
    pub fn peek_one(&self, charge: &Charge<'_>, now: Timestamp) -> Outcome {
        self.charge_many(std::slice::from_ref(charge), ChargeMode::Peek, now)[0]
    }

    /// Charges every key of one request, or none of them, or peeks; synchronously.
    pub fn charge_all(&self, charges: &[Charge<'_>], mode: ChargeMode) -> Outcomes {
        let now = self.clock.now();
        match (charges, mode) {
            ([charge], ChargeMode::Spend) => Outcomes::from_slice(&[self.charge_one(charge, now)]),
            _ => self.charge_many(charges, mode, now),
        }
    }

    fn charge_many(&self, charges: &[Charge<'_>], mode: ChargeMode, now: Timestamp) -> Outcomes {
        let mut keys: SmallVec<[(Key, bool); 8]> =
            charges.iter().map(|charge| (charge.key, false)).collect();
        loop {
            match self.charge_many_locked(charges, &keys, mode, now) {
                Ok(outcomes) => return outcomes,
                // The shard of a new key is full, so the call is repeated with its overflow bucket.
                Err(index) => keys[index] = (self.overflow_key(&charges[index]), true),
            }
        }
    }

    /// Locks the shards of all keys, and charges them.
    ///
    /// # Errors
    /// The shard of a new key is full. Returns the index of the key; nothing was spent then.
    fn charge_many_locked(
        &self,
        charges: &[Charge<'_>],
        keys: &[(Key, bool)],
        mode: ChargeMode,
        now: Timestamp,
    ) -> Result<Outcomes, usize> {
        // Every call takes its locks in the same order, which prevents deadlocks.
        let mut shard_indices: SmallVec<[usize; 8]> =
            keys.iter().map(|(key, _)| self.shard_index(*key)).collect();
        shard_indices.sort_unstable();
        shard_indices.dedup();
        let mut guards: SmallVec<[ShardGuard<'_>; 8]> =
            shard_indices.iter().map(|index| self.shards[*index].0.lock()).collect();
        let guard_index =
            |key: Key| shard_indices.binary_search(&self.shard_index(key)).unwrap_or(0);
        for (key, _) in keys {
            self.cool_down(&mut guards[guard_index(*key)], *key);
        }

        let mut all_fit = true;
        let mut tested: SmallVec<[(u64, bool); 8]> = SmallVec::new();
        for (index, charge) in charges.iter().enumerate() {
            let (key, is_overflow) = keys[index];
            // Charges of the same bucket add up.
            let earlier = charges[..index].iter().zip(keys);
            let cost = earlier
                .filter(|(other, (same, _))| {
                    *same == key && other.independent == charge.independent
                })
                .fold(charge.cost, |sum, (other, _)| sum.saturating_add(other.cost));
            let work = |limit: &Limit, state: &mut State| match is_overflow
                || self.can_grow(limit, state, now)
            {
                true => (cost, limit.admits(state, now, cost)),
                false => (unavailable_cost(limit, state, now, cost), false),
            };
            let shard = &mut guards[guard_index(key)];
            let (cost, fits) = shard
                .update(&self.shared, key, charge.limit, now, is_overflow, work)
                .map_err(|ShardFull| index)?;
            all_fit &= fits || charge.independent;
            tested.push((cost, fits));
        }
        let outcomes =
            charges.iter().zip(keys).zip(&tested).map(|((charge, key), (cost, fits))| {
                let (key, is_overflow) = *key;
                let fits = if charge.independent { *fits } else { all_fit };
                let spend = fits && mode == ChargeMode::Spend;
                let work = |limit: &Limit, state: &mut State| match spend {
                    true => limit.charge(state, now, charge.cost),
                    false => limit.peek(state, now, *cost),
                };
                let shard = &mut guards[guard_index(key)];
                match shard.update(&self.shared, key, charge.limit, now, true, work) {
                    Ok(outcome) if is_overflow => outcome.non_refundable(),
                    Ok(outcome) => outcome,
                    // An exempt key always has room.
                    Err(ShardFull) => charge.limit.peek(&mut charge.limit.fresh(), now, u64::MAX),
                }
            });
        let outcomes = outcomes.collect();
        for (index, guard) in shard_indices.iter().zip(&guards) {
            self.hints[*index].update(guard);
        }
        Ok(outcomes)
    }

    /// Refunds one charge as far as it still counts. Returns whether anything was refunded.
    pub fn refund_one(&self, refund: &Refund) -> bool {
        let now = self.clock.now();
        self.update_charged(refund, now, |limit, state| refund.take_back(limit, state, now))
    }

    /// Renews slots in flight, or inserts them again. Returns whether they are held.
    pub fn renew_one(&self, slots: &Refund) -> bool {
        let now = self.clock.now();
        self.update_charged(slots, now, |limit, state| slots.renew(limit, state, now))
    }

    /// Runs `work` on the state of a charged key, under its current limit. If the key has no entry, slots in
    /// flight start with a fresh state; for other charges nothing is done.
    fn update_charged(
        &self,
        charge: &Refund,
        now: Timestamp,
        work: impl Fn(&Limit, &mut State) -> bool,
    ) -> bool {
        let (index, mut shard) = self.lock_shard(charge.key);
        let mut result = shard.update_existing(&self.shared, charge.key, now, &work);
        if result.is_none() && charge.limit.is_concurrency() && charge.refund_token.is_some() {
            // Exempt from the capacity: slots that are held must be counted in a full store too.
            let updated = shard.update(&self.shared, charge.key, &charge.limit, now, true, &work);
            result = updated.ok();
        }
        self.hints[index].update(&shard);
        result.unwrap_or(false)
    }

    /// Removes the state of a key, synchronously.
    pub fn reset_one(&self, key: Key) {
        self.lock_shard(key).1.remove(&self.shared, key);
    }

    /// Removes expired keys from the next `shards` shards. Returns their number.
    ///
    /// One shard is locked at a time, for microseconds. Call it at intervals, so that memory shrinks after
    /// traffic does. While keys are added, tables also remove expired ones when they grow.
    pub fn sweep(&self, shards: usize) -> usize {
        let now = self.clock.now();
        let mut dropped = 0;
        for _ in 0..shards.min(self.shards.len()) {
            let index = self.next_sweep.fetch_add(1, Ordering::Relaxed) % self.shards.len();
            let mut shard = self.shards[index].0.lock();
            for key in self.hot.keys().filter(|key| self.shard_index(*key) == index) {
                self.cool_down(&mut shard, key);
            }
            dropped += shard.sweep(&self.shared, now);
            self.hints[index].update(&shard);
        }
        dropped
    }

    /// Returns the number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Returns the size of the store. Locks every shard in turn.
    #[must_use]
    pub fn usage(&self) -> MemoryUse {
        let mut usage = MemoryUse {
            max_keys: self.shared.shard_capacity * self.shards.len(),
            overflowed: self.overflowed.load(Ordering::Relaxed),
            growth_denied: self.growth_denied.load(Ordering::Relaxed),
            expired: self.shared.expired.load(Ordering::Relaxed),
            max_bytes: self.shared.max_bytes,
            bytes: self.shared.bytes() + self.hot.bytes(),
            ..MemoryUse::default()
        };
        for cell in &self.shards {
            usage.keys += cell.0.lock().keys();
        }
        usage
    }
}

/// Returns a cost that does not fit now, at least `cost`: one more than what is left. Its wait ends when the first part of
/// the state expires, which then has room for another admission.
fn unavailable_cost(limit: &Limit, state: &mut State, now: Timestamp, cost: u64) -> u64 {
    limit.peek(state, now, 1).remaining.saturating_add(1).max(cost)
}

/// Returns random bytes that other processes can't predict.
fn random_seed() -> [u8; 32] {
    // The standard library seeds its hash maps from the system's random source. Four hashes are 256 bits.
    let mut seed = [0; 32];
    for part in seed.as_chunks_mut::<8>().0 {
        *part = RandomState::new().hash_one(0).to_le_bytes();
    }
    seed
}

// The lock of a shard and its table are on the same cache line.
const _: () = assert!(size_of::<PaddedShard>() == 64);

impl Store for MemoryStore {
    fn keyer(&self) -> Keyer {
        Keyer::Local { seed: self.seed }
    }

    async fn charge(&self, charges: &[Charge<'_>], mode: ChargeMode) -> ChargeResults {
        self.charge_all(charges, mode).into_iter().map(ChargeResult::Outcome).collect()
    }

    #[inline]
    fn charge_now(&self, charge: &Charge<'_>) -> Option<Outcome> {
        Some(self.charge_one(charge, self.clock.now()))
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

    async fn reset(&self, key: Key) -> Result<(), StoreError> {
        self.reset_one(key);
        Ok(())
    }
}
