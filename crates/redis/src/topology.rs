//! The servers of a store, and the one that stores a key.

use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use tidegate_core::Key;

use super::address::Address;
use super::cluster::Cluster;
use super::location::ServerLocation;
use super::node::Node;
use super::open_error::OpenError;
use super::rendezvous::RendezvousHash;
use super::servers::Servers;
use super::shared::RedisShared;
use super::slots::{SLOTS, slot_of};
use tidegate_limiter::store::{StoreError, derived_key};

/// Derived keys that are tried for the parts of a limit. The largest number of parts is found in almost every case.
const MAX_DERIVED_KEYS: u64 = 4_096;

/// The servers of a store.
pub(crate) enum Topology {
    One(Arc<Node>),
    Shards { hash: RendezvousHash, nodes: Vec<Arc<Node>> },
    Cluster(Arc<Cluster>),
}

/// Keys that one script call can charge: those of a server, in a cluster those of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct KeyGroup(u16);

impl Topology {
    /// The servers of the configuration, without connections.
    pub(crate) fn new(shared: &Arc<RedisShared>) -> Self {
        let node = |location| Node::new(shared, location, Weak::new());
        let fixed = |address: &Address| node(ServerLocation::Fixed(address.clone()));
        match shared.config.servers() {
            Servers::Single(address) => Self::One(fixed(address)),
            Servers::Sentinel { sentinels, master } => {
                let (sentinels, master) = (sentinels.clone(), master.clone());
                Self::One(node(ServerLocation::Sentinel { sentinels, master }))
            }
            Servers::Shards(addresses) => Self::Shards {
                hash: RendezvousHash::new(addresses),
                nodes: addresses.iter().map(fixed).collect(),
            },
            Servers::Cluster(seeds) => Self::Cluster(Cluster::new(shared, seeds.clone())),
        }
    }

    /// Returns the group of a counter.
    pub(crate) fn group(&self, shared: &RedisShared, key: Key) -> KeyGroup {
        match self {
            Self::One(_) => KeyGroup(0),
            Self::Shards { hash, .. } => {
                KeyGroup(u16::try_from(hash.shard_of(key.as_u128())).unwrap_or(0))
            }
            Self::Cluster(_) => KeyGroup(slot_of(shared.counter_key(key).as_bytes())),
        }
    }

    /// Returns the keys of the parts of a client's limit.
    ///
    /// In a cluster each part has an equal range of slots to itself, so that masters with usual ranges have about as
    /// many each. On shards the parts are distributed round robin. The place of the first part depends on the client.
    pub(crate) fn parts(&self, shared: &RedisShared, key: Key, of: u8) -> Vec<Key> {
        let count = usize::from(of.max(1));
        match self {
            Self::One(_) => spread(key, count, 1, |_| 0),
            Self::Shards { hash, nodes } => {
                spread(key, count, nodes.len(), |key| hash.rank_of(key.as_u128()))
            }
            Self::Cluster(_) => spread(key, count, count, |key| {
                usize::from(slot_of(shared.counter_key(key).as_bytes())) * count
                    / usize::from(SLOTS)
            }),
        }
    }

    /// Returns the group of a Redis key that is no counter: on shards all of these are on the first.
    pub(crate) fn group_of_name(&self, name: &str) -> KeyGroup {
        match self {
            Self::One(_) | Self::Shards { .. } => KeyGroup(0),
            Self::Cluster(_) => KeyGroup(slot_of(name.as_bytes())),
        }
    }

    /// Returns the server of a group.
    pub(crate) fn node(&self, group: KeyGroup) -> Result<Arc<Node>, StoreError> {
        let node = match self {
            Self::One(node) => Some(Arc::clone(node)),
            Self::Shards { nodes, .. } => nodes.get(usize::from(group.0)).map(Arc::clone),
            Self::Cluster(cluster) => cluster.node_of(group.0),
        };
        node.ok_or_else(|| StoreError::Unavailable {
            store: "redis cluster".into(),
            reason: format!("no node is known to serve slot {}", group.0).into(),
        })
    }

