//! A Redis Cluster: the servers of its slots, discovered again when they change.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::Notify;

use super::address::Address;
use super::location::{ServerLocation, discover_slots};
use super::node::Node;
use super::open_error::OpenError;
use super::shared::RedisShared;
use super::slots::SlotMap;

/// Time between two discoveries of the slots.
const DISCOVERY_INTERVAL: Duration = Duration::from_secs(10);
/// The same while a server is down: a replica may have taken its place.
const OUTAGE_DISCOVERY_INTERVAL: Duration = Duration::from_millis(100);

/// A Redis Cluster.
pub(crate) struct Cluster {
    this: Weak<Self>,
    shared: Arc<RedisShared>,
    seeds: Vec<Address>,
    map: ArcSwap<SlotMap>,
    nodes: Mutex<HashMap<Address, Arc<Node>>>,
    stale: Notify,
}

impl Cluster {
    pub(crate) fn new(shared: &Arc<RedisShared>, seeds: Vec<Address>) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            shared: Arc::clone(shared),
            seeds,
            map: ArcSwap::from_pointee(SlotMap::empty()),
            nodes: Mutex::new(HashMap::new()),
            stale: Notify::new(),
        })
    }

    /// Returns the server of a slot, if it is known.
    pub(crate) fn node_of(&self, slot: u16) -> Option<Arc<Node>> {
        let map = self.map.load();
        let address = map.master_of(slot)?;
        self.nodes.lock().get(address).map(Arc::clone)
    }

    /// Returns the server at an address; a new one is connected to in the background.
    pub(crate) fn node_at(&self, address: &Address) -> Arc<Node> {
        let mut nodes = self.nodes.lock();
        let node = nodes.entry(address.clone()).or_insert_with(|| {
            let location = ServerLocation::Fixed(address.clone());
            let node = Node::new(&self.shared, location, Weak::clone(&self.this));
            node.open_in_background();
            node
        });
        Arc::clone(node)
    }

    /// Returns every server that serves slots.
    pub(crate) fn masters(&self) -> Vec<Arc<Node>> {
        self.map.load().masters().map(|address| self.node_at(address)).collect()
    }

    /// Notes that another server serves a slot, and refreshes the slots. Returns that server.
    pub(crate) fn moved(&self, slot: u16, to: &Address) -> Arc<Node> {
        if self.map.load().master_of(slot) != Some(to) {
            let before = self.map.rcu(|map| {
                let mut map = SlotMap::clone(map);
                map.moved(slot, to);
                map
            });
            self.count_new_masters(&before, std::slice::from_ref(to));
            self.refresh_slots();
        }
        self.node_at(to)
    }

    /// Has the slots discovered again soon, in the background.
    pub(crate) fn refresh_slots(&self) {
        self.stale.notify_one();
    }

    /// Discovers which servers serve the slots: on a connection in use, or else through a seed.
    ///
    /// # Errors
    /// No server of the cluster has an answer.
    pub(crate) async fn discover(&self) -> Result<(), OpenError> {
        let known: Vec<Arc<Node>> = self.nodes.lock().values().map(Arc::clone).collect();
        for connection in known.iter().filter_map(|node| node.connection().ok()) {
            if let Ok(map) = connection.slot_map().await {
                self.replace_slots(map);
                return Ok(());
            }
        }
        self.replace_slots(discover_slots(&self.shared.config, &self.seeds).await?);
        Ok(())
    }

    fn replace_slots(&self, map: SlotMap) {
        let serving: Vec<Address> = map.masters().cloned().collect();
        let before = self.map.swap(Arc::new(map));
        self.count_new_masters(&before, &serving);
        for address in &serving {
            self.node_at(address);
        }
        // Servers without slots are dropped, and with them their connections.
        self.nodes.lock().retain(|address, _| serving.contains(address));
    }

    /// Counts servers that serve slots now and did not before.
    fn count_new_masters(&self, before: &SlotMap, serving: &[Address]) {
        let known: Vec<&Address> = before.masters().collect();
        if !known.is_empty() {
            let new = serving.iter().filter(|address| !known.contains(address)).count();
            let new = u64::try_from(new).unwrap_or(u64::MAX);
            self.shared.counters.failovers.fetch_add(new, Ordering::Relaxed);
        }
    }

    /// Discovers the slots at intervals, and at once after [`refresh_slots`](Self::refresh_slots), until the cluster
    /// is dropped.
    #[allow(clippy::disallowed_methods, reason = "discovery has its own pace")]
    pub(crate) async fn discover_loop(this: Weak<Self>) {
        loop {
            let Some(cluster) = this.upgrade() else { return };
            let masters = cluster.masters();
            let whole = !masters.is_empty() && masters.iter().all(|node| node.is_up());
            let stale = async {
                cluster.stale.notified().await;
            };
            let interval = if whole { DISCOVERY_INTERVAL } else { OUTAGE_DISCOVERY_INTERVAL };
            let _ = tokio::time::timeout(interval, stale).await;
            if let Err(error) = cluster.discover().await {
                tracing::debug!(%error, "cannot discover the slots of the cluster, retrying");
            }
            drop(cluster);
            // Many redirects at once lead to one discovery.
            tokio::time::sleep(OUTAGE_DISCOVERY_INTERVAL / 4).await;
        }
    }
}

impl std::fmt::Debug for Cluster {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Cluster").field("seeds", &self.seeds).finish_non_exhaustive()
    }
}
