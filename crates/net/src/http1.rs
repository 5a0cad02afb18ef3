//! HTTP/1 on a listener: connections, and request bodies up to a length.
//!
//! hyper has a timeout of its own for request heads, but arms a timer for each request. Here a
//! connection records its phase, and the listener sweeps all of them.
//!
//! The most frequent request of a listener is served without hyper. The first other request of a connection, and all that
//! follow it, are served by hyper.

mod common_path;
pub mod common_request;

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_ENCODING, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;

use crate::http::response;
use crate::http::response_buffer::ResponseBuffer;
use crate::listener::{
    Activity, ConnectionHandler, ObservedStream, Peer, Phase, Stream, lingering_close,
};

/// Longest request head in bytes. Proxies forward the heads of their clients, NGINX up to 32 KiB.
const MAX_HEAD_BYTES: usize = 48 * 1024;
/// Largest read buffer of one connection in bytes.
const MAX_BUFFER_BYTES: usize = 64 * 1024;

/// Longest body in bytes that is read only to be dropped. A client that is still sending would see a reset connection
/// and not the response.
const MAX_DROPPED_BYTES: u64 = 4 * 1024 * 1024;

/// Responds to the requests of a listener.
pub trait HttpHandler: Send + Sync + 'static {
    /// The path of the most frequent request, a POST with a short body; empty if there is none.
    const COMMON_PATH: &'static str = "";

    /// Responds to a POST to [`COMMON_PATH`](Self::COMMON_PATH) with this body, exactly as [`handle`](Self::handle) does.
    fn handle_common(
        &self,
        body: &[u8],
        peer: &Peer,
        responses: &mut ResponseBuffer,
    ) -> impl Future<Output = ()> + Send {
        let _ = (body, peer, responses);
        std::future::ready(())
    }

    fn handle(
        &self,
        request: hyper::Request<Incoming>,
        peer: &Peer,
    ) -> impl Future<Output = hyper::Response<Full<Bytes>>> + Send;
}

/// HTTP/1 connections. A handler responds to each request.
#[derive(Debug)]
pub struct Http1<H>(pub H);

impl<H: HttpHandler> ConnectionHandler for Http1<H> {
    async fn serve(&self, mut stream: Stream, peer: Peer, activity: Arc<Activity>) {
        let mut close = CloseSignal::default();
        let mut received = Bytes::new();
        if !H::COMMON_PATH.is_empty() {
            let rest = common_path::serve(&self.0, &mut stream, &peer, &activity, &mut close).await;
            let Some(rest) = rest else { return };
            received = rest;
        }
        let io = ObservedStream::new(stream, |read| {
            if read > 0 && activity.phase() == Phase::Idle {
                activity.set_phase(Phase::Head);
            }
        })
        .with_received(received);
        let service = service_fn(|request| {
            activity.set_phase(Phase::Request);
            let reply = self.0.handle(request, &peer);
            let activity = &activity;
            async move {
                let mut reply = reply.await;
                reply.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, response::NOSNIFF);
                activity.set_phase(Phase::Idle);
                Ok::<_, Infallible>(reply)
            }
        });
        let mut http = http1::Builder::new();
        // A client that has closed its sending side still gets its response.
        http.max_header_size(MAX_HEAD_BYTES).max_buf_size(MAX_BUFFER_BYTES).half_close(true);
        let mut connection = http.serve_connection(TokioIo::new(io), service);
        let mut closing = false;
        let ended = poll_fn(|context| {
            if close.poll(&activity, context).is_ready() && !closing {
                closing = true;
                Pin::new(&mut connection).graceful_shutdown();
            }
            Pin::new(&mut connection).poll(context)
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "connection failed");
            activity.set_phase(Phase::Head);
            lingering_close(&mut connection.into_parts().io.into_inner().into_inner()).await;
        }
    }
}

/// The wait of a connection's task for the end of the connection.
#[derive(Debug, Default)]
pub(crate) struct CloseSignal {
    is_registered: bool,
}

