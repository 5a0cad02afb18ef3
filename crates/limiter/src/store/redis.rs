//! A store for a fleet: spending is remembered in Redis, Valkey or a cluster of them.
//!
//! A check becomes an errand; errands for the same server travel in one script call (`batch`); a
//! server that fails is left alone until a probe was answered (`node`).

mod address;
mod batch;
mod blocks;
mod charging;
mod cluster;
mod config;
mod connect;
mod denials;
mod document;
mod error;
mod fleet;
mod holds;
mod leasing;
mod node;
mod redirect;
mod rendezvous;
mod report;
mod script;
mod secret;
mod sentinel;
mod server;
mod servers;
mod shared;
mod slots;
mod state;
mod subscription;
mod tls;
mod topology;
mod url;
mod weighing;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::{Ask, ClientStates, Granted, Holds, Key, Keyer, Limit, State};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use self::denials::Denials;
use self::fleet::Fleet;
use self::node::HeldSlots;
use self::script::Scripts;
use self::shared::{Counters, Shared};
use self::topology::{Group, Topology};
use super::{Answers, Charge, Refund, Share, Store, StoreError};
use crate::fleet::membership::Stake;

pub use address::Address;
pub use config::RedisConfig;
pub use connect::OpenError;
pub use document::{DocumentVersion, Draft, Edition, Expected, Latest, PutError, RedisDocument};
pub use error::RedisConfigError;
pub use report::{Latency, ServerReport, ServerUse};
pub use secret::Secret;
pub use servers::Servers;
pub use tls::{Tls, TlsIdentity};

/// Remembers spending in Redis, for every node of a fleet.
///
/// Exact: each admission is one atomic step on the server that keeps the counter, decided by the
/// server's clock. Clones share everything.
#[derive(Clone, Debug)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    topology: Topology,
    denials: Denials,
    /// Asks that wait for their servers.
    post: leasing::Post,
    fleet: Fleet,
}

/// What a store has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisCounts {
    /// Script calls that charged.
    pub calls: u64,
    /// Requests that were handed to a server.
    pub carried: u64,
    /// Asks for holds that were handed to a server.
    pub asks: u64,
    /// Script calls that carried those.
    pub ask_calls: u64,
    /// Requests that were denied from memory.
    pub remembered: u64,
    /// Charges that could not be given back; they stay charged until the limit heals.
    pub lost: u64,
    /// How often a server was given up for a while.
    pub opened: u64,
    /// How often another server took the place of a master: behind sentinels one at another address,
    /// in a cluster one that served no slots before.
    pub failovers: u64,
    /// Parts of requests that had no answer by their deadline, and were left to their rules.
    pub late: u64,
}

