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

pub(crate) use self::guard::Guard;
use crate::transport::connection::Handler;
use crate::transport::door::{Patience, Peer};
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
    /// An operator is served like everybody else, only that there are not many of them.
    pub(crate) fn patience() -> Patience {
        Patience { connections: CONNECTIONS, ..Patience::default() }
    }
}

impl Handler for Admin {
    async fn handle(&self, request: Request<Incoming>, _: &Peer) -> Response<Body> {
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
