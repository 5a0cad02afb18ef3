//! Finds who is blocked: one lookup for each length of prefix and each set of attributes in use.

use std::collections::hash_map::{HashMap, RandomState};
use std::hash::BuildHasher;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use ipnet::IpNet;
use parking_lot::RwLock;
use tidegate_core::{Keyer, Request, Timestamp};

use super::entry::Entry;
use super::subject::{Shape, Subject};
use crate::sharded_map::ShardedMap;

/// Where an entry is filed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Place {
    Network(IpNet),
    Client(u128),
}

impl Place {
    /// The place of a subject in its canonical form.
    pub(super) fn of(subject: &Subject) -> Self {
        match subject {
            Subject::Network(network) => Self::Network(*network),
            Subject::Client { digest, .. } => Self::Client(u128::from_be_bytes(*digest)),
        }
    }
}

/// What a request has to be asked for to find a subject.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    /// The IPv4 network with a prefix of this length around it.
    V4(u8),
    /// The same for IPv6.
    V6(u8),
    /// These attributes.
    Client(Box<[Box<str>]>),
}

impl Kind {
    pub(super) fn of(subject: &Subject) -> Self {
        match subject {
            Subject::Network(IpNet::V4(network)) => Self::V4(network.prefix_len()),
            Subject::Network(IpNet::V6(network)) => Self::V6(network.prefix_len()),
            Subject::Client { attributes, .. } => Self::Client(attributes.clone()),
        }
    }
}

/// The kinds of subjects that are on the list.
#[derive(Debug, Default)]
struct Kinds {
    v4: Vec<u8>,
    v6: Vec<u8>,
    shapes: Vec<Shape>,
}

/// Who is blocked, for many readers.
///
/// Whoever writes holds the lock of the list, so there is one writer at a time.
#[derive(Debug)]
pub(super) struct Table {
    count: AtomicUsize,
    kinds: ArcSwap<Kinds>,
    shards: ShardedMap<HashMap<Place, Arc<Entry>>>,
    /// Clients choose what is looked up, so where it is looked up is a secret.
    hashing: RandomState,
}

impl Table {
    pub(super) fn new() -> Self {
        Self {
            count: AtomicUsize::new(0),
            kinds: ArcSwap::default(),
            shards: ShardedMap::default(),
            hashing: RandomState::new(),
        }
    }

    /// Whether nobody is on the list: one load, and all that it costs to have a list.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    pub(super) fn len(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Of all entries about a request that are not over, the one that ends last.
    pub(super) fn find(&self, request: &Request<'_>, now: Timestamp) -> Option<Arc<Entry>> {
        let kinds = self.kinds.load();
        let mut found: Option<Arc<Entry>> = None;
        let mut look = |place| {
            if let Some(entry) = self.get(place)
                && entry.until > found.as_ref().map_or(now, |found| found.until)
            {
                found = Some(entry);
            }
        };
        if (!kinds.v4.is_empty() || !kinds.v6.is_empty())
            && let Some(address) = request.get("ip").and_then(tidegate_rules::address)
        {
            let lengths = match address {
                IpAddr::V4(_) => &kinds.v4,
                IpAddr::V6(_) => &kinds.v6,
            };
            let around = lengths.iter().filter_map(|length| IpNet::new(address, *length).ok());
            around.for_each(|network| look(Place::Network(network.trunc())));
        }
        let digests = kinds.shapes.iter().filter_map(|shape| shape.digest(request));
        digests.for_each(|digest| look(Place::Client(digest)));
        found
    }

    pub(super) fn get(&self, place: Place) -> Option<Arc<Entry>> {
        self.shard(place).read().get(&place).cloned()
    }

    pub(super) fn insert(&self, place: Place, entry: Arc<Entry>) -> Option<Arc<Entry>> {
        let mut shard = self.shard(place).write();
        let old = shard.insert(place, entry);
        if old.is_none() {
            self.count.fetch_add(1, Ordering::Release);
        }
        old
    }

    pub(super) fn remove(&self, place: Place) -> Option<Arc<Entry>> {
        let mut shard = self.shard(place).write();
        let old = shard.remove(&place);
        if old.is_some() {
            self.count.fetch_sub(1, Ordering::Release);
        }
        old
    }

    /// Every entry, those that are over too, in no order.
    pub(super) fn entries(&self) -> Vec<Arc<Entry>> {
        let mut entries = Vec::with_capacity(self.len());
        for shard in self.shards.shards() {
            entries.extend(shard.read().values().cloned());
        }
        entries
    }

    /// From now on, looks for these kinds of subjects and no others.
    pub(super) fn look_for<'k>(&self, keyer: &Keyer, kinds: impl Iterator<Item = &'k Kind>) {
        let mut shown = Kinds::default();
        for kind in kinds {
            match kind {
                Kind::V4(length) => shown.v4.push(*length),
                Kind::V6(length) => shown.v6.push(*length),
                Kind::Client(attributes) => {
                    shown.shapes.push(Shape::new(keyer, attributes.clone()));
                }
            }
        }
        self.kinds.store(Arc::new(shown));
    }

    /// Calls `each` with the attributes that are looked at, some perhaps more than once.
    pub(super) fn attributes(&self, mut each: impl FnMut(&str)) {
        let kinds = self.kinds.load();
        if !kinds.v4.is_empty() || !kinds.v6.is_empty() {
            each("ip");
        }
        kinds.shapes.iter().flat_map(Shape::attributes).for_each(each);
    }

    fn shard(&self, place: Place) -> &RwLock<HashMap<Place, Arc<Entry>>> {
        self.shards.shard_of_hash(self.hashing.hash_one(place))
    }
}
