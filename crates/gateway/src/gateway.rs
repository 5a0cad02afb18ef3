//! The gateway of one thread, and its client connections in HTTP/1 and HTTP/2.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tidegate_limiter::Clock;
use tidegate_net::http::response::DateText;
use tidegate_net::listener::{Activity, ConnectionCounts, ConnectionHandler, Peer, Stream};
use tidegate_service::identity::Identity;
use tidegate_service::service::Service;
use tokio::io::AsyncWriteExt;

use crate::client_stream::ClientStream;
use crate::common_requests::CommonRequests;
use crate::forward::RequestForwarder;
use crate::head::{ClientHeaderPolicy, ForwardedClient};
use crate::http2_streams::{Http2Streams, RunningStreams};
use crate::pace::{PaceLimit, PacedResponses, ResponseProgress};
use crate::pool::{self, ConnectionPool};
use crate::proxied_requests::ProxiedRequests;
use crate::proxy::{ConnectionContext, RequestProxy};
use crate::upstream_set::UpstreamSet;
use crate::upstream_socket::UpstreamSockets;

/// Longest request head in bytes.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_HTTP2_HEAD_BYTES: u32 = MAX_HEAD_BYTES as u32;
/// Largest read buffer of one HTTP/1 connection in bytes.
const MAX_BUFFER_BYTES: usize = MAX_HEAD_BYTES;
/// Most requests in flight on one HTTP/2 connection.
const MAX_STREAMS: u32 = 256;
/// Number of abandoned requests after which an HTTP/2 connection gets a GOAWAY. After twice as many it is closed.
const MAX_ABANDONED_REQUESTS: usize = 100;
/// Bytes of one request that a client may send before the upstream has read them.
const STREAM_WINDOW_BYTES: u32 = 256 * 1024;
const CONNECTION_WINDOW_BYTES: u32 = 1024 * 1024;
/// Most bytes of one response that are buffered for a client that does not read.
const MAX_SEND_BUFFER_BYTES: usize = 64 * 1024;
/// Interval of HTTP/2 pings on a connection without traffic.
const PING_INTERVAL: Duration = Duration::from_secs(30);
/// Longest wait for the reply to a ping. Then the connection is closed.
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// The gateway of one thread, with its own connection pool.
#[derive(Debug)]
pub(crate) struct Gateway {
    proxy: Arc<RequestProxy>,
    connections: Arc<ConnectionCounts>,
    /// The text of `Date` for responses that have none.
    date: Mutex<DateText>,
}

impl Gateway {
    pub(crate) fn new(
        upstreams: &UpstreamSet,
        service: Arc<Service>,
        identity: Arc<Identity>,
        sockets: UpstreamSockets,
        clock: Clock,
    ) -> Self {
        let config = &upstreams.config;
        let connections = Arc::clone(sockets.counts());
        let pool = Arc::new(ConnectionPool::new(upstreams.server_count(), sockets));
        let counts = Arc::clone(&connections);
        let pace_limit = PaceLimit::new(clock.clone(), config.timeouts.body, counts);
        let proxy = RequestProxy {
            service,
            identity,
            routes: Arc::clone(&upstreams.routes),
            forwarder: RequestForwarder { pool, clock, timeouts: config.timeouts },
            max_wait: config.max_wait,
            upstream_headers: config.upstream_headers,
            pace_limit: Arc::new(pace_limit),
        };
        Self { proxy: Arc::new(proxy), connections, date: Mutex::default() }
    }

    /// Closes idle upstream connections at an interval. Never returns; drop the future to stop.
    pub(crate) async fn sweep_pool(self: Arc<Self>) {
        let RequestForwarder { pool, clock, .. } = &self.proxy.forwarder;
        loop {
            clock.sleep_until(clock.now() + pool::SWEEP_INTERVAL).await;
            pool.sweep();
        }
    }

    /// Serves an HTTP/1 connection: common requests in this task, and all others by hyper.
    async fn serve_http1(&self, stream: ClientStream, context: &ConnectionContext) {
        let progress = Arc::new(ResponseProgress::default());
        let requests = CommonRequests {
            proxy: &self.proxy,
            context,
            progress: &progress,
            date: &self.date,
            stream,
            received: Bytes::new(),
        };
        let serving = pin!(requests.serve());
        let pace_limit = Arc::clone(&self.proxy.pace_limit);
        let ended = PacedResponses::new(serving, Arc::clone(&progress), pace_limit).await;
        if let Some(Some(stream)) = ended {
            // Boxed: most connections do not carry the size of this future.
            Box::pin(self.serve_hyper(stream, context)).await;
        }
    }

