//! What a writer has to know of the block list beside the entries: which end first, and of what kinds
//! they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::{Keyer, Timestamp};

use super::BlockList;
use super::entry::Entry;
use super::journal::Journal;
use super::table::{Kind, Place, Table};

/// The books of a list. Every change of its table goes through here.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    by_end: BTreeSet<(Timestamp, Place)>,
    kinds: BTreeMap<Kind, usize>,
    /// What was changed here and the others may not know, once the list is shared.
    pub(super) journal: Option<Journal>,
}

impl Ledger {
    /// Puts an entry in its place, instead of what was there.
    pub(super) fn put(&mut self, table: &Table, keyer: &Keyer, entry: Arc<Entry>) {
        let (place, kind) = (Place::of(&entry.subject), Kind::of(&entry.subject));
        // Only a store that was tampered with has one digest for two kinds of clients.
        if table.get(place).is_some_and(|there| there.subject != entry.subject) {
            self.take(table, keyer, place);
        }
        self.by_end.insert((entry.until, place));
        let until = entry.until;
        match table.insert(place, entry) {
            Some(old) if old.until != until => drop(self.by_end.remove(&(old.until, place))),
            Some(_) => {}
            None => {
                let count = self.kinds.entry(kind).or_default();
                *count += 1;
                if *count == 1 {
                    table.look_for(keyer, self.kinds.keys());
                }
            }
        }
    }

    /// Takes an entry out of its place.
    pub(super) fn take(
        &mut self,
        table: &Table,
        keyer: &Keyer,
        place: Place,
    ) -> Option<Arc<Entry>> {
        let old = table.remove(place)?;
        self.by_end.remove(&(old.until, place));
        let kind = Kind::of(&old.subject);
        if let Some(count) = self.kinds.get_mut(&kind) {
            *count -= 1;
            if *count == 0 {
                self.kinds.remove(&kind);
                table.look_for(keyer, self.kinds.keys());
            }
        }
        Some(old)
    }

    /// Drops what is over. How many entries that was.
    pub(super) fn expire(&mut self, table: &Table, keyer: &Keyer, now: Timestamp) -> usize {
        let mut dropped = 0;
        while self.by_end.first().is_some_and(|(until, _)| *until <= now)
            && let Some((_, place)) = self.by_end.pop_first()
        {
            dropped += usize::from(self.take(table, keyer, place).is_some());
        }
        dropped
    }

    /// Whether another subject of this kind can be looked for.
    pub(super) fn has_kind(&self, kind: &Kind) -> bool {
        let clients = self.kinds.keys().filter(|kind| matches!(kind, Kind::Client(_)));
        !matches!(kind, Kind::Client(_))
            || self.kinds.contains_key(kind)
            || clients.count() < BlockList::MAX_KINDS
    }

    /// The places, those whose entries end soonest first.
    pub(super) fn soonest(&self) -> impl Iterator<Item = Place> {
        self.by_end.iter().map(|(_, place)| *place)
    }
}
