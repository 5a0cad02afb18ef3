//! Moving a slot, in steps that a test can stand between.

use std::collections::HashMap;
use std::sync::{MutexGuard, PoisonError};

use super::Cluster;

/// A slot on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlotMigration {
    from: usize,
    to: usize,
}

impl Cluster {
    /// Declares that a slot is on its way to the node at `to`.
    ///
    /// From now on the owner answers `ASK` for keys that it does not have (any more), and `TRYAGAIN` for a command with
    /// keys it has in part.
    ///
    /// # Panics
    /// The node already owns the slot, or a node rejects the command.
    pub fn begin_migration(&self, slot: u16, to: usize) {
        let from = self.owner_of(slot);
        assert_ne!(from, to, "slot {slot} is already where it should go");
        self.set_slot(to, slot, &["IMPORTING", &self.ids[from]]);
        self.set_slot(from, slot, &["MIGRATING", &self.ids[to]]);
        self.migrations().insert(slot, SlotMigration { from, to });
    }

    /// Moves up to `limit` keys of a slot on its way, and returns their number.
    ///
    /// # Panics
    /// The slot is not migrating, or a node rejects the command.
    pub fn migrate_keys(&self, slot: u16, limit: usize) -> usize {
        let SlotMigration { from, to } = self.migration(slot);
        let mut connection = self.node(from).connection().expect("the owner answers");
        let mut list = redis::cmd("CLUSTER");
        list.arg("GETKEYSINSLOT").arg(slot).arg(limit);
        let keys: Vec<Vec<u8>> = list.query(&mut connection).expect("the owner lists its keys");
        if keys.is_empty() {
            return 0;
        }
        let mut migrate = redis::cmd("MIGRATE");
        migrate.arg("127.0.0.1").arg(self.node(to).port()).arg("").arg(0).arg(5_000);
        migrate.arg("KEYS").arg(&keys);
        migrate.exec(&mut connection).unwrap_or_else(|error| panic!("slot {slot}: {error}"));
        keys.len()
    }

    /// Gives the slot to its new owner, and waits until every node that is up knows.
    ///
    /// # Panics
    /// The slot is not migrating, the old owner still has keys, or a node rejects the command.
    pub fn finish_migration(&self, slot: u16) {
        let SlotMigration { from, to } = self.migration(slot);
        let count = ["CLUSTER", "COUNTKEYSINSLOT", &slot.to_string()];
        let left: usize = self.node(from).query(&count);
        assert_eq!(left, 0, "slot {slot}: keys left with its old owner");
        // The new owner first: a slot must never be without an owner.
        let others = self.masters().into_iter().filter(|place| ![from, to].contains(place));
        for place in [to, from].into_iter().chain(others) {
            if self.node(place).is_up() {
                self.set_slot(place, slot, &["NODE", &self.ids[to]]);
            }
        }
        self.migrations().remove(&slot);
        self.wait_until_whole();
    }

    fn set_slot(&self, place: usize, slot: u16, state: &[&str]) {
        let slot = slot.to_string();
        let command = [&["CLUSTER", "SETSLOT", &slot], state].concat();
        self.node(place).query::<()>(&command);
    }

    fn migration(&self, slot: u16) -> SlotMigration {
        let found = self.migrations().get(&slot).copied();
        found.unwrap_or_else(|| panic!("slot {slot} is not on its way"))
    }

    fn migrations(&self) -> MutexGuard<'_, HashMap<u16, SlotMigration>> {
        self.migrations.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
