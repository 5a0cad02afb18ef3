//! Which server keeps a key, and which keys one script call can reach.

use std::sync::{Arc, Weak};

use futures_util::future::join_all;
use tidegate_core::Key;

use super::Servers;
use super::cluster::Cluster;
use super::connect::OpenError;
use super::node::{Node, Where};
use super::ring::Ring;
use super::shared::Shared;
use super::slots::slot_of;
use crate::store::StoreError;

/// Which server keeps a key.
pub(super) enum Topology {
    One(Arc<Node>),
    Shards { ring: Ring, nodes: Vec<Arc<Node>> },
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
                ring: Ring::new(addresses),
                nodes: addresses.iter().map(|address| node(Where::At(address.clone()))).collect(),
            },
            Servers::Cluster(seeds) => Self::Cluster(Cluster::new(shared, seeds.clone())),
        }
    }

    /// The group of a counter's key.
    pub(super) fn group(&self, shared: &Shared, key: Key) -> Group {
        match self {
            Self::One(_) => Group(0),
            Self::Shards { ring, .. } => {
                Group(u16::try_from(ring.shard_of(key.as_u128())).unwrap_or(0))
            }
            Self::Cluster(_) => Group(slot_of(shared.spell(key).as_bytes())),
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

impl std::fmt::Debug for Topology {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.nodes().iter().map(|node| node.name().to_owned())).finish()
    }
}
