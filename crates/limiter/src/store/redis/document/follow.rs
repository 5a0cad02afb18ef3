//! Hearing of new versions.

use std::time::Duration;

use futures_util::StreamExt as _;
use redis::RedisError;
use redis::aio::{PubSubSink, PubSubStream};
use tokio::time::timeout;

use super::super::connect::{self, OpenError};
use super::super::node::{describe, unusable};
use super::link::Line;
use super::task::channel;

/// After so much silence the server is asked whether it is still there.
const SILENCE: Duration = Duration::from_secs(5);

/// A connection on which the server says when there is a new version.
pub(super) struct Subscription {
    sink: PubSubSink,
    stream: PubSubStream,
    patience: Duration,
}

impl Subscription {
    /// Listens at the server that keeps the document; in a cluster any node would hear of it.
    pub(super) async fn open(line: &Line) -> Result<Self, OpenError> {
        let (place, patience) = (line.place().await?, line.config().connect_timeout());
        let (mut sink, stream) = connect::listen(line.config(), &place).await?.split();
        let subscribing = async {
            let failed = |error: RedisError| unusable(&place, describe(&error));
            sink.subscribe(channel(line.key())).await.map_err(failed)
        };
        connect::within(patience, &place, subscribing).await?;
        Ok(Self { sink, stream, patience })
    }

    /// Returns when there is a new version.
    ///
    /// # Errors
    /// The server is gone, or answers no longer: what became of the connection.
    pub(super) async fn next(&mut self) -> Result<(), &'static str> {
        loop {
            match timeout(SILENCE, self.stream.next()).await {
                Ok(Some(_)) => return Ok(()),
                Ok(None) => return Err("the connection was closed"),
                Err(_) => {}
            }
            let pong = timeout(self.patience, self.sink.ping::<redis::Value>()).await;
            match pong {
                Ok(Ok(_)) => {}
                Ok(Err(_)) => return Err("the connection was closed"),
                Err(_) => return Err("the server does not answer"),
            }
        }
    }
}
