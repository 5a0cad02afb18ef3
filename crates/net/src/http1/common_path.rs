//! Serves the common requests of a connection without hyper, until the first other request.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::common_request::{self, MAX_COMMON_BODY_BYTES, ParsedRequest};
use super::{CloseSignal, HttpHandler};
use crate::http::response_buffer::ResponseBuffer;
use crate::listener::{Activity, Peer, Phase, Stream};

/// Free space of the read buffer before each read, so that one read gets a whole common request.
const READ_BYTES: usize = 1024;
/// Largest read buffer in bytes: a head and a body of the longest lengths, or many pipelined requests.
const MAX_BUFFER_BYTES: usize = 2 * MAX_COMMON_BODY_BYTES;
/// Responses to pipelined requests are sent when they have this many bytes.
const MAX_UNSENT_BYTES: usize = 16 * 1024;

/// Serves common requests. Returns the bytes that were read beyond them when another request arrives or the connection has to
/// close, and hyper continues with them. `None` once the connection has ended.
pub(crate) async fn serve<H: HttpHandler>(
    handler: &H,
    stream: &mut Stream,
    peer: &Peer,
    activity: &Activity,
    close: &mut CloseSignal,
) -> Option<Bytes> {
    let mut buffer = BytesMut::new();
    let mut responses = ResponseBuffer::default();
    loop {
        match common_request::parse(&buffer, H::COMMON_PATH) {
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
            ParsedRequest::Incomplete if buffer.len() < MAX_BUFFER_BYTES => {
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
