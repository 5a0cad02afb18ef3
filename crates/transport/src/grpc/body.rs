//! What is sent back: a message and how the call ended.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use prost::Message;
use tokio::sync::mpsc;
use tonic::Status;

use tidegate_service::service::UndeliveredSlots;

pub(super) const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const FINE: HeaderValue = HeaderValue::from_static("0");

/// Bytes before each message: whether it is compressed, and its length.
pub(super) const PREFIX: usize = 5;

/// The body of a response.
#[derive(Default)]
pub(super) enum Body {
    /// Nothing: the head says how the call ended.
    #[default]
    Empty,
    /// One message, and that the call ended well.
    Message(Bytes),
    /// The same, with slots in flight that are its reader's; nobody's, if it is never sent.
    Slot(Bytes, Option<UndeliveredSlots>),
    /// That the call ended well.
    End,
    /// Messages as they come, until whoever sends them lets go.
    Stream(mpsc::Receiver<Bytes>),
    /// Whatever another service sends.
    Other(tonic::body::Body),
}

impl HttpBody for Body {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let this = self.get_mut();
        Poll::Ready(match this {
            Self::Empty => None,
            Self::Message(bytes) => {
                let bytes = std::mem::take(bytes);
                *this = Self::End;
                Some(Ok(Frame::data(bytes)))
            }
            Self::Slot(bytes, way) => {
                let bytes = std::mem::take(bytes);
                way.take().into_iter().for_each(UndeliveredSlots::handed_over);
                *this = Self::End;
                Some(Ok(Frame::data(bytes)))
            }
            Self::End => {
                *this = Self::Empty;
                Some(Ok(Frame::trailers(ended_well())))
            }
            Self::Stream(messages) => match ready!(messages.poll_recv(context)) {
                Some(bytes) => Some(Ok(Frame::data(bytes))),
                None => {
                    *this = Self::Empty;
                    Some(Ok(Frame::trailers(ended_well())))
                }
            },
            Self::Other(body) => return Pin::new(body).poll_frame(context),
        })
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Message(_) | Self::Slot(..) | Self::End | Self::Stream(_) => false,
            Self::Other(body) => body.is_end_stream(),
        }
    }
}

fn ended_well() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, FINE);
    trailers
}

/// A message as it is sent.
pub(super) fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX + length);
    bytes.put_u8(0);
    // What we send is bounded by what was asked, far below this.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    bytes.freeze()
}

/// The answer to a call that has one.
pub(super) fn message(message: &impl Message) -> Response<Body> {
    headed(Body::Message(framed(message)))
}

/// The answer to a call that took slots in flight, which are released unless it leaves.
pub(super) fn slot(message: &impl Message, way: UndeliveredSlots) -> Response<Body> {
    headed(Body::Slot(framed(message), Some(way)))
}

/// The answer to a call that goes on.
pub(super) fn stream(messages: mpsc::Receiver<Bytes>) -> Response<Body> {
    headed(Body::Stream(messages))
}

fn headed(body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, GRPC);
    response
}

/// The answer to a request that is no call.
pub(super) fn no_call(status: StatusCode) -> Response<Body> {
    let mut response = Response::new(Body::Empty);
    *response.status_mut() = status;
    response
}
