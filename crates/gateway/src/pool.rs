//! Connections to upstream servers, kept for the next request.
//!
//! Each thread of the gateway has a pool of its own, so its lock is never fought over.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tidegate_core::Span;
use tidegate_limiter::Clock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::body::Up;
use super::upstream::Server;

/// Most connections that are kept for one server.
const MAX_IDLE: usize = 512;
/// After how many sweeps a connection that nobody used is closed.
const MAX_AGE: u64 = 4;
/// How often the pool is swept.
pub(super) const SWEEP: Span = Span::from_secs(15);
/// Most requests at once on one connection of HTTP/2, which is what servers allow at least. If one allows
/// fewer, they wait for each other there.
const MAX_STREAMS: usize = 100;
/// Longest head of an answer in bytes, and most that is read of a body before the client takes it.
const MAX_HEAD: usize = 64 * 1024;
/// What a server may send of one answer before the client has read it, in bytes.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;

/// The connections of one thread.
#[derive(Debug)]
pub(super) struct Pool {
    servers: Box<[Lines]>,
    sweeps: AtomicU64,
}

/// The connections to one server.
#[derive(Debug, Default)]
struct Lines {
    idle: Mutex<Vec<Idle>>,
    shared: Mutex<Vec<Shared>>,
    /// Held by who opens a connection that all will use.
    opening: tokio::sync::Mutex<()>,
}

/// A connection that nobody uses.
#[derive(Debug)]
struct Idle {
    line: http1::SendRequest<Up>,
    /// How many sweeps there had been when it came.
    since: u64,
}

/// A connection that many use at once.
#[derive(Clone, Debug)]
struct Shared {
    line: http2::SendRequest<Up>,
    streams: Arc<AtomicUsize>,
}

/// A connection for one request.
#[derive(Debug)]
pub(super) enum Line {
    One {
        line: http1::SendRequest<Up>,
        /// Whether it served others before.
        used: bool,
    },
    Many {
        line: http2::SendRequest<Up>,
        stream: Stream,
    },
}

/// One of the requests on a shared connection.
#[derive(Debug)]
pub(super) struct Stream(Arc<AtomicUsize>);

impl Drop for Stream {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A connection that goes back to its pool when the answer has been read.
#[derive(Debug)]
pub(super) struct Kept {
    pool: Arc<Pool>,
    server: usize,
    line: http1::SendRequest<Up>,
}

impl Kept {
    /// The answer was read to its end.
    pub(super) fn back(self) {
        let Self { pool, server, line } = self;
        if line.is_closed() {
            return;
        }
        let since = pool.sweeps.load(Ordering::Relaxed);
        let mut idle = pool.servers[server].idle.lock();
        if idle.len() < MAX_IDLE {
            idle.push(Idle { line, since });
        }
    }
}

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum ConnectError {
    Timeout,
    Failed(String),
}

impl Pool {
    pub(super) fn new(servers: usize) -> Self {
        let servers = (0..servers).map(|_| Lines::default()).collect();
        Self { servers, sweeps: AtomicU64::new(0) }
    }

    /// Closes connections that nobody has used for some sweeps, and forgets those that are closed.
    pub(super) fn sweep(&self) {
        let now = self.sweeps.fetch_add(1, Ordering::Relaxed) + 1;
        for lines in &self.servers {
            let stays = |idle: &Idle| !idle.line.is_closed() && idle.since + MAX_AGE > now;
            lines.idle.lock().retain(stays);
            lines.shared.lock().retain(|shared| !shared.line.is_closed());
        }
    }

    /// Keeps the connection of a request for the next one.
    pub(super) fn keep(self: &Arc<Self>, server: &Server, line: http1::SendRequest<Up>) -> Kept {
        Kept { pool: Arc::clone(self), server: server.id, line }
    }

