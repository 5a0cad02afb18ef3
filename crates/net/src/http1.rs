//! HTTP/1 on a listener: connections, and request bodies up to a length.
//!
//! hyper has a timeout of its own for request heads, but arms a timer for each request. Here a
//! connection records its phase, and the listener sweeps all of them.
//!
//! The most frequent request of a listener is served without hyper. The first other request of a connection, and all that
//! follow it, are served by hyper.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::mem::MaybeUninit;
use std::ops::Range;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::{Buf, Bytes, BytesMut};
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use httparse::{Header, Request, Status};
use hyper::StatusCode;
use hyper::body::{Body as _, Incoming};
use hyper::header::{CONTENT_ENCODING, X_CONTENT_TYPE_OPTIONS};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::http::response::{self, ResponseBuffer};
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

/// Longest body of a common request in bytes.
const MAX_COMMON_BODY_BYTES: usize = 4 * 1024;
/// Longest head of a common request in bytes.
const MAX_COMMON_HEAD_BYTES: usize = 4 * 1024;
/// Largest number of headers of a common request. Clients of an API send about ten.
const MAX_HEADERS: usize = 32;

/// Free space of that buffer before each read, so that one read gets a whole common request.
const READ_BYTES: usize = 1024;
/// Largest read buffer of common requests in bytes: a head and a body of the longest lengths, or many pipelined requests.
const MAX_COMMON_BUFFER_BYTES: usize = 2 * MAX_COMMON_BODY_BYTES;
/// Responses to pipelined requests are sent when they have this many bytes.
const MAX_UNSENT_BYTES: usize = 16 * 1024;

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
            let rest = serve_common(&self.0, &mut stream, &peer, &activity, &mut close).await;
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

// Common requests. hyper serves every other request, so a request is common only if hyper would read the same method, path
// and body from the same bytes, and if no header changes how it has to be answered.

/// The result of a parse.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ParsedRequest {
    /// A common request. The range is its body, and the next request begins at its end.
    Complete(Range<usize>),
    /// The head of a common request is complete, and its body is not.
    Incomplete,
    /// Anything else, also a part of a head: a client could make repeated parses expensive.
    Unusual,
}

