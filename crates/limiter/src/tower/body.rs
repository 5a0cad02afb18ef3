//! The body of a response: of the service, or of the layer itself.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::in_flight::HeldSlots;

pin_project! {
    /// The body of the service's response, or of a denial. It fails if the body of the service does.
    ///
    /// The slots in flight of its request are held until the body has ended, has failed or is dropped.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: BodyKind<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = BodyKindProjection]
    enum BodyKind<B> {
        Service { #[pin] body: B, slots: HeldSlots },
        Local { text: Bytes },
    }
}

impl<B> ResponseBody<B> {
    /// Wraps the body of a response of the service. Releases the slots at once if the body is empty.
    pub(crate) fn service(body: B, status: StatusCode, mut slots: HeldSlots) -> Self
    where
        B: Body,
    {
        // An empty body is never polled, and its owner may keep it for long. After an upgrade the body is
        // empty too, but the connection lasts longer.
        if slots.are_held() && status != StatusCode::SWITCHING_PROTOCOLS && body.is_end_stream() {
            slots.release();
        }
        Self { kind: BodyKind::Service { body, slots } }
    }

    pub(crate) fn local(text: Bytes) -> Self {
        Self { kind: BodyKind::Local { text } }
    }
}

impl<B: Body<Data = Bytes>> Body for ResponseBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        match self.project().kind.project() {
            BodyKindProjection::Service { mut body, slots } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                // A body that reports its end is not polled again, so this may be the last call.
                if slots.are_held() && (!matches!(frame, Some(Ok(_))) || body.is_end_stream()) {
                    slots.release();
                }
                Poll::Ready(frame)
            }
            BodyKindProjection::Local { text } if text.is_empty() => Poll::Ready(None),
            BodyKindProjection::Local { text } => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(text)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            BodyKind::Service { body, .. } => body.is_end_stream(),
            BodyKind::Local { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            BodyKind::Service { body, .. } => body.size_hint(),
            BodyKind::Local { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}
