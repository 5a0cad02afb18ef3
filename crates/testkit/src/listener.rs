//! Listening sockets of the servers that tests run in their own process.

use std::net::{Ipv4Addr, TcpListener};

use socket2::SockRef;

/// Connections that the kernel queues until they are accepted: a test may open thousands before a busy
/// machine runs the accept loop. The standard library asks for 128.
const BACKLOG: i32 = 4096;

/// Listens on a loopback port; on any free one if `port` is 0.
///
/// # Panics
/// The port is in use.
pub fn listen(port: u16) -> TcpListener {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listener = listener.unwrap_or_else(|error| panic!("127.0.0.1:{port}: {error}"));
    // To listen again only changes the backlog.
    SockRef::from(&listener).listen(BACKLOG).expect("a bound socket can listen");
    listener
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;
    use crate::wait::WAIT_TIMEOUT;

    #[test]
    fn connections_complete_before_the_accept_loop_runs() {
        let listener = listen(0);
        let address = listener.local_addr().unwrap();
        let connections: Vec<TcpStream> = (0..500)
            .map(|number| {
                let connected = TcpStream::connect_timeout(&address, WAIT_TIMEOUT);
                connected.unwrap_or_else(|error| panic!("connection {number}: {error}"))
            })
            .collect();
        assert_eq!(connections.len(), 500);
    }
}
