//! Connections to upstream servers, reused for later requests.
//!
//! Each gateway thread has its own pool, so its locks are not contended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use parking_lot::Mutex;
use tidegate_core::Span;
use tidegate_limiter::Clock;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use crate::direct_conn::DirectConn;
use crate::request_body::{RequestBody, UploadProgress};
use crate::upstream::UpstreamServer;
use crate::upstream_socket::{SocketPermit, UpstreamSocket, UpstreamSockets};
use crate::upstream_stream::{TruncatedUpload, UpstreamStream};

/// Interval at which idle connections are swept.
pub(crate) const SWEEP_INTERVAL: Span = Span::from_secs(15);
/// Number of sweeps after which an idle connection is closed: 60 seconds.
const MAX_IDLE_SWEEPS: u64 = 4;
/// Most idle connections to one server.
const MAX_IDLE_CONNECTIONS: usize = 512;
/// Most requests in flight on one HTTP/2 connection. RFC 9113 recommends that servers allow at least 100. If one allows
/// fewer, requests wait inside hyper.
const MAX_STREAMS: usize = 100;
/// Longest response head in bytes, and most bytes of a body that are read before the client takes them.
const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Bytes of one response that a server may send before the client has read them.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Interval at which the holder of a reset stream checks that its connection is open.
const CLOSE_CHECK_INTERVAL: Span = Span::SECOND;
/// Interval of HTTP/2 pings to a server.
const PING_INTERVAL: Duration = Duration::from_secs(30);

/// The upstream connections of one gateway thread.
#[derive(Debug)]
pub(crate) struct ConnectionPool {
    /// By [`UpstreamServer::id`].
    servers: Box<[ServerPool]>,
    sweeps: AtomicU64,
    sockets: UpstreamSockets,
}

/// The connections to one server.
#[derive(Debug, Default)]
struct ServerPool {
    /// HTTP/1 connections of hyper without a request in flight.
    idle: Mutex<Vec<IdleConn<Http1Sender>>>,
    /// HTTP/1 connections without hyper and without a request in flight.
    direct: Mutex<Vec<IdleConn<DirectConn>>>,
    /// HTTP/2 connections.
    shared: Mutex<Vec<SharedConn>>,
    /// Held while an HTTP/2 connection is opened, so that concurrent requests share it.
    opening: tokio::sync::Mutex<()>,
}

/// An idle HTTP/1 connection.
#[derive(Debug)]
struct IdleConn<C> {
    conn: C,
    /// Number of sweeps when it became idle.
    idle_since: u64,
}

/// An HTTP/2 connection that several requests use at once.
#[derive(Clone, Debug)]
struct SharedConn {
    sender: http2::SendRequest<RequestBody>,
    streams: Arc<AtomicUsize>,
}

/// A connection to send one request on.
#[derive(Debug)]
pub(crate) enum UpstreamConn {
    Direct {
        conn: DirectConn,
        reused: bool,
    },
    Http1 {
        sender: Http1Sender,
        /// Set if it has carried a request before. The server may close such a connection at any time.
        reused: bool,
    },
    Http2 {
        sender: http2::SendRequest<RequestBody>,
        slot: StreamSlot,
        /// Set after an upload that failed before the response: the server may still work on the request.
        truncated: bool,
    },
}

/// The sending half of an HTTP/1 connection.
#[derive(Debug)]
pub(crate) struct Http1Sender {
    pub(crate) requests: http1::SendRequest<RequestBody>,
    truncated: Arc<TruncatedUpload>,
}

impl UpstreamConn {
    /// Keeps an HTTP/1 connection open if this upload ends early.
    pub(crate) fn watch_upload(&self, upload: Arc<UploadProgress>) {
        if let Self::Http1 { sender, .. } = self {
            sender.truncated.watch(upload);
        }
    }

    /// Records that the upload failed before the response, which has reset an HTTP/2 stream.
    pub(crate) fn on_truncated_upload(&mut self) {
        if let Self::Http2 { truncated, .. } = self {
            *truncated = true;
        }
    }

