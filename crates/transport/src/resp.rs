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
mod rehearsal;
mod reply;
mod session;
mod standing;
mod throttle;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tidegate_core::Span;
use tidegate_net::listener::{Activity, ConnectionHandler, ConnectionTimeouts, Peer, Stream};
use tidegate_service::service::Service;

use self::connection::Connection;
pub use self::gate::Gate;
pub use self::rehearsal::replies as rehearse;
use self::session::Session;

#[cfg(test)]
mod tests;

/// The protocol of this door.
#[derive(Debug)]
pub struct Resp {
    service: Arc<Service>,
    gate: Gate,
    /// How many connections there have been.
    connections: AtomicI64,
}

impl Resp {
    /// Returns the RESP API of a service.
    pub fn new(service: Arc<Service>, gate: Gate) -> Self {
        Self { service, gate, connections: AtomicI64::new(0) }
    }

    /// As everywhere, but that connections may be idle for an hour: clients keep pools of them, and some
    /// do not expect a server to close one.
    pub fn timeouts() -> ConnectionTimeouts {
        ConnectionTimeouts { idle: Span::HOUR, ..ConnectionTimeouts::default() }
    }
}

impl ConnectionHandler for Resp {
    async fn serve(&self, stream: Stream, _: Peer, activity: Arc<Activity>) {
        let id = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let session = Session::new(id, self.gate);
        let connection = Connection::new(stream, &self.service, session, &activity);
        if let Err(error) = connection.run().await {
            tracing::debug!(%error, "connection failed");
        }
    }
}
