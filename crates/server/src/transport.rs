//! The doors: each turns the bytes of its protocol into calls, and replies into bytes.

pub(crate) mod grpc;
pub(crate) mod http;
pub(crate) mod resp;

use tidegate_net::listener::Peer;

use crate::identity::Caller;

/// Returns the caller at the other end of a connection.
fn caller(peer: &Peer) -> Caller<'_> {
    Caller::new(peer.address.ip(), peer.service.as_deref())
}
