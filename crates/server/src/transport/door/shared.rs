//! Leaving an address to another process that listens there too (`listen_shared`).
//!
//! The kernel gives each new connection to one of those who listen at an address. When one of them closes,
//! the connections that it was given and had not accepted are reset. So before it closes it lets no more
//! in: a filter drops what begins a connection, and who began has to try again, which clients do by
//! themselves a second later; by then only the others are left. What is half-way in still comes in.

use socket2::{SockFilter, SockRef};
use tidegate::Span;

/// How long who is half-way in may take: more than a round trip, and less than clients wait before they
/// try again.
pub(super) const LAST_CALL: Span = Span::from_millis(500);

/// Lets no new connection begin.
pub(super) fn turn_away(listener: &tokio::net::TcpListener) {
    if let Err(error) = SockRef::from(listener).attach_filter(&NO_BEGINNINGS) {
        tracing::warn!(%error, "who comes while the door closes may be reset");
    }
}

/// Drops segments with SYN and without ACK, and lets pass all others. A socket of TCP shows a filter its
/// segments from their first byte on; the flags are in the fourteenth.
const NO_BEGINNINGS: [SockFilter; 5] = [
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

    use super::super::listen::listen_shared;
    use super::*;

    /// How long to wait for who never comes before the test fails.
    const FOREVER: std::time::Duration = std::time::Duration::from_secs(30);

    #[tokio::test]
    async fn who_comes_too_late_for_one_reaches_the_other() {
        let first = listen_shared((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
        let address = first.local_addr().unwrap();
        let first = tokio::net::TcpListener::from_std(first).unwrap();
        let before = TcpStream::connect(address).unwrap();
        // It is half-way in, and stays.
        turn_away(&first);
        // Its first segment is on its way before anybody else listens.
        let late = tokio::spawn(tokio::net::TcpStream::connect(address));
        tokio::task::yield_now().await;
        let (accepted, from) = first.accept().await.unwrap();
        assert_eq!(from, before.local_addr().unwrap());
        let second = tokio::net::TcpListener::from_std(listen_shared(address).unwrap()).unwrap();
        drop(first);
        let came = tokio::time::timeout(FOREVER, second.accept()).await;
        let (_, from) = came.expect("who came too late was lost").unwrap();
        assert_eq!(from, late.await.unwrap().unwrap().local_addr().unwrap());
        drop(accepted);
    }
}