impl CloseSignal {
    /// Returns ready once the connection has to close. The waker is registered by the first call only: the task polls nothing
    /// else, so its waker stays the same.
    fn poll(&mut self, activity: &Activity, context: &Context<'_>) -> Poll<()> {
        match std::mem::replace(&mut self.is_registered, true) {
            false => activity.poll_closed(context),
            true if activity.is_closing() => Poll::Ready(()),
            true => Poll::Pending,
        }
    }
}

/// Reads the body of a request, of at most `max` bytes.
///
/// # Errors
/// The response to a body that is longer, compressed or incomplete.
pub async fn read_body(
    request: hyper::Request<Incoming>,
    max: usize,
) -> Result<Bytes, hyper::Response<Full<Bytes>>> {
    // Any content type is accepted and parsed as JSON; a compressed body can't be parsed.
    if let Some(encoding) = request.headers().get(CONTENT_ENCODING)
        && encoding != "identity"
    {
        let detail = "content-encoding: found a compressed body, wanted a plain one";
        return Err(response::problem(StatusCode::UNSUPPORTED_MEDIA_TYPE, detail));
    }
    let too_long = |found: String| {
        let detail = format!("body: found {found}, wanted at most {max} bytes");
        response::problem(StatusCode::PAYLOAD_TOO_LARGE, &detail)
    };
    let body = request.into_body();
    if let Some(length) = body.size_hint().exact()
        && length > max as u64
    {
        if length <= MAX_DROPPED_BYTES {
            drop_all(body).await;
        }
        return Err(too_long(format!("{length} bytes")));
    }
    match Limited::new(body, max).collect().await {
        Ok(read) => Ok(read.to_bytes()),
        Err(error) if error.is::<LengthLimitError>() => Err(too_long("more".to_owned())),
        Err(error) => {
            let detail = format!("body: found an end too early ({error}), wanted all of it");
            Err(response::problem(StatusCode::BAD_REQUEST, &detail))
        }
    }
}

/// Reads and drops a body of up to 4 MiB, so that the connection can be reused: unread bytes would close it.
pub async fn drain_body(mut body: Incoming) {
    let mut read = 0;
    while read <= MAX_DROPPED_BYTES
        && let Some(Ok(frame)) = body.frame().await
    {
        read += frame.data_ref().map_or(0, |data| data.len() as u64);
    }
}

/// Reads and drops a whole body.
async fn drop_all(mut body: Incoming) {
    while let Some(Ok(_)) = body.frame().await {}
}

#[cfg(test)]
mod tests {
    use http_body_util::Collected;
    use tidegate_core::{Span, Timestamp};
    use tidegate_limiter::ManualClock;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio::sync::watch;
    use tokio::task::JoinHandle;

    use super::*;
    use crate::listener::{ConnectionLimits, ConnectionTimeouts, Listener, advance_past};

    const TIMEOUTS: ConnectionTimeouts = ConnectionTimeouts {
        head: Span::from_secs(10),
        request: Span::from_secs(30),
        idle: Span::from_secs(90),
        drain: Span::from_secs(25),
        idle_grace: None,
    };

    /// Sends the body back.
    struct Echo;

    impl HttpHandler for Echo {
        const COMMON_PATH: &'static str = "/common";

        async fn handle_common(&self, body: &[u8], _: &Peer, responses: &mut ResponseBuffer) {
            let body = Bytes::copy_from_slice(body);
            responses.push(&mut hyper::Response::new(Full::new(body)), Timestamp::EPOCH);
        }

        async fn handle(
            &self,
            request: hyper::Request<Incoming>,
            _: &Peer,
        ) -> hyper::Response<Full<Bytes>> {
            let body = request.into_body().collect().await.map(Collected::to_bytes);
            hyper::Response::new(Full::new(body.unwrap_or_default()))
        }
    }

    struct TestListener {
        address: std::net::SocketAddr,
        time: ManualClock,
        close: watch::Sender<bool>,
        serving: JoinHandle<usize>,
    }

    impl TestListener {
        async fn open(timeouts: ConnectionTimeouts) -> Self {
            Self::open_with_max(timeouts, 8).await
        }

