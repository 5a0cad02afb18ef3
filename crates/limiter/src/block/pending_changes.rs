//! The changes that a node keeps until a list from the store contains them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};

use tidegate_core::Timestamp;

use super::change::{Change, ChangeKind, ChangeStamp, SubjectState};
use super::table::SubjectKey;

/// The changes of a shared list that this node made. For each subject, these are the latest change by an operator and
/// the latest penalty after it.
#[derive(Debug)]
pub(crate) struct PendingChanges {
    /// The id of this node in stamps.
    node: u64,
    /// The last version of the store's list that this node has received.
    version: Option<u64>,
    next_number: u64,
    max_changes: usize,
    changes: BTreeMap<u64, PendingChange>,
    /// The number of the latest change of a subject, for operators (`false`) and penalties (`true`).
    latest: HashMap<(SubjectKey, bool), u64>,
}

#[derive(Debug)]
struct PendingChange {
    key: SubjectKey,
    change: Change,
    /// The time from which the change has no effect.
    until: Timestamp,
    /// The first version of the store's list that contains it; `None` before it is published.
    since: Option<u64>,
}

impl PendingChange {
    fn slot(&self) -> (SubjectKey, bool) {
        (self.key, self.change.is_penalty())
    }
}

impl PendingChanges {
    /// Creates an empty set of at most `max_changes`.
    pub(crate) fn new(max_changes: usize) -> Self {
        Self {
            node: RandomState::new().hash_one(0),
            version: None,
            next_number: 0,
            max_changes,
            changes: BTreeMap::new(),
            latest: HashMap::new(),
        }
    }

    /// Records a change that has an effect until `until`, in place of the changes that it supersedes.
    ///
    /// If the set is full, the oldest change is dropped. Returns whether one was dropped.
    pub(crate) fn record(
        &mut self,
        key: SubjectKey,
        kind: ChangeKind,
        until: Timestamp,
        now: Timestamp,
    ) -> bool {
        let number = self.next_number;
        self.next_number += 1;
        let version = self.version.unwrap_or_default();
        let stamp = ChangeStamp { version, node: self.node, number };
        let pending = PendingChange { key, change: Change { stamp, kind }, until, since: None };
        if !pending.change.is_penalty() {
            self.drop_latest((key, true));
        }
        self.drop_latest(pending.slot());
        self.latest.insert(pending.slot(), number);
        self.changes.insert(number, pending);
        if self.changes.len() > self.max_changes {
            self.expire(now);
        }
        if self.changes.len() <= self.max_changes {
            return false;
        }
        let oldest = self.changes.pop_first();
        oldest.is_some_and(|(_, pending)| self.latest.remove(&pending.slot()).is_some())
    }

    fn drop_latest(&mut self, slot: (SubjectKey, bool)) {
        if let Some(earlier) = self.latest.remove(&slot) {
            self.changes.remove(&earlier);
        }
    }

    /// Drops changes that have no effect any more.
    pub(crate) fn expire(&mut self, now: Timestamp) {
        self.retain(|pending| now < pending.until);
    }

    fn retain(&mut self, mut keep: impl FnMut(&PendingChange) -> bool) {
        let Self { changes, latest, .. } = self;
        changes.retain(|_, pending| {
            let kept = keep(pending);
            if !kept {
                latest.remove(&pending.slot());
            }
            kept
        });
    }

    /// Returns unpublished changes, the oldest first. Returns none before the first list was received, because stamps
    /// contain its version.
    pub(crate) fn unpublished(&self) -> impl Iterator<Item = &Change> {
        let changes = self.version.is_some().then_some(&self.changes).into_iter().flatten();
        changes.filter(|(_, pending)| pending.since.is_none()).map(|(_, pending)| &pending.change)
    }

    pub(crate) fn has_unpublished(&self) -> bool {
        self.unpublished().next().is_some()
    }

    /// Marks a change as published: lists from this version on contain it.
    pub(crate) fn mark_published(&mut self, number: u64, version: u64) {
        if let Some(pending) = self.changes.get_mut(&number) {
            pending.since = Some(version);
        }
    }

    /// Marks every kept change as unpublished.
    pub(crate) fn republish(&mut self) {
        self.changes.values_mut().for_each(|pending| pending.since = None);
    }

    /// Drops the changes that a list of this version contains, and merges the others into the list.
    pub(crate) fn merge_into(
        &mut self,
        version: u64,
        list: &mut HashMap<SubjectKey, SubjectState>,
    ) {
        if self.version.is_none() {
            // Changes from before the first list count as made on it.
            self.changes.values_mut().for_each(|pending| pending.change.stamp.version = version);
        }
        self.version = self.version.max(Some(version));
        self.retain(|pending| pending.since.is_none_or(|since| since > version));
        for pending in self.changes.values() {
            list.entry(pending.key).or_default().apply(pending.change.clone());
        }
    }
}
