//! Opens the listening sockets of every protocol, all with one backlog.

use std::io;
use std::net::SocketAddr;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, lookup_host};

/// Most connections that the kernel queues until they are accepted. A connection beyond that is dropped, and its
/// client retries after a second.
const BACKLOG_CONNECTIONS: i32 = 4096;

/// Listens at the first address of a host and port that is free.
///
/// # Errors
/// The host has no address, or none of them is free: the last error.
pub async fn listen(address: &str) -> io::Result<TcpListener> {
    let mut last_error = io::Error::other("the host has no address");
    for resolved in lookup_host(address).await? {
        match open(resolved, false) {
            Ok(listener) => return TcpListener::from_std(listener),
            Err(error) => last_error = error,
        }
    }
    Err(last_error)
}

/// Listens at an address that other listeners of this process, or of another process of the same user, use too.
///
/// # Errors
/// The address is not free.
pub fn listen_shared(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    open(address, true)
}

fn open(address: SocketAddr, shared: bool) -> io::Result<std::net::TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(shared)?;
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG_CONNECTIONS)?;
    Ok(socket.into())
}
