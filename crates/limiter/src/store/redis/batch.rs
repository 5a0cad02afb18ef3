//! Requests that travel together: one script call decides them one after another.
//!
//! Identical requests are merged into a count, of which the script grants as many as fit. What comes
//! back is what each key held before; the node works out from that, with the same arithmetic as
//! every other store, what each client is told.

mod delivery;
mod reply;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use tidegate_core::{Key, Limit, Outcome};
use tokio::sync::oneshot;

use super::node::Node;
use super::state::{self, Tag};
use crate::store::StoreError;

pub(super) use self::delivery::Delivery;

/// One charge of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Item {
    pub(super) key: Key,
    pub(super) limit: Arc<Limit>,
    pub(super) cost: u64,
}

/// What one request is told, in the order of its items.
pub(super) type Told = Result<Outcomes, StoreError>;

type Outcomes = SmallVec<[Outcome; 4]>;

/// A request that somebody waits for: all of its items are charged, or none.
#[derive(Debug)]
pub(super) struct Errand {
    items: SmallVec<[Item; 2]>,
    /// Nothing is spent: the request asks, or costs more than a limit ever admits.
    look: bool,
    /// States that were last used by another limit, and what they are under this one.
    takeovers: Vec<Takeover>,
    /// How often it was sent and has to be sent again.
    tries: usize,
    reply: oneshot::Sender<Delivery>,
}

/// The sections of a key's value under one limit: the one that was found, and the one to replace it.
/// Either is empty if there is none.
#[derive(Debug)]
struct Takeover {
    key: Key,
    tag: Tag,
    found: Vec<u8>,
    adopted: Vec<u8>,
}

impl Errand {
    /// An errand, and where its answer will be. With `look` it spends nothing, as it does when it
    /// costs nothing or more than a limit ever admits.
    pub(super) fn new(
        items: SmallVec<[Item; 2]>,
        look: bool,
    ) -> (Self, oneshot::Receiver<Delivery>) {
        let never = |item: &Item| item.cost == 0 || item.cost > item.limit.capacity();
        let look = look || items.iter().any(never);
        let (reply, told) = oneshot::channel();
        (Self { items, look, takeovers: Vec::new(), tries: 0, reply }, told)
    }

    pub(super) fn items(&self) -> &[Item] {
        &self.items
    }

    /// Whether nobody waits any more.
    pub(super) fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    /// Answers. Nobody may be there any more to hear it.
    pub(super) fn tell(self, told: Told) {
        self.tell_from(&Weak::new(), told);
    }

    /// Answers what a node said, which takes back the slots of who is gone.
    fn tell_from(self, node: &Weak<Node>, told: Told) {
        let _ = self.reply.send(Delivery::new(&self.items, told, node));
    }
}

/// A batch as it grows.
#[derive(Debug, Default)]
pub(super) struct Batch {
    keys: Vec<Key>,
    places: HashMap<Key, Place, BuildHasherDefault<KeyHasher>>,
    prices: Vec<(Arc<Limit>, u64)>,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Place {
    number: u8,
    /// Whether only one entry names it.
    single: bool,
    /// The first entry that begins with this key.
    entry: Option<usize>,
}

/// Identical requests.
#[derive(Debug)]
struct Entry {
    /// Never empty.
    errands: SmallVec<[Errand; 1]>,
    /// For each item, the place of its price.
    prices: SmallVec<[u8; 2]>,
}

impl Entry {
    fn first(&self) -> &Errand {
        &self.errands[0]
    }
}

/// The most of anything that one byte counts.
const MOST: usize = 255;

impl Batch {
    /// The most items that a request can have.
    pub(super) const MAX_ITEMS: usize = 120;

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes one more request along; gives it back when there is no room.
    #[allow(clippy::result_large_err, reason = "it is moved on, not kept")]
    pub(super) fn push(&mut self, errand: Errand) -> Result<(), Errand> {
        let Some(first) = errand.items.first() else {
            errand.tell(Ok(SmallVec::new()));
            return Ok(());
        };
        if let Some(Place { entry: Some(entry), .. }) = self.places.get(&first.key) {
            let same = &mut self.entries[*entry];
            if same.errands.len() < MOST && is_same(same.first(), &errand) {
                same.errands.push(errand);
                return Ok(());
            }
        }
        let room = MOST - errand.items.len().min(MOST);
        if self.keys.len() > room || self.prices.len() > room || self.entries.len() >= MOST {
            return Err(errand);
        }
        let mut prices = SmallVec::new();
        for (index, item) in errand.items.iter().enumerate() {
            let next = byte(self.keys.len() + 1);
            let place = self.places.entry(item.key).or_insert_with(|| {
                self.keys.push(item.key);
                Place { number: next, single: true, entry: None }
            });
            place.single &= usize::from(place.number) == usize::from(next);
            if index == 0 && place.entry.is_none() && errand.takeovers.is_empty() {
                place.entry = Some(self.entries.len());
            }
            let same = |price: &(Arc<Limit>, u64)| {
                price.1 == item.cost
                    && (Arc::ptr_eq(&price.0, &item.limit) || price.0 == item.limit)
            };
            let known = self.prices.iter().position(same);
            let price = known.unwrap_or_else(|| {
                self.prices.push((Arc::clone(&item.limit), item.cost));
                self.prices.len() - 1
            });
            prices.push(byte(price + 1));
        }
        self.entries.push(Entry { errands: SmallVec::from_iter([errand]), prices });
        Ok(())
    }

