//! A server that keeps every byte it is sent.

mod framing;

use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::stage::Stage;
use framing::{Framed, Length};

/// Reads HTTP/1.1 as the strictest server would, keeps what it read, and answers with given bytes.
///
/// What a lenient server could read in two ways is no request here but a [fault](Self::faults), after which the
/// connection is closed.
pub struct RawUpstream {
    stage: Stage,
    records: Arc<Records>,
}

/// A whole request, as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// Which connection it came on; the first is 0.
    pub connection: usize,
    /// Request line and fields, each line with its end.
    pub head: String,
    /// The body without its framing.
    pub body: Vec<u8>,
}

impl Received {
    /// The request line.
    pub fn line(&self) -> &str {
        self.head.lines().next().unwrap_or_default()
    }

    /// Every value of a field, whatever the case of its name.
    pub fn fields(&self, name: &str) -> Vec<&str> {
        let fields = self.head.lines().skip(1).filter_map(|line| line.split_once(':'));
        let named = fields.filter(|(known, _)| known.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.trim()).collect()
    }
}

/// What to do with a request, of which only the head is there yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Turn {
    /// Send these bytes once the whole request is there.
    Answer(Vec<u8>),
    /// Send these bytes now, then read the body.
    AnswerEarly(Vec<u8>),
    /// Send these bytes once the whole request is there, and close.
    AnswerAndClose(Vec<u8>),
    /// Close once the whole request is there, without a word.
    Close,
    /// Read on and never say anything.
    Silence,
}

impl Turn {
    /// 200 with this text, on a connection that stays.
    pub fn ok(text: &str) -> Self {
        let length = text.len();
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n{text}");
        Self::Answer(answer.into_bytes())
    }
}

/// Called with the connection's number and the head.
type Script = dyn FnMut(usize, &str) -> Turn + Send;

struct Records {
    script: Mutex<Box<Script>>,
    connections: AtomicUsize,
    received: Mutex<Vec<Received>>,
    faults: Mutex<Vec<String>>,
    unfinished: AtomicUsize,
    ended: AtomicUsize,
    bytes: Mutex<Vec<Vec<u8>>>,
}

impl RawUpstream {
    /// Starts one on a free port. `script` is asked for every request: it is told the number of the connection
    /// and the head.
    pub fn start(script: impl FnMut(usize, &str) -> Turn + Send + 'static) -> Self {
        let records = Arc::new(Records {
            script: Mutex::new(Box::new(script)),
            connections: AtomicUsize::new(0),
            received: Mutex::default(),
            faults: Mutex::default(),
            unfinished: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            bytes: Mutex::default(),
        });
        let serving = Arc::clone(&records);
        let stage = Stage::open(0, move |stream| {
            let number = serving.connections.fetch_add(1, Ordering::SeqCst);
            locked(&serving.bytes).push(Vec::new());
            let connection =
                Connection { stream, number, records: Arc::clone(&serving), unread: Vec::new() };
            tokio::spawn(connection.serve());
        });
        Self { stage, records }
    }

    /// Starts one that answers every request with 200 and `ok`.
    pub fn answering() -> Self {
        Self::start(|_, _| Turn::ok("ok"))
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.stage.address()
    }

    /// `http://127.0.0.1:port`
    pub fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    /// Every whole request so far, in the order in which they were complete.
    pub fn received(&self) -> Vec<Received> {
        locked(&self.records.received).clone()
    }

    /// What was sent that is no request to a strict reader, and why.
    pub fn faults(&self) -> Vec<String> {
        locked(&self.records.faults).clone()
    }

    /// How many requests broke off before their end.
    pub fn unfinished(&self) -> usize {
        self.records.unfinished.load(Ordering::SeqCst)
    }

    /// How many connections were made so far.
    pub fn connections(&self) -> usize {
        self.records.connections.load(Ordering::SeqCst)
    }

    /// How many connections the other side has left so far.
    pub fn ended(&self) -> usize {
        self.records.ended.load(Ordering::SeqCst)
    }

    /// Every byte so far, for each connection.
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

/// One connection, whose requests come one after another.
struct Connection {
    stream: TcpStream,
    number: usize,
    records: Arc<Records>,
    unread: Vec<u8>,
}

impl Connection {
    async fn serve(mut self) {
        while self.request().await.is_some() {}
        if !self.unread.is_empty() {
            self.records.unfinished.fetch_add(1, Ordering::SeqCst);
        }
        let _ = self.stream.shutdown().await;
        // Until the other side has left too, or the connection is broken.
        while self.stream.read(&mut [0; 1024]).await.is_ok_and(|length| length > 0) {}
        self.records.ended.fetch_add(1, Ordering::SeqCst);
    }

    /// Reads a request and answers it. Nothing: the connection is over.
    async fn request(&mut self) -> Option<()> {
        let (head, length) = self.framed(framing::head).await?;
        let turn = (locked(&self.records.script))(self.number, &head);
        if let Turn::AnswerEarly(bytes) = &turn {
            self.stream.write_all(bytes).await.ok()?;
        }
        let body = match length {
            Length::None => Vec::new(),
            Length::Sized(length) => self.framed(|bytes| framing::sized(bytes, length)).await?,
            Length::Chunked => self.framed(framing::chunked).await?,
        };
        locked(&self.records.received).push(Received { connection: self.number, head, body });
        match turn {
            Turn::Answer(bytes) => self.stream.write_all(&bytes).await.ok(),
            Turn::AnswerEarly(_) | Turn::Silence => Some(()),
            Turn::AnswerAndClose(bytes) => {
                let _ = self.stream.write_all(&bytes).await;
                None
            }
            Turn::Close => None,
        }
    }

    /// Reads until `read` has found what it looks for. Nothing: it never will.
    async fn framed<T>(&mut self, read: impl Fn(&[u8]) -> Framed<T>) -> Option<T> {
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
