//! Serves the calls of one HTTP/2 connection.

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

use crate::grpc::body::GrpcBody;
use crate::grpc::inline::InlineExecutor;
use crate::grpc::message::MAX_MESSAGE_BYTES;

/// Largest number of concurrent calls on one connection.
const MAX_CONCURRENT_CALLS: u32 = 1_024;
/// Longest header list of one call, in bytes.
const MAX_HEADER_LIST_BYTES: u32 = 16 * 1024;
/// Flow-control window of one call, in bytes. It has room for the longest message.
const CALL_WINDOW_BYTES: u32 = MAX_MESSAGE_BYTES as u32 + 1024;
/// Flow-control window of one connection, in bytes.
const CONNECTION_WINDOW_BYTES: u32 = 2 * CALL_WINDOW_BYTES;
/// Send buffer of one call for a peer that does not read, in bytes.
const MAX_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Interval of HTTP/2 pings to a silent peer.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Longest time until the peer answers a ping.
const PING_TIMEOUT: Duration = Duration::from_secs(20);
/// Length of the HTTP/2 client preface, in bytes.
const PREFACE_BYTES: usize = 24;

/// Serves a connection until the peer closes it, or until the listener closes and no call is in flight.
pub(crate) async fn serve<F>(
    stream: Stream,
    activity: Arc<Activity>,
    handle: impl Fn(Request<Incoming>) -> F,
) where
    F: Future<Output = Response<GrpcBody>> + Send + 'static,
{
    let calls =
        Arc::new(CallCounter { in_flight: AtomicUsize::new(0), activity: Arc::clone(&activity) });
    let service = service_fn(|request| {
        let in_flight = InFlightCall::start(&calls);
        let reply = handle(request);
        async move {
            let reply = reply.await;
            drop(in_flight);
            Ok::<_, Infallible>(reply)
        }
    });
    let executor = InlineExecutor::default();
    let mut http = http2::Builder::new(executor.clone());
    http.timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(MAX_CONCURRENT_CALLS)
        .max_header_list_size(MAX_HEADER_LIST_BYTES)
        .initial_stream_window_size(CALL_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
        .keep_alive_interval(PING_INTERVAL)
        .keep_alive_timeout(PING_TIMEOUT);
    let (mut preface_read, preface_activity) = (0, Arc::clone(&activity));
    let io = ObservedStream::new(stream, move |read| {
        // The head timeout applies until the client preface is complete, then the idle timeout.
        if preface_read < PREFACE_BYTES {
            preface_read += read;
            if preface_read >= PREFACE_BYTES {
                preface_activity.set_phase(Phase::Idle);
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
            // Calls that ran here have replies, which the next poll writes.
            if !executor.run(&mut batch) {
                return Poll::Pending;
            }
        }
    });
    if let Err(error) = ended.await {
        tracing::debug!(%error, "gRPC connection failed");
    }
}

/// The number of calls in flight on a connection.
struct CallCounter {
    in_flight: AtomicUsize,
    activity: Arc<Activity>,
}

/// A call in flight. Dropping it ends the call.
struct InFlightCall(Arc<CallCounter>);

impl InFlightCall {
    fn start(calls: &Arc<CallCounter>) -> Self {
        calls.in_flight.fetch_add(1, Ordering::Relaxed);
        calls.activity.set_phase(Phase::Request);
        Self(Arc::clone(calls))
    }
}

impl Drop for InFlightCall {
    /// Restarts the timeout of the connection: one that always has a call in flight is not stuck.
    fn drop(&mut self) {
        let last = self.0.in_flight.fetch_sub(1, Ordering::Relaxed) == 1;
        self.0.activity.set_phase(if last { Phase::Idle } else { Phase::Request });
    }
}
