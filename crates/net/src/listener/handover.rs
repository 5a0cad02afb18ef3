//! Hands an address over to another process that listens there too (`listen_shared`).
//!
//! The kernel assigns each new connection to one of the sockets that listen at an address. When one of them closes,
//! the connections in its backlog are reset. So a socket stops accepting first: a filter drops the SYN of every new
//! connection. The client's kernel sends the SYN again after a second, and by then only the other sockets are
//! left. A connection is still accepted if its handshake has begun.

use socket2::{SockFilter, SockRef};
use tidegate_core::Span;

/// Time for handshakes that have begun: more than a round trip, less than a client waits before it sends SYN again.
pub(crate) const ACCEPT_GRACE: Span = Span::from_millis(500);

/// Drops every SYN from now on.
pub(crate) fn stop_accepting(listener: &tokio::net::TcpListener) {
    if let Err(error) = SockRef::from(listener).attach_filter(&DROP_NEW_CONNECTIONS) {
        tracing::warn!(%error, "cannot filter new connections; those that arrive while the listener closes may be reset");
    }
}

/// Drops segments with SYN and without ACK, and passes all others. A filter on a TCP socket sees segments from the
/// first byte of the TCP header; the flags are in byte 13.
const DROP_NEW_CONNECTIONS: [SockFilter; 5] = [
    SockFilter::new(LOAD_BYTE, 0, 0, 13),
    SockFilter::new(AND, 0, 0, SYN | ACK),
    SockFilter::new(IF_EQUAL, 0, 1, SYN),
    SockFilter::new(RETURN, 0, 0, 0),
    SockFilter::new(RETURN, 0, 0, u32::MAX),
];
const LOAD_BYTE: u16 = 0x30;
const AND: u16 = 0x54;
const IF_EQUAL: u16 = 0x15;
const RETURN: u16 = 0x06;
const SYN: u32 = 0x02;
const ACK: u32 = 0x10;

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, TcpStream};

    use super::*;
    use crate::listener::socket::listen_shared;

    /// Longest wait for the connection before the test fails.
    const ACCEPT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(30);

    #[tokio::test]
    async fn connection_after_stop_accepting_reaches_the_other_socket() {
        let first = listen_shared((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = first.local_addr().unwrap();
        let first = tokio::net::TcpListener::from_std(first).unwrap();
        let before = TcpStream::connect(address).unwrap();
        // A connection in the backlog is still accepted.
        stop_accepting(&first);
        // Its first SYN is dropped: no other socket listens yet.
        let late = tokio::spawn(tokio::net::TcpStream::connect(address));
        tokio::task::yield_now().await;
        let (accepted, from) = first.accept().await.unwrap();
        assert_eq!(from, before.local_addr().unwrap());
        let second = tokio::net::TcpListener::from_std(listen_shared(address).unwrap()).unwrap();
        drop(first);
        let accepted_late = tokio::time::timeout(ACCEPT_TIMEOUT, second.accept()).await;
        let (_, from) = accepted_late.expect("the late connection was lost").unwrap();
        assert_eq!(from, late.await.unwrap().unwrap().local_addr().unwrap());
        drop(accepted);
    }
}
