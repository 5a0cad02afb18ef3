//! The changes that a node keeps until it knows that a list from the store has them.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidegate_core::Timestamp;

use super::entry::Entry;
use super::outlet::{Change, What};
use super::table::Place;

/// The changes of a shared list, the latest of each subject.
#[derive(Debug)]
pub(super) struct Journal {
    next: u64,
    most: usize,
    notes: BTreeMap<u64, Note>,
    latest: HashMap<Place, u64>,
}

#[derive(Debug)]
struct Note {
    place: Place,
    what: What,
    /// From when on it makes no difference.
    until: Timestamp,
    /// The first version of the store that has it, once it is published.
    since: Option<u64>,
}

impl Journal {
    /// Nothing changed yet, and room for so many changes.
    pub(super) fn new(most: usize) -> Self {
        Self { next: 0, most, notes: BTreeMap::new(), latest: HashMap::new() }
    }

    /// Notes a change that says all there is to say about its subject until `until`.
    ///
    /// When there is no room, the oldest change is forgotten. Returns whether that was needed.
    pub(super) fn note(
        &mut self,
        place: Place,
        what: What,
        until: Timestamp,
        now: Timestamp,
    ) -> bool {
        if let Some(earlier) = self.latest.insert(place, self.next) {
            self.notes.remove(&earlier);
        }
        self.notes.insert(self.next, Note { place, what, until, since: None });
        self.next += 1;
        if self.notes.len() > self.most {
            self.expire(now);
        }
        if self.notes.len() <= self.most {
            return false;
        }
        let oldest = self.notes.pop_first();
        oldest.is_some_and(|(_, note)| self.latest.remove(&note.place).is_some())
    }

    /// Drops what makes no difference any more.
    pub(super) fn expire(&mut self, now: Timestamp) {
        let Self { notes, latest, .. } = self;
        notes.retain(|_, note| {
            let keep = now < note.until;
            if !keep {
                latest.remove(&note.place);
            }
            keep
        });
    }

    pub(super) fn news(&self) -> impl Iterator<Item = Change> {
        let unpublished = self.notes.iter().filter(|(_, note)| note.since.is_none());
        unpublished.map(|(number, note)| Change { number: *number, what: note.what.clone() })
    }

    pub(super) fn has_news(&self) -> bool {
        self.notes.values().any(|note| note.since.is_none())
    }

    pub(super) fn publish(&mut self, number: u64, version: u64) {
        if let Some(note) = self.notes.get_mut(&number) {
            note.since = Some(version);
        }
    }

    /// Forgets what a list of this version has, and corrects the list by what it lacks.
    pub(super) fn correct(&mut self, version: u64, list: &mut HashMap<Place, Arc<Entry>>) {
        let Self { notes, latest, .. } = self;
        notes.retain(|_, note| {
            if note.since.is_some_and(|since| since <= version) {
                latest.remove(&note.place);
                return false;
            }
            match &note.what {
                // A penalty never ends a block sooner.
                What::Add(entry)
                    if entry.is_penalty()
                        && list
                            .get(&note.place)
                            .is_some_and(|there| there.until >= entry.until) =>
                {
                    None
                }
                What::Add(entry) => list.insert(note.place, Arc::clone(entry)),
                What::Remove(_) => list.remove(&note.place),
            };
            true
        });
    }
}
