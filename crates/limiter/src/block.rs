//! Who is answered with a refusal before any rule is looked at.
//!
//! Operators put clients and networks on the list, and so do rules with a penalty. Looking somebody up
//! takes no store and, while nobody is blocked, one atomic load.

mod change;
mod change_feed;
mod denial_counter;
mod entry;
mod index;
mod pending_changes;
mod subject;
mod table;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ipnet::IpNet;
use thiserror::Error;
use tidegate_core::{Keyer, Request, Timestamp};
use tidegate_rules::Rule;
use tokio::sync::Notify;

pub use change::{Change, ChangeKind, ChangeStamp};
pub use change_feed::ChangeFeed;
pub(crate) use denial_counter::DenialCounter;
pub use entry::{By, Entry, Reason, ReasonError};
pub use subject::{Subject, SubjectError};

use index::BlockIndex;
use table::{BlockTable, SubjectKey, SubjectKind};

/// Clients and networks that are denied whatever the rules say, each until some instant.
///
/// The list is bounded. When it is full of entries that are not over, a penalty is refused, so that
/// nobody gets off the list because others are put on it; an operator's entry takes the place of
/// the penalty that ends soonest. Both are counted.
///
/// ```
/// use tidegate::block::{BlockList, By, Entry, Reason};
/// use tidegate::{Request, Span, Timestamp};
///
/// let now = Timestamp::from_secs(1_780_000_000);
/// let list = BlockList::new([7; 32]);
/// list.add(
///     Entry {
///         subject: list.client("user", "mallory")?,
///         until: now + Span::HOUR,
///         reason: Reason::new("scraping")?,
///         by: By::Operator,
///         added: now,
///     },
///     now,
/// )?;
/// let request = Request::new().with("user", "mallory")?;
/// assert!(list.find(&request, now).is_some());
/// assert!(list.find(&request, now + Span::HOUR).is_none());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct BlockList {
    keyer: Keyer,
    max_entries: usize,
    table: BlockTable,
    /// Whoever changes the table holds this; whoever looks somebody up does not need it.
    index: Mutex<BlockIndex>,
    changed: Notify,
    refused: AtomicU64,
    evicted: AtomicU64,
}

/// How full a list is, and what that has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockUse {
    /// Entries, some of which may be over.
    pub entries: usize,
    /// Entries that found no room.
    pub refused: u64,
    /// Penalties that made room for an operator's entry.
    pub evicted: u64,
}

impl BlockList {
    /// How many entries a list has at the most unless told otherwise.
    pub const MAX_ENTRIES: usize = 100_000;
    /// By how many different sets of attributes clients can be blocked at a time.
    pub const MAX_KINDS: usize = 64;

    /// An empty list. Nodes that share a list must have the same secret.
    #[must_use]
    pub fn new(secret: [u8; 32]) -> Self {
        Self::with_max_entries(secret, Self::MAX_ENTRIES)
    }

