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
            () = told(&mut closing) => break,
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
            () = told(&mut closing) => break,
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

/// Returns once the door is to be closed, or nobody is left to say so.
async fn told(closing: &mut watch::Receiver<bool>) {
    let _ = closing.wait_for(|closing| *closing).await;
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
            () = told(&mut closing), if !draining => {
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

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt, Collected};
    use tidegate::ManualClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::task::JoinHandle;

    use super::*;

    const PATIENCE: Patience = Patience {
        connections: 8,
        head: Span::from_secs(10),
        request: Span::from_secs(30),
        idle: Span::from_secs(90),
        drain: Span::from_secs(25),
    };

    /// Sends the body back.
    struct Echo;

    impl Handler for Echo {
        async fn handle(&self, request: hyper::Request<Incoming>) -> hyper::Response<Full<Bytes>> {
            let body = request.into_body().collect().await.map(Collected::to_bytes);
            hyper::Response::new(Full::new(body.unwrap_or_default()))
        }
    }

    struct Door {
        address: std::net::SocketAddr,
        time: ManualClock,
        close: watch::Sender<bool>,
        serving: JoinHandle<usize>,
    }

    impl Door {
        async fn open(patience: Patience) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let time = ManualClock::default();
            let (close, closing) = watch::channel(false);
            let serving = serve(listener, Arc::new(Echo), patience, time.clock(), closing);
            Self { address, time, close, serving: tokio::spawn(serving) }
        }

        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }
    }

    const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\nhello";

    async fn answered(stream: &mut TcpStream) {
        stream.write_all(REQUEST).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\nhello") {
            assert_ne!(stream.read_buf(&mut answer).await.unwrap(), 0, "closed");
        }
    }

    async fn closed(mut stream: TcpStream) {
        let mut rest = Vec::new();
        // A reset is an end too.
        let _ = stream.read_to_end(&mut rest).await;
        assert_eq!(rest, b"");
    }

    #[tokio::test]
    async fn a_slow_head_is_cut_off_without_hurting_others() {
        let door = Door::open(PATIENCE).await;
        let silent = door.connect().await;
        let mut slow = door.connect().await;
        slow.write_all(b"POST / HTTP/1.1\r\nhost").await.unwrap();
        // Accepted last, so once this one is answered all of them are being watched.
        let mut good = door.connect().await;
        answered(&mut good).await;
        door.time.advance(PATIENCE.head);
        closed(silent).await;
        closed(slow).await;
        answered(&mut good).await;
        answered(&mut door.connect().await).await;
    }

    #[tokio::test]
    async fn a_head_that_starts_on_an_idle_connection_is_due_as_soon() {
        let door = Door::open(PATIENCE).await;
        let mut slow = door.connect().await;
        answered(&mut slow).await;
        slow.write_all(b"POST / HT").await.unwrap();
        // Whatever was sent before these two were answered has been read.
        let mut good = door.connect().await;
        answered(&mut good).await;
        answered(&mut good).await;
        door.time.advance(PATIENCE.head);
        answered(&mut good).await;
        door.time.advance(PATIENCE.head);
        closed(slow).await;
    }

    #[tokio::test]
    async fn a_body_that_never_comes_is_cut_off() {
        let door = Door::open(PATIENCE).await;
        let mut slow = door.connect().await;
        let head =
            b"POST / HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
        slow.write_all(head).await.unwrap();
        // The handler asks for the body once it runs.
        let mut asked = [0; 25];
        slow.read_exact(&mut asked).await.unwrap();
        assert_eq!(&asked, b"HTTP/1.1 100 Continue\r\n\r\n");
        door.time.advance(PATIENCE.request);
        closed(slow).await;
    }

    #[tokio::test]
    async fn an_idle_connection_is_kept_for_a_while() {
        let door = Door::open(PATIENCE).await;
        let mut idle = door.connect().await;
        answered(&mut idle).await;
        door.time.advance(PATIENCE.request);
        answered(&mut idle).await;
        door.time.advance(PATIENCE.idle);
        closed(idle).await;
    }

    #[tokio::test]
    async fn more_connections_than_places_wait_for_one() {
        let door = Door::open(Patience { connections: 1, ..PATIENCE }).await;
        let mut first = door.connect().await;
        answered(&mut first).await;
        let mut second = door.connect().await;
        second.write_all(REQUEST).await.unwrap();
        answered(&mut first).await;
        let mut byte = [0];
        let nothing = second.try_read(&mut byte).map_err(|error| error.kind());
        assert_eq!(nothing, Err(io::ErrorKind::WouldBlock));
        drop(first);
        second.read_exact(&mut byte).await.unwrap();
    }

    #[tokio::test]
    async fn closing_ends_idle_connections_and_cuts_off_what_takes_too_long() {
        let door = Door::open(Patience { request: Span::HOUR, ..PATIENCE }).await;
        let mut idle = door.connect().await;
        answered(&mut idle).await;
        let mut stuck = door.connect().await;
        let head =
            b"POST / HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
        stuck.write_all(head).await.unwrap();
        stuck.read_exact(&mut [0; 25]).await.unwrap();
        door.close.send(true).unwrap();
        closed(idle).await;
        door.time.advance(PATIENCE.drain);
        assert_eq!(door.serving.await.unwrap(), 1);
    }
}
