//! One connection of a client, in either version of HTTP.

use std::convert::Infallible;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use parking_lot::Mutex;
use tidegate_net::listener::{Activity, ConnectionHandler, Peer, Stream};
use tokio::io::AsyncWriteExt;

use crate::calls::Calls;
use crate::head::Sender;
use crate::streams::{Streams, UnderWay};
use crate::wire::Wire;
use crate::{Asked, Gateway};

/// Longest head of a request in bytes.
const MAX_HEAD: usize = 64 * 1024;
const MAX_HTTP2_HEAD: u32 = MAX_HEAD as u32;
/// Largest buffer of one connection of HTTP/1 in bytes.
const MAX_BUFFER: usize = MAX_HEAD;
/// Most requests under way on one connection of HTTP/2.
const MAX_STREAMS: u32 = 256;
/// What a client may send of one request before the upstream has taken it, in bytes.
const STREAM_WINDOW: u32 = 256 * 1024;
const CONNECTION_WINDOW: u32 = 1024 * 1024;
/// How much of one answer is kept for a client that does not read, in bytes.
const MAX_UNREAD: usize = 64 * 1024;
/// How often a silent client is asked whether it is still there, and how long it may take to answer.
const PING: Duration = Duration::from_secs(30);
const PONG: Duration = Duration::from_secs(20);

impl ConnectionHandler for Gateway {
    async fn serve(&self, stream: Stream, peer: Peer, activity: Arc<Activity>) {
        let secure = matches!(stream, Stream::Tls(_));
        let wire = match Wire::open(stream, Arc::clone(&activity)).await {
            Ok(wire) => wire,
            Err(error) => return tracing::debug!(%error, "connection failed"),
        };
        let calls = Arc::new(Calls::new(activity));
        let http2 = wire.is_http2();
        let (hangup, tunnel) = (wire.hangup(), Mutex::new(None));
        let address = peer.address.ip();
        let sender = Sender::new(address, self.inner.identity.trusts(address), secure);
        let asked = Asked { peer, sender, http2, calls, hangup, tunnel };
        match http2 {
            false => self.one(wire, &asked).await,
            // Boxed, so that connections of HTTP/1 do not carry its room around.
            true => Box::pin(self.two(wire, asked)).await,
        }
    }
}

impl Gateway {
    /// HTTP/1. A client that hangs up is seen to, and ends what it has asked.
    async fn one(&self, wire: Wire, asked: &Asked) {
        let service = service_fn(|request| async move {
            Ok::<_, Infallible>(self.inner.answer(request, asked).await)
        });
        let mut http = http1::Builder::new();
        http.max_header_size(MAX_HEAD).max_buf_size(MAX_BUFFER).half_close(false);
        let mut connection = http.serve_connection(TokioIo::new(wire), service).with_upgrades();
        if let Err(error) = (&mut connection).await {
            tracing::debug!(%error, "connection failed");
            if let Some(parts) = connection.into_parts() {
                // It may have been told why; closing lets it read that.
                let _ = parts.io.into_inner().shutdown().await;
            }
            return;
        }
        let tunnel = asked.tunnel.lock().take();
        if let Some(tunnel) = tunnel {
            drop(connection);
            tunnel.run().await;
        }
    }

    /// HTTP/2. When the door closes, the client is told to send no more on it.
    async fn two(&self, wire: Wire, asked: Asked) {
        let activity = Arc::clone(&asked.calls.activity);
        let (inner, asked) = (Arc::clone(&self.inner), Arc::new(asked));
        let service = service_fn(move |request| {
            let (inner, asked) = (Arc::clone(&inner), Arc::clone(&asked));
            async move { Ok::<_, Infallible>(inner.answer(request, &asked).await) }
        });
        let streams = Streams::default();
        let mut http = http2::Builder::new(streams.clone());
        http.timer(TokioTimer::new())
            .max_concurrent_streams(MAX_STREAMS)
            .max_header_list_size(MAX_HTTP2_HEAD)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(MAX_UNREAD)
            .keep_alive_interval(PING)
            .keep_alive_timeout(PONG);
        let mut connection = pin!(http.serve_connection(TokioIo::new(wire), service));
        let (mut closing, mut under_way) = (false, UnderWay::new());
        let ended = poll_fn(|context| {
            if !closing && activity.poll_closed(context).is_ready() {
                closing = true;
                connection.as_mut().graceful_shutdown();
            }
            loop {
                if let Poll::Ready(ended) = connection.as_mut().poll(context) {
                    return Poll::Ready(ended);
                }
                if !streams.poll(&mut under_way, context) {
                    return Poll::Pending;
                }
            }
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "connection failed");
        }
    }
}

/// What a connection of HTTP/1 says with its last answer.
pub(super) const LAST: hyper::header::HeaderValue =
    hyper::header::HeaderValue::from_static("close");
