//! Sends requests to upstream servers, and retries those that are safe to repeat.

use std::sync::Arc;

use futures_util::future::Either;
use hyper::body::Body;
use hyper::header::{HeaderValue, TRANSFER_ENCODING};
use hyper::http::request::Parts;
use hyper::{Request, Response};
use smallvec::SmallVec;
use tidegate_core::Span;
use tidegate_limiter::Clock;
use tidegate_limiter::tower::grpc;

use crate::config::ProxyTimeouts;
use crate::direct_conn::{DirectBody, DirectConn, DirectOutcome};
use crate::exchange::{self, Exchange, ExchangeParties, InFlightPlaces, RunningExchange};
use crate::pool::{ConnectError, ConnectionPool, PooledConn, StreamSlot, UpstreamConn};
use crate::request_body::{RequestBody, UploadProgress};
use crate::response_body::UpstreamBody;
use crate::upstream::{ServerInFlight, UpstreamServer};
use crate::{head, http1_encoder};

/// Most attempts to send one request, each on another connection.
const MAX_ATTEMPTS: usize = 8;

const CHUNKED: HeaderValue = HeaderValue::from_static("chunked");

/// Sends requests to upstreams.
#[derive(Debug)]
pub(crate) struct RequestForwarder {
    pub(crate) pool: Arc<ConnectionPool>,
    pub(crate) clock: Clock,
    pub(crate) timeouts: ProxyTimeouts,
}

/// The response of an upstream, with the resources that its body needs.
#[derive(Debug)]
pub(crate) struct UpstreamResponse {
    pub(crate) response: Response<UpstreamBody>,
    /// The connection of hyper, if it is HTTP/1 and can carry another request.
    pub(crate) pooled: Option<PooledConn>,
    pub(crate) in_flight: UpstreamInFlight,
}

/// The places of a request until the response has ended: in limits in flight, at its server and on its connection.
#[derive(Debug)]
pub(crate) struct UpstreamInFlight {
    _slot: Option<StreamSlot>,
    _server: ServerInFlight,
    _places: InFlightPlaces,
}

/// The reason why a request got no response from the upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamError {
    /// No server accepted a connection.
    Unreachable,
    /// No server accepted a connection in time.
    ConnectTimeout,
    /// This process has its maximum of connections to upstreams.
    NoSocket,
    /// The server closed the connection before it responded.
    ConnectionClosed,
    /// The server did not respond in time.
    ResponseTimeout,
    /// The client's body ended early or is framed wrongly.
    BadBody,
    /// The client sent its body too slowly.
    SlowBody,
}

/// The result of one attempt to send a request.
enum Attempt {
    Responded(Response<UpstreamBody>),
    /// Nothing of the request was written, so it can be sent again.
    NotSent(Request<RequestBody>),
    /// The connection closed before a response. The server may have processed the request, which is returned if it can be
    /// sent again.
    ConnectionLost(Option<Request<RequestBody>>),
    /// The body of the client failed, and with it the attempt. The server may process what it has received.
    BodyFailed(UpstreamError),
    /// The server did not respond in time.
    TimedOut,
}

