//! An index of the block list for writers: entries by their end, and the kinds of their subjects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tidegate_core::{Keyer, Timestamp};

use super::BlockList;
use super::entry::Entry;
use super::pending_changes::PendingChanges;
use super::table::{BlockTable, SubjectKey, SubjectKind};

/// The entries of a list by their end, and their kinds. Every change of the table updates it.
#[derive(Debug, Default)]
pub(crate) struct BlockIndex {
    by_end: BTreeSet<(Timestamp, SubjectKey)>,
    kinds: BTreeMap<SubjectKind, usize>,
    /// Changes of this node that other nodes may not have; `None` unless the list is shared.
    pub(crate) pending: Option<PendingChanges>,
}

impl BlockIndex {
    /// Inserts an entry, or replaces the entry of the same subject.
    pub(crate) fn insert(&mut self, table: &BlockTable, keyer: &Keyer, entry: Arc<Entry>) {
        let (key, kind) =
            (SubjectKey::from_subject(&entry.subject), SubjectKind::from_subject(&entry.subject));
        // Two kinds of clients with one digest come only from a store that was tampered with.
        if table.get(key).is_some_and(|old| old.subject != entry.subject) {
            self.remove(table, keyer, key);
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
    pub(crate) fn remove(
        &mut self,
        table: &BlockTable,
        keyer: &Keyer,
        key: SubjectKey,
    ) -> Option<Arc<Entry>> {
        let old = table.remove(key)?;
        self.by_end.remove(&(old.until, key));
        let kind = SubjectKind::from_subject(&old.subject);
        if let Some(count) = self.kinds.get_mut(&kind) {
            *count -= 1;
            if *count == 0 {
                self.kinds.remove(&kind);
                table.set_kinds(keyer, self.kinds.keys());
            }
        }
        Some(old)
    }

    /// Removes expired entries. Returns their number.
    pub(crate) fn expire(&mut self, table: &BlockTable, keyer: &Keyer, now: Timestamp) -> usize {
        let mut removed = 0;
        while self.by_end.first().is_some_and(|(until, _)| *until <= now)
            && let Some((_, key)) = self.by_end.pop_first()
        {
            removed += usize::from(self.remove(table, keyer, key).is_some());
        }
        removed
    }

    /// Returns whether a subject of this kind can be added, see [`BlockList::MAX_KINDS`].
    pub(crate) fn accepts_kind(&self, kind: &SubjectKind) -> bool {
        let clients = self.kinds.keys().filter(|kind| matches!(kind, SubjectKind::Client(_)));
        !matches!(kind, SubjectKind::Client(_))
            || self.kinds.contains_key(kind)
            || clients.count() < BlockList::MAX_KINDS
    }

    /// Returns the keys of all entries, in the order of their ends.
    pub(crate) fn keys_by_end(&self) -> impl Iterator<Item = SubjectKey> {
        self.by_end.iter().map(|(_, key)| *key)
    }
}
