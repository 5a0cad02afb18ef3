//! Lookup of blocked subjects: one hash lookup for each prefix length and each set of attributes in use.

use std::collections::hash_map::{HashMap, RandomState};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use parking_lot::RwLock;
use tidegate_core::{Keyer, Request, Timestamp};

use super::entry::{BlockAction, Entry};
use super::subject::{ClientShape, Subject};
use crate::sharded_map::ShardedMap;

/// The key of an entry in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum SubjectKey {
    Network(IpNet),
    Client(u128),
}

impl SubjectKey {
    /// Returns the key of a subject in its canonical form.
    pub(crate) fn from_subject(subject: &Subject) -> Self {
        match subject {
            Subject::Network(network) => Self::Network(*network),
            Subject::Client { digest, .. } => Self::Client(u128::from_be_bytes(*digest)),
        }
    }
}

/// The kind of a subject: the part of a request that identifies it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum SubjectKind {
    /// The IPv4 network with a prefix of this length that contains the request's address.
    V4(u8),
    /// The same for IPv6.
    V6(u8),
    /// The values of these attributes.
    Client(Box<[Box<str>]>),
}

impl SubjectKind {
    pub(crate) fn from_subject(subject: &Subject) -> Self {
        match subject {
            Subject::Network(IpNet::V4(network)) => Self::V4(network.prefix_len()),
            Subject::Network(IpNet::V6(network)) => Self::V6(network.prefix_len()),
            Subject::Client { attributes, .. } => Self::Client(attributes.clone()),
        }
    }
}

/// The kinds of subjects that are on the list.
#[derive(Debug, Default)]
struct SubjectKinds {
    v4: Vec<u8>,
    v6: Vec<u8>,
    shapes: Vec<ClientShape>,
}

/// The entries that match a request: of each kind the one that ends last.
#[derive(Default)]
struct MatchingEntries {
    blocked: Option<Arc<Entry>>,
    allowed: Option<Arc<Entry>>,
    penalty: Option<Arc<Entry>>,
}

impl MatchingEntries {
    fn add(&mut self, entry: Arc<Entry>, now: Timestamp) {
        let place = match entry.action {
            BlockAction::Allow => &mut self.allowed,
            BlockAction::Block if entry.is_penalty() => &mut self.penalty,
            BlockAction::Block => &mut self.blocked,
        };
        if entry.until > place.as_ref().map_or(now, |known| known.until) {
            *place = Some(entry);
        }
    }

    /// Returns the entry that decides: an operator's block before an entry that allows, and that before a penalty. Of
    /// two blocks, it is the one that ends last.
    fn decisive(self) -> Option<Arc<Entry>> {
        match (self.blocked, self.allowed, self.penalty) {
            (Some(blocked), None, Some(penalty)) if penalty.until > blocked.until => Some(penalty),
            (blocked, allowed, penalty) => blocked.or(allowed).or(penalty),
        }
    }
}

/// The subjects on the list, for many readers.
///
/// A writer holds the lock of the list, so there is one writer at a time.
#[derive(Debug)]
pub(crate) struct BlockTable {
    count: AtomicUsize,
    /// The number of entries that allow.
    allowed: AtomicUsize,
    kinds: ArcSwap<SubjectKinds>,
    shards: ShardedMap<HashMap<SubjectKey, Arc<Entry>>>,
    /// Clients choose the values, so the hash is seeded with a secret against forged collisions.
    hashing: RandomState,
}

