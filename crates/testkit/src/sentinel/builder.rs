//! The configuration of sentinels and their master.

use std::thread;
use std::time::Duration;

use super::Sentinel;
use crate::redis::{Redis, RedisBuilder};
use crate::tool::Flavour;
use crate::wait::wait_for;

/// A master, a replica and sentinels before they start.
#[derive(Debug, Clone)]
pub struct SentinelBuilder {
    node: RedisBuilder,
    sentinel: RedisBuilder,
    replica_clock: Option<i64>,
    down_after: Duration,
}

impl Default for SentinelBuilder {
    fn default() -> Self {
        Self {
            node: Redis::builder(),
            sentinel: Redis::builder().sentinel(),
            replica_clock: None,
            down_after: Duration::from_millis(500),
        }
    }
}

impl SentinelBuilder {
    /// Sets the server program; Redis by default.
    #[must_use]
    pub fn flavour(mut self, flavour: Flavour) -> Self {
        self.node = self.node.flavour(flavour);
        self.sentinel = self.sentinel.flavour(flavour);
        self
    }

    /// Creates a line of the `redis.conf` of master and replica.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.node = self.node.config(name, value);
        self
    }

    /// Offsets the clock of the replica by this many seconds, as [`RedisBuilder::clock`] does.
    #[must_use]
    pub fn replica_clock(mut self, offset_seconds: i64) -> Self {
        self.replica_clock = Some(offset_seconds);
        self
    }

    /// Sets the time without a reply after which a master counts as down; half a second by default.
    #[must_use]
    pub fn down_after(mut self, silence: Duration) -> Self {
        self.down_after = silence;
        self
    }

    /// Starts them all, and waits until the master can be replaced.
    ///
    /// # Panics
    /// The server is missing, or the sentinels do not find the master, the replica and each other.
    pub fn start(self) -> Sentinel {
        let (sentinels, nodes) = thread::scope(|scope| {
            let starts = [(); 3].map(|()| scope.spawn(|| self.sentinel.clone().start()));
            let nodes = self.start_nodes();
            let sentinels = starts.into_iter().map(|start| start.join().expect("it starts"));
            (sentinels.collect::<Vec<_>>(), nodes)
        });
        for sentinel in &sentinels {
            self.watch(&nodes[0], sentinel);
        }
        let sentinel = Sentinel { nodes, sentinels };
        sentinel.wait_until_whole();
        sentinel
    }

    fn start_nodes(&self) -> Vec<Redis> {
        let master = self.node.clone().start();
        let replica =
            self.node.clone().config("replicaof", &format!("127.0.0.1 {}", master.port()));
        let replica = match self.replica_clock {
            Some(offset) => replica.clock(offset),
            None => replica,
        };
        let replica = replica.start();
        wait_for("the replica follows its master", || {
            (replica.info("master_link_status")? == "up").then_some(())
        });
        vec![master, replica]
    }

    fn watch(&self, master: &Redis, sentinel: &Redis) {
        // Sentinels look around every few seconds. Here they do it more often, and a machine that is busy for a while is
        // no reason for them to doubt their clock and do nothing for half a minute.
        for (period, milliseconds) in [
            ("info-period", "200"),
            ("publish-period", "200"),
            ("ask-period", "200"),
            ("tilt-trigger", "60000"),
        ] {
            sentinel.query::<()>(&["SENTINEL", "DEBUG", period, milliseconds]);
        }
        let (name, port) = (Sentinel::NAME, master.port().to_string());
        sentinel.query::<()>(&["SENTINEL", "MONITOR", name, "127.0.0.1", &port, "2"]);
        let down_after = self.down_after.as_millis().to_string();
        for (option, value) in
            [("down-after-milliseconds", down_after.as_str()), ("failover-timeout", "2000")]
        {
            sentinel.query::<()>(&["SENTINEL", "SET", name, option, value]);
        }
    }
}
