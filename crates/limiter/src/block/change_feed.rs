//! Changes of this node that have to reach the others.
//!
//! A change is kept until a list of the store is known to have it, so neither a store that fails nor one that returns
//! an older list undoes it here. Of two changes of one subject the one with the
//! greater [`ChangeStamp`] counts everywhere; `docs/decisions/0017-block-list-order.md` has the rules.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::Timestamp;

use super::change::{Change, ChangeKind, SubjectState};
use super::entry::Entry;
use super::index::BlockIndex;
use super::pending_changes::PendingChanges;
use super::table::{SubjectKey, SubjectKind};
use super::{BlockList, is_everybody};

/// The changes of a shared list that wait to be published, for the task that publishes them.
///
/// ```
/// use std::sync::Arc;
/// use tidegate::block::{BlockList, ChangeKind};
/// use tidegate::Timestamp;
///
/// # async fn publish(_: &[tidegate::block::Change]) -> Result<u64, ()> { Ok(1) }
/// # async fn fetch() -> Result<(u64, Vec<tidegate::block::Change>), ()> { Ok((1, Vec::new())) }
/// # async fn example(list: Arc<BlockList>, now: Timestamp) -> Result<(), ()> {
/// let feed = list.share();
/// loop {
///     let (version, newest) = fetch().await?;
///     list.replace_all(version, newest, now);
///     feed.changed().await;
///     let changes = feed.pending(1_000, now);
///     // A version of the store that has these changes: it grows with every change.
///     let version = publish(&changes).await?;
///     feed.published(&changes, version);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct ChangeFeed {
    list: Arc<BlockList>,
}

impl BlockList {
    /// Replaces the list by that of the store, except for changes made here that are newer or not in it:
    /// see [`ChangeFeed::published`]. None of its changes counts as made here.
    ///
    /// Of each subject the store has the newest change by an operator and the newest penalty after that. The greater
    /// stamp counts; an entry that a penalty would end sooner stays.
    ///
    /// Entries without room are left out: penalties before operators' entries, and of those the ones
    /// that end soonest.
    pub fn replace_all(&self, version: u64, changes: Vec<Change>, now: Timestamp) {
        let mut subjects: HashMap<SubjectKey, SubjectState> = HashMap::new();
        for change in changes {
            let kind = match change.kind {
                ChangeKind::Add(entry) if entry.subject.is_canonical() => ChangeKind::Add(entry),
                ChangeKind::Add(entry) => {
                    let subject = entry.subject.clone().canonical();
                    ChangeKind::Add(Arc::new(Entry { subject, ..(*entry).clone() }))
                }
                ChangeKind::Remove(subject) => ChangeKind::Remove(subject.canonical()),
            };
            let change = Change { kind, ..change };
            subjects.entry(SubjectKey::of(change.subject())).or_default().apply(change);
        }
        let mut index = self.index();
        if let Some(pending) = &mut index.pending {
            pending.correct(version, &mut subjects);
        }
        let blocked = subjects.into_iter();
        let blocked = blocked.filter_map(|(key, state)| Some((key, state.entry(now)?)));
        let mut wanted: HashMap<SubjectKey, Arc<Entry>> = blocked.collect();
        wanted.retain(|_, entry| !is_everybody(&entry.subject));
        if wanted.len() > self.max_entries {
            let mut ranked: Vec<_> = wanted.into_iter().collect();
            ranked.sort_unstable_by_key(|(_, entry)| (!entry.is_penalty(), entry.until));
            let excess = ranked.drain(..ranked.len() - self.max_entries).count();
            self.refused.fetch_add(excess as u64, Ordering::Relaxed);
            wanted = ranked.into_iter().collect();
        }
        for entry in self.table.entries() {
            let key = SubjectKey::of(&entry.subject);
            if !wanted.contains_key(&key) {
                index.take(&self.table, &self.keyer, key);
            }
        }
        for (key, entry) in wanted {
            let known = self.table.get(key).is_some_and(|known| known == entry);
            if !known && index.has_kind(&SubjectKind::of(&entry.subject)) {
                index.put(&self.table, &self.keyer, entry);
            } else if !known {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Keeps every change that is made here from now on until it is published, beginning with the entries that are
    /// there. There is one feed at a time; a second call keeps the pending changes.
    #[must_use]
    pub fn share(self: &Arc<Self>) -> ChangeFeed {
        let mut index = self.index();
        if index.pending.is_none() {
            // As many entries as there may be, and as many that were removed.
            index.pending = Some(PendingChanges::new(self.max_entries.saturating_mul(2)));
            for entry in self.table.entries() {
                let (key, until) = (SubjectKey::of(&entry.subject), entry.until);
                self.note(&mut index, key, ChangeKind::Add(entry), until, Timestamp::EPOCH);
            }
        }
        drop(index);
        ChangeFeed::new(Arc::clone(self))
    }

    /// Notes a change for the feed, if the list is shared.
    pub(crate) fn note(
        &self,
        index: &mut BlockIndex,
        key: SubjectKey,
        kind: ChangeKind,
        until: Timestamp,
        now: Timestamp,
    ) {
        let Some(pending) = &mut index.pending else { return };
        if pending.note(key, kind, until, now) {
            tracing::warn!("block list: too many changes wait to be shared, the oldest is dropped");
        }
        self.changed.notify_one();
    }
}

impl ChangeFeed {
    pub(crate) fn new(list: Arc<BlockList>) -> Self {
        Self { list }
    }

    /// Returns once there is something to publish. Safe to drop at any point.
    pub async fn changed(&self) {
        loop {
            let waiting = self.list.changed.notified();
            if self.list.index().pending.as_ref().is_some_and(PendingChanges::has_unpublished) {
                return;
            }
            waiting.await;
        }
    }

    /// Returns the changes made here that are not published, the oldest first, at most `most`, without those that
    /// are over. A second call returns the same until they are [`published`](Self::published).
    ///
    /// Nothing is returned before the first [`replace_all`](BlockList::replace_all): a stamp names the list that
    /// the change was made on.
    #[must_use]
    pub fn pending(&self, most: usize, now: Timestamp) -> Vec<Change> {
        let mut index = self.list.index();
        let Some(pending) = &mut index.pending else { return Vec::new() };
        pending.expire(now);
        pending.unpublished().take(most).cloned().collect()
    }

    /// Marks changes as published: the store returns them with every list of this version or a later one.
    pub fn published(&self, changes: &[Change], version: u64) {
        let mut index = self.list.index();
        let Some(pending) = &mut index.pending else { return };
        for change in changes {
            pending.publish(change.stamp.number, version);
        }
    }

    /// Has every change that is kept here published again: the store lost its data.
    pub fn republish(&self) {
        if let Some(pending) = &mut self.list.index().pending {
            pending.republish();
        }
        self.list.changed.notify_one();
    }
}
