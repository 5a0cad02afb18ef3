//! A strict HTTP/1.1 upstream that records every received byte.

mod framing;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::loopback_server::LoopbackServer;
use framing::{BodyLength, FramedResult};

/// An upstream that parses HTTP/1.1 strictly, records every request, and responds with the bytes of a script.
///
/// An ambiguous request is a [fault](Self::faults), after which the connection is closed.
pub struct RawUpstream {
    server: LoopbackServer,
    records: Arc<UpstreamRecords>,
}

/// A complete request with its raw bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedRequest {
    /// The number of its connection; the first is 0.
    pub connection: usize,
    /// Request line and fields, each line with its end.
    pub head: String,
    /// The body without its framing.
    pub body: Vec<u8>,
}

impl ReceivedRequest {
    /// Returns the request line.
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// Returns every value of a field, whatever the case of its name.
    pub fn fields(&self, name: &str) -> Vec<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let named = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.trim()).collect()
    }
}

/// The reaction to a request when its head is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum UpstreamAction {
    /// Send these bytes after the whole request.
    Respond(Vec<u8>),
    /// Send these bytes now, then read the body.
    RespondEarly(Vec<u8>),
    /// Send these bytes after the whole request, then close.
    RespondAndClose(Vec<u8>),
    /// Close after the whole request, without a response.
    Close,
    /// Continue to read and never respond.
    Silence,
}

impl UpstreamAction {
    /// Returns a 200 response with this text on a persistent connection.
    pub fn ok(text: &str) -> Self {
        let length = text.len();
        let response = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{text}");
        Self::Respond(response.into_bytes())
    }
}

/// Chooses the action for a request, by the number of the connection and the head of the request.
type ActionScript = dyn FnMut(usize, &str) -> UpstreamAction + Send;

/// The script, and the records of all connections. The methods of [`RawUpstream`] describe the fields.
struct UpstreamRecords {
    script: Mutex<Box<ActionScript>>,
    connections: AtomicUsize,
    received: Mutex<Vec<ReceivedRequest>>,
    faults: Mutex<Vec<String>>,
    unfinished: AtomicUsize,
    ended: AtomicUsize,
    bytes: Mutex<Vec<Vec<u8>>>,
}

impl RawUpstream {
    /// Starts an upstream on a free port. `script` is called for every request with the number of the connection
    /// and the head.
    pub fn start(script: impl FnMut(usize, &str) -> UpstreamAction + Send + 'static) -> Self {
        let records = Arc::new(UpstreamRecords {
            script: Mutex::new(Box::new(script)),
            connections: AtomicUsize::new(0),
            received: Mutex::default(),
            faults: Mutex::default(),
            unfinished: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            bytes: Mutex::default(),
        });
        let shared = Arc::clone(&records);
        let server = LoopbackServer::open(0, move |stream| {
            let number = shared.connections.fetch_add(1, Ordering::SeqCst);
            locked(&shared.bytes).push(Vec::new());
            let connection =
                RawConnection { stream, number, records: Arc::clone(&shared), unread: Vec::new() };
            tokio::spawn(connection.serve());
        });
        Self { server, records }
    }

    /// Starts an upstream that responds to every request with 200 and `ok`.
    pub fn always_ok() -> Self {
        Self::start(|_, _| UpstreamAction::ok("ok"))
    }

    /// Returns the address of its listener.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Returns `http://127.0.0.1:port`.
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Returns every complete request so far, in the order of completion.
    pub fn received(&self) -> Vec<ReceivedRequest> {
        locked(&self.records.received).clone()
    }

    /// Returns the received data that a strict parser rejects, with the reasons.
    pub fn faults(&self) -> Vec<String> {
        locked(&self.records.faults).clone()
    }

    /// Returns the number of connections that ended after bytes of an incomplete request.
    pub fn unfinished(&self) -> usize {
        self.records.unfinished.load(Ordering::SeqCst)
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> usize {
        self.records.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of connections that have ended on both sides.
    pub fn ended(&self) -> usize {
        self.records.ended.load(Ordering::SeqCst)
    }

    /// Returns every byte so far, for each connection.
    pub fn bytes(&self) -> Vec<Vec<u8>> {
        locked(&self.records.bytes).clone()
    }
}

impl fmt::Debug for RawUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RawUpstream").field("url", &self.url()).finish_non_exhaustive()
    }
}

/// Locks a mutex, also after a panic of a thread that held it.
fn locked<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection with sequential requests.
struct RawConnection {
    stream: TcpStream,
    number: usize,
    records: Arc<UpstreamRecords>,
    /// Received bytes that are not parsed yet.
    unread: Vec<u8>,
}

impl RawConnection {
    async fn serve(mut self) {
        while self.serve_request().await.is_some() {}
        if !self.unread.is_empty() {
            self.records.unfinished.fetch_add(1, Ordering::SeqCst);
        }
        let _ = self.stream.shutdown().await;
        // Waits until the peer closes too, or the connection fails.
        while self.stream.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {}
        self.records.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Reads a request and responds to it. Returns `None` if the connection must be closed.
    async fn serve_request(&mut self) -> Option<()> {
        let (head, length) = self.receive(framing::head).await?;
        let action = (locked(&self.records.script))(self.number, &head);
        if let UpstreamAction::RespondEarly(bytes) = &action {
            self.stream.write_all(bytes).await.ok()?;
        }
        let body = match length {
            BodyLength::None => Vec::new(),
            BodyLength::Sized(length) => {
                self.receive(|bytes| framing::sized(bytes, length)).await?
            }
            BodyLength::Chunked => self.receive(framing::chunked).await?,
        };
        locked(&self.records.received).push(ReceivedRequest {
            connection: self.number,
            head,
            body,
        });
        match action {
            UpstreamAction::Respond(bytes) => self.stream.write_all(&bytes).await.ok(),
            UpstreamAction::RespondEarly(_) | UpstreamAction::Silence => Some(()),
            UpstreamAction::RespondAndClose(bytes) => {
                let _ = self.stream.write_all(&bytes).await;
                None
            }
            UpstreamAction::Close => None,
        }
    }

    /// Receives bytes until `parse` has a result, and removes the parsed bytes. Returns `None` after a fault or at the end
    /// of the stream.
    async fn receive<T>(&mut self, parse: impl Fn(&[u8]) -> FramedResult<T>) -> Option<T> {
        loop {
            match parse(&self.unread) {
                Ok(Some((found, length))) => {
                    self.unread.drain(..length);
                    return Some(found);
                }
                Ok(None) => {}
                Err(fault) => {
                    let received = String::from_utf8_lossy(&self.unread).into_owned();
                    locked(&self.records.faults).push(format!("{fault}: {received:?}"));
                    self.unread.clear();
                    return None;
                }
            }
            let mut buffer = vec![0; 16 * 1024];
            let length = self.stream.read(&mut buffer).await.ok().filter(|length| *length > 0)?;
            self.unread.extend_from_slice(&buffer[..length]);
            locked(&self.records.bytes)[self.number].extend_from_slice(&buffer[..length]);
        }
    }
}
