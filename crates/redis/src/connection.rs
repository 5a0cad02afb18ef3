//! An open connection to one server, and the meaning of the errors of its calls.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, ErrorKind, FromRedisValue, RedisError};

use super::address::Address;
use super::config::RedisConfig;
use super::connect;
use super::open_error::{OpenError, describe_error};
use super::redirect::Redirect;
use super::slots::SlotMap;
use tidegate_limiter::store::StoreError;

/// An open connection to one server.
pub(crate) struct RedisConnection {
    connection: MultiplexedConnection,
    address: Address,
}

impl RedisConnection {
    /// Connects to a master that the scripts run on, within the connect timeout. Calls time out after the timeout
    /// of the configuration; what was sent may then be done.
    ///
    /// # Errors
    /// The server is unreachable, does not let this node in, or can't be used.
    pub(crate) async fn open(config: &RedisConfig, address: &Address) -> Result<Self, OpenError> {
        let connection = connect::open(config, address).await?;
        Ok(Self { connection, address: address.clone() })
    }

    /// Connects like [`open`](Self::open), to a master or a replica.
    pub(crate) async fn open_any(
        config: &RedisConfig,
        address: &Address,
    ) -> Result<Self, OpenError> {
        let (connection, _) = connect::open_any(config, address).await?;
        Ok(Self { connection, address: address.clone() })
    }

    /// Returns the same connection, with calls that time out after `timeout`.
    pub(crate) fn with_timeout(&self, timeout: Duration) -> Self {
        let mut connection = self.connection.clone();
        connection.set_response_timeout(timeout);
        Self { connection, address: self.address.clone() }
    }

    /// Returns the address of the server.
    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Sends a command once.
    pub(crate) async fn query<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, RedisError> {
        command.query_async(&mut self.connection.clone()).await
    }

    /// Sends a command once; with `asking` to a server that imports the slot of its keys.
    pub(crate) async fn query_asking<T: FromRedisValue>(
        &self,
        command: &Cmd,
        asking: bool,
    ) -> Result<T, RedisError> {
        if !asking {
            return self.query(command).await;
        }
        let mut both = redis::pipe();
        both.cmd("ASKING").ignore().add_command(command.clone());
        let (reply,) = both.query_async(&mut self.connection.clone()).await?;
        Ok(reply)
    }

    /// Returns the slots of the cluster that the server belongs to.
    ///
    /// # Errors
    /// The server does not answer, or serves no cluster with slots.
    pub(crate) async fn slot_map(&self) -> Result<SlotMap, OpenError> {
        let reply = self.query(redis::cmd("CLUSTER").arg("SLOTS")).await;
        let reply =
            reply.map_err(|error| OpenError::connect(&self.address, describe_error(&error)))?;
        let map = SlotMap::read(&reply, &self.address)
            .map_err(|reason| OpenError::connect(&self.address, reason))?;
        if map.masters().next().is_none() {
            return Err(OpenError::connect(&self.address, "it serves no slots"));
        }
        Ok(map)
    }
}

impl fmt::Debug for RedisConnection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisConnection").field(&self.address).finish()
    }
}

/// A call without a result.
#[derive(Debug)]
pub(crate) enum CallError {
    /// Another server of the cluster serves the keys; nothing was done.
    Redirect(Redirect),
    /// The call failed.
    Store(StoreError),
}

/// Classifies the error of a call to the server at `address`. `store` is the name of the server in errors.
///
/// - A redirect of a cluster, and any other error that the server itself returned, prove that nothing was done.
/// - A reply of the wrong type, or an error that names stored data, is [`StoreError::Corrupt`].
/// - After a timeout or a lost connection the call may have been done.
pub(crate) fn classify_error(
    error: &RedisError,
    address: &Address,
    store: &Arc<str>,
    timeout: Duration,
) -> CallError {
    if let Some(redirect) = Redirect::read(error, address) {
        return CallError::Redirect(redirect);
    }
    let store = Arc::clone(store);
    if error.is_timeout() {
        return CallError::Store(StoreError::Timeout { store, after: timeout });
    }
    let reason = describe_error(error).into();
    CallError::Store(match (error.kind(), error.code()) {
        (_, Some("CORRUPT" | "WRONGTYPE")) | (ErrorKind::UnexpectedReturnType, _) => {
            StoreError::Corrupt { store, reason }
        }
        (ErrorKind::Server(_) | ErrorKind::Extension, _) => {
            StoreError::Unavailable { store, reason }
        }
        _ => StoreError::Interrupted { store, reason },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn classified(line: &str) -> CallError {
        let address = Address::tcp("seed", 7000).unwrap();
        let value = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let error = value.extract_error().unwrap_err();
        classify_error(&error, &address, &"redis seed:7000".into(), Duration::from_secs(1))
    }

    #[test]
    fn error_of_the_server_is_a_redirect_corrupt_data_or_a_refusal() {
        assert!(matches!(classified("MOVED 1 b:1"), CallError::Redirect(Redirect::Moved { .. })));
        for line in ["CORRUPT its latest version is no number", "WRONGTYPE Operation against a key"]
        {
            let error = classified(line);
            assert!(matches!(error, CallError::Store(StoreError::Corrupt { .. })), "{error:?}");
        }
        for line in
            ["READONLY You can't write", "ERR unknown command", "NOAUTH Authentication required."]
        {
            let CallError::Store(StoreError::Unavailable { store, reason }) = classified(line)
            else {
                panic!("{line}")
            };
            assert_eq!((&*store, &*reason), ("redis seed:7000", line));
        }
    }

    #[test]
    fn call_without_a_reply_may_have_been_done() {
        let address = Address::tcp("seed", 7000).unwrap();
        let classified = |kind: std::io::ErrorKind| {
            let error = RedisError::from(std::io::Error::from(kind));
            classify_error(&error, &address, &"redis".into(), Duration::from_secs(1))
        };
        let late = classified(std::io::ErrorKind::TimedOut);
        assert!(matches!(late, CallError::Store(StoreError::Timeout { .. })), "{late:?}");
        let lost = classified(std::io::ErrorKind::BrokenPipe);
        assert!(matches!(lost, CallError::Store(StoreError::Interrupted { .. })), "{lost:?}");
    }
}
