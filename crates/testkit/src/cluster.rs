//! A Redis Cluster of six nodes.

mod builder;
mod migration;
mod view;

use std::collections::HashMap;
use std::sync::Mutex;

use redis::{FromRedisValue, RedisError};

use crate::redis::Redis;
use crate::wait::{WAIT_TIMEOUT, poll};

pub use builder::ClusterBuilder;
use migration::SlotMigration;
use view::ClusterView;

/// Three masters and a replica of each, all on this machine. Nodes are identified by their index, from 0 to 5.
///
/// The first three are masters at the start. A master that stops answering is replaced by its replica in a few seconds.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Redis>,
    /// The cluster id of each node.
    ids: Vec<String>,
    migrations: Mutex<HashMap<u16, SlotMigration>>,
}

impl Cluster {
    /// Creates a cluster that is whole: every node knows every slot's owner, and every replica follows its master.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a cluster to be described before it starts.
    pub fn builder() -> ClusterBuilder {
        ClusterBuilder::default()
    }

    /// Returns `redis+cluster://127.0.0.1:p1,127.0.0.1:p2,…` with all six nodes.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", self.addresses().join(","))
    }

    /// Returns the addresses of all nodes.
    pub fn addresses(&self) -> Vec<String> {
        self.nodes.iter().map(Redis::address).collect()
    }

    /// Returns all nodes, by place.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Returns one node.
    pub fn node(&self, place: usize) -> &Redis {
        &self.nodes[place]
    }

    /// Returns the slot that a key is in.
    pub fn slot_of(&self, key: &str) -> u16 {
        self.any_up().query(&["CLUSTER", "KEYSLOT", key])
    }

    /// Returns the owner of a slot, in the view of the first running node; it may be a master that was just killed.
    ///
    /// # Panics
    /// The slot has no owner.
    pub fn owner_of(&self, slot: u16) -> usize {
        let view = ClusterView::of(self.any_up()).expect("a node that is up has a view");
        let owner = view.owner(slot).and_then(|port| self.place_of(port));
        owner.unwrap_or_else(|| panic!("slot {slot} has no owner: {view:?}"))
    }

    /// Returns the master that a key is on.
    pub fn master_of(&self, key: &str) -> usize {
        self.owner_of(self.slot_of(key))
    }

    /// Returns the masters that own slots, as the first node that is up has it.
    pub fn masters(&self) -> Vec<usize> {
        let view = ClusterView::of(self.any_up()).expect("a node that is up has a view");
        let owns = |redis: &Redis| view.owners().any(|port| port == redis.port());
        (0..self.nodes.len()).filter(|place| owns(&self.nodes[*place])).collect()
    }

    /// Returns the answer of the master that `key` is on.
    ///
    /// # Errors
    /// The error reply, or the missing reply.
    pub fn try_query_at<T: FromRedisValue>(
        &self,
        key: &str,
        command: &[&str],
    ) -> Result<T, RedisError> {
        self.node(self.master_of(key)).try_query(command)
    }

    /// Returns the answer of the master that `key` is on.
    ///
    /// # Panics
    /// There is no reply, or it is an error or not a `T`.
    pub fn query_at<T: FromRedisValue>(&self, key: &str, command: &[&str]) -> T {
        self.node(self.master_of(key)).query(command)
    }

    /// Returns the answers of all masters.
    ///
    /// # Panics
    /// A reply is missing, an error or not a `T`.
    pub fn query_all_masters<T: FromRedisValue>(&self, command: &[&str]) -> Vec<T> {
        self.masters().into_iter().map(|place| self.node(place).query(command)).collect()
    }

    /// Kills the master of `key` and returns its index. Writes that were not replicated yet are lost.
    pub fn kill_master_of(&self, key: &str) -> usize {
        let place = self.master_of(key);
        self.node(place).kill();
        place
    }

    /// Waits until the slot of `key` belongs to a running node, and all running nodes agree.
    ///
    /// # Panics
    /// The wait times out.
    pub fn wait_for_promotion(&self, key: &str) -> usize {
        self.wait_until_whole();
        self.master_of(key)
    }

    /// Waits until all nodes that are up agree that each slot has an owner that is up, and replicas follow their masters.
    ///
    /// # Panics
    /// The wait times out; the message contains the log of a node.
    pub fn wait_until_whole(&self) {
        poll(|| self.is_whole().then_some(())).unwrap_or_else(|| {
            let views: Vec<_> = self.up().map(ClusterView::of).collect();
            let log = self.any_up().log_tail();
            panic!("the cluster is not whole after {WAIT_TIMEOUT:?}: {views:#?}\n{log}")
        });
    }

    fn is_whole(&self) -> bool {
        let views: Option<Vec<ClusterView>> = self.up().map(ClusterView::of).collect();
        let Some(views) = views else { return false };
        let Some(first) = views.first() else { return false };
        views.iter().all(|view| view.agrees_with(first))
            && first.covers_all_slots()
            && first.owners().all(|port| self.up().any(|redis| redis.port() == port))
            && self.up().all(|redis| {
                view::cluster_state(redis).as_deref() == Some("ok")
                    && redis.info("master_link_status").is_none_or(|status| status == "up")
            })
            && views.iter().all(|view| self.up().all(|redis| view.sees(redis.port())))
    }

    fn up(&self) -> impl Iterator<Item = &Redis> {
        self.nodes.iter().filter(|redis| redis.is_up())
    }

    fn any_up(&self) -> &Redis {
        self.up().next().expect("a node of the cluster is up")
    }

    fn place_of(&self, port: u16) -> Option<usize> {
        self.nodes.iter().position(|redis| redis.port() == port)
    }
}
