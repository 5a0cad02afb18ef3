//! Accepts HTTP/1 connections, not too many, and keeps none that does nothing.
//!
//! hyper has a timeout of its own for request heads, but arms a timer for each request. Here a
//! connection only notes what it does, and the loop that accepts looks at all notes now and then.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tidegate::{Clock, Span, Timestamp};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::AbortHandle;

/// Longest request head in bytes.
const MAX_HEAD: usize = 16 * 1024;
/// Largest read buffer of one connection in bytes.
const MAX_BUFFER: usize = 64 * 1024;
/// How long to wait when the system has no room for another connection.
const PAUSE: Span = Span::from_millis(50);
/// How often connections are looked at: each has up to two of these more than its patience says.
const LOOK: Span = Span::SECOND;

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
    let mut watcher = Watcher::starting(patience, clock.now());
    loop {
        tokio::select! {
            () = told(&mut closing) => break,
            () = clock.sleep_until(watcher.next) => watcher.look(clock.now()),
            accepted = accept(&listener, &places) => match accepted {
                Ok((stream, place)) => {
                    let activity = Arc::new(Activity::starting(Arc::clone(&watcher.ticks)));
                    let serving = connection(stream, Arc::clone(&handler), Arc::clone(&activity));
                    let task = tokio::spawn(async move {
                        serving.await;
                        drop(place);
                    });
                    watcher.held.push(Held { activity, task: task.abort_handle() });
                }
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    if !is_the_peers(&error) {
                        clock.sleep_until(clock.now() + PAUSE).await;
                    }
                }
            },
        }
    }
    drop(listener);
    watcher.close();
    let end = clock.now() + patience.drain;
    let all = u32::try_from(patience.connections).unwrap_or(u32::MAX);
    loop {
        tokio::select! {
            // Holding every place means that nobody else does.
            _ = places.acquire_many(all) => return 0,
            () = clock.sleep_until(watcher.next.min(end)) => watcher.look(clock.now()),
        }
        if clock.now() >= end {
            watcher.held.iter().for_each(|held| held.task.abort());
            return watcher.held.len();
        }
    }
}

/// The next connection, once there is a place for it. Safe to drop at any point.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> io::Result<(TcpStream, OwnedSemaphorePermit)> {
    let place = Arc::clone(places).acquire_owned().await.map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, place))
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

async fn connection<H: Handler>(stream: TcpStream, handler: Arc<H>, activity: Arc<Activity>) {
    // A reply is one small write: waiting to fill a packet would only delay it.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "connection without TCP_NODELAY");
    }
    let io = Watched { stream, activity: Arc::clone(&activity) };
    let service = service_fn(|request| {
        activity.note(Phase::Request);
        let reply = handler.handle(request);
        let activity = &activity;
        async move {
            let reply = reply.await;
            activity.note(Phase::Idle);
            Ok::<_, Infallible>(reply)
        }
    });
    let mut http = http1::Builder::new();
    http.max_header_size(MAX_HEAD).max_buf_size(MAX_BUFFER);
    let mut connection = pin!(http.serve_connection(TokioIo::new(io), service));
    let (mut waiting, mut closing) = (false, false);
    let ended = poll_fn(|context| {
        // This is all that the task polls, so its waker stays the same.
        if !std::mem::replace(&mut waiting, true) {
            activity.wait(context.waker());
        }
        if !closing && activity.closing.load(Ordering::Acquire) {
            closing = true;
            connection.as_mut().graceful_shutdown();
        }
        connection.as_mut().poll(context)
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "connection failed");
    }
}

/// Ends connections that have been in one phase for too long.
struct Watcher {
    patience: Patience,
    started: Timestamp,
    /// When to look again.
    next: Timestamp,
    /// How many times [`LOOK`] has passed since the start, as of the last look.
    ticks: Arc<AtomicU64>,
    held: Vec<Held>,
}

