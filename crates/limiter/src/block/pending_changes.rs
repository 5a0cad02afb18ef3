//! The changes that a node keeps until a list from the store is known to have them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

use tidegate_core::Timestamp;

use super::change::{Change, ChangeKind, ChangeStamp, SubjectState};
use super::table::SubjectKey;

/// The changes of a shared list that were made here: of each subject the latest by an operator, and the latest
/// penalty after that.
#[derive(Debug)]
pub(crate) struct PendingChanges {
    /// This node's name in stamps.
    node: u64,
    /// The last version of the store's list that this node has seen.
    seen: Option<u64>,
    next: u64,
    most: usize,
    notes: BTreeMap<u64, PendingChange>,
    /// The notes of a subject: by an operator, and of a penalty.
    latest: HashMap<(SubjectKey, bool), u64>,
}

#[derive(Debug)]
struct PendingChange {
    key: SubjectKey,
    change: Change,
    /// The time from which on it makes no difference.
    until: Timestamp,
    /// The first version of the store that has it, once it is published.
    since: Option<u64>,
}

impl PendingChange {
    fn slot(&self) -> (SubjectKey, bool) {
        (self.key, self.change.is_penalty())
    }
}

impl PendingChanges {
    /// Returns an empty set with room for so many changes.
    pub(crate) fn new(most: usize) -> Self {
        let (notes, latest) = (BTreeMap::new(), HashMap::new());
        Self { node: RandomState::new().hash_one(0), seen: None, next: 0, most, notes, latest }
    }

    /// Notes a change that makes a difference until `until`, in place of the ones that it supersedes.
    ///
    /// When there is no room, the oldest change is dropped. Returns whether that was needed.
    pub(crate) fn note(
        &mut self,
        key: SubjectKey,
        kind: ChangeKind,
        until: Timestamp,
        now: Timestamp,
    ) -> bool {
        let number = self.next;
        self.next += 1;
        let stamp = ChangeStamp { version: self.seen.unwrap_or_default(), node: self.node, number };
        let note = PendingChange { key, change: Change { stamp, kind }, until, since: None };
        if !note.change.is_penalty() {
            self.drop_latest((key, true));
        }
        self.drop_latest(note.slot());
        self.latest.insert(note.slot(), number);
        self.notes.insert(number, note);
        if self.notes.len() > self.most {
            self.expire(now);
        }
        if self.notes.len() <= self.most {
            return false;
        }
        let oldest = self.notes.pop_first();
        oldest.is_some_and(|(_, note)| self.latest.remove(&note.slot()).is_some())
    }

    fn drop_latest(&mut self, slot: (SubjectKey, bool)) {
        if let Some(earlier) = self.latest.remove(&slot) {
            self.notes.remove(&earlier);
        }
    }

    /// Drops changes that make no difference any more.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        self.retain(|note| now < note.until);
    }

    fn retain(&mut self, mut keep: impl FnMut(&PendingChange) -> bool) {
        let Self { notes, latest, .. } = self;
        notes.retain(|_, note| {
            let kept = keep(note);
            if !kept {
                latest.remove(&note.slot());
            }
            kept
        });
    }

    /// Returns the changes that are not published, the oldest first. There are none before the first list was seen, which
    /// their stamps name.
    pub(crate) fn unpublished(&self) -> impl Iterator<Item = &Change> {
        let notes = self.seen.is_some().then_some(&self.notes).into_iter().flatten();
        notes.filter(|(_, note)| note.since.is_none()).map(|(_, note)| &note.change)
    }

    pub(crate) fn has_unpublished(&self) -> bool {
        self.unpublished().next().is_some()
    }

    pub(crate) fn publish(&mut self, number: u64, version: u64) {
        if let Some(note) = self.notes.get_mut(&number) {
            note.since = Some(version);
        }
    }

    /// Has every change that is kept published again.
    pub(crate) fn republish(&mut self) {
        self.notes.values_mut().for_each(|note| note.since = None);
    }

    /// Drops the changes that a list of this version has, and merges the others into the list.
    pub(crate) fn correct(&mut self, version: u64, list: &mut HashMap<SubjectKey, SubjectState>) {
        if self.seen.is_none() {
            // Made before any list was seen: they count as made on the first one.
            self.notes.values_mut().for_each(|note| note.change.stamp.version = version);
        }
        self.seen = self.seen.max(Some(version));
        self.retain(|note| note.since.is_none_or(|since| since > version));
        for note in self.notes.values() {
            list.entry(note.key).or_default().apply(note.change.clone());
        }
    }
}