    /// Returns every server that stores counters.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Self::One(node) => vec![Arc::clone(node)],
            Self::Shards { nodes, .. } => nodes.clone(),
            Self::Cluster(cluster) => cluster.masters(),
        }
    }

    /// Connects to every server.
    ///
    /// # Errors
    /// The first server that can't be used.
    pub(crate) async fn open(&self, shared: &Arc<RedisShared>) -> Result<(), OpenError> {
        match self {
            Self::One(node) => node.open().await,
            Self::Shards { nodes, .. } => {
                let opened = join_all(nodes.iter().map(|node| node.open())).await;
                let mut errors: Vec<OpenError> =
                    opened.into_iter().filter_map(Result::err).collect();
                // A server that will never be usable is the more important error.
                errors.sort_by_key(|error| !error.is_final());
                errors.into_iter().next().map_or(Ok(()), Err)
            }
            Self::Cluster(cluster) => {
                cluster.discover().await?;
                let up = async {
                    for node in cluster.masters() {
                        node.wait_until_up().await;
                    }
                };
                let patience = shared.config.connect_timeout();
                if tokio::time::timeout(patience, up).await.is_err() {
                    tracing::warn!("not connected to every server of the cluster yet, retrying");
                }
                Ok(())
            }
        }
    }

    /// Connects in the background wherever there is no connection, now and later.
    pub(crate) fn keep_open(&self, shared: &Arc<RedisShared>) {
        match self {
            Self::Cluster(cluster) => shared.spawn(Cluster::discover_loop(Arc::downgrade(cluster))),
            Self::One(_) | Self::Shards { .. } => {
                self.nodes().iter().for_each(|node| node.keep_open());
            }
        }
    }

    /// Returns whether every server has a connection.
    pub(crate) fn is_up(&self) -> bool {
        let nodes = self.nodes();
        !nodes.is_empty() && nodes.iter().all(|node| node.is_up())
    }

    /// Samples the memory of every server once.
    pub(crate) async fn sample_memory(&self) {
        join_all(self.nodes().iter().map(|node| node.sample_memory())).await;
    }
}

/// Returns keys derived from another, the first in its home, each next one in the next home. Derived keys are tried until
/// every place is taken.
fn spread(key: Key, count: usize, homes: usize, home: impl Fn(Key) -> usize) -> Vec<Key> {
    let homes = homes.max(1);
    // The upper half of the key decides: the lower half selects shards and buckets in other places.
    let first = u128::try_from(homes).map_or(0, |homes| (key.as_u128() >> 64) % homes);
    let first = usize::try_from(first).unwrap_or(0);
    let mut found: Vec<Option<Key>> = vec![None; count];
    let mut missing = count;
    for tried in (0..MAX_DERIVED_KEYS).map(|number| derived_key(key, number)) {
        if missing == 0 {
            break;
        }
        let turn = (home(tried) + homes - first) % homes;
        let mut open = (turn..count).step_by(homes);
        if let Some(place) = open.find(|place| found[*place].is_none()) {
            found[place] = Some(tried);
            missing -= 1;
        }
    }
    let anywhere = (MAX_DERIVED_KEYS..).map(|number| derived_key(key, number));
    found.into_iter().zip(anywhere).map(|(found, other)| found.unwrap_or(other)).collect()
}

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.nodes().iter().map(|node| node.name().to_owned())).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn parts_take_turns_through_their_homes_and_never_meet() {
        for (count, homes) in [(2, 3), (3, 3), (8, 3), (64, 64), (64, 1), (5, 17)] {
            let home = |key: Key| usize::try_from(key.as_u128() % 1_009).unwrap() % homes;
            let mut firsts = HashSet::new();
            for client in 0..200_u128 {
                let client = Key::from_u128(client << 64 | 12_345);
                let parts = spread(client, count, homes, home);
                let known: HashSet<Key> = parts.iter().copied().collect();
                assert_eq!(known.len(), count);
                assert!(!known.contains(&client));
                for (place, pair) in parts.windows(2).enumerate() {
                    let next = (home(pair[0]) + 1) % homes;
                    assert_eq!(home(pair[1]), next, "part {place} of {count} in {homes}");
                }
                firsts.insert(home(parts[0]));
            }
            assert_eq!(firsts.len(), homes, "every home has the first part of some key");
        }
    }
}
