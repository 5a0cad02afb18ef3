//! How a cluster comes to be.

use std::collections::HashMap;
use std::sync::Mutex;
use std::thread;

use super::Cluster;
use super::view::SLOT_COUNT;
use crate::redis::{Redis, RedisBuilder};
use crate::tool::Flavour;
use crate::wait::wait_for;

const MASTERS: u16 = 3;

/// A cluster before it starts.
#[derive(Debug, Clone)]
pub struct ClusterBuilder {
    node: RedisBuilder,
    replica_clock: Option<i64>,
}

impl Default for ClusterBuilder {
    fn default() -> Self {
        let node = (Redis::builder())
            .config("cluster-enabled", "yes")
            .config("cluster-node-timeout", "1000")
            .config("cluster-replica-validity-factor", "0");
        Self { node, replica_clock: None }
    }
}

impl ClusterBuilder {
    /// Sets the server program; Redis by default.
    #[must_use]
    pub fn flavour(mut self, flavour: Flavour) -> Self {
        self.node = self.node.flavour(flavour);
        self
    }

    /// Creates a line of every node's `redis.conf`: `config("cluster-node-timeout", "10000")` for a cluster that
    /// keeps its masters on a machine too busy for their heartbeats.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.node = self.node.config(name, value);
        self
    }

    /// Sets the clocks of the replicas off by so many seconds, as [`RedisBuilder::clock`] does.
    #[must_use]
    pub fn replica_clock(mut self, offset_seconds: i64) -> Self {
        self.replica_clock = Some(offset_seconds);
        self
    }

    /// Starts it, and waits until it is whole.
    ///
    /// # Panics
    /// The server is missing, or the cluster does not form.
    pub fn start(self) -> Cluster {
        let nodes = self.start_nodes();
        let ids: Vec<String> = nodes.iter().map(|node| node.query(&["CLUSTER", "MYID"])).collect();
        let share = SLOT_COUNT / MASTERS;
        for (place, node) in (0..).zip(&nodes) {
            // Nodes that start with the same epoch would spend seconds on sorting that out.
            node.query::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]);
            if place < MASTERS {
                let last = if place + 1 == MASTERS { SLOT_COUNT } else { (place + 1) * share } - 1;
                let (first, last) = ((place * share).to_string(), last.to_string());
                node.query::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            }
        }
        for (place, node) in nodes.iter().enumerate() {
            for other in &nodes[..place] {
                let port = other.port().to_string();
                node.query::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port]);
            }
        }
        let (masters, replicas) = nodes.split_at(MASTERS.into());
        for (replica, (master, id)) in replicas.iter().zip(masters.iter().zip(&ids)) {
            // Refused until the replica has met its master.
            wait_for(&format!("{} replicates {}", replica.address(), master.address()), || {
                replica.try_query::<()>(&["CLUSTER", "REPLICATE", id]).ok()
            });
        }
        let cluster = Cluster { nodes, ids, migrations: Mutex::new(HashMap::new()) };
        cluster.wait_until_whole();
        cluster
    }

    fn start_nodes(&self) -> Vec<Redis> {
        let node = &self.node;
        let replica = match self.replica_clock {
            Some(offset) => node.clone().clock(offset),
            None => node.clone(),
        };
        thread::scope(|scope| {
            let builders =
                (0..2 * MASTERS).map(|place| if place < MASTERS { node } else { &replica });
            let starts: Vec<_> =
                builders.map(|builder| scope.spawn(move || builder.clone().start())).collect();
            starts.into_iter().map(|start| start.join().expect("a node starts")).collect()
        })
    }
}
