//! Changes of this node that have to reach the others.
//!
//! A change is kept until a list that the store handed out is known to have it, so neither a store
//! that fails nor one that answers with an older list undoes it here. Of two changes of one subject the one with the
//! greater [`ChangeStamp`] counts everywhere; `docs/decisions/0017-block-list-order.md` has the rules.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::{Span, Timestamp};

use super::entry::Entry;
use super::journal::Journal;
use super::ledger::Ledger;
use super::stamp::{ChangeStamp, SubjectState};
use super::subject::Subject;
use super::table::{Kind, Place};
use super::{BlockList, is_everybody};

/// The changes of a shared list that wait to be published. Whoever publishes them holds this.
///
/// ```
/// use std::sync::Arc;
/// use tidegate::block::{BlockList, What};
/// use tidegate::Timestamp;
///
/// # async fn publish(_: &[tidegate::block::Change]) -> Result<u64, ()> { Ok(1) }
/// # async fn fetch() -> Result<(u64, Vec<tidegate::block::Change>), ()> { Ok((1, Vec::new())) }
/// # async fn example(list: Arc<BlockList>, now: Timestamp) -> Result<(), ()> {
/// let outlet = list.share();
/// loop {
///     let (version, newest) = fetch().await?;
///     list.replace_all(version, newest, now);
///     outlet.changed().await;
///     let changes = outlet.pending(1_000, now);
///     // A version of the store that has these changes: it grows with every change.
///     let version = publish(&changes).await?;
///     outlet.published(&changes, version);
/// }
/// # }
/// ```
#[derive(Debug)]
pub struct Outlet {
    list: Arc<BlockList>,
}

/// A change of one subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Its order among all changes of the subject.
    pub stamp: ChangeStamp,
    /// What was done.
    pub what: What,
}

impl Change {
    /// How long an unblock is remembered: an older block that arrives within this time does not revive.
    pub const UNBLOCK_LIFETIME: Span = Span::from_secs(24 * 60 * 60);

    /// The subject that was changed.
    #[must_use]
    pub fn subject(&self) -> &Subject {
        match &self.what {
            What::Add(entry) => &entry.subject,
            What::Remove(subject) => subject,
        }
    }

    /// Whether it is a rule's penalty. It is kept beside an operator's change and not in place of it.
    #[must_use]
    pub fn is_penalty(&self) -> bool {
        matches!(&self.what, What::Add(entry) if entry.is_penalty())
    }
}

/// What can be done to a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// An entry was added, or took the place of another one about the same subject.
    Add(Arc<Entry>),
    /// A subject is no longer blocked.
    Remove(Subject),
}

