//! Discovery of the server to connect to: a fixed address, a Sentinel master, or the owner of a cluster slot.

use std::fmt;

use parking_lot::Mutex;
use tokio::runtime::Handle;

use super::address::Address;
use super::config::RedisConfig;
use super::connection::RedisConnection;
use super::open_error::OpenError;
use super::sentinel::{self, MasterReport, MasterWatch};
use super::slots::SlotMap;

/// The place of one server, which may change.
#[derive(Debug)]
pub(crate) enum ServerLocation {
    /// Always the same address.
    Fixed(Address),
    /// The master that the sentinels elected.
    Sentinel { sentinels: Vec<Address>, master: String },
    /// The master of a cluster that serves this slot.
    SlotOwner {
        slot: u16,
        seeds: Vec<Address>,
        /// The masters that the cluster had at the last discovery.
        masters: Mutex<Vec<Address>>,
    },
}

impl ServerLocation {
    /// Finds the server. `seen` is the latest configuration epoch that is known of the sentinels.
    ///
    /// # Errors
    /// No sentinel or no server of the cluster has an answer.
    pub(crate) async fn find(
        &self,
        config: &RedisConfig,
        seen: u64,
    ) -> Result<MasterReport, OpenError> {
        match self {
            Self::Fixed(address) => Ok(MasterReport { address: address.clone(), epoch: 0 }),
            Self::Sentinel { sentinels, master } => {
                sentinel::master(config, sentinels, master, seen).await
            }
            Self::SlotOwner { slot, seeds, masters } => {
                let known = [masters.lock().as_slice(), seeds].concat();
                let map = discover_slots(config, &known).await?;
                let Some(address) = map.master_of(*slot).cloned() else {
                    let reason = format!("no node is known to serve slot {slot}");
                    return Err(OpenError::connect(&seeds[0], reason));
                };
                *masters.lock() = map.masters().cloned().collect();
                Ok(MasterReport { address, epoch: 0 })
            }
        }
    }

    /// Watches the sentinels in the background, if there are any.
    pub(crate) fn watch(
        &self,
        runtime: &Handle,
        config: &RedisConfig,
        on_report: impl Fn(&MasterReport) + Send + Sync + 'static,
    ) -> Option<MasterWatch> {
        match self {
            Self::Sentinel { sentinels, master } => {
                Some(MasterWatch::start(runtime, config, sentinels, master, on_report))
            }
            Self::Fixed(_) | Self::SlotOwner { .. } => None,
        }
    }
}

/// Prints the name of the server in errors and logs.
impl fmt::Display for ServerLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(address) => write!(f, "redis {address}"),
            Self::Sentinel { master, .. } => write!(f, "redis {master}"),
            Self::SlotOwner { .. } => f.write_str("redis cluster"),
        }
    }
}

/// Connects to one server of a cluster after another until one returns the slots.
///
/// # Errors
/// The error of the last server.
pub(crate) async fn discover_slots(
    config: &RedisConfig,
    addresses: &[Address],
) -> Result<SlotMap, OpenError> {
    let mut last =
        OpenError::connect(&config.servers().addresses()[0], "no server of the cluster answers");
    for address in addresses {
        let map = match RedisConnection::open_any(config, address).await {
            Ok(connection) => connection.slot_map().await,
            Err(error) => Err(error),
        };
        match map {
            Ok(map) => return Ok(map),
            Err(error) => last = error,
        }
    }
    Err(last)
}
