//! Reasons why a connection could not be opened.

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
    /// There is no connection, or not to a Redis.
    #[error("redis {address}: {reason}")]
    Connect {
        /// The server.
        address: Address,
        /// The error of the network, of a file or of the server.
        reason: String,
    },
    /// It took too long.
    #[error("redis {address}: no connection within {}", Span::from(*.after))]
    Timeout {
        /// The server.
        address: Address,
        /// The timeout.
        after: Duration,
    },
    /// The server does not let us in.
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
    /// The server takes no writes.
    #[error("redis {address}: a master is wanted, found a replica{}", of(.master.as_ref()))]
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
    /// No sentinel knows the master.
    #[error("no sentinel says where master {master:?} is: {}", .tried.join("; "))]
    NoMaster {
        /// The name it goes by.
        master: String,
        /// The error of each sentinel.
        tried: Vec<String>,
    },
}

fn of(master: Option<&Address>) -> String {
    master.map_or_else(String::new, |master| format!(" of {master}"))
}

impl OpenError {
    /// An error of the network or of the server, in its own words.
    pub(crate) fn connect(address: &Address, reason: impl Into<String>) -> Self {
        Self::Connect { address: address.clone(), reason: reason.into() }
    }

    /// Returns whether the server answered and will never be usable, however often it is tried.
    pub(crate) fn is_final(&self) -> bool {
        matches!(self, Self::Version { .. } | Self::Kind { .. })
    }

    /// Classifies an error that occurred while a connection was opened.
    pub(crate) fn new(address: &Address, login: &ServerLogin, error: &RedisError) -> Self {
        let refused = error.kind() == ErrorKind::AuthenticationFailed;
        let reason = match (&login.user, error.code()) {
            (Some(user), _) if refused => {
                format!("user {user:?} is not let in, or not with this password")
            }
            (None, _) if refused => "the password is not accepted".to_owned(),
            (_, Some("NOAUTH")) => "a password is wanted, found none".to_owned(),
            _ => return Self::connect(address, describe_error(error)),
        };
        Self::Auth { address: address.clone(), reason }
    }
}

/// Returns an error in few words: the server's own, or the network's.
pub(crate) fn describe_error(error: &RedisError) -> String {
    let text = match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        (None, Some(detail)) => detail.to_owned(),
        (None, None) => error.to_string(),
    };
    text.trim_end().to_owned()
}