        async fn open_with_max(timeouts: ConnectionTimeouts, max: usize) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let address = listener.local_addr().unwrap();
            let time = ManualClock::default();
            let (close, closing) = watch::channel(false);
            let clock = time.clock();
            let limits = Arc::new(ConnectionLimits::new("test", max, None));
            let shared = false;
            let listener =
                Listener { listener, tls: None, limits, timeouts, clock, closing, shared };
            let serving = tokio::spawn(listener.serve(Arc::new(Http1(Echo))));
            Self { address, time, close, serving }
        }

        async fn connect(&self) -> TcpStream {
            TcpStream::connect(self.address).await.unwrap()
        }
    }

    const REQUEST: &[u8] = b"POST / HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\nhello";

    /// A request that is answered without hyper.
    const COMMON_REQUEST: &[u8] =
        b"POST /common HTTP/1.1\r\nhost: t\r\ncontent-length: 5\r\n\r\nhello";

    async fn exchange(stream: &mut TcpStream) {
        exchange_request(stream, REQUEST).await;
    }

    async fn exchange_request(stream: &mut TcpStream, request: &[u8]) {
        stream.write_all(request).await.unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\nhello") {
            assert_ne!(stream.read_buf(&mut response).await.unwrap(), 0, "closed");
        }
    }

    async fn assert_closed(mut stream: TcpStream) {
        let mut rest = Vec::new();
        // A reset also ends the connection.
        let _ = stream.read_to_end(&mut rest).await;
        assert_eq!(rest, b"");
    }

    #[tokio::test]
    async fn slow_head_is_aborted_and_other_connections_stay_open() {
        let listener = TestListener::open(TIMEOUTS).await;
        let silent = listener.connect().await;
        let mut slow = listener.connect().await;
        slow.write_all(b"POST / HTTP/1.1\r\nhost").await.unwrap();
        // Accepted last: after its response all three are watched.
        let mut good = listener.connect().await;
        exchange(&mut good).await;
        advance_past(&listener.time, TIMEOUTS.head).await;
        assert_closed(silent).await;
        assert_closed(slow).await;
        exchange(&mut good).await;
        exchange(&mut listener.connect().await).await;
    }

    #[tokio::test]
    async fn head_timeout_applies_to_later_requests_of_a_connection() {
        let listener = TestListener::open(TIMEOUTS).await;
        let mut slow = listener.connect().await;
        exchange(&mut slow).await;
        slow.write_all(b"POST / HT").await.unwrap();
        // After two responses, the server has also read the bytes of the slow connection.
        let mut good = listener.connect().await;
        exchange(&mut good).await;
        exchange(&mut good).await;
        advance_past(&listener.time, TIMEOUTS.head).await;
        assert_closed(slow).await;
    }

    #[tokio::test]
    async fn too_long_head_gets_status_431_and_no_reset() {
        let listener = TestListener::open(TIMEOUTS).await;
        let mut sender = listener.connect().await;
        let part = vec![b'x'; 200 * 1024];
        sender.write_all(b"GET / HTTP/1.1\r\nx: ").await.unwrap();
        sender.write_all(&part).await.unwrap();
        let mut response = String::new();
        while !response.ends_with("\r\n\r\n") {
            let mut byte = [0];
            sender.read_exact(&mut byte).await.unwrap();
            response.push(char::from(byte[0]));
        }
        assert!(response.starts_with("HTTP/1.1 431 "), "{response}");
        // A client that ignores the response can still send.
        for _ in 0..10 {
            sender.write_all(&part).await.unwrap();
        }
        sender.shutdown().await.unwrap();
        assert_eq!(sender.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn connection_without_its_body_is_aborted_after_the_timeout() {
        let listener = TestListener::open(TIMEOUTS).await;
        let mut slow = listener.connect().await;
        let head =
            b"POST / HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
        slow.write_all(head).await.unwrap();
        // hyper sends 100 Continue when the handler reads the body.
        let mut interim = [0; 25];
        slow.read_exact(&mut interim).await.unwrap();
        assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n");
        advance_past(&listener.time, TIMEOUTS.request).await;
        assert_closed(slow).await;
    }

    #[tokio::test]
    async fn idle_connection_stays_open_until_the_idle_timeout() {
        for request in [REQUEST, COMMON_REQUEST] {
            let listener = TestListener::open(TIMEOUTS).await;
            let mut idle = listener.connect().await;
            exchange_request(&mut idle, request).await;
            advance_past(&listener.time, TIMEOUTS.request).await;
            exchange_request(&mut idle, request).await;
            advance_past(&listener.time, TIMEOUTS.idle).await;
            assert_closed(idle).await;
        }
    }

    #[tokio::test]
    async fn common_request_without_its_body_is_aborted_after_the_timeout() {
        let listener = TestListener::open(TIMEOUTS).await;
        let mut slow = listener.connect().await;
        exchange_request(&mut slow, COMMON_REQUEST).await;
        // A whole request and a part of the next one: the response shows that the server has read both.
        let (part, _) = COMMON_REQUEST.split_at(COMMON_REQUEST.len() - 1);
        slow.write_all(&[COMMON_REQUEST, part].concat()).await.unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\nhello") {
            assert_ne!(slow.read_buf(&mut response).await.unwrap(), 0, "closed");
        }
        advance_past(&listener.time, TIMEOUTS.request).await;
        assert_closed(slow).await;
    }

    #[tokio::test]
    async fn common_requests_before_another_one_are_all_answered() {
        let listener = TestListener::open(TIMEOUTS).await;
        let mut client = listener.connect().await;
        let chunked = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n2\r\nhe\r\n0\r\n\r\n";
        let requests = [COMMON_REQUEST, COMMON_REQUEST, chunked, COMMON_REQUEST].concat();
        client.write_all(&requests).await.unwrap();
        client.shutdown().await.unwrap();
        let mut responses = String::new();
        client.read_to_string(&mut responses).await.unwrap();
        assert_eq!(responses.matches("HTTP/1.1 200 OK\r\n").count(), 4, "{responses}");
        assert!(responses.ends_with("\r\n\r\nhello"), "{responses}");
    }

    #[tokio::test]
    async fn connection_beyond_the_maximum_replaces_an_idle_one() {
        let listener = TestListener::open_with_max(TIMEOUTS, 1).await;
        let mut first = listener.connect().await;
        exchange(&mut first).await;
        let mut second = listener.connect().await;
        exchange(&mut second).await;
        assert_closed(first).await;
        // A connection with a request in flight is not replaced.
        let head =
            b"POST / HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
        second.write_all(head).await.unwrap();
        second.read_exact(&mut [0; 25]).await.unwrap();
        assert_closed(listener.connect().await).await;
        second.write_all(b"hello").await.unwrap();
        let mut response = Vec::new();
        while !response.ends_with(b"\r\n\r\nhello") {
            assert_ne!(second.read_buf(&mut response).await.unwrap(), 0, "closed");
        }
    }

    #[tokio::test]
    async fn closing_ends_idle_connections_and_aborts_requests_after_the_drain_timeout() {
        let listener =
            TestListener::open(ConnectionTimeouts { request: Span::HOUR, ..TIMEOUTS }).await;
        let mut idle_common = listener.connect().await;
        exchange_request(&mut idle_common, COMMON_REQUEST).await;
        let mut idle = listener.connect().await;
        exchange(&mut idle).await;
        let mut stuck = listener.connect().await;
        let head =
            b"POST / HTTP/1.1\r\nhost: t\r\nexpect: 100-continue\r\ncontent-length: 5\r\n\r\n";
        stuck.write_all(head).await.unwrap();
        stuck.read_exact(&mut [0; 25]).await.unwrap();
        listener.close.send(true).unwrap();
        assert_closed(idle).await;
        assert_closed(idle_common).await;
        listener.time.advance(TIMEOUTS.drain);
        assert_eq!(listener.serving.await.unwrap(), 1);
    }
}
