//! A store for a fleet: spending is remembered in Redis, Valkey or a cluster of them.

mod address;
mod config;
mod error;
mod secret;
mod servers;
mod tls;
mod url;

pub use address::Address;
pub use config::RedisConfig;
pub use error::RedisConfigError;
pub use secret::Secret;
pub use servers::Servers;
pub use tls::{Tls, TlsIdentity};
