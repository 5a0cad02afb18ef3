//! A store for a fleet: spending is remembered in Redis, Valkey or a cluster of them.

mod address;
mod config;
mod error;
#[allow(dead_code, reason = "the store is yet to come")]
mod redirect;
#[allow(dead_code, reason = "the store is yet to come")]
mod ring;
mod secret;
mod servers;
#[allow(dead_code, reason = "the store is yet to come")]
mod slots;
mod tls;
mod url;

pub use address::Address;
pub use config::RedisConfig;
pub use error::RedisConfigError;
pub use secret::Secret;
pub use servers::Servers;
pub use tls::{Tls, TlsIdentity};
