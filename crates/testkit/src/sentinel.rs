//! A master, its replica, and the sentinels that watch them.

mod builder;

use std::collections::HashMap;

use crate::redis::Redis;
use crate::wait::{WAIT_TIMEOUT, poll};

pub use builder::SentinelBuilder;

/// A master with one replica, watched by three sentinels of which two must agree that the master is gone.
///
/// A master that stops answering is replaced in a few seconds.
#[derive(Debug)]
pub struct Sentinel {
    nodes: Vec<Redis>,
    sentinels: Vec<Redis>,
}

impl Sentinel {
    /// The name of the master in the sentinels.
    pub const NAME: &'static str = "tidegate";

    /// Creates a master ready to be replaced: every sentinel knows the others and the replica, which follows the
    /// master.
    pub fn start() -> Self {
        Self::builder().start()
    }

    /// Returns a master, a replica and sentinels to be described before they start.
    pub fn builder() -> SentinelBuilder {
        SentinelBuilder::default()
    }

    /// Returns `redis+sentinel://127.0.0.1:p1,127.0.0.1:p2,127.0.0.1:p3/tidegate`
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{}", self.addresses().join(","), Self::NAME)
    }

    /// Returns the addresses of the sentinels.
    pub fn addresses(&self) -> Vec<String> {
        self.sentinels.iter().map(Redis::address).collect()
    }

    /// Returns the sentinels.
    pub fn sentinels(&self) -> &[Redis] {
        &self.sentinels
    }

    /// Returns the two servers with data; the first is the master at the start.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// Returns the master, as the first sentinel that is up has it; one that was just killed still counts.
    ///
    /// # Panics
    /// The sentinel does not reply, or returns an unknown address.
    pub fn master(&self) -> &Redis {
        let sentinel = self.sentinels.iter().find(|sentinel| sentinel.is_up());
        let named = sentinel.and_then(|sentinel| self.master_by(sentinel));
        named.expect("a sentinel that is up names one of the two")
    }

    /// Kills the master, and returns its address. Writes that were not replicated yet are lost.
    pub fn kill_master(&self) -> String {
        let master = self.master();
        master.kill();
        master.address()
    }

    /// Waits until all sentinels that are up name a master that is up and knows that it is one; gives its address.
    ///
    /// To be called while the old master is down: one that is up again may still be named.
    ///
    /// # Panics
    /// The wait times out.
    pub fn wait_for_switch(&self) -> String {
        self.wait("the master was not replaced", || self.agreed_master().map(Redis::address))
    }

    /// Cuts the master off from its replica and the sentinels, which soon replace it. Clients still reach it, and it
    /// still takes their writes.
    pub fn isolate_master(&self) -> &Redis {
        let master = self.master();
        // Without these commands it answers no sentinel's PING, no replica, and nothing demotes it.
        let denied =
            ["ping", "psync", "sync", "replconf", "replicaof", "slaveof", "publish", "subscribe"];
        let denied = denied.map(|command| format!("-{command}"));
        let rules = denied.iter().map(String::as_str);
        let change: Vec<&str> = ["ACL", "SETUSER", "default"].into_iter().chain(rules).collect();
        master.query::<()>(&change);
        for kind in ["replica", "pubsub"] {
            master.query::<u64>(&["CLIENT", "KILL", "TYPE", kind]);
        }
        master
    }

    /// Waits until all sentinels that are up name another master than `old`, one that knows that it is; gives its
    /// server.
    ///
    /// # Panics
    /// The wait times out.
    pub fn wait_for_successor(&self, old: &Redis) -> &Redis {
        let other = || self.agreed_master().filter(|master| master.port() != old.port());
        self.wait("the master was not replaced", other)
    }

    /// Starts a sentinel that knows of nothing but this master. If the master is
    /// [isolated](Self::isolate_master), it never learns of another.
    pub fn start_stale(master: &Redis) -> Redis {
        let sentinel = Redis::builder().sentinel().start();
        let port = master.port().to_string();
        sentinel.query::<()>(&["SENTINEL", "MONITOR", Self::NAME, "127.0.0.1", &port, "2"]);
        sentinel
    }

    /// Waits until the other server that is up follows the master, and all sentinels that are up know it and each other.
    ///
    /// # Panics
    /// The wait times out.
    pub fn wait_until_whole(&self) {
        self.wait("the master is not safe", || self.is_whole().then_some(()));
    }

    fn wait<T>(&self, vain: &str, look: impl FnMut() -> Option<T>) -> T {
        poll(look).unwrap_or_else(|| {
            let logs: Vec<String> = self.sentinels.iter().map(Redis::log_tail).collect();
            panic!("{vain} in {WAIT_TIMEOUT:?}; the sentinels say\n{}", logs.join("\n"))
        })
    }

    /// Returns the master of all sentinels that are up, if it is one and is up.
    fn agreed_master(&self) -> Option<&Redis> {
        let mut named = self.up().map(|sentinel| self.master_by(sentinel));
        let first = named.next()??;
        let is_agreed = named.all(|other| other.is_some_and(|other| other.port() == first.port()));
        let is_master = first.is_up() && first.info("role").as_deref() == Some("master");
        (is_agreed && is_master).then_some(first)
    }

    fn is_whole(&self) -> bool {
        let Some(master) = self.agreed_master() else { return false };
        let is_other = |redis: &&Redis| redis.port() != master.port() && redis.is_up();
        let replica = self.nodes.iter().find(is_other);
        replica.is_none_or(|replica| {
            replica.info("master_port") == Some(master.port().to_string())
                && replica.info("master_link_status").as_deref() == Some("up")
        }) && self.up().all(|sentinel| self.is_ready(sentinel, replica))
    }

    /// Returns whether a sentinel knows the other sentinels, and a replica that it would promote.
    fn is_ready(&self, sentinel: &Redis, replica: Option<&Redis>) -> bool {
        type Fields = HashMap<String, String>;
        let is = |fields: &Fields, name, value: &str| {
            fields.get(name).is_some_and(|found| found == value)
        };
        let others = (self.sentinels.len() - 1).to_string();
        let master = sentinel.try_query::<Fields>(&["SENTINEL", "MASTER", Self::NAME]);
        let replicas = sentinel.try_query::<Vec<Fields>>(&["SENTINEL", "REPLICAS", Self::NAME]);
        master.is_ok_and(|master| is(&master, "num-other-sentinels", &others))
            && replica.is_none_or(|replica| {
                let port = replica.port().to_string();
                replicas.is_ok_and(|replicas| {
                    replicas.iter().any(|fields| {
                        is(fields, "port", &port)
                            && is(fields, "flags", "slave")
                            && is(fields, "master-link-status", "ok")
                    })
                })
            })
    }

    fn master_by(&self, sentinel: &Redis) -> Option<&Redis> {
        let question = ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", Self::NAME];
        let (_, port): (String, u16) = sentinel.try_query(&question).ok()?;
        self.nodes.iter().find(|redis| redis.port() == port)
    }

    fn up(&self) -> impl Iterator<Item = &Redis> {
        self.sentinels.iter().filter(|sentinel| sentinel.is_up())
    }
}