    /// Serves an HTTP/1 connection by hyper. When the client disconnects, its request in flight is abandoned. There is at
    /// most one such request, because the connection has ended.
    async fn serve_hyper(&self, stream: ClientStream, context: &ConnectionContext) {
        let progress = Arc::new(ResponseProgress::default());
        let service = service_fn(|request| {
            let progress = Arc::clone(&progress);
            async move { Ok::<_, Infallible>(self.proxy.handle(request, context, progress).await) }
        });
        let mut http = http1::Builder::new();
        http.max_header_size(MAX_HEAD_BYTES).max_buf_size(MAX_BUFFER_BYTES).half_close(false);
        let mut connection = http.serve_connection(TokioIo::new(stream), service).with_upgrades();
        let pace_limit = Arc::clone(&self.proxy.pace_limit);
        let ended = PacedResponses::new(&mut connection, Arc::clone(&progress), pace_limit).await;
        let Some(ended) = ended else { return };
        if let Err(error) = ended {
            tracing::debug!(%error, "client connection failed");
            if let Some(parts) = connection.into_parts() {
                // hyper may have written an error response; the lingering close lets the client read it.
                let _ = parts.io.into_inner().shutdown().await;
            }
            return;
        }
        let tunnel = context.tunnel.lock().take();
        if let Some(tunnel) = tunnel {
            drop(connection);
            tunnel.run().await;
        }
    }

    /// Serves an HTTP/2 connection. When the listener closes or the client abandons too many requests, the client gets a
    /// GOAWAY and its streams are finished.
    async fn serve_http2(&self, stream: ClientStream, context: ConnectionContext) {
        let requests = Arc::clone(&context.requests);
        let (proxy, context) = (Arc::clone(&self.proxy), Arc::new(context));
        let streams = Http2Streams::new(Arc::clone(&proxy.pace_limit));
        let new_streams = streams.clone();
        let service = service_fn(move |request| {
            let (proxy, context) = (Arc::clone(&proxy), Arc::clone(&context));
            let progress = new_streams.open();
            async move { Ok::<_, Infallible>(proxy.handle(request, &context, progress).await) }
        });
        let mut http = http2::Builder::new(streams.clone());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HTTP2_HEAD_BYTES)
            .initial_stream_window_size(STREAM_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
            .max_send_buf_size(MAX_SEND_BUFFER_BYTES)
            .keep_alive_interval(PING_INTERVAL)
            .keep_alive_timeout(PING_TIMEOUT);
        let mut connection = pin!(http.serve_connection(TokioIo::new(stream), service));
        let (mut closing, mut abandoning) = (false, false);
        let mut running = RunningStreams::new();
        let ended = poll_fn(|context| {
            if !closing && requests.activity.poll_closed(context).is_ready() {
                closing = true;
                connection.as_mut().graceful_shutdown();
            }
            loop {
                if requests.abandoned() >= 2 * MAX_ABANDONED_REQUESTS {
                    return Poll::Ready(Ok(()));
                }
                if !abandoning && requests.abandoned() >= MAX_ABANDONED_REQUESTS {
                    (abandoning, closing) = (true, true);
                    self.connections.count_abandoning();
                    tracing::debug!("client abandoned too many requests, connection closes");
                    connection.as_mut().graceful_shutdown();
                }
                if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                    return Poll::Ready(ended);
                }
                let abandoned = requests.abandoned();
                if !streams.poll(&mut running, context) && requests.abandoned() == abandoned {
                    return Poll::Pending;
                }
            }
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "client connection failed");
        }
    }
}

impl Gateway {
    /// Detects the HTTP version of a connection, and returns its stream and the state that its requests share.
    async fn open(
        &self,
        stream: Stream,
        peer: Peer,
        activity: Arc<Activity>,
    ) -> io::Result<(ClientStream, ConnectionContext)> {
        let secure = matches!(stream, Stream::Tls(_));
        let stream = ClientStream::open(stream, Arc::clone(&activity)).await?;
        let requests = Arc::new(ProxiedRequests::new(activity));
        let http2 = stream.is_http2();
        let (disconnect, tunnel) = (stream.disconnect_watch(), Mutex::new(None));
        let address = peer.address.ip();
        let trusted = self.proxy.identity.is_trusted(address);
        let client = ForwardedClient::new(address, trusted, secure);
        let sets_rate_limit = self.proxy.upstream_headers;
        let header_policy = ClientHeaderPolicy { trusted, sets_rate_limit };
        let context =
            ConnectionContext { peer, client, header_policy, http2, requests, disconnect, tunnel };
        Ok((stream, context))
    }
}

impl ConnectionHandler for Gateway {
    async fn serve(&self, stream: Stream, peer: Peer, activity: Arc<Activity>) {
        match self.open(stream, peer, activity).await {
            Ok((stream, context)) if !context.http2 => self.serve_http1(stream, &context).await,
            // Boxed: an HTTP/1 connection does not carry the size of this future.
            Ok((stream, context)) => Box::pin(self.serve_http2(stream, context)).await,
            Err(error) => tracing::debug!(%error, "client connection failed"),
        }
    }
}

#[cfg(test)]
mod hyper_comparison;
