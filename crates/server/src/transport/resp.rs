//! The RESP door: every Redis client in every language is a client of ours.
//!
//! Bytes become arguments (`frame`), arguments a command (`manual`, `throttle`, `check`), commands are
//! decided in order (`pipeline`) or answered at once (`session`), and answers become bytes (`standing`,
//! `reply`). `connection` is the loop around them.

mod argument;
mod check;
mod connection;
pub(crate) mod frame;
mod gate;
mod manual;
mod pipeline;
mod reply;
mod session;
mod standing;
mod throttle;

use std::sync::Arc;

use tidegate::Span;

use self::connection::Connection;
pub(crate) use self::gate::Gate;
use super::door::{Activity, Patience, Peer, Protocol, Stream};
use crate::service::Service;

#[cfg(test)]
mod tests;

/// The protocol of this door.
#[derive(Debug)]
pub(crate) struct Resp {
    service: Arc<Service>,
    gate: Gate,
}

impl Resp {
    pub(crate) fn new(service: Arc<Service>, gate: Gate) -> Self {
        Self { service, gate }
    }

    /// As everywhere, but that connections may be idle for an hour: clients keep pools of them, and some
    /// do not expect a server to close one.
    pub(crate) fn patience() -> Patience {
        Patience { idle: Span::HOUR, ..Patience::default() }
    }
}

impl Protocol for Resp {
    async fn serve(&self, stream: Stream, _: Peer, activity: Arc<Activity>) {
        let connection = Connection::new(stream, &self.service, self.gate, &activity);
        if let Err(error) = connection.run().await {
            tracing::debug!(%error, "connection failed");
        }
    }
}
