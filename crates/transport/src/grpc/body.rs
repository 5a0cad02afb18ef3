//! Bodies of gRPC responses: messages, then the status as a trailer.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{BufMut, Bytes, BytesMut};
use hyper::body::{Body as HttpBody, Frame};
use hyper::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};
use prost::Message;
use tokio::sync::mpsc;
use tonic::Status;

use tidegate_net::http::response::NOSNIFF;
use tidegate_service::service::UndeliveredSlots;

/// The `content-type` of gRPC requests and responses.
pub(crate) const GRPC_CONTENT_TYPE: HeaderValue = HeaderValue::from_static("application/grpc");
const GRPC_STATUS: HeaderName = HeaderName::from_static("grpc-status");
const STATUS_OK: HeaderValue = HeaderValue::from_static("0");

/// Length of the prefix of each message, in bytes: the compression flag and the message length.
pub(crate) const PREFIX_BYTES: usize = 5;

/// The body of a gRPC response.
#[derive(Default)]
pub(crate) enum GrpcBody {
    /// No body: the status is in the head.
    #[default]
    Empty,
    /// One message, then the status OK.
    Message(Bytes),
    /// One message with a slot token, then the status OK. If it is dropped unsent, the slots are released.
    Slot(Bytes, Option<UndeliveredSlots>),
    /// The status OK.
    End,
    /// A stream of messages, which ends with the status OK when the sender is dropped.
    Stream(mpsc::Receiver<Bytes>),
    /// A body made by tonic.
    Tonic(tonic::body::Body),
}

impl HttpBody for GrpcBody {
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
            Self::Slot(bytes, slots) => {
                let bytes = std::mem::take(bytes);
                slots.take().into_iter().for_each(UndeliveredSlots::mark_delivered);
                *this = Self::End;
                Some(Ok(Frame::data(bytes)))
            }
            Self::End => {
                *this = Self::Empty;
                Some(Ok(Frame::trailers(ok_trailers())))
            }
            Self::Stream(messages) => match ready!(messages.poll_recv(context)) {
                Some(bytes) => Some(Ok(Frame::data(bytes))),
                None => {
                    *this = Self::Empty;
                    Some(Ok(Frame::trailers(ok_trailers())))
                }
            },
            Self::Tonic(body) => return Pin::new(body).poll_frame(context),
        })
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Empty => true,
            Self::Message(_) | Self::Slot(..) | Self::End | Self::Stream(_) => false,
            Self::Tonic(body) => body.is_end_stream(),
        }
    }
}

/// Returns the trailers of a call that succeeded.
fn ok_trailers() -> HeaderMap {
    let mut trailers = HeaderMap::with_capacity(1);
    trailers.insert(GRPC_STATUS, STATUS_OK);
    trailers
}

/// Encodes a message with its prefix.
pub(crate) fn encode_frame(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut bytes = BytesMut::with_capacity(PREFIX_BYTES + length);
    bytes.put_u8(0);
    // Replies are limited by the size of their requests, far below `u32::MAX`.
    bytes.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    message.encode_raw(&mut bytes);
    bytes.freeze()
}

/// Returns a response with one message.
pub(crate) fn message_response(message: &impl Message) -> Response<GrpcBody> {
    grpc_response(GrpcBody::Message(encode_frame(message)))
}

/// Returns a response with a slot token. The slots are released if it is dropped before it is sent.
pub(crate) fn slot_response(message: &impl Message, slots: UndeliveredSlots) -> Response<GrpcBody> {
    grpc_response(GrpcBody::Slot(encode_frame(message), Some(slots)))
}

/// Returns a response with a stream of messages.
pub(crate) fn stream_response(messages: mpsc::Receiver<Bytes>) -> Response<GrpcBody> {
    grpc_response(GrpcBody::Stream(messages))
}

/// Returns a response with the gRPC content type.
fn grpc_response(body: GrpcBody) -> Response<GrpcBody> {
    let mut response = Response::new(body);
    response.headers_mut().insert(CONTENT_TYPE, GRPC_CONTENT_TYPE);
    response
}

/// Returns the response to a request that is not a gRPC call.
pub(crate) fn http_error(status: StatusCode) -> Response<GrpcBody> {
    let mut response = Response::new(GrpcBody::Empty);
    *response.status_mut() = status;
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, NOSNIFF);
    response
}
