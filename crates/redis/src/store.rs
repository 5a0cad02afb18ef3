//! The store that users hold.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidegate_core::{ClientStates, Key, Keyer, LeaseGrant, LeaseRequest, LeaseSet, Limit, State};
use tokio::runtime::Handle;

use super::config::RedisConfig;
use super::denial_cache::DenialCache;
use super::heartbeat::FleetHeartbeat;
use super::held_slots::HeldSlots;
use super::open_error::{OpenError, describe_error};
use super::report::ServerReport;
use super::script::{ScriptCall, Scripts};
use super::shared::{OtherLimits, RedisCounters, RedisShared};
use super::store_inner::StoreInner;
use super::topology::Topology;
use tidegate_limiter::coordination::membership::MembershipView;
use tidegate_limiter::store::{
    Charge, ChargeMode, ChargeResults, Refund, Share, Store, StoreError,
};

/// A store in Redis, for every node of a fleet.
///
/// Exact: each admission is one atomic step on the server that stores the counter, decided by the clock of that server.
/// Clones share everything.
#[derive(Clone, Debug)]
pub struct RedisStore {
    pub(crate) inner: Arc<StoreInner>,
}

/// Counters of a store since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RedisCounts {
    /// Script calls that charged.
    pub calls: u64,
    /// Requests that were submitted to a server.
    pub carried: u64,
    /// Lease requests that were submitted to a server.
    pub asks: u64,
    /// Script calls of lease requests.
    pub ask_calls: u64,
    /// Requests that a cached denial answered.
    pub remembered: u64,
    /// Charges that could not be refunded; they count until the limit has refilled.
    pub lost: u64,
    /// Number of times that a breaker opened.
    pub opened: u64,
    /// Number of times that another server became the master: behind sentinels one at another address, in a cluster one
    /// that served no slots before.
    pub failovers: u64,
    /// Parts of requests without a reply by their deadline, decided by `on_store_failure`.
    pub late: u64,
}

impl RedisStore {
    /// Connects to every server and loads the scripts.
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

