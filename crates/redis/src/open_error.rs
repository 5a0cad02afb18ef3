//! Reasons why a connection to a server could not be opened.

use std::time::Duration;

use redis::{ErrorKind, RedisError};
use thiserror::Error;
use tidegate_core::Span;

use super::address::Address;
use super::config::ServerLogin;

/// The reason why a server can't be used. Passwords are never shown.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The connection failed, or the server does not speak the protocol of Redis.
    #[error("redis {address}: {reason}")]
    Connect {
        /// The server.
        address: Address,
        /// The error of the network, of a file or of the server.
        reason: String,
    },
    /// The connection was not open before the timeout.
    #[error("redis {address}: no connection within {}", Span::from(*.after))]
    Timeout {
        /// The server.
        address: Address,
        /// The timeout.
        after: Duration,
    },
    /// The server rejects the login.
    #[error("redis {address}: {reason}")]
    Auth {
        /// The server.
        address: Address,
        /// The part of the login that was not accepted.
        reason: String,
    },
    /// The server is too old.
    #[error("redis {address}: version 7.0 or later is wanted, found {found}")]
    Version {
        /// The server.
        address: Address,
        /// Its name and version.
        found: String,
    },
    /// The server is a replica, which rejects writes.
    #[error("redis {address}: a master is wanted, found a replica{}", of_master(.master.as_ref()))]
    Replica {
        /// The server.
        address: Address,
        /// Its master, if it reports one.
        master: Option<Address>,
    },
    /// The server is of another kind than configured.
    #[error("redis {address}: {wanted} is wanted, found {found}")]
    Kind {
        /// The server.
        address: Address,
        /// The configured kind.
        wanted: String,
        /// The reported kind.
        found: String,
    },
    /// No sentinel reports the address of the master.
    #[error("no sentinel reports the address of master {master:?}: {}", .tried.join("; "))]
    NoMaster {
        /// The name of the master in the configuration of the sentinels.
        master: String,
        /// The error of each sentinel.
        tried: Vec<String>,
    },
}

fn of_master(master: Option<&Address>) -> String {
    master.map_or_else(String::new, |master| format!(" of {master}"))
}

impl OpenError {
    /// Returns the error of a failed connection.
    pub(crate) fn connect(address: &Address, reason: impl Into<String>) -> Self {
        Self::Connect { address: address.clone(), reason: reason.into() }
    }

    /// Returns whether a retry is useless: the server replied, and its version or kind can't be used.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::Kind { .. })
    }

    /// Classifies an error that occurred while a connection was opened.
    pub(crate) fn new(address: &Address, login: &ServerLogin, error: &RedisError) -> Self {
        let rejected = error.kind() == ErrorKind::AuthenticationFailed;
        let reason = match (&login.user, error.code()) {
            (Some(user), _) if rejected => {
                format!("user {user:?} is not accepted, or not with this password")
            }
            (None, _) if rejected => "the password is not accepted".to_owned(),
            (_, Some("NOAUTH")) => "a password is wanted, found none".to_owned(),
            _ => return Self::connect(address, describe_error(error)),
        };
        Self::Auth { address: address.clone(), reason }
    }
}

/// Returns the code and detail of an error of the server, or the error of the network.
pub(crate) fn describe_error(error: &RedisError) -> String {
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, Some(detail)) => detail.to_owned(),
        (None, None) => error.to_string(),
    };
    text.trim_end().to_owned()
}
