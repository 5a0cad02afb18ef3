//! The library as its users see it: stores, accuracies, the tower layer, and real Redis servers that fail.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that cannot go on has failed")]
#![allow(clippy::print_stdout, reason = "a worker process answers on stdout")]

mod block_list;
#[cfg(feature = "redis")]
mod cluster;
#[cfg(feature = "redis")]
mod faults;
mod guide;
#[cfg(feature = "redis")]
mod leased;
#[cfg(feature = "redis")]
mod leases;
mod limit_changes;
mod limiter;
#[cfg(feature = "redis")]
mod mixed_versions;
mod overshoot;
#[cfg(feature = "redis")]
mod overshoot_redis;
#[cfg(feature = "redis")]
mod parity;
mod penalty;
#[cfg(feature = "redis")]
mod redis_blocks;
#[cfg(feature = "redis")]
mod redis_claims;
#[cfg(feature = "redis")]
mod redis_document;
#[cfg(feature = "redis")]
mod redis_in_flight;
#[cfg(feature = "redis")]
mod redis_keys;
#[cfg(feature = "redis")]
mod redis_reports;
#[cfg(feature = "redis")]
mod shards;
#[cfg(feature = "redis")]
mod split;
mod store_contract;
mod synced;
#[cfg(feature = "tower")]
mod tower;
mod without_runtime;

/// Longest time that connecting to a Redis which answers may take on a busy machine.
#[cfg(feature = "redis")]
const CONNECT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(60);
