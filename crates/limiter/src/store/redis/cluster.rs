//! A Redis Cluster: which node serves a slot, and finding out anew when that changes.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::address::Address;
use super::connect::{self, OpenError};
use super::node::{Node, Where, describe, unusable};
use super::shared::Shared;
use super::slots::SlotMap;

/// How often to look where slots are without a reason.
const CALM: Duration = Duration::from_secs(10);
/// How often while a node is away: a replica may have taken its place.
const RESTLESS: Duration = Duration::from_millis(100);

/// A Redis Cluster.
pub(super) struct Cluster {
    this: Weak<Self>,
    shared: Arc<Shared>,
    seeds: Vec<Address>,
    map: ArcSwap<SlotMap>,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    stale: Notify,
}

impl Cluster {
    pub(super) fn new(shared: &Arc<Shared>, seeds: Vec<Address>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            shared: Arc::clone(shared),
            seeds,
            map: ArcSwap::from_pointee(SlotMap::empty()),
            nodes: Mutex::new(HashMap::new()),
            stale: Notify::new(),
        })
    }

    /// The node that serves a slot, as far as is known.
    pub(super) fn node_of(&self, slot: u16) -> Option<Arc<Node>> {
        let map = self.map.load();
        let address = map.master_of(slot)?;
        self.nodes.lock().get(address).map(Arc::clone)
    }

    /// The node at an address; a new one is connected to in the background.
    pub(super) fn node_at(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(address.clone()).or_insert_with(|| {
            let place = Where::At(address.clone());
            let node = Node::new(&self.shared, place, Weak::clone(&self.this));
            node.open_in_background();
            node
        });
        Arc::clone(node)
    }

    /// Every node that serves slots.
    pub(super) fn masters(&self) -> Vec<Arc<Node>> {
        self.map.load().masters().map(|address| self.node_at(address)).collect()
    }

    /// Notes that a slot is served elsewhere, and looks where the others are.
    pub(super) fn moved(&self, slot: u16, to: &Address) -> Arc<Node> {
        if self.map.load().master_of(slot) != Some(to) {
            let before = self.map.rcu(|map| {
                let mut map = SlotMap::clone(map);
                map.moved(slot, to);
                map
            });
            self.note_newcomers(&before, std::slice::from_ref(to));
            self.look_again();
        }
        self.node_at(to)
    }

    /// Asks the cluster soon where its slots are.
    pub(super) fn look_again(&self) {
        self.stale.notify_one();
    }

    /// Asks one node after another where the slots are.
    pub(super) async fn look(&self) -> Result<(), OpenError> {
        let known: Vec<Arc<Node>> = self.nodes.lock().values().map(Arc::clone).collect();
        for link in known.iter().filter_map(|node| node.link()) {
            let mut connection = link.connection();
            let reply = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await;
            if let Ok(reply) = reply
                && self.read(&reply, link.address()).is_ok()
            {
                return Ok(());
            }
        }
        let mut last = unusable(&self.seeds[0], "no node of the cluster answers");
        for seed in &self.seeds {
            match self.look_at(seed).await {
                Ok(()) => return Ok(()),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn look_at(&self, seed: &Address) -> Result<(), OpenError> {
        let (mut connection, _) = connect::open_any(&self.shared.config, seed).await?;
        let reply = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await;
        let reply = reply.map_err(|error| unusable(seed, describe(&error)))?;
        self.read(&reply, seed).map_err(|reason| unusable(seed, reason))
    }

    fn read(&self, reply: &redis::Value, asked: &Address) -> Result<(), &'static str> {
        let map = SlotMap::read(reply, asked)?;
        if map.masters().next().is_none() {
            return Err("it serves no slots");
        }
        // Those that serve no slot any more are dropped, and with them their connections.
        let serving: Vec<Address> = map.masters().cloned().collect();
        let before = self.map.swap(Arc::new(map));
        self.note_newcomers(&before, &serving);
        for address in &serving {
            self.node_at(address);
        }
        self.nodes.lock().retain(|address, _| serving.contains(address));
        Ok(())
    }

    /// Counts nodes that serve slots now and did not when we last looked.
    fn note_newcomers(&self, before: &SlotMap, serving: &[Address]) {
        let known: Vec<&Address> = before.masters().collect();
        if !known.is_empty() {
            let new = serving.iter().filter(|address| !known.contains(address)).count();
            let new = u64::try_from(new).unwrap_or(u64::MAX);
            self.shared.counters.failovers.fetch_add(new, Ordering::Relaxed);
        }
    }

    /// Looks where the slots are now and then, and at once when there is a reason.
    #[allow(clippy::disallowed_methods, reason = "looking has its own pace")]
    pub(super) async fn keep_looking(this: Weak<Self>) {
        loop {
            let Some(cluster) = this.upgrade() else { return };
            let masters = cluster.masters();
            let whole = !masters.is_empty() && masters.iter().all(|node| node.is_up());
            let stale = async {
                cluster.stale.notified().await;
            };
            let _ = tokio::time::timeout(if whole { CALM } else { RESTLESS }, stale).await;
            if let Err(error) = cluster.look().await {
                tracing::debug!(%error, "cluster can't be asked where its slots are");
            }
            drop(cluster);
            // A storm of redirections asks once.
            tokio::time::sleep(RESTLESS / 4).await;
        }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}
