//! Why a connection could not be opened.

use std::time::Duration;

use redis::{ErrorKind, RedisError};
use thiserror::Error;
use tidegate_core::Span;

use super::super::address::Address;
use super::super::config::Login;

/// Why a server can't be used. Passwords are never shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no connection, or not to a Redis.
    #[error("redis {address}: {reason}")]
    Connect {
        /// Which server.
        address: Address,
        /// What the network, the files or the server said.
        reason: String,
    },
    /// It took too long.
    #[error("redis {address}: no connection within {}", Span::from(*.after))]
    Timeout {
        /// Which server.
        address: Address,
        /// How long was waited.
        after: Duration,
    },
    /// The server does not let us in.
    #[error("redis {address}: {reason}")]
    Auth {
        /// Which server.
        address: Address,
        /// What it did not accept.
        reason: String,
    },
    /// The server is too old.
    #[error("redis {address}: version 7.0 or later is wanted, found {found}")]
    Version {
        /// Which server.
        address: Address,
        /// Its name and version.
        found: String,
    },
    /// The server takes no writes.
    #[error("redis {address}: a master is wanted, found a replica{}", of(.master.as_ref()))]
    Replica {
        /// Which server.
        address: Address,
        /// Its master, if it says.
        master: Option<Address>,
    },
    /// The server is of another kind than the configuration says.
    #[error("redis {address}: {wanted} is wanted, found {found}")]
    Kind {
        /// Which server.
        address: Address,
        /// What the configuration says it is.
        wanted: String,
        /// What it says it is.
        found: String,
    },
    /// No sentinel could say where the master is.
    #[error("no sentinel says where master {master:?} is: {}", .tried.join("; "))]
    NoMaster {
        /// The name it goes by.
        master: String,
        /// What became of each sentinel.
        tried: Vec<String>,
    },
}

fn of(master: Option<&Address>) -> String {
    master.map_or_else(String::new, |master| format!(" of {master}"))
}

impl OpenError {
    /// Whether the server answered and will never do, however often it is tried.
    pub(in super::super) fn is_final(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::Kind { .. })
    }

    /// What an error means that came up before the first check.
    pub(in super::super) fn new(address: &Address, login: &Login, error: &RedisError) -> Self {
        let address = address.clone();
        let refused = error.kind() == ErrorKind::AuthenticationFailed;
        let reason = match (&login.user, error.code()) {
            (Some(user), _) if refused => {
                format!("user {user:?} is not let in, or not with this password")
            }
            (None, _) if refused => "the password is not accepted".to_owned(),
            (_, Some("NOAUTH")) => "a password is wanted, found none".to_owned(),
            _ => {
                let reason = match (error.detail(), error.code()) {
                    (Some(detail), Some(code)) => format!("{code} {detail}"),
                    (Some(detail), None) => detail.to_owned(),
                    (None, _) => error.to_string(),
                };
                return Self::Connect { address, reason: reason.trim_end().to_owned() };
            }
        };
        Self::Auth { address, reason }
    }
}
