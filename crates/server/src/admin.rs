//! The admin door: what operators see and change. Nothing here is reachable on another door.
//!
//! It is an HTTP door like the other one, and uses its connections, bodies and errors; a router for a
//! handful of paths is a `match`.

mod block;
mod guard;

use std::net::SocketAddr;
use std::sync::Arc;

use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use tidegate::{BlockList, Clock};
use tokio::net::TcpListener;
use tokio::sync::watch;

pub(crate) use self::guard::Guard;
use crate::transport::connection::{self, Handler, Patience};
use crate::transport::http::encode::{self, Body};

/// Most operators at once.
const CONNECTIONS: usize = 64;

/// What the admin door shows.
#[derive(Debug)]
pub(crate) struct Admin {
    pub(crate) guard: Guard,
    pub(crate) blocks: Arc<BlockList>,
    pub(crate) clock: Clock,
}

impl Admin {
    /// Serves the door until `closing` says so; how many connections were cut off in the end.
    pub(crate) async fn serve(
        self,
        listener: TcpListener,
        closing: watch::Receiver<bool>,
    ) -> usize {
        let patience = Patience { connections: CONNECTIONS, ..Patience::default() };
        let clock = self.clock.clone();
        connection::serve(listener, Arc::new(self), patience, clock, closing).await
    }
}

impl Handler for Admin {
    async fn handle(&self, request: Request<Incoming>) -> Response<Body> {
        if let Err(stranger) = self.guard.admit(request.headers()) {
            return stranger.response();
        }
        match request.uri().path() {
            "/v1/block" => block::answer(&self.blocks, self.clock.now(), request).await,
            path => {
                let path = crate::service::quoted(path);
                let detail = format!("path: found {path}, wanted {}", block::ENDPOINTS);
                encode::problem(StatusCode::NOT_FOUND, &detail)
            }
        }
    }
}

/// Whether only programs on this machine can reach an address.
pub(crate) fn is_local(address: SocketAddr) -> bool {
    address.ip().to_canonical().is_loopback()
}
