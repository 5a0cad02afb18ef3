//! One HTTP/2 connection and the calls on it.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::Poll;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tidegate_net::listener::{Activity, ObservedStream, Phase, Stream};

use crate::grpc::body::Body;
use crate::grpc::inline::Inline;
use crate::grpc::message::MAX_MESSAGE;

/// Most calls under way on one connection.
const MAX_CALLS: u32 = 1_024;
/// Longest list of headers of one call in bytes.
const MAX_HEAD: u32 = 16 * 1024;
/// What a peer may send of one call before we have read it, in bytes: a message of any length.
const CALL_WINDOW: u32 = MAX_MESSAGE as u32 + 1024;
/// The same for all calls of a connection.
const CONNECTION_WINDOW: u32 = 2 * CALL_WINDOW;
/// How much of the replies to one call is kept for a peer that does not read, in bytes.
const MAX_UNREAD: usize = 64 * 1024;
/// How often a silent peer is asked whether it is still there, and how long it may take to answer.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(20);
/// What every HTTP/2 client says first, in bytes.
const PREFACE: usize = 24;

/// Answers the calls on a connection until it ends, or until it is to be closed and none is left.
pub(super) async fn serve<F>(
    stream: Stream,
    activity: Arc<Activity>,
    answer: impl Fn(Request<Incoming>) -> F,
) where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let calls = Arc::new(Calls { under_way: AtomicUsize::new(0), activity: Arc::clone(&activity) });
    let service = service_fn(|request| {
        let call = Call::begin(&calls);
        let answering = answer(request);
        async move {
            let reply = answering.await;
            drop(call);
            Ok::<_, Infallible>(reply)
        }
    });
    let inline = Inline::default();
    let mut http = http2::Builder::new(inline.clone());
    http.timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(MAX_CALLS)
        .max_header_list_size(MAX_HEAD)
        .initial_stream_window_size(CALL_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(MAX_UNREAD)
        .keep_alive_interval(PING)
        .keep_alive_timeout(PONG);
    let (mut greeting, greeted) = (0, Arc::clone(&activity));
    let io = ObservedStream::new(stream, move |read| {
        // Once a peer has said that it speaks HTTP/2 it may be silent.
        if greeting < PREFACE {
            greeting += read;
            if greeting >= PREFACE {
                greeted.set_phase(Phase::Idle);
            }
        }
    });
    let mut connection = pin!(http.serve_connection(TokioIo::new(io), service));
    let (mut closing, mut batch) = (false, Vec::new());
    let ended = poll_fn(|context| {
        if !closing && activity.poll_closed(context).is_ready() {
            closing = true;
            connection.as_mut().graceful_shutdown();
        }
        loop {
            if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                return Poll::Ready(ended);
            }
            // What was answered still has to be written.
            if !inline.run(&mut batch) {
                return Poll::Pending;
            }
        }
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "connection failed");
    }
}

/// How many calls of a connection are under way.
struct Calls {
    under_way: AtomicUsize,
    activity: Arc<Activity>,
}

/// A call that is under way.
struct Call(Arc<Calls>);

impl Call {
    fn begin(calls: &Arc<Calls>) -> Self {
        calls.under_way.fetch_add(1, Ordering::Relaxed);
        calls.activity.set_phase(Phase::Request);
        Self(Arc::clone(calls))
    }
}

impl Drop for Call {
    /// Every end is a sign of life: a connection that always has a call under way is not stuck.
    fn drop(&mut self) {
        let last = self.0.under_way.fetch_sub(1, Ordering::Relaxed) == 1;
        self.0.activity.set_phase(if last { Phase::Idle } else { Phase::Request });
    }
}
