//! A shard: the entries of one part of the keys.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use tidegate_core::algorithm::TokenBucket;
use tidegate_core::{Key, Limit, Meter, Quota, Span, State, Timestamp};

use super::entry::{CompactEntry, FullEntry, MAX_NUMBERED_LIMITS, low_half};
use super::table::EntryTable;

/// Values that all shards of a store share.
#[derive(Debug)]
pub(crate) struct StoreShared {
    /// The origin of the times in compact entries.
    pub(crate) base: Timestamp,
    /// The capacity of one shard in keys.
    pub(crate) shard_capacity: usize,
    /// The capacity of the store in bytes.
    pub(crate) max_bytes: usize,
    /// Bytes of all tables, logs and slots.
    bytes: AtomicUsize,
    /// Keys that were dropped after they expired.
    pub(crate) expired: AtomicU64,
    /// The limits of compact entries; the one with number 1 is first.
    limits: boxcar::Vec<TokenBucket>,
    numbers: RwLock<HashMap<Quota, u16>>,
}

impl StoreShared {
    pub(crate) fn new(base: Timestamp, shard_capacity: usize, max_bytes: usize) -> Self {
        let limits = boxcar::Vec::new();
        Self {
            base,
            shard_capacity,
            max_bytes,
            bytes: AtomicUsize::new(0),
            expired: AtomicU64::new(0),
            limits,
            numbers: RwLock::default(),
        }
    }