    /// Waits until the server has responded to a watched upload that ended early, or has closed the connection. Returns
    /// at once if there is no such upload, and after `timeout` in any case. A server does not report the end of its work
    /// on a stream that was reset.
    pub(crate) async fn server_ended(&self, clock: &Clock, timeout: Span) {
        let ended = async {
            match self {
                Self::Http1 { sender, .. } => sender.truncated.server_ended().await,
                Self::Http2 { sender, truncated: true, .. } => {
                    while !sender.is_closed() {
                        clock.sleep(CLOSE_CHECK_INTERVAL).await;
                    }
                }
                Self::Direct { .. } | Self::Http2 { truncated: false, .. } => {}
            }
        };
        tokio::select! {
            biased;
            () = ended => {}
            () = clock.sleep(timeout) => {}
        }
    }
}

/// The place of one request on an HTTP/2 connection. Dropping it frees the place.
#[derive(Debug)]
pub(crate) struct StreamSlot(Arc<AtomicUsize>);

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An HTTP/1 connection that returns to its pool after the response was read. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct PooledConn {
    pool: Arc<ConnectionPool>,
    server: usize,
    sender: Http1Sender,
}

impl PooledConn {
    /// Returns the connection to the pool. Call it only after the whole response was read.
    pub(crate) fn release(self) {
        let Self { pool, server, sender } = self;
        if sender.requests.is_closed() {
            return;
        }
        pool.servers[server].idle.lock().push_idle(sender, pool.sweeps.load(Ordering::Relaxed));
    }
}

/// The idle connections of one kind to one server, the least recently used first.
trait IdleConns<C> {
    /// Adds a connection, unless there are [`MAX_IDLE_CONNECTIONS`].
    fn push_idle(&mut self, conn: C, idle_since: u64);
    /// Returns the number of sweeps when the first connection became idle.
    fn oldest(&self) -> Option<u64>;
    /// Removes the first connection. Returns `false` if there is none.
    fn remove_oldest(&mut self) -> bool;
    /// Removes connections that are closed, or were idle for [`MAX_IDLE_SWEEPS`].
    fn sweep(&mut self, now: u64, is_open: impl Fn(&C) -> bool);
}

impl<C> IdleConns<C> for Vec<IdleConn<C>> {
    fn push_idle(&mut self, conn: C, idle_since: u64) {
        if self.len() < MAX_IDLE_CONNECTIONS {
            self.push(IdleConn { conn, idle_since });
        }
    }

    fn oldest(&self) -> Option<u64> {
        self.first().map(|oldest| oldest.idle_since)
    }

    fn remove_oldest(&mut self) -> bool {
        let is_idle = !self.is_empty();
        if is_idle {
            self.remove(0);
        }
        is_idle
    }

    fn sweep(&mut self, now: u64, is_open: impl Fn(&C) -> bool) {
        self.retain(|idle| is_open(&idle.conn) && idle.idle_since + MAX_IDLE_SWEEPS > now);
    }
}

/// The reason why there is no connection to a server.
#[derive(Debug)]
pub(crate) enum ConnectError {
    Timeout,
    /// The pool has its maximum of connections, and none of them is idle. The server has not failed.
    Full,
    Failed(String),
}

impl ConnectionPool {
    /// Creates an empty pool for servers with the ids `0..server_count`.
    pub(crate) fn new(server_count: usize, sockets: UpstreamSockets) -> Self {
        let servers = (0..server_count).map(|_| ServerPool::default()).collect();
        Self { servers, sweeps: AtomicU64::new(0), sockets }
    }

    /// Closes connections that were idle for [`MAX_IDLE_SWEEPS`], and removes those that the server has closed.
    pub(crate) fn sweep(&self) {
        let now = self.sweeps.fetch_add(1, Ordering::Relaxed) + 1;
        for server in &self.servers {
            server.idle.lock().sweep(now, |conn| !conn.requests.is_closed());
            server.direct.lock().sweep(now, DirectConn::is_idle);
            server.shared.lock().retain(|conn| !conn.sender.is_closed());
        }
    }

    /// Returns a guard that can return an HTTP/1 connection to this pool.
    pub(crate) fn pooled(
        self: &Arc<Self>,
        server: &UpstreamServer,
        sender: Http1Sender,
    ) -> PooledConn {
        PooledConn { pool: Arc::clone(self), server: server.id, sender }
    }