impl RedisStore {
    /// A store whose servers have all answered: connections are open, and the scripts loaded.
    ///
    /// # Errors
    /// The first server that can't be used.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn connect(config: RedisConfig) -> Result<Self, OpenError> {
        let store = Self::new(config, Scripts::new());
        store.inner.topology.open(&store.inner.shared).await?;
        Ok(store.begin())
    }

    /// A store that connects in the background as long as that takes; until then, and whenever a
    /// server is away, rules follow their `on_store_failure`.
    ///
    /// # Errors
    /// A server that answered and never will do: it is too old, or of another kind.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(config: RedisConfig) -> Result<Self, OpenError> {
        let store = Self::new(config, Scripts::new());
        match store.inner.topology.open(&store.inner.shared).await {
            Err(error) if error.is_final() => return Err(error),
            Err(error) => tracing::warn!(%error, "starting without the store, trying on"),
            Ok(()) => {}
        }
        Ok(store.begin())
    }

    /// As [`connect`](Self::connect), with time told by Lua code of a test's.
    #[doc(hidden)]
    pub async fn connect_on_clock(config: RedisConfig, clock: &str) -> Result<Self, OpenError> {
        let store = Self::new(config, Scripts::with_clock(clock));
        store.inner.topology.open(&store.inner.shared).await?;
        Ok(store)
    }

    fn new(config: RedisConfig, scripts: Scripts) -> Self {
        let denials = Denials::new(config.denial_memory());
        let runtime = Handle::current();
        let counters = Counters::default();
        let fleet = Fleet::new(config.last_share());
        let held = HeldSlots::default();
        let shared = Arc::new(Shared { config, scripts, runtime, counters, held });
        let topology = Topology::new(&shared);
        Self {
            inner: Arc::new(Inner {
                shared,
                topology,
                denials,
                post: leasing::Post::default(),
                fleet,
            }),
        }
    }

    /// Starts what goes on in the background.
    fn begin(self) -> Self {
        let shared = &self.inner.shared;
        self.inner.topology.keep_open(shared);
        shared.spawn(fleet::keep_pulsing(Arc::downgrade(&self.inner)));
        shared.spawn(weighing::keep_weighing(Arc::downgrade(&self.inner)));
        self
    }

    /// Whether every server is connected to and has the scripts.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.inner.topology.is_up()
    }

    /// Says at once that this node is alive, and hears how many others are.
    pub async fn announce(&self) {
        let _ = fleet::pulse(&self.inner).await;
    }

    /// Returns this node's share of the fleet as the store reported it, once it differs from `last`.
    ///
    /// A node that stores it and passes it on by [`RedisConfig::with_last_share`] after a restart uses no more than
    /// its share under `on_store_failure: local`, also before it has reached the store.
    pub async fn next_share(&self, last: Option<Share>) -> Share {
        self.inner.fleet.next_share(last).await
    }

    /// Tells the fleet that this node is going, so that the others need not find out. It no longer
    /// counts, and can still be asked.
    pub async fn leave(&self) {
        fleet::leave(&self.inner).await;
    }

    /// The servers by name, and whether each can be asked.
    #[must_use]
    pub fn servers(&self) -> Vec<(String, bool)> {
        let nodes = self.inner.topology.nodes();
        nodes.iter().map(|node| (node.name().to_owned(), node.is_up())).collect()
    }

    /// How each server has done so far. What they hold is up to ten seconds old.
    #[must_use]
    pub fn reports(&self) -> Vec<ServerReport> {
        self.inner.topology.nodes().iter().map(|node| node.report()).collect()
    }

    /// Asks the servers at once what they hold.
    pub async fn weigh(&self) {
        weighing::weigh(&self.inner).await;
    }

    /// What the store has done so far.
    #[must_use]
    pub fn counts(&self) -> RedisCounts {
        let counters = &self.inner.shared.counters;
        RedisCounts {
            calls: counters.calls.load(Ordering::Relaxed),
            carried: counters.carried.load(Ordering::Relaxed),
            asks: counters.asks.load(Ordering::Relaxed),
            ask_calls: counters.ask_calls.load(Ordering::Relaxed),
            remembered: counters.remembered.load(Ordering::Relaxed),
            lost: counters.lost.load(Ordering::Relaxed),
            opened: counters.opened.load(Ordering::Relaxed),
            failovers: counters.failovers.load(Ordering::Relaxed),
            late: counters.late.load(Ordering::Relaxed),
        }
    }

    /// The name under which a key's counter is kept.
    #[must_use]
    pub fn name_of(&self, key: Key) -> String {
        self.inner.shared.spell(key)
    }

    /// The name under which is kept what nodes hold of a key.
    #[must_use]
    pub fn name_of_holds(&self, key: Key) -> String {
        self.inner.shared.spell_holds(key)
    }

    /// What is kept under a key, and the limit it belongs to; nothing for a client without a counter.
    #[doc(hidden)]
    pub async fn state(&self, key: Key) -> Result<Option<(Limit, State)>, StoreError> {
        self.kept(key, self.name_of(key), |raw| state::parse_first(raw, state::parse)).await
    }

    /// What nodes hold of a key, and the limit under which that is kept; nothing if they hold none.
    #[doc(hidden)]
    pub async fn holds(&self, key: Key) -> Result<Option<(Limit, Holds)>, StoreError> {
        self.kept(key, self.name_of_holds(key), |raw| state::parse_first(raw, holds::parse)).await
    }

    /// The states of a key under all limits that still use it, the one used last first.
    #[doc(hidden)]
    pub async fn states(&self, key: Key) -> Result<ClientStates, StoreError> {
        let states = self.kept(key, self.name_of(key), |raw| state::parse_all(raw, state::parse));
        Ok(states.await?.unwrap_or_default().into_iter().collect())
    }

    /// What nodes hold of a key under all limits that still use it, the one used last first.
    #[doc(hidden)]
    pub async fn holds_by_limit(&self, key: Key) -> Result<Vec<(Limit, Holds)>, StoreError> {
        let name = self.name_of_holds(key);
        let holds = self.kept(key, name, |raw| state::parse_all(raw, holds::parse));
        Ok(holds.await?.unwrap_or_default())
    }

    async fn kept<T>(
        &self,
        key: Key,
        name: String,
        parse: impl Fn(&[u8]) -> Result<T, state::Unreadable>,
    ) -> Result<Option<T>, StoreError> {
        let topology = &self.inner.topology;
        let node = topology.node(topology.group(&self.inner.shared, key))?;
        let store: Arc<str> = node.name().into();
        let unavailable = |reason: &str| StoreError::Unavailable {
            store: Arc::clone(&store),
            reason: reason.into(),
        };
        let link = node.link().ok_or_else(|| unavailable("not connected"))?;
        let mut get = ::redis::cmd("GET");
        let kept: Result<Option<Vec<u8>>, _> =
            get.arg(name).query_async(&mut link.connection()).await;
        let kept = kept.map_err(|error| unavailable(&node::describe(&error)))?;
        let corrupt =
            |reason: &str| StoreError::Corrupt { store: Arc::clone(&store), reason: reason.into() };
        kept.map(|raw| parse(&raw).map_err(corrupt)).transpose()
    }
}

