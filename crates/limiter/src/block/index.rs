//! The entries of a block list by their end, and the kinds of their subjects: for writers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::{Keyer, Timestamp};

use super::BlockList;
use super::entry::Entry;
use super::pending_changes::PendingChanges;
use super::table::{BlockTable, SubjectKey, SubjectKind};

/// The entries of a list by their end, and their kinds. Every change of the table passes through here.
#[derive(Debug, Default)]
pub(crate) struct BlockIndex {
    by_end: BTreeSet<(Timestamp, SubjectKey)>,
    kinds: BTreeMap<SubjectKind, usize>,
    /// The changes made here that other nodes may not have, once the list is shared.
    pub(crate) pending: Option<PendingChanges>,
}

impl BlockIndex {
    /// Inserts an entry, in place of an earlier one of the same subject.
    pub(crate) fn put(&mut self, table: &BlockTable, keyer: &Keyer, entry: Arc<Entry>) {
        let (key, kind) = (SubjectKey::of(&entry.subject), SubjectKind::of(&entry.subject));
        // Only a store that was tampered with has one digest for two kinds of clients.
        if table.get(key).is_some_and(|there| there.subject != entry.subject) {
            self.take(table, keyer, key);
        }
        self.by_end.insert((entry.until, key));
        let until = entry.until;
        match table.insert(key, entry) {
            Some(old) if old.until != until => drop(self.by_end.remove(&(old.until, key))),
            Some(_) => {}
            None => {
                let count = self.kinds.entry(kind).or_default();
                *count += 1;
                if *count == 1 {
                    table.set_kinds(keyer, self.kinds.keys());
                }
            }
        }
    }

    /// Removes an entry.
    pub(crate) fn take(
        &mut self,
        table: &BlockTable,
        keyer: &Keyer,
        key: SubjectKey,
    ) -> Option<Arc<Entry>> {
        let old = table.remove(key)?;
        self.by_end.remove(&(old.until, key));
        let kind = SubjectKind::of(&old.subject);
        if let Some(count) = self.kinds.get_mut(&kind) {
            *count -= 1;
            if *count == 0 {
                self.kinds.remove(&kind);
                table.set_kinds(keyer, self.kinds.keys());
            }
        }
        Some(old)
    }

    /// Drops entries that are over. Returns their number.
    pub(crate) fn expire(&mut self, table: &BlockTable, keyer: &Keyer, now: Timestamp) -> usize {
        let mut dropped = 0;
        while self.by_end.first().is_some_and(|(until, _)| *until <= now)
            && let Some((_, key)) = self.by_end.pop_first()
        {
            dropped += usize::from(self.take(table, keyer, key).is_some());
        }
        dropped
    }

    /// Returns whether another subject of this kind can be on the list.
    pub(crate) fn has_kind(&self, kind: &SubjectKind) -> bool {
        let clients = self.kinds.keys().filter(|kind| matches!(kind, SubjectKind::Client(_)));
        !matches!(kind, SubjectKind::Client(_))
            || self.kinds.contains_key(kind)
            || clients.count() < BlockList::MAX_KINDS
    }

    /// Returns the keys, those whose entries end soonest first.
    pub(crate) fn soonest(&self) -> impl Iterator<Item = SubjectKey> {
        self.by_end.iter().map(|(_, key)| *key)
    }
}
