//! Hostile and broken clients: every listener keeps answering other clients, and frees the memory and sockets of
//! connections that were closed.

mod connections;

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::Duration;

use tidegate_testkit::wait_for;

use crate::kit::Server;

/// Hostile connections that are open at the same time, for each listener.
const HOSTILE_CONNECTIONS: usize = 2_000;
/// Maximum resident memory of one hostile connection, in bytes. Futures are larger in a build without optimisation.
const MAX_BYTES_PER_CONNECTION: usize = if cfg!(debug_assertions) { 96 * 1024 } else { 64 * 1024 };
/// Bytes that a flooding client sends at most. It never reads the responses.
const MAX_FLOOD_BYTES: usize = 256 * 1024;

/// The connection preface of HTTP/2.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// An empty SETTINGS frame.
const SETTINGS: &[u8] = &[0, 0, 0, 4, 0, 0, 0, 0, 0];
/// A PING frame with eight bytes of data.
const PING: &[u8] = &[0, 0, 8, 6, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8];

/// A minimal request and its response in the protocol of one listener.
struct ListenerProtocol {
    listener: &'static str,
    /// Bytes that a client sends first on every connection; may be empty.
    preface: &'static [u8],
    /// A request that the listener answers.
    request: &'static [u8],
    /// The first bytes of the response to `request`.
    response_start: &'static [u8],
}

const PROTOCOLS: [ListenerProtocol; 3] = [
    ListenerProtocol {
        listener: "http",
        preface: b"",
        request: b"GET /healthz HTTP/1.1\r\nhost: t\r\n\r\n",
        response_start: b"HTTP/1.1 200 OK\r\n",
    },
    ListenerProtocol {
        listener: "resp",
        preface: b"",
        request: b"*1\r\n$4\r\nPING\r\n",
        response_start: b"+PONG\r\n",
    },
    // The first frame of an HTTP/2 server is always its SETTINGS frame.
    ListenerProtocol {
        listener: "grpc",
        preface: PREFACE,
        request: SETTINGS,
        response_start: &[0, 0],
    },
];

impl ListenerProtocol {
    fn connect(&self, address: SocketAddr) -> TcpStream {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        stream.write_all(self.preface).unwrap();
        stream
    }

    /// Sends one valid request on a new connection, and checks its response.
    fn assert_answers(&self, address: SocketAddr) {
        let mut stream = self.connect(address);
        stream.write_all(self.request).unwrap();
        let mut response = vec![0; self.response_start.len()];
        stream.read_exact(&mut response).unwrap();
        assert_eq!(response, self.response_start, "{}", self.listener);
    }

    /// Sends requests without reading, until the socket buffers are full or [`MAX_FLOOD_BYTES`] are sent.
    fn flood(&self, stream: &mut TcpStream) {
        let repeated = if self.listener == "grpc" { PING } else { self.request };
        let batch = repeated.repeat(4096 / repeated.len());
        stream.set_nonblocking(true).unwrap();
        let mut sent = 0;
        while sent < MAX_FLOOD_BYTES {
            match stream.write(&batch) {
                Ok(written) => sent += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                // The server may close a connection that floods it.
                Err(_) => return,
            }
        }
    }
}

/// Resident memory of a process in bytes.
fn resident_bytes(process: u32) -> usize {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

fn open_files(process: u32) -> usize {
    std::fs::read_dir(format!("/proc/{process}/fd")).unwrap().count()
}

/// Run alone: a server without CPU time exceeds its read timeouts and closes connections that this test needs.
mod serial {
    use super::*;

    #[test]
    fn hostile_connections_stay_within_their_memory_bound_and_free_their_sockets() {
        let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
        for protocol in &PROTOCOLS {
            let address = server.listener(protocol.listener);
            protocol.assert_answers(address);
            let (memory_before, files_before) =
                (resident_bytes(server.id()), open_files(server.id()));
            let mut connections: Vec<TcpStream> = Vec::with_capacity(HOSTILE_CONNECTIONS);
            for number in 0..HOSTILE_CONNECTIONS {
                let mut stream = protocol.connect(address);
                match number % 4 {
                    0 => {}
                    1 => stream.write_all(&protocol.request[..protocol.request.len() / 2]).unwrap(),
                    2 => stream.write_all(protocol.request).unwrap(),
                    _ => protocol.flood(&mut stream),
                }
                connections.push(stream);
                if number % 500 == 499 {
                    protocol.assert_answers(address);
                }
            }
            let grown = resident_bytes(server.id()).saturating_sub(memory_before);
            assert!(
                grown < HOSTILE_CONNECTIONS * MAX_BYTES_PER_CONNECTION,
                "{}: {} bytes each",
                protocol.listener,
                grown / HOSTILE_CONNECTIONS
            );
            drop(connections);
            wait_for("the sockets of the hostile connections are closed", || {
                (open_files(server.id()) <= files_before + 2).then_some(())
            });
            protocol.assert_answers(address);
        }
    }
}

#[test]
fn half_closed_connection_still_gets_its_response() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    for protocol in &PROTOCOLS {
        let mut stream = protocol.connect(server.listener(protocol.listener));
        stream.write_all(protocol.request).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut response = Vec::new();
        stream.read_to_end(&mut response).unwrap();
        assert!(
            response.starts_with(protocol.response_start),
            "{}: {response:?}",
            protocol.listener
        );
    }
}

#[test]
fn garbage_bytes_close_only_their_own_connection() {
    let server = Server::with_arguments(&["--http", "127.0.0.1:0"]);
    // Xorshift with a fixed seed, so that every run sends the same bytes.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    for protocol in &PROTOCOLS {
        let address = server.listener(protocol.listener);
        let files = open_files(server.id());
        let mut valid = protocol.connect(address);
        for round in 0..300 {
            let mut bytes: Vec<u8> = (0..256).flat_map(|_| next().to_le_bytes()).collect();
            // Three of four start with bytes that one of the parsers accepts.
            let start = [b"".as_slice(), protocol.request, b"*3\r\n$", PREFACE][round % 4];
            bytes.splice(0..0, start.iter().copied());
            let mut stream = protocol.connect(address);
            // The server may close the connection before it has read everything.
            let _ = stream.write_all(&bytes).and_then(|()| stream.shutdown(Shutdown::Write));
            let _ = stream.read_to_end(&mut Vec::new());
        }
        valid.write_all(protocol.request).unwrap();
        let mut response = vec![0; protocol.response_start.len()];
        valid.read_exact(&mut response).unwrap();
        assert_eq!(response, protocol.response_start, "{}", protocol.listener);
        drop(valid);
        wait_for("the sockets are closed", || (open_files(server.id()) <= files + 2).then_some(()));
    }
}