impl RequestForwarder {
    /// Sends a request to a server of the upstream, and to another one if that fails.
    ///
    /// A request that a server may have processed is sent again at most once, and only if it is idempotent, has no body
    /// and was sent on a reused connection. If this future is dropped after the request was sent, `places` stay taken
    /// until the attempt has ended.
    ///
    /// # Errors
    /// No server responded; the error is that of the last attempt.
    pub(crate) async fn send(
        &self,
        mut request: Request<RequestBody>,
        mut places: InFlightPlaces,
        parties: ExchangeParties<'_>,
    ) -> Result<UpstreamResponse, UpstreamError> {
        let upstream = parties.upstream;
        let upload = request.body().progress();
        let mut unreachable: SmallVec<[usize; 4]> = SmallVec::new();
        let mut may_repeat = true;
        let mut last_error = UpstreamError::Unreachable;
        for _ in 0..MAX_ATTEMPTS {
            let Some(server) = upstream.pick_server(|| self.clock.now(), &unreachable) else {
                break;
            };
            let (clock, timeout) = (&self.clock, self.timeouts.connect);
            let connected = self.pool.connection(server, parties.is_direct, clock, timeout).await;
            let conn = match connected {
                Ok(conn) => conn,
                Err(ConnectError::Full) => return Err(UpstreamError::NoSocket),
                Err(error) => {
                    last_error = self.on_connect_error(server, &error);
                    unreachable.push(server.id);
                    continue;
                }
            };
            let server_in_flight = server.start_request();
            let (mut head, body) = request.into_parts();
            // A server may close an idle connection at the moment when the request is sent on it.
            let reused = matches!(
                conn,
                UpstreamConn::Direct { reused: true, .. }
                    | UpstreamConn::Http1 { reused: true, .. }
                    | UpstreamConn::Http2 { .. }
            );
            let is_repeatable =
                may_repeat && reused && body.is_empty() && head::is_idempotent(&head.method);
            // A connection without hyper returns the request.
            let is_direct = matches!(conn, UpstreamConn::Direct { .. });
            let head_copy = (is_repeatable && !is_direct).then(|| copy_head(&head));
            adapt_head(&mut head, &body, &conn, server);
            let adapted = Request::from_parts(head, body);
            if let Some(upload) = &upload
                && places.are_limited()
            {
                conn.watch_upload(Arc::clone(upload));
            }
            let sent = self.send_on(conn, server, adapted, upload.clone());
            let (clock, timeout) = (&self.clock, self.timeouts.response);
            let running =
                RunningExchange { sent: Box::pin(sent), places, server: server_in_flight };
            let exchange = Exchange::new(running, parties, clock, timeout);
            let ((attempt, conn), still_held, server_in_flight) = exchange.await;
            places = still_held;
            match attempt {
                Attempt::Responded(response) => {
                    server.on_response();
                    if let Some(upload) = &upload
                        && grpc::content_type(response.headers()).is_some()
                    {
                        upload.set_open_ended();
                    }
                    let (pooled, slot) = match conn {
                        Some(UpstreamConn::Http1 { sender, .. }) => {
                            (Some(self.pool.pooled(server, sender)), None)
                        }
                        Some(UpstreamConn::Http2 { slot, .. }) => (None, Some(slot)),
                        // The body has it.
                        Some(UpstreamConn::Direct { .. }) | None => (None, None),
                    };
                    let in_flight = UpstreamInFlight {
                        _slot: slot,
                        _server: server_in_flight,
                        _places: places,
                    };
                    return Ok(UpstreamResponse { response, pooled, in_flight });
                }
                Attempt::NotSent(unsent) => {
                    last_error = UpstreamError::ConnectionClosed;
                    request = unsent;
                }
                Attempt::BodyFailed(error) => {
                    let clock = self.clock.clone();
                    parties.client.count_abandoned();
                    if let Some(conn) = conn {
                        let timeout = self.timeouts.response;
                        exchange::hold_until_server_ended(conn, places, clock, timeout);
                    }
                    return Err(error);
                }
                Attempt::ConnectionLost(unanswered) => match repeated(unanswered, head_copy) {
                    Some(repeated) if is_repeatable => {
                        may_repeat = false;
                        last_error = UpstreamError::ConnectionClosed;
                        request = repeated;
                    }
                    _ => {
                        server
                            .on_failure(self.clock.now(), "connection closed before the response");
                        return Err(UpstreamError::ConnectionClosed);
                    }
                },
                Attempt::TimedOut => {
                    server.on_failure(self.clock.now(), "no response in time");
                    return Err(UpstreamError::ResponseTimeout);
                }
            }
        }
        Err(last_error)
    }

    /// Returns whether a server responds to a health check with a status from 200 to 399.
    pub(crate) async fn probe(
        &self,
        server: &UpstreamServer,
        request: Request<RequestBody>,
    ) -> bool {
        let (clock, timeout) = (&self.clock, self.timeouts.connect);
        let connected = self.pool.connection(server, false, clock, timeout).await;
        let Ok(conn) = connected else { return false };
        let (mut head, body) = request.into_parts();
        adapt_head(&mut head, &body, &conn, server);
        match self.send_on(conn, server, Request::from_parts(head, body), None).await.0 {
            Attempt::Responded(response) => {
                response.status().is_success() || response.status().is_redirection()
            }
            Attempt::NotSent(_)
            | Attempt::ConnectionLost(_)
            | Attempt::BodyFailed(_)
            | Attempt::TimedOut => false,
        }
    }

    fn on_connect_error(&self, server: &UpstreamServer, error: &ConnectError) -> UpstreamError {
        let (reason, error) = match error {
            ConnectError::Full => return UpstreamError::NoSocket,
            ConnectError::Timeout => ("no connection in time", UpstreamError::ConnectTimeout),
            ConnectError::Failed(error) => (error.as_str(), UpstreamError::Unreachable),
        };
        server.on_failure(self.clock.now(), reason);
        error
    }

    /// Sends a request on a connection and waits for the response. The future owns all that it needs, so that it can
    /// outlive the client. It returns the connection, unless the body of the response has it.
    fn send_on(
        &self,
        conn: UpstreamConn,
        server: &UpstreamServer,
        request: Request<RequestBody>,
        upload: Option<Arc<UploadProgress>>,
    ) -> impl Future<Output = (Attempt, Option<UpstreamConn>)> + Send + use<> {
        let (clock, timeout) = (self.clock.clone(), self.timeouts.response);
        let (pool, server) = (Arc::clone(&self.pool), server.id);
        async move {
            let mut conn = match conn {
                UpstreamConn::Direct { conn, .. } => {
                    let body = |conn| DirectBody::new(conn, pool, server);
                    return (attempt_direct(conn, request, body, &clock, timeout).await, None);
                }
                conn => conn,
            };
            let attempt = attempt(&mut conn, request, upload.as_deref(), &clock, timeout).await;
            if let Attempt::BodyFailed(_) = attempt {
                conn.on_truncated_upload();
            }
            (attempt, Some(conn))
        }
    }
}

