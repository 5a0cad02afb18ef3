//! The block list: clients and networks that are denied or allowed before any rule is matched.
//!
//! Operators and rules with a penalty add entries that block. Operators add entries that allow too. A lookup does not call the store. While the list is empty, it
//! costs one atomic load.

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
pub use entry::{BlockAction, BlockOrigin, Entry, Reason, ReasonError};
pub use subject::{Subject, SubjectError};

use index::BlockIndex;
use table::{BlockTable, SubjectKey, SubjectKind};

/// Clients and networks that are denied or allowed regardless of the rules, each until an instant.
///
/// If several entries match a request, an operator's block applies before an entry that allows, and that before the
/// penalty of a rule. A subject has one entry: an operator's change replaces the one before.
///
/// The list is bounded. If it is full of entries that have not expired, a new penalty is refused, so that no block
/// is evicted for a penalty. An operator's entry evicts the penalty that ends soonest. Both cases are counted.
///
/// ```
/// use tidegate::block::{BlockAction, BlockList, BlockOrigin, Entry, Reason};
/// use tidegate::{Request, Span, Timestamp};
///
/// let now = Timestamp::from_secs(1_780_000_000);
/// let list = BlockList::new([7; 32]);
/// list.add(
///     Entry {
///         subject: list.client("user", "mallory")?,
///         action: BlockAction::Block,
///         until: now + Span::HOUR,
///         reason: Reason::new("scraping")?,
///         origin: BlockOrigin::Operator,
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
    /// Locked for every change of the table. Lookups do not lock it.
    index: Mutex<BlockIndex>,
    changed: Notify,
    refused: AtomicU64,
    evicted: AtomicU64,
}

/// The number of entries in a block list, and the entries that did not fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct BlockUse {
    /// Entries, including expired ones that were not removed yet.
    pub entries: usize,
    /// Those of them that allow.
    pub allowed: usize,
    /// Entries that were refused because the list was full.
    pub refused: u64,
    /// Penalties that were evicted for an operator's entry.
    pub evicted: u64,
}

impl BlockList {
    /// Most entries of a list by default.
    pub const MAX_ENTRIES: usize = 100_000;
    /// Most different sets of attributes by which clients are blocked at a time. Each set costs a lookup per request.
    pub const MAX_KINDS: usize = 64;

    /// Creates an empty list. Nodes that share a list must have the same secret.
    #[must_use]
    pub fn new(secret: [u8; 32]) -> Self {
        Self::with_max_entries(secret, Self::MAX_ENTRIES)
    }

    /// Creates an empty list of at most `max_entries`, and at least one.
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

    /// Returns the subject with this value of an attribute. The value of `ip` may be a network.
    ///
    /// # Errors
    /// The attribute or the value is invalid.
    pub fn client(&self, attribute: &str, value: &str) -> Result<Subject, SubjectError> {
        subject::from_attribute(&self.keyer, attribute, value)
    }

    /// Returns the client that a rule counts a request for, identified by all attributes of the rule's `per`. `None` if
    /// the request lacks one of them, or if the rule has no `per`.
    #[must_use]
    pub fn client_of(&self, rule: &Rule, request: &Request<'_>) -> Option<Subject> {
        subject::from_request(&self.keyer, rule, request)
    }

    /// Returns whether the list has no entries. A list with only expired entries is not empty.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Returns the entry that decides a request at `now`: a block by an operator, else an entry that allows, else a
    /// penalty. Of several blocks, returns the one that ends last.
    #[inline]
    #[must_use]
    pub fn find(&self, request: &Request<'_>, now: Timestamp) -> Option<Arc<Entry>> {
        if self.is_empty() { None } else { self.table.find(request, now) }
    }

    /// Adds an entry, or replaces the entry of the same subject. A penalty never shortens a block, and never replaces an
    /// entry that allows.
    ///
    /// # Errors
    /// The entry has already expired, covers every address, or does not fit into the list.
    pub fn add(&self, entry: Entry, now: Timestamp) -> Result<(), BlockError> {
        let entry = Arc::new(Entry { subject: entry.subject.canonical(), ..entry });
        if covers_every_address(&entry.subject) {
            return Err(BlockError::EveryAddress);
        }
        if entry.until <= now {
            return Err(BlockError::Expired);
        }
        let key = SubjectKey::from_subject(&entry.subject);
        let mut index = self.index();
        index.expire(&self.table, &self.keyer, now);
        match self.table.get(key) {
            Some(old)
                if entry.is_penalty()
                    && (old.until >= entry.until || old.action == BlockAction::Allow) =>
            {
                return Ok(());
            }
            Some(_) => {}
            None => self.make_room(&mut index, &entry)?,
        }
        index.insert(&self.table, &self.keyer, Arc::clone(&entry));
        let until = entry.until;
        self.record(&mut index, key, ChangeKind::Add(entry), until, now);
        Ok(())
    }

