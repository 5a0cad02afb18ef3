//! Which server keeps a key, and which keys one script call can reach.

use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use tidegate_core::Key;

use super::Servers;
use super::cluster::Cluster;
use super::connect::OpenError;
use super::node::{Node, Where};
use super::rendezvous::RendezvousHash;
use super::sentinel;
use super::shared::Shared;
use super::slots::{SLOTS, slot_of};
use crate::store::{StoreError, apart};

/// How many names are tried for the parts of a client: enough for the most parts, as good as always.
const TRIES: u64 = 4_096;

/// Which server keeps a key.
pub(super) enum Topology {
    One(Arc<Node>),
    Shards { hash: RendezvousHash, nodes: Vec<Arc<Node>> },
    Cluster(Arc<Cluster>),
}

/// Keys of one group can be charged together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Group(u16);

impl Topology {
    /// The servers that the configuration names; nothing is connected yet.
    pub(super) fn new(shared: &Arc<Shared>) -> Self {
        let node = |place| Node::new(shared, place, Weak::new());
        match shared.config.servers() {
            Servers::Single(address) => Self::One(node(Where::At(address.clone()))),
            Servers::Sentinel { sentinels, master } => {
                let (sentinels, master) = (sentinels.clone(), master.clone());
                Self::One(node(Where::BySentinel { sentinels, master }))
            }
            Servers::Shards(addresses) => Self::Shards {
                hash: RendezvousHash::new(addresses),
                nodes: addresses.iter().map(|address| node(Where::At(address.clone()))).collect(),
            },
            Servers::Cluster(seeds) => Self::Cluster(Cluster::new(shared, seeds.clone())),
        }
    }

    /// The group of a counter's key.
    pub(super) fn group(&self, shared: &Shared, key: Key) -> Group {
        match self {
            Self::One(_) => Group(0),
            Self::Shards { hash, .. } => {
                Group(u16::try_from(hash.shard_of(key.as_u128())).unwrap_or(0))
            }
            Self::Cluster(_) => Group(slot_of(shared.spell(key).as_bytes())),
        }
    }

    /// Where the parts of a client's limit are kept.
    ///
    /// In a cluster each has an equal range of slots to itself, so that masters with usual ranges have about
    /// as many each; on shards they take turns through the servers. Where the first is depends on the
    /// client.
    pub(super) fn parts(&self, shared: &Shared, key: Key, of: u8) -> Vec<Key> {
        let count = usize::from(of.max(1));
        match self {
            Self::One(_) => spread(key, count, 1, |_| 0),
            Self::Shards { hash, nodes } => {
                spread(key, count, nodes.len(), |key| hash.rank_of(key.as_u128()))
            }
            Self::Cluster(_) => spread(key, count, count, |key| {
                usize::from(slot_of(shared.spell(key).as_bytes())) * count / usize::from(SLOTS)
            }),
        }
    }

    /// The group of a name that is no counter: on shards all of these are on the first.
    pub(super) fn group_of_name(&self, name: &str) -> Group {
        match self {
            Self::One(_) | Self::Shards { .. } => Group(0),
            Self::Cluster(_) => Group(slot_of(name.as_bytes())),
        }
    }

    /// The server of a group.
    pub(super) fn node(&self, group: Group) -> Result<Arc<Node>, StoreError> {
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

    /// Every server that keeps counters.
    pub(super) fn nodes(&self) -> Vec<Arc<Node>> {
        match self {
            Self::One(node) => vec![Arc::clone(node)],
            Self::Shards { nodes, .. } => nodes.clone(),
            Self::Cluster(cluster) => cluster.masters(),
        }
    }

    /// Opens a connection to every server.
    ///
    /// # Errors
    /// The first that can't be used.
    pub(super) async fn open(&self, shared: &Arc<Shared>) -> Result<(), OpenError> {
        match self {
            Self::One(node) => node.open().await,
            Self::Shards { nodes, .. } => {
                let opened = join_all(nodes.iter().map(|node| node.open())).await;
                let mut errors: Vec<OpenError> =
                    opened.into_iter().filter_map(Result::err).collect();
                // One that will never do says more than one that is away.
                errors.sort_by_key(|error| !error.is_final());
                errors.into_iter().next().map_or(Ok(()), Err)
            }
            Self::Cluster(cluster) => {
                cluster.look().await?;
                let up = async {
                    for node in cluster.masters() {
                        node.wait_until_up().await;
                    }
                };
                let patience = shared.config.connect_timeout();
                if tokio::time::timeout(patience, up).await.is_err() {
                    tracing::warn!("not every node of the cluster is there yet");
                }
                Ok(())
            }
        }
    }

    /// Goes on trying in the background wherever there is no connection yet.
    pub(super) fn keep_open(&self, shared: &Arc<Shared>) {
        match self {
            Self::Cluster(cluster) => shared.spawn(Cluster::keep_looking(Arc::downgrade(cluster))),
            Self::One(_) | Self::Shards { .. } => {
                if let (Self::One(node), Servers::Sentinel { sentinels, master }) =
                    (self, shared.config.servers())
                {
                    sentinel::watch(shared, node, sentinels, master);
                }
                for node in self.nodes().iter().filter(|node| !node.is_up()) {
                    node.open_in_background();
                }
            }
        }
    }

    /// Whether every server can be asked.
    pub(super) fn is_up(&self) -> bool {
        let nodes = self.nodes();
        !nodes.is_empty() && nodes.iter().all(|node| node.is_up())
    }
}

/// Keys that belong to another, one home after the other, found by trying where they fall.
fn spread(key: Key, count: usize, homes: usize, home: impl Fn(Key) -> usize) -> Vec<Key> {
    let homes = homes.max(1);
    // The upper half of the key decides, since keys are told apart by the lower half in many places.
    let first = u128::try_from(homes).map_or(0, |homes| (key.as_u128() >> 64) % homes);
    let first = usize::try_from(first).unwrap_or(0);
    let mut found: Vec<Option<Key>> = vec![None; count];
    let mut missing = count;
    for tried in (0..TRIES).map(|number| apart(key, number)) {
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
    let anywhere = (TRIES..).map(|number| apart(key, number));
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
            assert_eq!(firsts.len(), homes, "every home has the first part of somebody");
        }
    }
}
