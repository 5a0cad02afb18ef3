//! Accepts HTTP/1 connections, not too many, and keeps none that does nothing.
//!
//! hyper has a timeout of its own for request heads, but arms a timer for each request. Here a
//! request only notes the time, and one sleeping watcher per connection looks at the notes.

use std::convert::Infallible;
use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate::{Clock, Span, Timestamp};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};

/// Longest request head in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// Largest read buffer of one connection in bytes.
const MAX_BUFFER: usize = 64 * 1024;
/// How long to wait when the system has no room for another connection.
const PAUSE: Span = Span::from_millis(50);

/// How many connections a door holds, and how long each may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Most connections at once; more wait to be accepted.
    pub(crate) connections: usize,
    /// From the first byte of a request, or from connecting, to the end of its head.
    pub(crate) head: Span,
    /// From the end of the head to the reply, the body included.
    pub(crate) request: Span,
    /// From one request to the next.
    pub(crate) idle: Span,
    /// For requests under way when the door closes.
    pub(crate) drain: Span,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            connections: 10_000,
            head: Span::from_secs(10),
            request: Span::from_secs(30),
            idle: Span::from_secs(90),
            drain: Span::from_secs(25),
        }
    }
}

/// What answers the requests of a door.
pub(crate) trait Handler: Send + Sync + 'static {
    fn handle(
        &self,
        request: hyper::Request<Incoming>,
    ) -> impl Future<Output = hyper::Response<Full<Bytes>>> + Send;
}

/// Serves connections until `closing` says so, then finishes what is under way.
///
/// Returns how many connections had to be cut off in the end.
pub(crate) async fn serve<H: Handler>(
    listener: TcpListener,
    handler: Arc<H>,
    patience: Patience,
    clock: Clock,
    mut closing: watch::Receiver<bool>,
) -> usize {
    let places = Arc::new(Semaphore::new(patience.connections));
    loop {
        // The semaphore is never closed, so a place is always given in the end.
        let place = tokio::select! {
            place = Arc::clone(&places).acquire_owned() => place,
            _ = closing.wait_for(|closing| *closing) => break,
        };
        let stream = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    if !is_the_peers(&error) {
                        clock.sleep_until(clock.now() + PAUSE).await;
                    }
                    continue;
                }
            },
            _ = closing.wait_for(|closing| *closing) => break,
        };
        let (handler, clock, closing) = (Arc::clone(&handler), clock.clone(), closing.clone());
        tokio::spawn(async move {
            connection(stream, handler, patience, clock, closing).await;
            drop(place);
        });
    }
    drop(listener);
    // Holding every place means that nobody else does.
    let all = u32::try_from(patience.connections).unwrap_or(u32::MAX);
    tokio::select! {
        _ = places.acquire_many(all) => 0,
        () = clock.sleep_until(clock.now() + patience.drain) => {
            patience.connections - places.available_permits()
        }
    }
}

/// Whether the error is about one connection and the next may well be fine.
fn is_the_peers(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(error.kind(), ConnectionAborted | ConnectionRefused | ConnectionReset)
}

async fn connection<H: Handler>(
    stream: TcpStream,
    handler: Arc<H>,
    patience: Patience,
    clock: Clock,
    mut closing: watch::Receiver<bool>,
) {
    // A reply is one small write: waiting to fill a packet would only delay it.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection without TCP_NODELAY");
    }
    let activity = Arc::new(Activity::starting(clock.now()));
    let io = Watched { stream, activity: Arc::clone(&activity), clock: clock.clone() };
    let service = service_fn(|request| {
        activity.note(Phase::Request, clock.now());
        let reply = handler.handle(request);
        let (activity, clock) = (&activity, &clock);
        async move {
            let reply = reply.await;
            activity.note(Phase::Idle, clock.now());
            Ok::<_, Infallible>(reply)
        }
    });
    let mut http = http1::Builder::new();
    http.max_header_size(MAX_HEAD).max_buf_size(MAX_BUFFER);
    let mut connection = pin!(http.serve_connection(TokioIo::new(io), service));
    let mut overdue = pin!(activity.overdue(patience, &clock));
    let mut draining = *closing.borrow();
    if draining {
        connection.as_mut().graceful_shutdown();
    }
    loop {
        tokio::select! {
            ended = connection.as_mut() => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "connection failed");
                }
                return;
            }
            () = overdue.as_mut() => {
                tracing::debug!(phase = ?activity.phase(), "connection cut off, it took too long");
                return;
            }
            _ = closing.wait_for(|closing| *closing), if !draining => {
                draining = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

/// What a connection is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Waiting for the next request.
    Idle,
    /// Reading a head.
    Head,
    /// Reading a body or answering.
    Request,
}

/// What a connection is doing and since when: microseconds, and the phase in the lowest two bits.
///
/// One task writes and reads it; it is atomic only so that the task may move between threads.
#[derive(Debug)]
struct Activity(AtomicU64);

impl Activity {
    /// A new connection owes us a head.
    fn starting(now: Timestamp) -> Self {
        let activity = Self(AtomicU64::new(0));
        activity.note(Phase::Head, now);
        activity
    }

    fn note(&self, phase: Phase, now: Timestamp) {
        let bits = match phase {
            Phase::Idle => 0,
            Phase::Head => 1,
            Phase::Request => 2,
        };
        self.0.store((now.as_micros() << 2) | bits, Ordering::Relaxed);
    }

    fn phase(&self) -> Phase {
        match self.0.load(Ordering::Relaxed) & 3 {
            0 => Phase::Idle,
            1 => Phase::Head,
            _ => Phase::Request,
        }
    }

    fn deadline(&self, patience: Patience) -> Timestamp {
        let since = Timestamp::from_micros(self.0.load(Ordering::Relaxed) >> 2);
        since
            + match self.phase() {
                Phase::Idle => patience.idle,
                Phase::Head => patience.head,
                Phase::Request => patience.request,
            }
    }

    /// Returns when the connection has been in one phase for too long, up to `patience.head` late.
    async fn overdue(&self, patience: Patience, clock: &Clock) {
        loop {
            let now = clock.now();
            let deadline = self.deadline(patience);
            if deadline <= now {
                return;
            }
            // An idle connection may start a head, which is due sooner.
            clock.sleep_until(deadline.min(now + patience.head)).await;
        }
    }
}

/// A stream that notes when a request begins.
struct Watched {
    stream: TcpStream,
    activity: Arc<Activity>,
    clock: Clock,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before && self.activity.phase() == Phase::Idle {
            self.activity.note(Phase::Head, self.clock.now());
        }
        read
    }
}

impl AsyncWrite for Watched {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