    /// Removes the entry of a subject. Returns it; `None` if there was none, or if it had expired.
    pub fn remove(&self, subject: &Subject, now: Timestamp) -> Option<Arc<Entry>> {
        let subject = subject.clone().canonical();
        let key = SubjectKey::from_subject(&subject);
        let mut index = self.index();
        index.expire(&self.table, &self.keyer, now);
        let entry = index.remove(&self.table, &self.keyer, key)?;
        // An older block of another node may end later than the removed one.
        let until = entry.until.max(now + Change::UNBLOCK_LIFETIME);
        self.record(&mut index, key, ChangeKind::Remove(subject), until, now);
        Some(entry)
    }

    /// Returns every entry that has not expired, sorted by subject.
    #[must_use]
    pub fn entries(&self, now: Timestamp) -> Vec<Arc<Entry>> {
        let mut entries = self.table.entries();
        entries.retain(|entry| now < entry.until);
        entries.sort_unstable_by(|one, other| one.subject.cmp(&other.subject));
        entries
    }

    /// Returns the blocked networks, merged and sorted, for the deny set of a load balancer. Clients that are
    /// identified by another attribute than `ip` are left out, and penalties of networks that an entry allows.
    #[must_use]
    pub fn export(&self, now: Timestamp) -> Vec<IpNet> {
        let entries = self.entries(now);
        let of_action = |action| {
            entries.iter().filter_map(move |entry| match &entry.subject {
                Subject::Network(network) if entry.action == action => Some((*network, entry)),
                Subject::Network(_) | Subject::Client { .. } => None,
            })
        };
        let networks = of_action(BlockAction::Block)
            .filter(|(network, entry)| !entry.is_penalty() || !self.table.allows(*network, now))
            .map(|(network, _)| network);
        let mut merged = IpNet::aggregate(&networks.collect());
        merged.sort_unstable();
        merged
    }

    /// Removes expired entries to free their memory. Returns their number.
    pub fn sweep(&self, now: Timestamp) -> usize {
        if self.is_empty() { 0 } else { self.index().expire(&self.table, &self.keyer, now) }
    }

    /// Returns the number of entries, and of those that did not fit.
    #[must_use]
    pub fn usage(&self) -> BlockUse {
        BlockUse {
            entries: self.table.len(),
            allowed: self.table.allowed(),
            refused: self.refused.load(Ordering::Relaxed),
            evicted: self.evicted.load(Ordering::Relaxed),
        }
    }

    /// Calls `each` with the attributes by which clients are blocked, some more than once.
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
        if !index.accepts_kind(&SubjectKind::from_subject(&entry.subject)) {
            return refused(BlockError::TooManyKinds);
        }
        if self.table.len() < self.max_entries {
            return Ok(());
        }
        let is_penalty = |key: &SubjectKey| self.table.get(*key).is_some_and(|e| e.is_penalty());
        let evicted = if entry.is_penalty() { None } else { index.keys_by_end().find(is_penalty) };
        let Some(key) = evicted else {
            return refused(BlockError::Full { max_entries: self.max_entries });
        };
        index.remove(&self.table, &self.keyer, key);
        self.evicted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

fn covers_every_address(subject: &Subject) -> bool {
    matches!(subject, Subject::Network(network) if network.prefix_len() == 0)
}

/// The error of an entry that can't be added.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum BlockError {
    /// The entry has already expired.
    #[error("the entry would have expired already")]
    Expired,
    /// The network contains every address.
    #[error("a network must have a prefix of at least 1 bit, or it contains every address")]
    EveryAddress,
    /// The list is full.
    #[error("the block list is full, it has {max_entries} entries that have not expired")]
    Full {
        /// Most entries of the list.
        max_entries: usize,
    },
    /// Clients are blocked by too many different sets of attributes.
    #[error(
        "clients are blocked by {} different sets of attributes already, which is the maximum",
        BlockList::MAX_KINDS
    )]
    TooManyKinds,
}
