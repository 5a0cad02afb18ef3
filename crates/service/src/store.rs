//! The store of the server: the memory of the process, or Redis.

mod fleet_file;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tidegate_core::{Key, Keyer, LeaseGrant, LeaseRequest, Limit, Outcome};
use tidegate_limiter::{
    Charge, ChargeMode, ChargeResults, Clock, MembershipView, MemoryStore, Refund, Share, Store,
    StoreError,
};
use tidegate_redis::{OpenError, RedisConfig, RedisStore};

use self::fleet_file::FleetFile;

/// The configuration of the store.
#[derive(Debug)]
pub enum StoreConfig {
    /// State in this process.
    Memory {
        /// Most clients in memory.
        max_keys: usize,
        /// Most bytes of their state.
        max_bytes: usize,
    },
    /// State in Redis.
    Redis {
        /// Servers and timeouts.
        config: Box<RedisConfig>,
        /// Directory for the fleet size, which a node needs after a restart while Redis is unreachable.
        state: Option<PathBuf>,
    },
}

/// Prints the place, without secrets: `memory`, `redis://cache.example.com:6379`.
impl fmt::Display for StoreConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory { .. } => f.write_str("memory"),
            Self::Redis { config, .. } => config.fmt(f),
        }
    }
}

/// The configured store.
#[derive(Debug)]
pub enum AnyStore {
    /// State in this process.
    Memory(Arc<MemoryStore>),
    /// State in Redis.
    Redis(RedisStore),
}

impl AnyStore {
    /// Returns a store that is ready for charges. Servers that are unreachable are retried in the background.
    ///
    /// # Errors
    /// A server answered, and can't be used with this configuration.
    pub async fn start(config: StoreConfig, clock: &Clock) -> Result<Self, OpenError> {
        Ok(match config {
            StoreConfig::Memory { max_keys, max_bytes } => {
                let store = MemoryStore::with_capacity(max_keys, max_bytes, clock.clone());
                Self::Memory(Arc::new(store))
            }
            StoreConfig::Redis { config, state } => {
                let file = state.map(|folder| FleetFile::for_store(&config, &folder));
                let (config, stored) = match &file {
                    Some(file) => file.restore(*config),
                    None => (*config, None),
                };
                let store = RedisStore::start(config).await?;
                if !store.is_ready() {
                    log_share(stored);
                }
                if let Some(file) = file {
                    tokio::spawn(file.store_changes(store.clone(), stored));
                }
                Self::Redis(store)
            }
        })
    }

    /// Returns the servers that are not connected yet; `None` once the store is ready.
    pub(crate) fn pending_servers(&self) -> Option<String> {
        let Self::Redis(store) = self else { return None };
        if store.is_ready() {
            return None;
        }
        let servers = store.servers();
        let down = servers.iter().filter(|(_, up)| !up).map(|(name, _)| name.as_str());
        let down: Vec<&str> = down.collect();
        Some(if down.is_empty() { "redis".to_owned() } else { down.join(", ") })
    }

    /// Leaves the fleet, so that the shares of other nodes grow at once.
    pub async fn leave(&self) {
        match self {
            Self::Memory(_) => {}
            Self::Redis(store) => store.leave().await,
        }
    }
}

/// Logs the share that rules with `on_store_failure: local` use until Redis answers.
fn log_share(stored: Option<Share>) {
    match stored {
        Some(Share { index, of }) => tracing::info!(
            index,
            nodes = of,
            "rules with on_store_failure: local use the last known fleet size until Redis answers"
        ),
        None => tracing::warn!(
            "fleet size unknown: rules with on_store_failure: local use the whole limit until Redis answers"
        ),
    }
}

impl Store for AnyStore {
    fn keyer(&self) -> Keyer {
        match self {
            Self::Memory(store) => store.keyer(),
            Self::Redis(store) => store.keyer(),
        }
    }

    async fn charge(&self, charges: &[Charge<'_>], mode: ChargeMode) -> ChargeResults {
        match self {
            Self::Memory(store) => store.charge(charges, mode).await,
            // Boxed, so that the future of a check in memory stays small.
            Self::Redis(store) => Box::pin(store.charge(charges, mode)).await,
        }
    }

    #[inline]
    fn charge_now(&self, charge: &Charge<'_>) -> Option<Outcome> {
        match self {
            Self::Memory(store) => store.charge_now(charge),
            Self::Redis(_) => None,
        }
    }

    fn supports_leases(&self) -> bool {
        match self {
            Self::Memory(store) => store.supports_leases(),
            Self::Redis(store) => store.supports_leases(),
        }
    }

    async fn lease(
        &self,
        requests: &[(Key, Arc<Limit>, LeaseRequest)],
    ) -> Vec<Result<LeaseGrant, StoreError>> {
        match self {
            Self::Memory(store) => store.lease(requests).await,
            Self::Redis(store) => Box::pin(store.lease(requests)).await,
        }
    }

    fn timeout(&self) -> Option<std::time::Duration> {
        match self {
            Self::Memory(store) => store.timeout(),
            Self::Redis(store) => store.timeout(),
        }
    }

    fn share(&self) -> Share {
        match self {
            Self::Memory(store) => store.share(),
            Self::Redis(store) => store.share(),
        }
    }

    fn membership_view(&self) -> Option<MembershipView> {
        match self {
            Self::Memory(store) => store.membership_view(),
            Self::Redis(store) => store.membership_view(),
        }
    }

    fn parts(&self, key: Key, of: u8) -> Vec<Key> {
        match self {
            Self::Memory(store) => store.parts(key, of),
            Self::Redis(store) => store.parts(key, of),
        }
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        match self {
            Self::Memory(store) => store.refund(refunds).await,
            Self::Redis(store) => Box::pin(store.refund(refunds)).await,
        }
    }

    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>) {
        match &**self {
            Self::Memory(store) => store.refund_detached(refunds),
            // A clone shares its state with the original.
            Self::Redis(store) => Arc::new(store.clone()).refund_detached(refunds),
        }
    }

    async fn renew(&self, slots: &[Refund]) -> Result<usize, StoreError> {
        match self {
            Self::Memory(store) => store.renew(slots).await,
            Self::Redis(store) => Box::pin(store.renew(slots)).await,
        }
    }

    fn register_held(&self, slots: &Arc<[Refund]>) {
        match self {
            Self::Memory(store) => store.register_held(slots),
            Self::Redis(store) => store.register_held(slots),
        }
    }

    async fn reset(&self, key: Key) -> Result<(), StoreError> {
        match self {
            Self::Memory(store) => store.reset(key).await,
            Self::Redis(store) => Box::pin(store.reset(key)).await,
        }
    }
}
