//! A server that stores every received byte.

mod framing;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::loopback_server::LoopbackServer;
use framing::{BodyLength, FramedResult};

/// Reads HTTP/1.1 as the strictest server would, keeps what it read, and answers with given bytes.
///
/// An ambiguous request is a [fault](Self::faults), after which the connection is closed.
pub struct RawUpstream {
    stage: LoopbackServer,
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
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{text}");
        Self::Respond(answer.into_bytes())
    }
}

/// A function of the connection's number and the head.
type ActionScript = dyn FnMut(usize, &str) -> UpstreamAction + Send;

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
    /// Starts one on a free port. `script` is called for every request with the number of the connection
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
        let serving = Arc::clone(&records);
        let stage = LoopbackServer::open(0, move |stream| {
            let number = serving.connections.fetch_add(1, Ordering::SeqCst);
            locked(&serving.bytes).push(Vec::new());
            let connection =
                RawConnection { stream, number, records: Arc::clone(&serving), unread: Vec::new() };
            tokio::spawn(connection.serve());
        });
        Self { stage, records }
    }

    /// Starts one that answers every request with 200 and `ok`.
    pub fn answering() -> Self {
        Self::start(|_, _| UpstreamAction::ok("ok"))
    }

    /// Returns the address of its listener.
    pub fn address(&self) -> SocketAddr {
        self.stage.address()
    }

    /// Returns `http://127.0.0.1:port`
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Returns every whole request so far, in the order in which they were complete.
    pub fn received(&self) -> Vec<ReceivedRequest> {
        locked(&self.records.received).clone()
    }

    /// Returns the received data that a strict parser rejects, with the reasons.
    pub fn faults(&self) -> Vec<String> {
        locked(&self.records.faults).clone()
    }

    /// Returns the number of incomplete requests.
    pub fn unfinished(&self) -> usize {
        self.records.unfinished.load(Ordering::SeqCst)
    }

    /// Returns the number of accepted connections.
    pub fn connections(&self) -> usize {
        self.records.connections.load(Ordering::SeqCst)
    }

    /// Returns the number of connections that the peer has closed.
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

fn locked<T: ?Sized>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One connection with sequential requests.
struct RawConnection {
    stream: TcpStream,
    number: usize,
    records: Arc<UpstreamRecords>,
    unread: Vec<u8>,
}

impl RawConnection {
    async fn serve(mut self) {
        while self.request().await.is_some() {}
        if !self.unread.is_empty() {
            self.records.unfinished.fetch_add(1, Ordering::SeqCst);
        }
        let _ = self.stream.shutdown().await;
        // Until the peer closes too, or the connection fails.
        while self.stream.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {}
        self.records.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Reads a request and answers it. Nothing: the connection is over.
    async fn request(&mut self) -> Option<()> {
        let (head, length) = self.framed(framing::head).await?;
        let turn = (locked(&self.records.script))(self.number, &head);
        if let UpstreamAction::RespondEarly(bytes) = &turn {
            self.stream.write_all(bytes).await.ok()?;
        }
        let body = match length {
            BodyLength::None => Vec::new(),
            BodyLength::Sized(length) => self.framed(|bytes| framing::sized(bytes, length)).await?,
            BodyLength::Chunked => self.framed(framing::chunked).await?,
        };
        locked(&self.records.received).push(ReceivedRequest {
            connection: self.number,
            head,
            body,
        });
        match turn {
            UpstreamAction::Respond(bytes) => self.stream.write_all(&bytes).await.ok(),
            UpstreamAction::RespondEarly(_) | UpstreamAction::Silence => Some(()),
            UpstreamAction::RespondAndClose(bytes) => {
                let _ = self.stream.write_all(&bytes).await;
                None
            }
            UpstreamAction::Close => None,
        }
    }

    /// Reads until `read` has found what it looks for. Nothing: it never will.
    async fn framed<T>(&mut self, read: impl Fn(&[u8]) -> FramedResult<T>) -> Option<T> {
        loop {
            match read(&self.unread) {
                Ok(Some((found, length))) => {
                    self.unread.drain(..length);
                    return Some(found);
                }
                Ok(None) => {}
                Err(fault) => {
                    let shown = String::from_utf8_lossy(&self.unread).into_owned();
                    locked(&self.records.faults).push(format!("{fault}: {shown:?}"));
                    self.unread.clear();
                    return None;
                }
            }
            let mut piece = vec![0; 16 * 1024];
            let length = self.stream.read(&mut piece).await.ok().filter(|length| *length > 0)?;
            self.unread.extend_from_slice(&piece[..length]);
            locked(&self.records.bytes)[self.number].extend_from_slice(&piece[..length]);
        }
    }
}