    /// Returns the bytes of all tables, logs and slots.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Accounts for memory that was allocated or released.
    pub(crate) fn account(&self, before: usize, after: usize) {
        if after > before {
            self.bytes.fetch_add(after - before, Ordering::Relaxed);
        } else if after < before {
            self.bytes.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Returns whether so many more bytes fit. Threads that allocate at the same time may exceed the capacity by one
    /// allocation each.
    pub(crate) fn fits(&self, growth: usize) -> bool {
        growth == 0 || self.bytes().saturating_add(growth) <= self.max_bytes
    }

    /// Adds to the count of expired keys.
    fn count_expired(&self, keys: usize) {
        if keys > 0 {
            self.expired.fetch_add(keys as u64, Ordering::Relaxed);
        }
    }

    /// Returns the number of a limit, and assigns one to a new limit. Returns `None` if all
    /// [`MAX_NUMBERED_LIMITS`] numbers are assigned to others.
    fn assign_number(&self, bucket: &TokenBucket) -> Option<u16> {
        // Most stores have few limits, and reading the first ones needs no lock.
        let first = self.limits.iter().take(8);
        if let Some((index, _)) =
            first.into_iter().find(|(_, known)| known.quota() == bucket.quota())
        {
            return u16::try_from(index + 1).ok();
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
        if numbers.len() == MAX_NUMBERED_LIMITS {
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

    /// Returns the limit of a compact entry, and its state in the exact form.
    fn expand(&self, entry: &CompactEntry) -> Option<(Limit, State)> {
        let bucket = self.limit(entry.limit_number())?;
        let level = bucket.flat()?.level(entry.due, self.base);
        Some((Limit::TokenBucket(*bucket), State::Tokens(level)))
    }

    /// Returns the compact entry for a state, or `None` if it needs a full one.
    fn compact(&self, key: Key, limit: &Limit, state: &State) -> Option<CompactEntry> {
        let (Limit::TokenBucket(bucket), State::Tokens(level)) = (limit, state) else {
            return None;
        };
        let due = bucket.flat()?.flatten(level, self.base)?;
        Some(CompactEntry::new(key, self.assign_number(bucket)?, due))
    }

    /// Returns the instant at which a compact entry expires. An entry that is moved out never does.
    fn expires_at(&self, entry: &CompactEntry) -> Timestamp {
        if entry.is_moved_out() {
            return Timestamp::from_micros(u64::MAX - EXPIRY_GRACE.as_micros());
        }
        let flat = self.limit(entry.limit_number()).and_then(TokenBucket::flat);
        flat.map_or(Timestamp::EPOCH, |flat| flat.expires_at(entry.due, self.base))
    }
}

/// The error for a new key if the shard or the store is full and no entry of the shard has expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ShardFull;

/// A bucket stays for this time after it is full again, while there is room. A client with few requests
/// then finds its entry, which is cheaper than a new one.
const EXPIRY_GRACE: Span = Span::from_secs(10);

/// The entries of one part of the keys. Each key has at most one entry, compact or full.
#[derive(Debug, Default)]
pub(crate) struct StoreShard {
    compact: EntryTable<CompactEntry>,
    /// Behind a pointer, so that a shard and its lock fit one cache line.
    full: Option<Box<EntryTable<FullEntry>>>,
    /// The earliest expiry at the last sweep. A full shard is not swept again before it.
    next_expiry: Timestamp,
}

impl StoreShard {
    pub(crate) fn keys(&self) -> usize {
        self.compact.len() + self.full.as_ref().map_or(0, |full| full.len())
    }

    pub(crate) fn bytes(&self) -> usize {
        let full_bytes =
            |full: &EntryTable<FullEntry>| full.bytes() + size_of::<EntryTable<FullEntry>>();
        self.compact.bytes() + self.full.as_deref().map_or(0, full_bytes)
    }

    /// Adds up the size of the tables and of every entry, for tests.
    #[cfg(test)]
    pub(crate) fn kept_bytes(&self) -> usize {
        let full = self
            .full
            .as_deref()
            .map_or(0, |full| size_of::<EntryTable<FullEntry>>() + full.kept_bytes());
        self.compact.kept_bytes() + full
    }

    /// Returns the address and the number of the slots for compact entries, for prefetching.
    pub(crate) fn compact_slots(&self) -> (usize, usize) {
        self.compact.address_and_len()
    }

    /// Returns the state of a compact entry under the same limit.
    ///
    /// This is the fast path of nearly every check. All other cases use [`update`](Self::update).
    #[inline]
    pub(crate) fn compact_state(
        &mut self,
        shared: &StoreShared,
        key: Key,
        bucket: &TokenBucket,
    ) -> Option<&mut u64> {
        let index = self.compact.find(low_half(key), |entry| entry.has_key(key))?;
        let entry = self.compact.at(index);
        let same = shared.limit(entry.limit_number())?.quota() == bucket.quota();
        same.then_some(&mut entry.due)
    }

    /// Takes the state of an entry that [`compact_state`](Self::compact_state) finds. A marked entry stays in
    /// its slot until [`move_back`](Self::move_back).
    pub(crate) fn move_out(
        &mut self,
        shared: &StoreShared,
        key: Key,
        bucket: &TokenBucket,
    ) -> Option<CompactEntry> {
        self.compact_state(shared, key, bucket)?;
        let index = self.compact.find(low_half(key), |entry| entry.has_key(key))?;
        let entry = self.compact.at(index);
        let state = *entry;
        *entry = state.moved_out();
        Some(state)
    }

    /// Returns whether the state of a key is moved out.
    pub(crate) fn is_moved_out(&mut self, key: Key) -> bool {
        let index = self.compact.find(low_half(key), |entry| entry.has_key(key));
        index.is_some_and(|index| self.compact.at(index).is_moved_out())
    }

    /// Returns an entry to its slot after [`move_out`](Self::move_out).
    pub(crate) fn move_back(&mut self, key: Key, entry: CompactEntry) {
        if let Some(index) = self.compact.find(low_half(key), |entry| entry.has_key(key)) {
            *self.compact.at(index) = entry;
            // The entry may have expired, and the last sweep did not include its expiry.
            self.next_expiry = Timestamp::EPOCH;
        }
    }

    /// Runs `work` on the state of `key`, migrated to `limit` if needed, and stores the result.
    ///
    /// A key without an entry starts with a fresh state. It gets an entry only if the result differs from
    /// a fresh state.
    ///
    /// # Errors
    /// The shard or the store is full, and the key is not `exempt` and needs a new entry: it has none, or a compact one
    /// under a limit that needs a full one now. Then `work` is not run.
    pub(crate) fn update<R>(
        &mut self,
        shared: &StoreShared,
        key: Key,
        limit: &Arc<Limit>,
        now: Timestamp,
        exempt: bool,
        work: impl FnOnce(&Limit, &mut State) -> R,
    ) -> Result<R, ShardFull> {
        if let Some(index) = self.full_index(key) {
            let updated =
                self.update_full(shared, index, |entry| entry.update(limit, now, work)).flatten();
            return updated.ok_or(ShardFull);
        }
        let find = |shard: &Self| shard.compact.find(low_half(key), |entry| entry.has_key(key));
        let mut compact_index = find(self);
        if !exempt && (compact_index.is_none() || !is_compact(limit)) {
            let new_keys = usize::from(compact_index.is_none());
            if !self.has_room(shared, limit, new_keys, now) {
                return Err(ShardFull);
            }
            // A sweep may have moved the entry, or removed it.
            compact_index = find(self);
        }
        let mut state = match compact_index {
            Some(index) => {
                let entry = self.compact.remove(index);
                match shared.expand(&entry) {
                    Some((old, state)) if old == **limit => state,
                    Some((old, state)) => limit.migrate(&old, &state, now),
                    None => limit.fresh(),
                }
            }
            None => limit.fresh(),
        };
        let result = work(limit, &mut state);
        self.insert(shared, key, limit, state, now);
        Ok(result)
    }

    /// Runs `work` on the state of `key` and its current limit. Returns `None` if the key has no entry.
    pub(crate) fn update_existing<R>(
        &mut self,
        shared: &StoreShared,
        key: Key,
        now: Timestamp,
        work: impl FnOnce(&Limit, &mut State) -> R,
    ) -> Option<R> {
        if let Some(index) = self.full_index(key) {
            return self.update_full(shared, index, |entry| entry.update_existing(work))?;
        }
        let index = self.compact.find(low_half(key), |entry| entry.has_key(key))?;
        let (limit, mut state) = shared.expand(self.compact.at(index))?;
        let result = work(&limit, &mut state);
        self.compact.remove(index);
        self.insert(shared, key, &Arc::new(limit), state, now);
        Some(result)
    }

    /// Adds an entry for a key that has none, unless the state has expired already.
    fn insert(
        &mut self,
        shared: &StoreShared,
        key: Key,
        limit: &Arc<Limit>,
        mut state: State,
        now: Timestamp,
    ) {
        if limit.expires_at(&mut state) <= now {
            return;
        }
        if let Some(entry) = shared.compact(key, limit, &state) {
            let is_expired = |entry: &CompactEntry| shared.expires_at(entry) + EXPIRY_GRACE <= now;
            if self.compact.is_at_max_load() {
                let before = self.compact.bytes();
                shared.count_expired(self.compact.insert(entry, is_expired));
                shared.account(before, self.compact.bytes());
            } else {
                self.compact.insert(entry, is_expired);
            }
            return;
        }
        let before = self.bytes();
        let entry = FullEntry::new(key, Arc::clone(limit), state);
        let full = self.full.get_or_insert_default();
        shared.count_expired(full.insert(entry, |entry| entry.expires_at() + EXPIRY_GRACE <= now));
        shared.account(before, self.bytes());
    }

    /// Removes the entry of a key.
    pub(crate) fn remove(&mut self, shared: &StoreShared, key: Key) {
        if let Some(index) = self.compact.find(low_half(key), |entry| entry.has_key(key)) {
            self.compact.remove(index);
        }
        let before = self.bytes();
        if let Some(index) = self.full_index(key)
            && let Some(full) = &mut self.full
        {
            full.remove(index);
        }
        shared.account(before, self.bytes());
    }

    fn full_index(&self, key: Key) -> Option<usize> {
        self.full.as_ref()?.find(low_half(key), |entry| entry.has_key(key))
    }

    /// Runs `work` on a full entry, and accounts for the memory of its state.
    fn update_full<R>(
        &mut self,
        shared: &StoreShared,
        index: usize,
        work: impl FnOnce(&mut FullEntry) -> R,
    ) -> Option<R> {
        let full = self.full.as_mut()?;
        let before = full.bytes();
        let result = full.update(index, work);
        shared.account(before, full.bytes());
        Some(result)
    }

    /// Returns whether an entry fits. Sweeps a full shard first.
    fn has_room(
        &mut self,
        shared: &StoreShared,
        limit: &Limit,
        new_keys: usize,
        now: Timestamp,
    ) -> bool {
        let fits = |shard: &Self| {
            shard.keys() + new_keys <= shared.shard_capacity && shared.fits(shard.growth(limit))
        };
        if fits(self) {
            return true;
        }
        if now < self.next_expiry {
            return false;
        }
        self.sweep(shared, now);
        fits(self)
    }

    /// Returns the bytes that another entry under this limit adds.
    fn growth(&self, limit: &Limit) -> usize {
        if is_compact(limit) {
            return self.compact.growth();
        }
        let table = match &self.full {
            Some(full) => full.growth(),
            None => {
                size_of::<EntryTable<FullEntry>>() + EntryTable::<FullEntry>::default().growth()
            }
        };
        table + limit.fresh().heap_use().growth
    }

    /// Removes all expired entries, and releases memory that the others no longer need. Returns the number of removed
    /// entries.
    pub(crate) fn sweep(&mut self, shared: &StoreShared, now: Timestamp) -> usize {
        let earliest = std::cell::Cell::new(Timestamp::from_micros(u64::MAX));
        let is_expired = |expires_at: Timestamp| {
            let is_expired = expires_at <= now;
            if !is_expired {
                earliest.set(earliest.get().min(expires_at));
            }
            is_expired
        };
        let before = self.bytes();
        let mut dropped = self.compact.remove_expired(|entry| is_expired(shared.expires_at(entry)));
        if let Some(full) = &mut self.full {
            dropped += full.remove_expired(|entry| is_expired(entry.expires_at()));
            full.update_all(|entry| entry.shrink(now));
        }
        self.full.take_if(|full| full.len() == 0);
        self.next_expiry = earliest.get();
        shared.account(before, self.bytes());
        shared.count_expired(dropped);
        dropped
    }
}

/// Returns whether most states of the limit have a compact entry.
fn is_compact(limit: &Limit) -> bool {
    matches!(limit, Limit::TokenBucket(bucket) if bucket.flat().is_some())
}
