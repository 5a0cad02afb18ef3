//! The common requests of an HTTP/1.1 connection, which are served without hyper.
//!
//! The task of the connection reads the request, sends it and writes the response. It holds no buffer between requests.

use std::future::poll_fn;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use hyper::body::{Body, Frame};
use hyper::header::CONNECTION;
use hyper::{Method, Response};
use parking_lot::Mutex;
use tidegate_net::http::response::DateText;
use tokio::io::AsyncWriteExt;

use crate::client_stream::ClientStream;
use crate::common_request::CommonRequest;
use crate::http1_encoder::{self, BodyLength, ResponseContext, ResponseEncoder};
use crate::pace::ResponseProgress;
use crate::proxy::{ConnectionContext, ReceivedRequest, RequestGuards, RequestProxy};
use crate::request_body::RequestBody;
use crate::response_body::ResponseBody;

/// Encoded bytes that are written before more of a response is read.
const MAX_UNSENT_BYTES: usize = 32 * 1024;

/// The requests of one connection.
pub(crate) struct CommonRequests<'a> {
    pub(crate) proxy: &'a RequestProxy,
    pub(crate) context: &'a ConnectionContext,
    pub(crate) progress: &'a Arc<ResponseProgress>,
    pub(crate) date: &'a Mutex<DateText>,
    pub(crate) stream: ClientStream,
    /// Bytes after the last request.
    pub(crate) received: Bytes,
}

type GatewayResponse = Response<ResponseBody<RequestGuards>>;
type BodyFrame = Option<io::Result<Frame<Bytes>>>;

impl CommonRequests<'_> {
    /// Serves requests until one is uncommon. Returns the stream, from which that request is read again. `None` once the
    /// connection has ended.
    pub(crate) async fn serve(mut self) -> Option<ClientStream> {
        loop {
            if self.received.is_empty() {
                match poll_fn(|context| self.stream.poll_received(context)).await {
                    Ok(received) if !received.is_empty() => self.received = received,
                    Ok(_) => return None,
                    Err(error) => {
                        tracing::debug!(%error, "client connection failed");
                        return None;
                    }
                }
            }
            let Some(request) = CommonRequest::take(&mut self.received) else {
                self.stream.unread(self.received);
                return Some(self.stream);
            };
            let CommonRequest { head, body, is_last } = request;
            let method = head.method.clone();
            let request = ReceivedRequest { head, body: RequestBody::whole(body), is_direct: true };
            let response = self.respond(request).await?;
            let closes = is_last || response.headers().contains_key(CONNECTION);
            match self.send(response, &method, closes).await {
                Ok(()) if !closes => {}
                Ok(()) => {
                    // The lingering close lets the client read the response.
                    let _ = self.stream.shutdown().await;
                    return None;
                }
                Err(error) => {
                    tracing::debug!(%error, "client connection failed");
                    return None;
                }
            }
        }
    }

    /// Returns the response to a request; `None` if the client disconnects before.
    async fn respond(&mut self, request: ReceivedRequest) -> Option<GatewayResponse> {
        let Self { proxy, context, progress, stream, received, .. } = self;
        let mut response = pin!(proxy.respond(request, context, Arc::clone(progress)));
        poll_fn(|context| {
            if let Poll::Ready(response) = response.as_mut().poll(context) {
                return Poll::Ready(Some(response));
            }
            poll_disconnect(stream, received, context).map(|()| None)
        })
        .await
    }

    /// Sends a response. The head and the data that has arrived with it are one write.
    async fn send(
        &mut self,
        response: GatewayResponse,
        method: &Method,
        closes: bool,
    ) -> io::Result<()> {
        let (head, mut body) = response.into_parts();
        let mut unsent = Vec::new();
        let context = ResponseContext { method, closes, length: length_of(&body) };
        let mut encoder = ResponseEncoder::start(&mut unsent, &head, context, |bytes| {
            let now = self.proxy.forwarder.clock.now();
            bytes.extend_from_slice(self.date.lock().at(now));
        });
        let mut is_end = !http1_encoder::has_body(method, head.status) || body.is_end_stream();
        while !is_end {
            let frame = match poll_fn(|context| Poll::Ready(poll_frame(&mut body, context))).await {
                Poll::Ready(frame) => frame,
                Poll::Pending => {
                    self.write(&mut unsent, false).await?;
                    self.next_frame(&mut body).await
                }
            };
            match frame {
                Some(Ok(frame)) => {
                    encoder.push(&mut unsent, frame.data_ref().map_or(&[], |data| data));
                    is_end = body.is_end_stream();
                }
                Some(Err(error)) => {
                    self.write(&mut unsent, true).await?;
                    return Err(error);
                }
                None => is_end = true,
            }
            if !is_end && unsent.len() >= MAX_UNSENT_BYTES {
                self.write(&mut unsent, false).await?;
            }
        }
        let is_complete = encoder.end(&mut unsent);
        self.write(&mut unsent, true).await?;
        match is_complete {
            true => Ok(()),
            false => Err(io::Error::other("the response is shorter than its length")),
        }
    }

    /// Waits for the next frame of a response.
    async fn next_frame(&mut self, body: &mut ResponseBody<RequestGuards>) -> BodyFrame {
        poll_fn(|context| {
            let frame = poll_frame(body, context);
            if frame.is_ready() {
                return frame;
            }
            let disconnected = poll_disconnect(&mut self.stream, &mut self.received, context);
            disconnected.map(|()| Some(Err(io::ErrorKind::ConnectionAborted.into())))
        })
        .await
    }

    /// Writes encoded bytes. Unless the body has ended, the client has to keep the minimum pace meanwhile.
    async fn write(&mut self, unsent: &mut Vec<u8>, is_end: bool) -> io::Result<()> {
        if unsent.is_empty() {
            return Ok(());
        }
        if !is_end {
            self.progress.on_blocked();
        }
        self.stream.write_all(unsent).await?;
        self.stream.flush().await?;
        if !is_end {
            self.progress.on_read();
        }
        unsent.clear();
        Ok(())
    }
}

fn poll_frame(
    body: &mut ResponseBody<RequestGuards>,
    context: &mut Context<'_>,
) -> Poll<BodyFrame> {
    Pin::new(body).poll_frame(context)
}

fn length_of(body: &ResponseBody<RequestGuards>) -> BodyLength {
    match body.is_end_stream() {
        true => BodyLength::Empty,
        false => body.size_hint().exact().map_or(BodyLength::Unknown, BodyLength::Known),
    }
}

/// Ready once the client has disconnected. The bytes that it sends meanwhile are kept: they belong to the next request, and
/// are not followed by more reads.
fn poll_disconnect(
    stream: &mut ClientStream,
    received: &mut Bytes,
    context: &mut Context<'_>,
) -> Poll<()> {
    if !received.is_empty() {
        return Poll::Pending;
    }
    match stream.poll_received(context) {
        Poll::Ready(Ok(bytes)) if !bytes.is_empty() => {
            *received = bytes;
            Poll::Pending
        }
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => Poll::Pending,
    }
}
