//! The leases of keys.
//!
//! They are in a separate table, because few clients have leases: an entry of a shard stays small without them.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::{Key, LeaseGrant, LeaseRequest, LeaseSet, Limit, State, Timestamp};

use super::MemoryStore;
use super::shard::ShardFull;
use crate::store::StoreError;

/// The leases of all keys, behind one lock.
#[derive(Default)]
pub(crate) struct LeaseTable(Mutex<LeaseTableState>);

#[derive(Default)]
struct LeaseTableState {
    /// The leases of a key, and the instant from which on they and the state have no effect.
    leases: HashMap<Key, (LeaseSet, Timestamp)>,
    /// The number of keys that the last sweep, a removal of expired ones, left.
    keys_after_sweep: usize,
    /// Bytes of the lists of leases.
    list_bytes: usize,
}

#[cfg(test)]
impl LeaseTable {
    /// Adds up the size of the table and of every list, for tests.
    pub(crate) fn kept_bytes(&self) -> usize {
        let table = self.0.lock();
        let lists: usize = table.leases.values().map(|(leases, _)| leases.heap_bytes()).sum();
        table.leases.capacity() * size_of::<(Key, (LeaseSet, Timestamp))>() + lists
    }
}

impl LeaseTableState {
    /// A table with fewer than twice this many keys is not swept.
    const MIN_KEYS_TO_SWEEP: usize = 1_024;

    /// Stores the leases of a key, unless there are none. Sweeps the table first if it has doubled since the last sweep.
    fn insert(&mut self, key: Key, leases: LeaseSet, settled_at: Timestamp, now: Timestamp) {
        if leases.is_empty() {
            return;
        }
        if self.leases.len() >= 2 * self.keys_after_sweep.max(Self::MIN_KEYS_TO_SWEEP) {
            self.leases.retain(|_, (_, settled_at)| *settled_at > now);
            self.leases.shrink_to(2 * self.leases.len());
            self.list_bytes = self.leases.values().map(|(leases, _)| leases.heap_bytes()).sum();
            self.keys_after_sweep = self.leases.len();
        }
        self.list_bytes += leases.heap_bytes();
        self.leases.insert(key, (leases, settled_at));
    }

    /// Removes the leases of a key, and returns them.
    fn take(&mut self, key: Key) -> LeaseSet {
        let leases = self.leases.remove(&key).map(|(leases, _)| leases).unwrap_or_default();
        self.list_bytes -= leases.heap_bytes();
        leases
    }

    /// Returns the size of the table and of the lists.
    fn bytes(&self) -> usize {
        self.leases.capacity() * size_of::<(Key, (LeaseSet, Timestamp))>() + self.list_bytes
    }
}

impl MemoryStore {
    /// Applies one lease request, synchronously.
    ///
    /// # Errors
    /// The key is new and its shard is full. An overflow bucket can't be leased, because several clients
    /// share it.
    pub fn lease_one(
        &self,
        key: Key,
        limit: &Arc<Limit>,
        request: &LeaseRequest,
    ) -> Result<LeaseGrant, StoreError> {
        let now = self.clock.now();
        // Locked during the whole call: the leases of the key are taken out, and another request must not miss them.
        let mut table = self.lease_table.0.lock();
        let bytes_before = table.bytes();
        let mut leases = table.take(key);
        let (shard_index, mut shard) = self.lock_shard(key);
        let work = |limit: &Limit, state: &mut State| {
            let grant = limit.apply_lease_request(state, &mut leases, now, request);
            (grant, limit.settled_at(state, &leases))
        };
        let exempt_from_capacity = false;
        let applied = shard.update(&self.shared, key, limit, now, exempt_from_capacity, work);
        self.hints[shard_index].update(&shard);
        let result = match applied {
            Ok((grant, settled_at)) => {
                table.insert(key, leases, settled_at, now);
                Ok(grant)
            }
            Err(ShardFull) => {
                // The key has no entry, so its state is fresh. Its leases are put back, since they may still count.
                let settled_at = limit.settled_at(&limit.fresh(), &leases);
                table.insert(key, leases, settled_at, now);
                let reason = "no room for another key".into();
                Err(StoreError::Unavailable { store: "memory".into(), reason })
            }
        };
        self.shared.account(bytes_before, table.bytes());
        result
    }
}
