//! The store of a fleet: counters in Redis, Valkey or a cluster of them.
//!
//! A check becomes a `PendingCharge` in the `ScriptQueue` of its server, and requests of one queue travel together in script
//! calls (`charge_batch`). A server that fails is not called until a probe succeeds (`node`).

mod address;
mod blocks;
mod charge_batch;
mod charging;
mod cluster;
mod config;
mod config_error;
mod connect;
mod connection;
mod denial_cache;
mod document;
mod heartbeat;
mod held_slots;
mod lease_call;
mod lease_codec;
mod leasing;
mod location;
mod master_connection;
mod node;
mod node_stats;
mod open_error;
mod pending_charge;
mod redirect;
mod rendezvous;
mod reply_guard;
mod report;
mod script;
mod script_batch;
mod script_queue;
mod secret;
mod sentinel;
mod server_info;
mod servers;
mod shared;
mod slots;
mod state_codec;
mod store;
mod store_inner;
mod subscription;
mod tls;
mod topology;
mod url;

pub use address::Address;
pub use config::RedisConfig;
pub use config_error::RedisConfigError;
pub use document::{
    DocumentVersion, DocumentWithText, Expected, LatestVersion, NewVersion, PutError, RedisDocument,
};
pub use open_error::OpenError;
pub use report::{Latency, ServerReport, ServerUse};
pub use secret::Secret;
pub use servers::Servers;
pub use store::{RedisCounts, RedisStore};
pub use tls::{Tls, TlsIdentity};
