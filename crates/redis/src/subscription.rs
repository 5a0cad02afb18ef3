//! A connection that is subscribed to one channel.

use std::time::Duration;

use futures_util::StreamExt as _;
use redis::aio::{PubSubSink, PubSubStream};
use redis::{Msg, RedisError};
use tokio::time::timeout;

use super::address::Address;
use super::config::{RedisConfig, ServerLogin};
use super::connect;
use super::open_error::{OpenError, describe_error};

/// After so long without a message the server is sent a PING.
const PING_INTERVAL: Duration = Duration::from_secs(5);

/// A connection that is subscribed to one channel.
pub(crate) struct Subscription {
    sink: PubSubSink,
    stream: PubSubStream,
    ping_timeout: Duration,
}

impl Subscription {
    /// Connects and subscribes, each within the connect timeout.
    pub(crate) async fn open(
        config: &RedisConfig,
        address: &Address,
        login: &ServerLogin,
        database: u32,
        channel: &str,
    ) -> Result<Self, OpenError> {
        let ping_timeout = config.connect_timeout();
        let connection = connect::connect_pubsub(config, address, login, database).await?;
        let (mut sink, stream) = connection.split();
        let subscribing = async {
            let failed = |error: RedisError| OpenError::connect(address, describe_error(&error));
            sink.subscribe(channel).await.map_err(failed)
        };
        connect::within(ping_timeout, address, subscribing).await?;
        Ok(Self { sink, stream, ping_timeout })
    }

    /// Returns the next message.
    ///
    /// # Errors
    /// The connection was closed, or the server no longer answers.
    pub(crate) async fn next(&mut self) -> Result<Msg, &'static str> {
        loop {
            match timeout(PING_INTERVAL, self.stream.next()).await {
                Ok(Some(message)) => return Ok(message),
                Ok(None) => return Err("the connection was closed"),
                Err(_) => {}
            }
            let pong = timeout(self.ping_timeout, self.sink.ping::<redis::Value>()).await;
            match pong {
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return Err("the connection was closed"),
                Err(_) => return Err("the server does not answer"),
            }
        }
    }
}