impl BlockList {
    /// Makes the list what the store says it is, except for what was changed here and is newer or not in it:
    /// see [`Outlet::published`]. Not one change of the list is noted as made here.
    ///
    /// Of each subject the store has the newest change by an operator and the newest penalty after that. The greater
    /// stamp counts; an entry that a penalty would end sooner stays.
    ///
    /// What there is no room for is left out: penalties before operators' entries, and of those the
    /// ones that end soonest.
    pub fn replace_all(&self, version: u64, changes: Vec<Change>, now: Timestamp) {
        let mut subjects: HashMap<Place, SubjectState> = HashMap::new();
        for change in changes {
            let what = match change.what {
                What::Add(entry) if entry.subject.is_canonical() => What::Add(entry),
                What::Add(entry) => {
                    let subject = entry.subject.clone().canonical();
                    What::Add(Arc::new(Entry { subject, ..(*entry).clone() }))
                }
                What::Remove(subject) => What::Remove(subject.canonical()),
            };
            let change = Change { what, ..change };
            subjects.entry(Place::of(change.subject())).or_default().apply(change);
        }
        let mut ledger = self.ledger();
        if let Some(journal) = &mut ledger.journal {
            journal.correct(version, &mut subjects);
        }
        let blocked = subjects.into_iter();
        let blocked = blocked.filter_map(|(place, state)| Some((place, state.entry(now)?)));
        let mut wanted: HashMap<Place, Arc<Entry>> = blocked.collect();
        wanted.retain(|_, entry| !is_everybody(&entry.subject));
        if wanted.len() > self.max_entries {
            let mut ranked: Vec<_> = wanted.into_iter().collect();
            ranked.sort_unstable_by_key(|(_, entry)| (!entry.is_penalty(), entry.until));
            let excess = ranked.drain(..ranked.len() - self.max_entries).count();
            self.refused.fetch_add(excess as u64, Ordering::Relaxed);
            wanted = ranked.into_iter().collect();
        }
        for entry in self.table.entries() {
            let place = Place::of(&entry.subject);
            if !wanted.contains_key(&place) {
                ledger.take(&self.table, &self.keyer, place);
            }
        }
        for (place, entry) in wanted {
            let known = self.table.get(place).is_some_and(|known| known == entry);
            if !known && ledger.has_kind(&Kind::of(&entry.subject)) {
                ledger.put(&self.table, &self.keyer, entry);
            } else if !known {
                self.refused.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// From now on keeps what is changed here until it is published, beginning with every entry that
    /// is there. There is one outlet at a time; asking again keeps what is waiting.
    #[must_use]
    pub fn share(self: &Arc<Self>) -> Outlet {
        let mut ledger = self.ledger();
        if ledger.journal.is_none() {
            // As many entries as there may be, and as many that were removed.
            ledger.journal = Some(Journal::new(self.max_entries.saturating_mul(2)));
            for entry in self.table.entries() {
                let (place, until) = (Place::of(&entry.subject), entry.until);
                self.note(&mut ledger, place, What::Add(entry), until, Timestamp::EPOCH);
            }
        }
        drop(ledger);
        Outlet::new(Arc::clone(self))
    }

    /// Notes a change for the outlet, if the list is shared.
    pub(super) fn note(
        &self,
        ledger: &mut Ledger,
        place: Place,
        what: What,
        until: Timestamp,
        now: Timestamp,
    ) {
        let Some(journal) = &mut ledger.journal else { return };
        if journal.note(place, what, until, now) {
            tracing::warn!(
                "block list: too many changes wait to be shared, the oldest is forgotten"
            );
        }
        self.changed.notify_one();
    }
}

impl Outlet {
    pub(super) fn new(list: Arc<BlockList>) -> Self {
        Self { list }
    }

    /// Returns once there is something to publish. Safe to drop at any point.
    pub async fn changed(&self) {
        loop {
            let waiting = self.list.changed.notified();
            if self.list.ledger().journal.as_ref().is_some_and(Journal::has_news) {
                return;
            }
            waiting.await;
        }
    }

    /// What was done here and is not published, the oldest first, at most `most`; without what is
    /// over by now. Asking again gives the same until it is [`published`](Self::published).
    ///
    /// Nothing is returned before the first [`replace_all`](BlockList::replace_all): a stamp names the list that
    /// the change was made on.
    #[must_use]
    pub fn pending(&self, most: usize, now: Timestamp) -> Vec<Change> {
        let mut ledger = self.list.ledger();
        let Some(journal) = &mut ledger.journal else { return Vec::new() };
        journal.expire(now);
        journal.news().take(most).cloned().collect()
    }

    /// Says that the store has these changes, and will hand them out with every list of this version
    /// or a later one.
    pub fn published(&self, changes: &[Change], version: u64) {
        let mut ledger = self.list.ledger();
        let Some(journal) = &mut ledger.journal else { return };
        for change in changes {
            journal.publish(change.stamp.number, version);
        }
    }

    /// Has every change that is kept here published again: the store lost what it had.
    pub fn republish(&self) {
        if let Some(journal) = &mut self.list.ledger().journal {
            journal.republish();
        }
        self.list.changed.notify_one();
    }
}