impl BlockTable {
    pub(crate) fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            allowed: AtomicUsize::new(0),
            kinds: ArcSwap::default(),
            shards: ShardedMap::default(),
            hashing: RandomState::new(),
        }
    }

    /// Returns whether there are no entries. This one load is the whole cost of an empty list.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(crate) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Returns the number of entries that allow.
    pub(crate) fn allowed(&self) -> usize {
        self.allowed.load(Ordering::Relaxed)
    }

    /// Returns the entry that decides a request at `now`, see [`MatchingEntries::decisive`].
    pub(crate) fn find(&self, request: &Request<'_>, now: Timestamp) -> Option<Arc<Entry>> {
        let kinds = self.kinds.load();
        let mut found = MatchingEntries::default();
        let mut look_up = |key| {
            if let Some(entry) = self.get(key) {
                found.add(entry, now);
            }
        };
        if (!kinds.v4.is_empty() || !kinds.v6.is_empty())
            && let Some(address) = request.get("ip").and_then(tidegate_rules::parse_address)
        {
            let lengths = match address {
                IpAddr::V4(_) => &kinds.v4,
                IpAddr::V6(_) => &kinds.v6,
            };
            let networks = lengths.iter().filter_map(|length| IpNet::new(address, *length).ok());
            networks.for_each(|network| look_up(SubjectKey::Network(network.trunc())));
        }
        let digests = kinds.shapes.iter().filter_map(|shape| shape.digest(request));
        digests.for_each(|digest| look_up(SubjectKey::Client(digest)));
        found.decisive()
    }

    /// Returns whether an entry allows all addresses of a network at `now`.
    pub(crate) fn allows(&self, network: IpNet, now: Timestamp) -> bool {
        let mut larger =
            (1..=network.prefix_len()).filter_map(|length| IpNet::new(network.addr(), length).ok());
        self.allowed() > 0
            && larger.any(|network| {
                let entry = self.get(SubjectKey::Network(network.trunc()));
                entry.is_some_and(|entry| entry.allows(now))
            })
    }

    pub(crate) fn get(&self, key: SubjectKey) -> Option<Arc<Entry>> {
        self.shard(key).read().get(&key).cloned()
    }

    pub(crate) fn insert(&self, key: SubjectKey, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let mut shard = self.shard(key).write();
        self.allowed.fetch_add(usize::from(entry.action == BlockAction::Allow), Ordering::Relaxed);
        let old = shard.insert(key, entry);
        self.uncount_allowed(old.as_ref());
        if old.is_none() {
            self.count.fetch_add(1, Ordering::Release);
        }
        old
    }

    pub(crate) fn remove(&self, key: SubjectKey) -> Option<Arc<Entry>> {
        let mut shard = self.shard(key).write();
        let old = shard.remove(&key);
        self.uncount_allowed(old.as_ref());
        if old.is_some() {
            self.count.fetch_sub(1, Ordering::Release);
        }
        old
    }

    fn uncount_allowed(&self, old: Option<&Arc<Entry>>) {
        let is_allowed = old.is_some_and(|old| old.action == BlockAction::Allow);
        self.allowed.fetch_sub(usize::from(is_allowed), Ordering::Relaxed);
    }

    /// Returns every entry, including expired ones, in no order.
    pub(crate) fn entries(&self) -> Vec<Arc<Entry>> {
        let mut entries = Vec::with_capacity(self.len());
        for shard in self.shards.shards() {
            entries.extend(shard.read().values().cloned());
        }
        entries
    }

    /// Sets the kinds of subjects that lookups consider.
    pub(crate) fn set_kinds<'k>(
        &self,
        keyer: &Keyer,
        kinds: impl Iterator<Item = &'k SubjectKind>,
    ) {
        let mut in_use = SubjectKinds::default();
        for kind in kinds {
            match kind {
                SubjectKind::V4(length) => in_use.v4.push(*length),
                SubjectKind::V6(length) => in_use.v6.push(*length),
                SubjectKind::Client(attributes) => {
                    in_use.shapes.push(ClientShape::new(keyer, attributes.clone()));
                }
            }
        }
        self.kinds.store(Arc::new(in_use));
    }

    /// Calls `each` with the attributes that lookups read, some more than once.
    pub(crate) fn attributes(&self, mut each: impl FnMut(&str)) {
        let kinds = self.kinds.load();
        if !kinds.v4.is_empty() || !kinds.v6.is_empty() {
            each("ip");
        }
        kinds.shapes.iter().flat_map(ClientShape::attributes).for_each(each);
    }

    fn shard(&self, key: SubjectKey) -> &RwLock<HashMap<SubjectKey, Arc<Entry>>> {
        self.shards.shard_of_hash(self.hashing.hash_one(key))
    }
}
