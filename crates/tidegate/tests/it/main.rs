//! Tests of the public API: stores, accuracies, the tower layer, and real Redis servers that fail.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a failed precondition fails the test")]
#![allow(clippy::print_stdout, reason = "a worker process reports on stdout")]

mod allow_list;
mod block_list;
#[cfg(feature = "redis")]
mod cluster;
#[cfg(feature = "redis")]
mod faults;
mod guide;
#[cfg(feature = "redis")]
mod leased_rules;
mod limit_changes;
mod limiter;
#[cfg(feature = "redis")]
mod mixed_versions;
mod overshoot;
#[cfg(feature = "redis")]
mod overshoot_redis;
#[cfg(feature = "redis")]
mod parity;
mod penalties;
#[cfg(feature = "redis")]
mod redis_blocks;
#[cfg(feature = "redis")]
mod redis_check_all;
#[cfg(feature = "redis")]
mod redis_document;
#[cfg(feature = "redis")]
mod redis_in_flight;
#[cfg(feature = "redis")]
mod redis_keys;
#[cfg(feature = "redis")]
mod server_reports;
#[cfg(feature = "redis")]
mod sharded_limits;
#[cfg(feature = "redis")]
mod split_rules;
mod store_contract;
#[cfg(feature = "redis")]
mod store_leases;
mod synced_rules;
#[cfg(feature = "tower")]
mod tower;
mod trace_spans;
mod without_runtime;

/// Connect timeout for a healthy Redis. Long enough for a machine under heavy load.
#[cfg(feature = "redis")]
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);

/// Connects to a healthy Redis. Retries for [`CONNECT_TIMEOUT`]: connecting includes one charge within the store timeout, and
/// a busy machine may delay it.
#[cfg(feature = "redis")]
async fn connect(config: tidegate::redis::RedisConfig) -> tidegate::redis::RedisStore {
    let config = config.with_connect_timeout(CONNECT_TIMEOUT).unwrap();
    let connecting = async {
        loop {
            match tidegate::redis::RedisStore::connect(config.clone()).await {
                Ok(store) => return store,
                Err(error) => println!("connecting again after: {error}"),
            }
        }
    };
    tokio::time::timeout(CONNECT_TIMEOUT, connecting).await.unwrap()
}