    /// Returns a connection to its pool, if it can carry another request.
    pub(crate) fn release_direct(&self, server: usize, conn: DirectConn) {
        if conn.is_idle() {
            let idle_since = self.sweeps.load(Ordering::Relaxed);
            self.servers[server].direct.lock().push_idle(conn, idle_since);
        }
    }

    /// Returns a free connection to a server, the most recently used first, or opens a new one. It is one without hyper
    /// if `is_direct` is set and the server uses HTTP/1 without TLS.
    ///
    /// # Errors
    /// No connection is free, and the server did not accept a new one within `timeout`, or the pool is full.
    pub(crate) async fn connection(
        &self,
        server: &UpstreamServer,
        is_direct: bool,
        clock: &Clock,
        timeout: Span,
    ) -> Result<UpstreamConn, ConnectError> {
        let pool = &self.servers[server.id];
        let is_direct = is_direct && server.is_plain_http1();
        match pool.existing(server, is_direct) {
            Some(conn) => Ok(conn),
            // Boxed: most requests find a connection, and do not carry the size of this future.
            None => Box::pin(self.open(pool, server, is_direct, clock, timeout)).await,
        }
    }

    async fn open(
        &self,
        pool: &ServerPool,
        server: &UpstreamServer,
        is_direct: bool,
        clock: &Clock,
        timeout: Span,
    ) -> Result<UpstreamConn, ConnectError> {
        let permit = self.sockets.permit().or_else(|| {
            // The place of an idle connection: its socket closes in the next poll of its task.
            self.close_longest_idle().then(|| self.sockets.extra_permit())
        });
        match permit {
            Some(permit) => pool.open(server, is_direct, permit, clock, timeout).await,
            None => Err(ConnectError::Full),
        }
    }

    /// Closes the connection to any server that was idle for the longest time. Returns `false` if none is idle.
    fn close_longest_idle(&self) -> bool {
        let oldest = |pool: &&ServerPool| {
            let (idle, direct) = (pool.idle.lock().oldest(), pool.direct.lock().oldest());
            idle.into_iter().chain(direct).min()
        };
        let idle = self.servers.iter().filter_map(|pool| Some((oldest(&pool)?, pool)));
        let Some((_, pool)) = idle.min_by_key(|(idle_since, _)| *idle_since) else { return false };
        let (mut idle, mut direct) = (pool.idle.lock(), pool.direct.lock());
        match (idle.oldest(), direct.oldest()) {
            (Some(hyper), Some(without)) if without < hyper => direct.remove_oldest(),
            (None, Some(_)) => direct.remove_oldest(),
            _ => idle.remove_oldest(),
        }
    }
}

impl ServerPool {
    /// Returns a free connection of the HTTP version that the server uses.
    fn existing(&self, server: &UpstreamServer, is_direct: bool) -> Option<UpstreamConn> {
        if is_direct {
            return self.take_direct().map(|conn| UpstreamConn::Direct { conn, reused: true });
        }
        let http1 = || self.take_idle().map(|sender| UpstreamConn::Http1 { sender, reused: true });
        match server.may_use_http2() {
            true => self.shared_stream().or_else(http1),
            false => http1(),
        }
    }

    /// Opens a connection, TLS included. With HTTP/2 one request opens it; the others wait for it, each with its own
    /// timeout.
    async fn open(
        &self,
        server: &UpstreamServer,
        is_direct: bool,
        permit: SocketPermit,
        clock: &Clock,
        timeout: Span,
    ) -> Result<UpstreamConn, ConnectError> {
        let opening = async {
            if is_direct {
                let conn = DirectConn::new(open_socket(server, permit).await?);
                return Ok(UpstreamConn::Direct { conn, reused: false });
            }
            if !server.may_use_http2() {
                return connect(server, self, permit).await;
            }
            let _opening = self.opening.lock().await;
            match self.existing(server, false) {
                Some(conn) => Ok(conn),
                None => connect(server, self, permit).await,
            }
        };
        tokio::select! {
            opened = opening => opened.map_err(ConnectError::Failed),
            () = clock.sleep(timeout) => Err(ConnectError::Timeout),
        }
    }