struct Held {
    activity: Arc<Activity>,
    task: AbortHandle,
}

impl Watcher {
    fn starting(patience: Patience, now: Timestamp) -> Self {
        Self { patience, started: now, next: now + LOOK, ticks: Arc::default(), held: Vec::new() }
    }

    fn look(&mut self, now: Timestamp) {
        let ticks = now.since(self.started).as_micros() / LOOK.as_micros();
        self.ticks.store(ticks, Ordering::Relaxed);
        self.next = now + LOOK;
        self.held.retain(|held| {
            let (phase, since) = held.activity.noted();
            // The note may be from the very end of its tick.
            let age = LOOK.checked_mul(ticks.saturating_sub(since + 1)).unwrap_or(Span::ZERO);
            let overdue = age >= self.patience.of(phase);
            if overdue && !held.task.is_finished() {
                tracing::debug!(?phase, "connection cut off, it took too long");
                held.task.abort();
            }
            !overdue && !held.task.is_finished()
        });
    }

    /// Tells every connection to end after the request that is under way.
    fn close(&mut self) {
        self.held.retain(|held| !held.task.is_finished());
        self.held.iter().for_each(|held| held.activity.close());
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

impl Patience {
    fn of(&self, phase: Phase) -> Span {
        match phase {
            Phase::Idle => self.idle,
            Phase::Head => self.head,
            Phase::Request => self.request,
        }
    }
}

/// What a connection is doing and since when, and whether it is to end.
#[derive(Debug)]
struct Activity {
    /// The tick of the last change, and the phase in the lowest two bits.
    noted: AtomicU64,
    ticks: Arc<AtomicU64>,
    closing: AtomicBool,
    waker: Mutex<Option<Waker>>,
}

impl Activity {
    /// A new connection owes us a head.
    fn starting(ticks: Arc<AtomicU64>) -> Self {
        let activity = Self {
            noted: AtomicU64::new(0),
            ticks,
            closing: AtomicBool::new(false),
            waker: Mutex::new(None),
        };
        activity.note(Phase::Head);
        activity
    }

    fn note(&self, phase: Phase) {
        let bits = match phase {
            Phase::Idle => 0,
            Phase::Head => 1,
            Phase::Request => 2,
        };
        let tick = self.ticks.load(Ordering::Relaxed);
        self.noted.store((tick << 2) | bits, Ordering::Relaxed);
    }

    /// The phase, and the tick it began in.
    fn noted(&self) -> (Phase, u64) {
        let noted = self.noted.load(Ordering::Relaxed);
        let phase = match noted & 3 {
            0 => Phase::Idle,
            1 => Phase::Head,
            _ => Phase::Request,
        };
        (phase, noted >> 2)
    }

    /// Remembers whom to wake. Whoever closes sees the waker, or the waiter sees that it is closed:
    /// the lock puts the two in order.
    fn wait(&self, waker: &Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker.clone());
    }

    fn close(&self) {
        self.closing.store(true, Ordering::Release);
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

/// A stream that notes when a request begins.
struct Watched {
    stream: TcpStream,
    activity: Arc<Activity>,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, buffer);
        if buffer.filled().len() > before && self.activity.noted().0 == Phase::Idle {
            self.activity.note(Phase::Head);
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

        /// Lets so much time pass that whoever has used up this span is noticed.
        fn pass(&self, span: Span) {
            self.time.advance(span);
            self.time.advance(LOOK);
            self.time.advance(LOOK);
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
        door.pass(PATIENCE.head);
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
        door.pass(PATIENCE.head);
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
        door.pass(PATIENCE.request);
        closed(slow).await;
    }

    #[tokio::test]
    async fn an_idle_connection_is_kept_for_a_while() {
        let door = Door::open(PATIENCE).await;
        let mut idle = door.connect().await;
        answered(&mut idle).await;
        door.pass(PATIENCE.request);
        answered(&mut idle).await;
        door.pass(PATIENCE.idle);
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