    /// An empty list with room for `max_entries`, at least one.
    #[must_use]
    pub fn with_max_entries(secret: [u8; 32], max_entries: usize) -> Self {
        Self {
            keyer: Keyer::Fleet { secret },
            max_entries: max_entries.max(1),
            table: BlockTable::new(),
            index: Mutex::default(),
            changed: Notify::new(),
            refused: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// The subject with this value of an attribute; an `ip` may be a network.
    ///
    /// # Errors
    /// It names nobody.
    pub fn client(&self, attribute: &str, value: &str) -> Result<Subject, SubjectError> {
        subject::named(&self.keyer, attribute, value)
    }

    /// The client that a rule counts a request for: by all attributes that the rule counts by
    /// together. `None` when the request lacks one of them, or the rule counts all clients as one.
    #[must_use]
    pub fn client_of(&self, rule: &Rule, request: &Request<'_>) -> Option<Subject> {
        subject::counted(&self.keyer, rule, request)
    }

    /// Whether nobody is blocked for sure.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Why a request is to be denied at `now`: of all entries about it the one that ends last.
    #[inline]
    #[must_use]
    pub fn find(&self, request: &Request<'_>, now: Timestamp) -> Option<Arc<Entry>> {
        if self.is_empty() { None } else { self.table.find(request, now) }
    }

    /// Puts an entry on the list at once, in place of an earlier one about the same subject; a
    /// penalty never ends a block sooner.
    ///
    /// # Errors
    /// The entry is over already, is about everybody, or there is no room for it.
    pub fn add(&self, entry: Entry, now: Timestamp) -> Result<(), BlockError> {
        let entry = Arc::new(Entry { subject: entry.subject.canonical(), ..entry });
        if is_everybody(&entry.subject) {
            return Err(BlockError::Everybody);
        }
        if entry.until <= now {
            return Err(BlockError::Over);
        }
        let key = SubjectKey::of(&entry.subject);
        let mut index = self.index();
        index.expire(&self.table, &self.keyer, now);
        match self.table.get(key) {
            Some(there) if entry.is_penalty() && there.until >= entry.until => return Ok(()),
            Some(_) => {}
            None => self.make_room(&mut index, &entry)?,
        }
        index.put(&self.table, &self.keyer, Arc::clone(&entry));
        let until = entry.until;
        self.note(&mut index, key, ChangeKind::Add(entry), until, now);
        Ok(())
    }

    /// Takes a subject off the list at once. The entry about it, unless it was over or never there.
    pub fn remove(&self, subject: &Subject, now: Timestamp) -> Option<Arc<Entry>> {
        let subject = subject.clone().canonical();
        let key = SubjectKey::of(&subject);
        let mut index = self.index();
        index.expire(&self.table, &self.keyer, now);
        let entry = index.take(&self.table, &self.keyer, key)?;
        // An older block of another node may end later than the one that was here.
        let until = entry.until.max(now + Change::UNBLOCK_LIFETIME);
        self.note(&mut index, key, ChangeKind::Remove(subject), until, now);
        Some(entry)
    }

    /// Every entry that is not over, by subject.
    #[must_use]
    pub fn entries(&self, now: Timestamp) -> Vec<Arc<Entry>> {
        let mut entries = self.table.entries();
        entries.retain(|entry| now < entry.until);
        entries.sort_unstable_by(|one, other| one.subject.cmp(&other.subject));
        entries
    }

    /// The networks that are blocked, as few as say the same, in order: for the deny set of a load
    /// balancer. Clients that are known by something else than an address are not in it.
    #[must_use]
    pub fn export(&self, now: Timestamp) -> Vec<IpNet> {
        let entries = self.entries(now);
        let networks = entries.iter().filter_map(|entry| match &entry.subject {
            Subject::Network(network) => Some(*network),
            Subject::Client { .. } => None,
        });
        let mut merged = IpNet::aggregate(&networks.collect());
        merged.sort_unstable();
        merged
    }

    /// Drops entries that are over. They block nobody in any case; this gives back their memory.
    pub fn sweep(&self, now: Timestamp) -> usize {
        if self.is_empty() { 0 } else { self.index().expire(&self.table, &self.keyer, now) }
    }

    /// How full the list is.
    #[must_use]
    pub fn usage(&self) -> BlockUse {
        BlockUse {
            entries: self.table.len(),
            refused: self.refused.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// Calls `each` with the attributes by which somebody is blocked.
    pub fn attributes(&self, each: impl FnMut(&str)) {
        if !self.is_empty() {
            self.table.attributes(each);
        }
    }

    fn index(&self) -> MutexGuard<'_, BlockIndex> {
        self.index.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make_room(&self, index: &mut BlockIndex, entry: &Entry) -> Result<(), BlockError> {
        let refused = |error| {
            self.refused.fetch_add(1, Ordering::Relaxed);
            Err(error)
        };
        if !index.has_kind(&SubjectKind::of(&entry.subject)) {
            return refused(BlockError::Kinds);
        }
        if self.table.len() < self.max_entries {
            return Ok(());
        }
        let is_penalty = |key: &SubjectKey| self.table.get(*key).is_some_and(|e| e.is_penalty());
        let given_up = if entry.is_penalty() { None } else { index.soonest().find(is_penalty) };
        let Some(key) = given_up else {
            return refused(BlockError::Full { most: self.max_entries });
        };
        index.take(&self.table, &self.keyer, key);
        self.evicted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn is_everybody(subject: &Subject) -> bool {
    matches!(subject, Subject::Network(network) if network.prefix_len() == 0)
}

/// Why somebody is not on the list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The entry ends before it begins.
    #[error("the block would be over already")]
    Over,
    /// The network is all there is.
    #[error("a network must have a prefix of at least 1 bit, or everybody is blocked")]
    Everybody,
    /// There is no room.
    #[error("the block list is full, it has {most} entries that are not over")]
    Full {
        /// How many entries there are at the most.
        most: usize,
    },
    /// Clients are blocked by too many different attributes.
    #[error(
        "clients are blocked by {} different sets of attributes already, which is the most",
        BlockList::MAX_KINDS
    )]
    Kinds,
}