    /// Connects like [`connect`](Self::connect), and continues in the background if a server is unreachable. Rules follow
    /// their `on_store_failure` until then, and whenever a server is unreachable later.
    ///
    /// # Errors
    /// A server that will never be usable: it is too old, or of another kind.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub async fn start(config: RedisConfig) -> Result<Self, OpenError> {
        let store = Self::new(config, Scripts::new());
        match store.inner.topology.open(&store.inner.shared).await {
            Err(error) if error.is_final() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "cannot reach the store, starting without it and retrying");
            }
            Ok(()) => {}
        }
        Ok(store.begin())
    }

    /// Connects like [`connect`](Self::connect), with a clock in Lua for tests.
    #[doc(hidden)]
    pub async fn connect_on_clock(config: RedisConfig, clock: &str) -> Result<Self, OpenError> {
        let store = Self::new(config, Scripts::with_clock(clock));
        store.inner.topology.open(&store.inner.shared).await?;
        Ok(store)
    }

    fn new(config: RedisConfig, scripts: Scripts) -> Self {
        let denials = DenialCache::new(config.denial_memory());
        let runtime = Handle::current();
        let counters = RedisCounters::default();
        let fleet = FleetHeartbeat::new(config.last_share());
        let held = HeldSlots::default();
        let other_limits = OtherLimits::default();
        let shared =
            Arc::new(RedisShared { config, scripts, runtime, counters, other_limits, held });
        let topology = Topology::new(&shared);
        Self { inner: Arc::new(StoreInner { shared, topology, denials, fleet }) }
    }

    /// Starts the background tasks.
    fn begin(self) -> Self {
        let shared = &self.inner.shared;
        self.inner.topology.keep_open(shared);
        shared.spawn(StoreInner::heartbeat_loop(Arc::downgrade(&self.inner)));
        shared.spawn(StoreInner::sample_loop(Arc::downgrade(&self.inner)));
        self
    }

    /// Returns whether every server has a connection and the scripts.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.inner.topology.is_up()
    }

    /// Sends a heartbeat at once, and learns the size of the fleet.
    pub async fn announce(&self) {
        let _ = self.inner.send_heartbeat().await;
    }

    /// Returns this node's share of the fleet as the store reported it, once it differs from `last`.
    ///
    /// A node that stores it and passes it on by [`RedisConfig::with_last_share`] after a restart uses no more than
    /// its share under `on_store_failure: local`, also before it has reached the store.
    pub async fn next_share(&self, last: Option<Share>) -> Share {
        self.inner.fleet.next_share(last).await
    }

    /// Removes this node from the fleet before its heartbeats time out. The store can still be used.
    pub async fn leave(&self) {
        self.inner.fleet.leave(&self.inner.shared, &self.inner.topology).await;
    }

    /// Returns the servers by name, and whether each has a connection.
    #[must_use]
    pub fn servers(&self) -> Vec<(String, bool)> {
        let nodes = self.inner.topology.nodes();
        nodes.iter().map(|node| (node.name().to_string(), node.is_up())).collect()
    }

    /// Returns a report on each server. The sample of its memory is up to ten seconds old.
    #[must_use]
    pub fn reports(&self) -> Vec<ServerReport> {
        self.inner.topology.nodes().iter().map(|node| node.report()).collect()
    }

    /// Samples the memory of the servers at once.
    pub async fn sample_memory(&self) {
        self.inner.topology.sample_memory().await;
    }

    /// Returns the counters of the store.
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

    /// Returns the Redis key of a counter.
    #[must_use]
    pub fn name_of(&self, key: Key) -> String {
        self.inner.shared.counter_key(key)
    }

    /// Returns the Redis key of the leases of a key.
    #[must_use]
    pub fn name_of_leases(&self, key: Key) -> String {
        self.inner.shared.lease_key(key)
    }

    /// Returns the state of a key and its limit; `None` for a client without a counter.
    #[doc(hidden)]
    pub async fn state(&self, key: Key) -> Result<Option<(Limit, State)>, StoreError> {
        self.kept(key, self.name_of(key), |raw| {
            crate::state_codec::parse_first(raw, crate::state_codec::parse)
        })
        .await
    }

    /// Returns the leases of a key and their limit; `None` without any.
    #[doc(hidden)]
    pub async fn leases(&self, key: Key) -> Result<Option<(Limit, LeaseSet)>, StoreError> {
        self.kept(key, self.name_of_leases(key), |raw| {
            crate::state_codec::parse_first(raw, crate::lease_codec::parse)
        })
        .await
    }

    /// Returns the states of a key under all limits that still use it, the one used last first.
    #[doc(hidden)]
    pub async fn states(&self, key: Key) -> Result<ClientStates, StoreError> {
        let states = self.kept(key, self.name_of(key), |raw| {
            crate::state_codec::parse_all(raw, crate::state_codec::parse)
        });
        Ok(states.await?.unwrap_or_default().into_iter().collect())
    }

    /// Returns the leases of a key under all limits that still use it, the one used last first.
    #[doc(hidden)]
    pub async fn leases_by_limit(&self, key: Key) -> Result<Vec<(Limit, LeaseSet)>, StoreError> {
        let name = self.name_of_leases(key);
        let leases = self
            .kept(key, name, |raw| crate::state_codec::parse_all(raw, crate::lease_codec::parse));
        Ok(leases.await?.unwrap_or_default())
    }

    async fn kept<T>(
        &self,
        key: Key,
        name: String,
        parse: impl Fn(&[u8]) -> Result<T, crate::state_codec::Unreadable>,
    ) -> Result<Option<T>, StoreError> {
        let topology = &self.inner.topology;
        let node = topology.node(topology.group(&self.inner.shared, key))?;
        let store = || Arc::clone(node.name());
        let mut get = ::redis::cmd("GET");
        let kept: Result<Option<Vec<u8>>, _> = node.connection()?.query(get.arg(name)).await;
        let kept = kept.map_err(|error| StoreError::Unavailable {
            store: store(),
            reason: describe_error(&error).into(),
        })?;
        let corrupt = |reason: &str| StoreError::Corrupt { store: store(), reason: reason.into() };
        kept.map(|raw| parse(&raw).map_err(corrupt)).transpose()
    }
}

impl Store for RedisStore {
    fn keyer(&self) -> Keyer {
        self.inner.shared.config.keyer()
    }

    async fn charge(&self, charges: &[Charge<'_>], mode: ChargeMode) -> ChargeResults {
        crate::charging::charge(&self.inner, charges, mode).await
    }

    async fn lease(
        &self,
        requests: &[(Key, Arc<Limit>, LeaseRequest)],
    ) -> Vec<Result<LeaseGrant, StoreError>> {
        crate::leasing::lease(&self.inner, requests).await
    }

    fn supports_leases(&self) -> bool {
        true
    }

    fn timeout(&self) -> Option<std::time::Duration> {
        Some(self.inner.shared.config.timeout())
    }

    fn share(&self) -> Share {
        self.inner.fleet.share()
    }

    fn membership_view(&self) -> Option<MembershipView> {
        Some(self.inner.fleet.membership_view())
    }

    fn parts(&self, key: Key, of: u8) -> Vec<Key> {
        self.inner.topology.parts(&self.inner.shared, key, of)
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        self.inner.refund(refunds).await
    }

    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>) {
        drop(self.inner.refund_in_background(refunds));
    }

    async fn renew(&self, slots: &[Refund]) -> Result<usize, StoreError> {
        self.inner.renew(slots).await
    }

    fn register_held(&self, slots: &Arc<[Refund]>) {
        self.inner.shared.held.add(slots);
    }

    async fn reset(&self, key: Key) -> Result<(), StoreError> {
        self.inner.denials.remove(key);
        let name = self.inner.shared.counter_key(key);
        let node = self.inner.topology.node(self.inner.topology.group(&self.inner.shared, key))?;
        let script = &self.inner.shared.scripts.reset;
        let _: u32 = node.call(ScriptCall { script, keys: &[name], arguments: &[] }).await?;
        Ok(())
    }
}