    /// Removes and returns the idle connection that was used last.
    fn take_idle(&self) -> Option<Http1Sender> {
        let mut idle = self.idle.lock();
        let mut index = idle.len();
        while index > 0 {
            index -= 1;
            if idle[index].conn.requests.is_ready() {
                return Some(idle.remove(index).conn);
            }
            // Not ready means closed, or that hyper has not yet processed the end of the last response.
            if idle[index].conn.requests.is_closed() {
                idle.remove(index);
            }
        }
        None
    }

    /// Removes and returns the connection without hyper that was used last. Closed ones are dropped.
    fn take_direct(&self) -> Option<DirectConn> {
        let mut direct = self.direct.lock();
        std::iter::from_fn(|| direct.pop()).map(|idle| idle.conn).find(DirectConn::is_idle)
    }

    fn shared_stream(&self) -> Option<UpstreamConn> {
        let mut shared = self.shared.lock();
        shared.retain(|conn| !conn.sender.is_closed());
        shared.iter().find_map(SharedConn::open_stream)
    }
}

impl SharedConn {
    /// Takes a place for one more request; `None` if [`MAX_STREAMS`] are in flight.
    fn open_stream(&self) -> Option<UpstreamConn> {
        if self.streams.load(Ordering::Relaxed) >= MAX_STREAMS {
            return None;
        }
        self.streams.fetch_add(1, Ordering::Relaxed);
        let slot = StreamSlot(Arc::clone(&self.streams));
        Some(UpstreamConn::Http2 { sender: self.sender.clone(), slot, truncated: false })
    }
}

/// Connects to a server: TCP, then TLS if its URL is `https`, then HTTP.
async fn connect(
    server: &UpstreamServer,
    pool: &ServerPool,
    permit: SocketPermit,
) -> Result<UpstreamConn, String> {
    let stream = open_socket(server, permit).await?;
    let Some(tls) = &server.tls else {
        return http_handshake(stream, server.may_use_http2(), pool).await;
    };
    let handshake = tls.connector.connect(tls.name.clone(), stream).await;
    let stream = handshake.map_err(|error| error.to_string())?;
    let http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    server.set_http2(http2);
    http_handshake(stream, http2, pool).await
}

/// Opens a TCP connection to a server.
async fn open_socket(
    server: &UpstreamServer,
    permit: SocketPermit,
) -> Result<UpstreamSocket, String> {
    let address = (server.url.host.as_str(), server.url.port);
    let stream = TcpStream::connect(address).await.map_err(|error| error.to_string())?;
    let _ = stream.set_nodelay(true);
    Ok(UpstreamSocket::new(stream, permit))
}

/// Starts HTTP on a stream, in a task that reads and writes until the connection closes.
async fn http_handshake<I>(
    stream: I,
    http2: bool,
    pool: &ServerPool,
) -> Result<UpstreamConn, String>
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    if !http2 {
        let truncated = Arc::new(TruncatedUpload::default());
        let io = TokioIo::new(UpstreamStream::new(stream, Arc::clone(&truncated)));
        let mut http = http1::Builder::new();
        http.max_header_size(MAX_HEAD_BYTES).max_buf_size(MAX_HEAD_BYTES);
        let (requests, connection) = http.handshake(io).await.map_err(|error| error.to_string())?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "upstream connection failed");
            }
        });
        return Ok(UpstreamConn::Http1 {
            sender: Http1Sender { requests, truncated },
            reused: false,
        });
    }
    let io = TokioIo::new(stream);
    let mut http = http2::Builder::new(TokioExecutor::new());
    http.timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .keep_alive_interval(PING_INTERVAL);
    let (sender, connection) = http.handshake(io).await.map_err(|error| error.to_string())?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "upstream connection failed");
        }
    });
    let shared = SharedConn { sender, streams: Arc::default() };
    let stream = shared.open_stream().ok_or("a new HTTP/2 connection has no free stream")?;
    pool.shared.lock().push(shared);
    Ok(stream)
}
