//! Changes of this node that are published to the other nodes.
//!
//! A change is kept until a list from the store contains it. A store that fails or returns an older list therefore
//! does not undo it on this node. Of two changes of one subject, the one with the greater
//! [`ChangeStamp`](super::ChangeStamp) applies on every node; `docs/decisions/0017-block-list-order.md` has the rules.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::Timestamp;

use super::change::{Change, ChangeKind, SubjectState};
use super::entry::Entry;
use super::index::BlockIndex;
use super::pending_changes::PendingChanges;
use super::table::{SubjectKey, SubjectKind};
use super::{BlockList, covers_every_address};

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
///     // The version of the store's list that contains these changes. It grows with every change.
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
    /// Replaces the list by the list of the store. Changes of this node stay if they are newer or not in it, see
    /// [`ChangeFeed::published`]. The changes of the store are not published again.
    ///
    /// For each subject, the store has the newest change by an operator and the newest penalty after it. The greater
    /// stamp applies, but a penalty never shortens a block.
    ///
    /// Entries that do not fit are left out: first penalties, then operators' entries, each by their ends, soonest
    /// first.
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
            subjects.entry(SubjectKey::from_subject(change.subject())).or_default().apply(change);
        }
        let mut index = self.index();
        if let Some(pending) = &mut index.pending {
            pending.merge_into(version, &mut subjects);
        }
        let blocked = subjects.into_iter();
        let blocked = blocked.filter_map(|(key, state)| Some((key, state.entry(now)?)));
        let mut wanted: HashMap<SubjectKey, Arc<Entry>> = blocked.collect();
        wanted.retain(|_, entry| !covers_every_address(&entry.subject));
        if wanted.len() > self.max_entries {
            let mut ranked: Vec<_> = wanted.into_iter().collect();
            ranked.sort_unstable_by_key(|(_, entry)| (!entry.is_penalty(), entry.until));
            let excess = ranked.drain(..ranked.len() - self.max_entries).count();
            self.refused.fetch_add(excess as u64, Ordering::Relaxed);
            wanted = ranked.into_iter().collect();
        }
        for entry in self.table.entries() {
            let key = SubjectKey::from_subject(&entry.subject);
            if !wanted.contains_key(&key) {
                index.remove(&self.table, &self.keyer, key);
            }
        }
        for (key, entry) in wanted {
            let known = self.table.get(key).is_some_and(|known| known == entry);
            if !known && index.accepts_kind(&SubjectKind::from_subject(&entry.subject)) {
                index.insert(&self.table, &self.keyer, entry);
            } else if !known {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Starts to keep every change of this node until it is published, starting with the current entries. There is one
    /// feed at a time; a second call keeps the pending changes.
    #[must_use]
    pub fn share(self: &Arc<Self>) -> ChangeFeed {
        let mut index = self.index();
        if index.pending.is_none() {
            // Room for a full list, and for as many removals.
            index.pending = Some(PendingChanges::new(self.max_entries.saturating_mul(2)));
            for entry in self.table.entries() {
                let (key, until) = (SubjectKey::from_subject(&entry.subject), entry.until);
                self.record(&mut index, key, ChangeKind::Add(entry), until, Timestamp::EPOCH);
            }
        }
        drop(index);
        ChangeFeed::new(Arc::clone(self))
    }

    /// Records a change for the feed, if the list is shared.
    pub(crate) fn record(
        &self,
        index: &mut BlockIndex,
        key: SubjectKey,
        kind: ChangeKind,
        until: Timestamp,
        now: Timestamp,
    ) {
        let Some(pending) = &mut index.pending else { return };
        if pending.record(key, kind, until, now) {
            tracing::warn!(
                "too many unpublished block list changes, dropped the oldest; other nodes will not receive it"
            );
        }
        self.changed.notify_one();
    }
}

impl ChangeFeed {
    pub(crate) fn new(list: Arc<BlockList>) -> Self {
        Self { list }
    }

    /// Waits until there are changes to publish. Cancel safe.
    pub async fn changed(&self) {
        loop {
            let notified = self.list.changed.notified();
            if self.list.index().pending.as_ref().is_some_and(PendingChanges::has_unpublished) {
                return;
            }
            notified.await;
        }
    }

    /// Returns unpublished changes of this node, the oldest first, at most `max`. Expired changes are left out. A
    /// second call returns the same changes until they are [`published`](Self::published).
    ///
    /// Nothing is returned before the first [`replace_all`](BlockList::replace_all), because a stamp contains the
    /// version of the list that the change was made on.
    #[must_use]
    pub fn pending(&self, max: usize, now: Timestamp) -> Vec<Change> {
        let mut index = self.list.index();
        let Some(pending) = &mut index.pending else { return Vec::new() };
        pending.expire(now);
        pending.unpublished().take(max).cloned().collect()
    }

    /// Marks changes as published: every list of the store with this version or a later one contains them.
    pub fn published(&self, changes: &[Change], version: u64) {
        let mut index = self.list.index();
        let Some(pending) = &mut index.pending else { return };
        for change in changes {
            pending.mark_published(change.stamp.number, version);
        }
    }

    /// Marks every kept change as unpublished, because the store lost its data.
    pub fn republish(&self) {
        if let Some(pending) = &mut self.list.index().pending {
            pending.republish();
        }
        self.list.changed.notify_one();
    }
}
