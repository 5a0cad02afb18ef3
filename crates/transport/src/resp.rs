//! The RESP API: any Redis client library can send checks.
//!
//! `leading_checks` runs checks in their common form in batches. All other commands take the general path: `frame` splits
//! bytes into arguments; `commands`, `throttle` and `check` parse the arguments.
//! `pipeline` decides commands in order; `session` handles those that need no decision.
//! `transaction` queues the commands between `MULTI` and `EXEC`. `throttle_reply` and `reply` encode replies. `connection` is the loop around these modules.

mod argument;
mod auth;
mod check;
mod commands;
mod connection;
pub(crate) mod frame;
mod leading_checks;
mod parse_only;
mod pipeline;
mod reply;
mod session;
mod throttle;
mod throttle_reply;
mod transaction;

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use tidegate_core::Span;
use tidegate_net::auth_failures::AuthFailures;
use tidegate_net::listener::{Activity, ConnectionHandler, ConnectionTimeouts, Peer, Stream};
use tidegate_service::service::Service;

pub use self::auth::RespAuth;
use self::connection::{ConnectionContext, RespConnection};
pub use self::parse_only::parse_only;
use self::session::RespSession;

#[cfg(test)]
mod tests;

/// The RESP API of a [`Service`].
#[derive(Debug)]
pub struct RespApi {
    service: Arc<Service>,
    auth: RespAuth,
    auth_failures: AuthFailures,
    /// The number of connections accepted so far, which is the id of the newest one.
    connections: AtomicI64,
}

impl RespApi {
    /// Returns the RESP API of a service.
    pub fn new(service: Arc<Service>, auth: RespAuth, auth_failures: AuthFailures) -> Self {
        Self { service, auth, auth_failures, connections: AtomicI64::new(0) }
    }

    /// Returns the default timeouts with an idle timeout of one hour. Clients keep connection pools, and
    /// some do not expect the server to close a connection.
    pub fn timeouts() -> ConnectionTimeouts {
        ConnectionTimeouts { idle: Span::HOUR, ..ConnectionTimeouts::default() }
    }
}

impl ConnectionHandler for RespApi {
    async fn serve(&self, stream: Stream, peer: Peer, activity: Arc<Activity>) {
        let id = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let session = RespSession::new(id, self.auth);
        let context = ConnectionContext {
            service: &self.service,
            auth_failures: &self.auth_failures,
            activity: &activity,
            peer: peer.address,
        };
        if let Err(error) = RespConnection::new(stream, context, session).run().await {
            tracing::debug!(%error, "RESP connection failed");
        }
    }
}