/// Parses the request at the start of a buffer. It is common if it is a POST to `path`.
fn parse_common(buffer: &[u8], path: &str) -> ParsedRequest {
    let mut headers = [const { MaybeUninit::<Header<'_>>::uninit() }; MAX_HEADERS];
    let mut request = Request::new(&mut []);
    let parser = httparse::ParserConfig::default();
    let parsed = parser.parse_request_with_uninit_headers(&mut request, buffer, &mut headers);
    let Ok(Status::Complete(head)) = parsed else { return ParsedRequest::Unusual };
    // A minor version of 1 is HTTP/1.1.
    let is_common = request.method == Some("POST")
        && request.path == Some(path)
        && request.version == Some(1)
        && head <= MAX_COMMON_HEAD_BYTES;
    let Some(length) = is_common.then(|| body_length(request.headers)).flatten() else {
        return ParsedRequest::Unusual;
    };
    match head + length {
        end if end <= buffer.len() => ParsedRequest::Complete(head..end),
        _ => ParsedRequest::Incomplete,
    }
}

/// Returns the length of the body; `None` if a header makes the request unusual.
fn body_length(headers: &[Header<'_>]) -> Option<usize> {
    let mut length = None;
    for header in headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            if length.is_some() {
                return None;
            }
            length = Some(parse_length(header.value)?);
        } else if changes_the_answer(header) {
            return None;
        }
    }
    length
}

/// Returns the value of `Content-Length`, digits only, up to [`MAX_COMMON_BODY_BYTES`].
fn parse_length(value: &[u8]) -> Option<usize> {
    if value.is_empty() || value.len() > 4 {
        return None;
    }
    let mut length = 0;
    for byte in value {
        length = length * 10 + usize::from(byte.is_ascii_digit().then(|| byte - b'0')?);
    }
    (length <= MAX_COMMON_BODY_BYTES).then_some(length)
}

/// Returns whether hyper or a handler reads this header: it frames the body, ends or upgrades the connection, or was sent by a
/// web page.
fn changes_the_answer(header: &Header<'_>) -> bool {
    const NAMES: [&str; 7] = [
        "connection",
        "content-encoding",
        "expect",
        "http2-settings",
        "origin",
        "transfer-encoding",
        "upgrade",
    ];
    let is_keep_alive = || {
        header.name.eq_ignore_ascii_case("connection")
            && header.value.eq_ignore_ascii_case(b"keep-alive")
    };
    NAMES.iter().any(|name| header.name.eq_ignore_ascii_case(name)) && !is_keep_alive()
}

/// Serves common requests. Returns the bytes that were read beyond them when another request arrives or the connection has to
/// close, and hyper continues with them. `None` once the connection has ended.
async fn serve_common<H: HttpHandler>(
    handler: &H,
    stream: &mut Stream,
    peer: &Peer,
    activity: &Activity,
    close: &mut CloseSignal,
) -> Option<Bytes> {
    let mut buffer = BytesMut::new();
    let mut responses = ResponseBuffer::default();
    loop {
        match parse_common(&buffer, H::COMMON_PATH) {
            // hyper announces the end of the connection in its next response.
            _ if activity.is_closing() => break,
            ParsedRequest::Complete(body) => {
                activity.set_phase(Phase::Request);
                let end = body.end;
                handler.handle_common(&buffer[body], peer, &mut responses).await;
                buffer.advance(end);
                if buffer.is_empty() || responses.bytes().len() >= MAX_UNSENT_BYTES {
                    send(stream, &mut responses).await.ok()?;
                }
                if !buffer.is_empty() {
                    continue;
                }
                activity.set_phase(Phase::Idle);
            }
            ParsedRequest::Incomplete if buffer.len() < MAX_COMMON_BUFFER_BYTES => {
                send(stream, &mut responses).await.ok()?;
                activity.set_phase(Phase::Request);
            }
            ParsedRequest::Unusual if buffer.is_empty() => {}
            ParsedRequest::Incomplete | ParsedRequest::Unusual => break,
        }
        match read(stream, &mut buffer, activity, close).await {
            Ok(0) if buffer.is_empty() && !activity.is_closing() => return None,
            // hyper answers a part of a request, and closes.
            Ok(0) => break,
            Ok(_) if activity.phase() == Phase::Idle => activity.set_phase(Phase::Head),
            Ok(_) => {}
            Err(_) => return None,
        }
    }
    send(stream, &mut responses).await.ok()?;
    Some(buffer.freeze())
}

async fn send(stream: &mut Stream, responses: &mut ResponseBuffer) -> io::Result<()> {
    if !responses.bytes().is_empty() {
        stream.write_all(responses.bytes()).await?;
        stream.flush().await?;
        responses.clear();
    }
    Ok(())
}

/// Reads more bytes. Returns 0 at the end of the stream, and when the connection has to close.
async fn read(
    stream: &mut Stream,
    buffer: &mut BytesMut,
    activity: &Activity,
    close: &mut CloseSignal,
) -> io::Result<usize> {
    buffer.reserve(READ_BYTES);
    let mut reading = pin!(stream.read_buf(buffer));
    poll_fn(|context| match close.poll(activity, context) {
        Poll::Ready(()) => Poll::Ready(Ok(0)),
        Poll::Pending => reading.as_mut().poll(context),
    })
    .await
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

    const PATH: &str = "/v1/check";

    fn request(headers: &str, body: &str) -> Vec<u8> {
        let length = body.len();
        format!(
            "POST /v1/check HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n{headers}\r\n{body}"
        )
        .into_bytes()
    }

    #[test]
    fn body_and_end_of_a_common_request_are_found() {
        for headers in ["", "Connection: Keep-Alive\r\n", "accept: */*\r\nx-Trace: 1\r\n"] {
            let mut bytes = request(headers, "{\"rule\":1}");
            let end = bytes.len();
            bytes.extend(b"POST");
            assert_eq!(
                parse_common(&bytes, PATH),
                ParsedRequest::Complete(end - 10..end),
                "{headers}"
            );
            assert_eq!(
                parse_common(&bytes[..end - 1], PATH),
                ParsedRequest::Incomplete,
                "{headers}"
            );
            assert_eq!(parse_common(&bytes[..end - 11], PATH), ParsedRequest::Unusual, "{headers}");
        }
    }

    #[test]
    fn header_that_changes_the_answer_makes_a_request_unusual() {
        for headers in [
            "connection: close\r\n",
            "Connection: keep-alive, upgrade\r\n",
            "content-length: 2\r\n",
            "Transfer-Encoding: chunked\r\n",
            "EXPECT: 100-continue\r\n",
            "origin: http://a\r\n",
            "content-encoding: gzip\r\n",
            "upgrade: h2c\r\n",
        ] {
            assert_eq!(
                parse_common(&request(headers, "{}"), PATH),
                ParsedRequest::Unusual,
                "{headers}"
            );
        }
    }

    #[test]
    fn other_request_lines_and_lengths_are_unusual() {
        for line in [
            "GET /v1/check HTTP/1.1",
            "POST /v1/check HTTP/1.0",
            "POST /v1/check?a HTTP/1.1",
            "POST //v1/check HTTP/1.1",
            "POST http://a/v1/check HTTP/1.1",
        ] {
            let bytes = format!("{line}\r\ncontent-length: 2\r\n\r\n{{}}");
            assert_eq!(parse_common(bytes.as_bytes(), PATH), ParsedRequest::Unusual, "{line}");
        }
        for length in ["", "+2", "4097", "00002", "2 2", "2,2", "0x2", "-1"] {
            let bytes = format!("POST /v1/check HTTP/1.1\r\ncontent-length: {length}\r\n\r\n{{}}");
            assert_eq!(parse_common(bytes.as_bytes(), PATH), ParsedRequest::Unusual, "{length}");
        }
        assert_eq!(parse_common(b"POST /v1/check HTTP/1.1\r\n\r\n", PATH), ParsedRequest::Unusual);
        assert_eq!(parse_common(b"", PATH), ParsedRequest::Unusual);
    }
}