impl Inner {
    /// Gives charges back in the background, whether or not anybody waits for it.
    fn give_back(self: &Arc<Self>, refunds: Vec<Refund>) -> JoinHandle<()> {
        let store = Arc::clone(self);
        self.shared.runtime.spawn(async move {
            // Sent once; what is lost was counted.
            let _ = store.refund(&refunds).await;
        })
    }

    /// Charges by where their keys live.
    fn groups(&self, refunds: impl Iterator<Item = Refund>) -> BTreeMap<Group, Vec<Refund>> {
        let mut groups: BTreeMap<Group, Vec<Refund>> = BTreeMap::new();
        for refund in refunds {
            let group = self.topology.group(&self.shared, refund.key);
            groups.entry(group).or_default().push(refund);
        }
        groups
    }

    async fn renew(&self, slots: &[Refund]) -> Result<usize, StoreError> {
        let is_held = |slots: &&Refund| slots.limit.is_held() && slots.slip.is_some();
        let held_slots = slots.iter().filter(is_held);
        let (mut held, mut failed) = (0, None);
        for (group, renewals) in self.groups(held_slots.cloned()) {
            let renewed = match self.topology.node(group) {
                Ok(node) => node.renew(&renewals).await,
                Err(error) => Err(error),
            };
            match renewed {
                Ok(count) => held += count,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(held), Err)
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        refunds.iter().for_each(|refund| self.denials.clear(refund.key));
        let groups = self.groups(refunds.iter().cloned());
        let (mut given, mut failed) = (0, None);
        for (group, refunds) in groups {
            let refunded = match self.topology.node(group) {
                Ok(node) => node.refund(&refunds).await,
                Err(error) => Err(error),
            };
            match refunded {
                Ok(count) => given += count,
                Err(error) => {
                    let lost = u64::try_from(refunds.len()).unwrap_or(u64::MAX);
                    self.shared.counters.lost.fetch_add(lost, Ordering::Relaxed);
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(given),
        }
    }
}

impl Store for RedisStore {
    fn keyer(&self) -> Keyer {
        self.inner.shared.config.keyer()
    }

    async fn charge(&self, charges: &[Charge<'_>]) -> Answers {
        charging::charge(&self.inner, charges).await
    }

    async fn ask(&self, asks: &[(Key, Arc<Limit>, Ask)]) -> Vec<Result<Granted, StoreError>> {
        leasing::ask(&self.inner, asks).await
    }

    fn leases(&self) -> bool {
        true
    }

    fn patience(&self) -> Option<std::time::Duration> {
        Some(self.inner.shared.config.timeout())
    }

    fn share(&self) -> Share {
        self.inner.fleet.share()
    }

    fn stake(&self) -> Option<Stake> {
        Some(self.inner.fleet.stake())
    }

    fn parts(&self, key: Key, of: u8) -> Vec<Key> {
        self.inner.topology.parts(&self.inner.shared, key, of)
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        self.inner.refund(refunds).await
    }

    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>) {
        drop(self.inner.give_back(refunds));
    }

    async fn renew(&self, slots: &[Refund]) -> Result<usize, StoreError> {
        self.inner.renew(slots).await
    }

    fn register_held(&self, slots: &Arc<[Refund]>) {
        self.inner.shared.held.add(slots);
    }

    async fn forget(&self, key: Key) -> Result<(), StoreError> {
        self.inner.denials.clear(key);
        let name = self.inner.shared.spell(key);
        let node = self.inner.topology.node(self.inner.topology.group(&self.inner.shared, key))?;
        let script = &self.inner.shared.scripts.forget;
        let _: u32 = node.call_anywhere(script, &[name], &[]).await?;
        Ok(())
    }
}
