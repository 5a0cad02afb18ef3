//! Protocol listeners: HTTP, gRPC and RESP. Each decodes bytes into calls and encodes replies into bytes.

#[doc(hidden)]
pub mod fuzzing;
pub mod grpc;
pub mod http;
pub mod resp;

use tidegate_net::listener::Peer;
use tidegate_service::identity::Caller;

/// Returns the caller at the other end of a connection.
fn caller(peer: &Peer) -> Caller<'_> {
    Caller::new(peer.address.ip(), peer.service.as_deref())
}