    /// Every key, once.
    pub(super) fn keys(&self) -> &[Key] {
        &self.keys
    }

    /// What the charge script takes besides the keys.
    pub(super) fn arguments(&self) -> Vec<Vec<u8>> {
        let mut prices = Vec::with_capacity(self.prices.len() * 64);
        for (limit, cost) in &self.prices {
            let tag = Tag::of(limit);
            state::put_tag(&mut prices, &tag);
            state::put_terms(&mut prices, &limit.terms(*cost));
        }
        let mut program = Vec::with_capacity(self.entries.len() * 4);
        let mut arguments = vec![prices];
        let mut takeovers = Vec::new();
        for entry in &self.entries {
            let Errand { items, look, .. } = entry.first();
            let count = if *look { 0 } else { byte(entry.errands.len()) };
            let charges = if self.is_single(entry) { 0 } else { byte(items.len()) };
            program.extend([count, charges]);
            for (item, price) in items.iter().zip(&entry.prices) {
                program.extend([self.place(item.key), *price]);
            }
            for takeover in &entry.first().takeovers {
                takeovers.push(self.place(takeover.key).to_string().into_bytes());
                takeovers.push(takeover.tag.bytes().to_vec());
                takeovers.push(takeover.found.clone());
                takeovers.push(takeover.adopted.clone());
            }
        }
        arguments.push(program);
        arguments.append(&mut takeovers);
        arguments
    }

    /// Whether an entry is one charge, made once, of a key that no other entry names.
    fn is_single(&self, entry: &Entry) -> bool {
        let Errand { items, look, takeovers, .. } = entry.first();
        let alone = |item: &Item| self.places.get(&item.key).is_some_and(|place| place.single);
        let [item] = items.as_slice() else { return false };
        !look && takeovers.is_empty() && entry.errands.len() == 1 && alone(item)
    }

    fn place(&self, key: Key) -> u8 {
        self.places.get(&key).map_or(0, |place| place.number)
    }

    /// Gives every request of the batch back.
    pub(super) fn into_errands(self) -> impl Iterator<Item = Errand> {
        self.entries.into_iter().flat_map(|entry| entry.errands)
    }

    /// Whether all requests of the batch are the same.
    pub(super) fn is_of_one_kind(&self) -> bool {
        self.entries.len() <= 1
    }

    /// The same requests, each kind in a batch of its own.
    pub(super) fn apart(self) -> impl Iterator<Item = Self> {
        self.entries.into_iter().map(|entry| {
            let mut batch = Self::default();
            for errand in entry.errands {
                // They fitted one entry before.
                let _ = batch.push(errand);
            }
            batch
        })
    }

    /// Tells every request the same failure.
    pub(super) fn fail(self, error: &StoreError) {
        for errand in self.into_errands() {
            errand.tell(Err(error.clone()));
        }
    }
}

fn is_same(one: &Errand, other: &Errand) -> bool {
    one.takeovers.is_empty()
        && other.takeovers.is_empty()
        && one.look == other.look
        && one.items == other.items
}

fn byte(number: usize) -> u8 {
    u8::try_from(number).unwrap_or(u8::MAX)
}

/// Keys are hashes already: any of their bits will do.
#[derive(Default)]
struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u128(&mut self, key: u128) {
        let (upper, lower) = (key >> 64, key & u128::from(u64::MAX));
        self.0 = u64::try_from(upper ^ lower).unwrap_or_default();
    }
}