    /// A connection to the server: one that is there and free, the youngest first, or a new one.
    ///
    /// # Errors
    /// There is none, and no new one can be had.
    pub(super) async fn line(
        &self,
        server: &Server,
        clock: &Clock,
        connect: Span,
    ) -> Result<Line, ConnectError> {
        let lines = &self.servers[server.id];
        match lines.any(server) {
            Some(line) => Ok(line),
            // Boxed, because most requests find a connection and need no room for this.
            None => Box::pin(lines.open(server, clock, connect)).await,
        }
    }
}

impl Lines {
    /// A connection that is there, of the kind that the server speaks.
    fn any(&self, server: &Server) -> Option<Line> {
        let free = || self.free().map(|line| Line::One { line, used: true });
        match server.may_speak_http2() {
            true => self.stream().or_else(free),
            false => free(),
        }
    }

    /// A new connection, TLS and all, in the time that it may take. One that many will use is opened by
    /// one of them, while the others wait for it in their own time.
    async fn open(
        &self,
        server: &Server,
        clock: &Clock,
        timeout: Span,
    ) -> Result<Line, ConnectError> {
        let opening = async {
            if !server.may_speak_http2() {
                return shake_hands(server, self).await;
            }
            let _opening = self.opening.lock().await;
            match self.any(server) {
                Some(line) => Ok(line),
                None => shake_hands(server, self).await,
            }
        };
        tokio::select! {
            opened = opening => opened.map_err(ConnectError::Failed),
            () = clock.sleep(timeout) => Err(ConnectError::Timeout),
        }
    }

    fn free(&self) -> Option<http1::SendRequest<Up>> {
        let mut idle = self.idle.lock();
        let mut place = idle.len();
        while place > 0 {
            place -= 1;
            if idle[place].line.is_ready() {
                return Some(idle.remove(place).line);
            }
            // Else its last answer is only just over, or it is closed.
            if idle[place].line.is_closed() {
                idle.remove(place);
            }
        }
        None
    }

    fn stream(&self) -> Option<Line> {
        let mut shared = self.shared.lock();
        shared.retain(|shared| !shared.line.is_closed());
        shared.iter().find_map(Shared::stream)
    }
}

impl Shared {
    /// One more request, if there is room.
    fn stream(&self) -> Option<Line> {
        if self.streams.load(Ordering::Relaxed) >= MAX_STREAMS {
            return None;
        }
        self.streams.fetch_add(1, Ordering::Relaxed);
        let stream = Stream(Arc::clone(&self.streams));
        Some(Line::Many { line: self.line.clone(), stream })
    }
}

async fn shake_hands(server: &Server, lines: &Lines) -> Result<Line, String> {
    let at = (server.url.host.as_str(), server.url.port);
    let stream = TcpStream::connect(at).await.map_err(|error| error.to_string())?;
    let _ = stream.set_nodelay(true);
    let Some(tls) = &server.tls else {
        return greet(stream, server.may_speak_http2(), lines).await;
    };
    let shaken = tls.connector.connect(tls.name.clone(), stream).await;
    let stream = shaken.map_err(|error| error.to_string())?;
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    server.speaks(http2);
    greet(stream, http2, lines).await
}

/// The connection's own task reads and writes; it also sees when the server closes it.
async fn greet<I>(stream: I, http2: bool, lines: &Lines) -> Result<Line, String>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let io = TokioIo::new(stream);
    if !http2 {
        let mut http = http1::Builder::new();
        http.max_header_size(MAX_HEAD).max_buf_size(MAX_HEAD);
        let (line, connection) = http.handshake(io).await.map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "upstream connection failed");
            }
        });
        return Ok(Line::One { line, used: false });
    }
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .keep_alive_interval(std::time::Duration::from_secs(30));
    let (line, connection) = http.handshake(io).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "upstream connection failed");
        }
    });
    let shared = Shared { line, streams: Arc::default() };
    let stream = shared.stream().ok_or("the server allows no request")?;
    lines.shared.lock().push(shared);
    Ok(stream)
}
