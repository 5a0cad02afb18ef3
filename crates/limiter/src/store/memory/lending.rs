//! What nodes hold ahead of use, beside the states of the same keys.
//!
//! In a table of its own: few clients have holds, and the states of all others stay small.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_core::{Ask, Granted, Holds, Key, Limit, State, Timestamp};

use super::MemoryStore;
use super::shard::Full;
use crate::store::StoreError;

/// Who holds what.
#[derive(Default)]
pub(super) struct Lending(Mutex<Table>);

#[derive(Default)]
struct Table {
    /// The holds of a key, and from when on they say nothing.
    held: HashMap<Key, (Holds, Timestamp)>,
    /// How many keys were left when those that say nothing were last dropped.
    left: usize,
}

impl Table {
    const FEW: usize = 1_024;

    /// Keeps holds, unless they say nothing. Now and then drops what others no longer say.
    fn keep(&mut self, key: Key, holds: Holds, settled: Timestamp, now: Timestamp) {
        if holds.is_empty() {
            return;
        }
        if self.held.len() >= 2 * self.left.max(Self::FEW) {
            self.held.retain(|_, (_, settled)| *settled > now);
            self.left = self.held.len();
        }
        self.held.insert(key, (holds, settled));
    }
}

impl MemoryStore {
    /// Decides one ask. Synchronous.
    ///
    /// # Errors
    /// A newcomer for which there is no room: what it would share with others, nobody can hold.
    pub fn ask_one(&self, key: Key, limit: &Arc<Limit>, ask: &Ask) -> Result<Granted, StoreError> {
        let now = self.clock.now();
        // Held throughout, so that no two asks see the same holds.
        let mut lending = self.lending.0.lock();
        let mut holds = lending.held.remove(&key).map(|(holds, _)| holds).unwrap_or_default();
        let (place, mut shard) = self.open(key);
        let work = |limit: &Limit, state: &mut State| {
            let granted = limit.ask(state, &mut holds, now, ask);
            (granted, limit.settled_at(state, &holds))
        };
        let told = shard.visit(&self.common, key, limit, now, false, work);
        self.hints[place].note(&shard);
        match told {
            Ok((granted, settled)) => {
                lending.keep(key, holds, settled, now);
                Ok(granted)
            }
            Err(Full) => {
                // Its state says nothing any more, or it would have its room; the holds may.
                let settled = limit.settled_at(&limit.fresh(), &holds);
                lending.keep(key, holds, settled, now);
                let reason = "no room for another key".into();
                Err(StoreError::Unavailable { store: "memory".into(), reason })
            }
        }
    }
}
