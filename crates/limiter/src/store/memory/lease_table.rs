//! The leases of keys, beside their states.
//!
//! In a table of its own: few clients have leases, and the states of all others stay small.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::{Key, LeaseGrant, LeaseRequest, LeaseSet, Limit, State, Timestamp};

use super::MemoryStore;
use super::shard::Full;
use crate::store::StoreError;

/// The leases of keys.
#[derive(Default)]
pub(crate) struct LeaseTable(Mutex<LeaseTableState>);

#[derive(Default)]
struct LeaseTableState {
    /// The leases of a key, and the time from which on they make no difference.
    leases: HashMap<Key, (LeaseSet, Timestamp)>,
    /// The number of keys that were left when expired ones were last dropped.
    left: usize,
}

impl LeaseTableState {
    const MIN_SWEEP: usize = 1_024;

    /// Keeps leases, unless there are none. Drops expired ones when the table has doubled.
    fn keep(&mut self, key: Key, leases: LeaseSet, settled: Timestamp, now: Timestamp) {
        if leases.is_empty() {
            return;
        }
        if self.leases.len() >= 2 * self.left.max(Self::MIN_SWEEP) {
            self.leases.retain(|_, (_, settled)| *settled > now);
            self.left = self.leases.len();
        }
        self.leases.insert(key, (leases, settled));
    }
}

impl MemoryStore {
    /// Applies one lease request. Synchronous.
    ///
    /// # Errors
    /// There is no room for a new key: a bucket that clients share can't be leased.
    pub fn lease_one(
        &self,
        key: Key,
        limit: &Arc<Limit>,
        request: &LeaseRequest,
    ) -> Result<LeaseGrant, StoreError> {
        let now = self.clock.now();
        // Locked throughout, so that no two requests see the same leases.
        let mut table = self.lease_table.0.lock();
        let mut leases = table.leases.remove(&key).map(|(leases, _)| leases).unwrap_or_default();
        let (place, mut shard) = self.open(key);
        let work = |limit: &Limit, state: &mut State| {
            let grant = limit.apply_lease_request(state, &mut leases, now, request);
            (grant, limit.settled_at(state, &leases))
        };
        let applied = shard.visit(&self.common, key, limit, now, false, work);
        self.hints[place].note(&shard);
        match applied {
            Ok((grant, settled)) => {
                table.keep(key, leases, settled, now);
                Ok(grant)
            }
            Err(Full) => {
                // Its state equals a fresh one, or it would have room; its leases may still count.
                let settled = limit.settled_at(&limit.fresh(), &leases);
                table.keep(key, leases, settled, now);
                let reason = "no room for another key".into();
                Err(StoreError::Unavailable { store: "memory".into(), reason })
            }
        }
    }
}