/// Sends a request and waits for the response. Each body frame restarts the timeout, and a wait for the client suspends
/// it: its body has a timeout of its own.
async fn attempt(
    conn: &mut UpstreamConn,
    request: Request<RequestBody>,
    upload: Option<&UploadProgress>,
    clock: &Clock,
    timeout: Span,
) -> Attempt {
    let mut sending = std::pin::pin!(match conn {
        UpstreamConn::Http1 { sender, .. } => {
            Either::Left(sender.requests.try_send_request(request))
        }
        UpstreamConn::Http2 { sender, .. } => Either::Right(sender.try_send_request(request)),
        UpstreamConn::Direct { .. } => return Attempt::NotSent(request),
    });
    let mut frames_before = 0;
    loop {
        let sent = tokio::select! {
            biased;
            sent = &mut sending => sent,
            () = clock.sleep(timeout) => {
                let frames = upload.map_or(0, UploadProgress::frames);
                if frames != frames_before || upload.is_some_and(UploadProgress::awaits_client) {
                    frames_before = frames;
                    continue;
                }
                return Attempt::TimedOut;
            }
        };
        return match sent {
            Ok(response) => Attempt::Responded(response.map(UpstreamBody::Hyper)),
            Err(mut error) => match error.take_message() {
                Some(request) => Attempt::NotSent(request),
                None if upload.is_some_and(UploadProgress::was_slow) => {
                    Attempt::BodyFailed(UpstreamError::SlowBody)
                }
                None if upload.is_some_and(UploadProgress::has_failed) => {
                    Attempt::BodyFailed(UpstreamError::BadBody)
                }
                None => {
                    tracing::debug!(
                        error = %error.error(),
                        "upstream connection closed before the response"
                    );
                    Attempt::ConnectionLost(None)
                }
            },
        };
    }
}

/// Sends a request with its whole body on a connection without hyper, and waits for the response. `body_of` returns the
/// body that a connection reads.
async fn attempt_direct(
    mut conn: DirectConn,
    request: Request<RequestBody>,
    body_of: impl FnOnce(DirectConn) -> DirectBody,
    clock: &Clock,
    timeout: Span,
) -> Attempt {
    let (head, body) = request.into_parts();
    let bytes = http1_encoder::request(&head, body.received());
    let outcome = tokio::select! {
        biased;
        outcome = conn.exchange(&bytes, &head.method) => outcome,
        () = clock.sleep(timeout) => return Attempt::TimedOut,
    };
    match outcome {
        DirectOutcome::Responded(response) => {
            Attempt::Responded(response.map(|()| UpstreamBody::Direct(body_of(conn))))
        }
        DirectOutcome::NotSent => Attempt::NotSent(Request::from_parts(head, body)),
        DirectOutcome::Lost(error) => {
            tracing::debug!(%error, "upstream connection closed before the response");
            Attempt::ConnectionLost(Some(Request::from_parts(head, body)))
        }
    }
}

/// Adapts a head to the HTTP version of a connection.
fn adapt_head(head: &mut Parts, body: &RequestBody, conn: &UpstreamConn, server: &UpstreamServer) {
    match conn {
        UpstreamConn::Http2 { .. } => head::for_http2(head, server.scheme(), &server.authority),
        UpstreamConn::Direct { .. } => head::for_http1(head, &server.authority),
        UpstreamConn::Http1 { .. } => {
            head::for_http1(head, &server.authority);
            if body.size_hint().exact().is_none() {
                // Without this header hyper drops the body of a GET of unknown length.
                head.headers.insert(TRANSFER_ENCODING, CHUNKED);
            }
        }
    }
}

/// Returns the request to send again: the one that was not answered, or one with a copy of its head and without a body.
fn repeated(
    unanswered: Option<Request<RequestBody>>,
    head_copy: Option<Box<Parts>>,
) -> Option<Request<RequestBody>> {
    let copy = || head_copy.map(|head| Request::from_parts(*head, RequestBody::empty()));
    unanswered.or_else(copy)
}

/// Copies a head without its extensions.
fn copy_head(head: &Parts) -> Box<Parts> {
    let mut copy = Box::new(Request::new(()).into_parts().0);
    copy.method.clone_from(&head.method);
    copy.uri.clone_from(&head.uri);
    copy.headers.clone_from(&head.headers);
    copy.version = head.version;
    copy
}
