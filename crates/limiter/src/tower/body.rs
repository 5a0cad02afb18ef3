//! The body of a response: the service's own, or that of a refusal.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::StatusCode;
use http_body::{Body, Frame, SizeHint};
use pin_project_lite::pin_project;

use super::in_flight::Slots;

pin_project! {
    /// What the service answered, or why it was not asked. Fails as the service's body does.
    ///
    /// The slots in flight of its request are held until it has ended, has failed or is dropped.
    #[derive(Debug)]
    pub struct ResponseBody<B> {
        #[pin]
        kind: Kind<B>,
    }
}

pin_project! {
    #[derive(Debug)]
    #[project = KindProjection]
    enum Kind<B> {
        Service { #[pin] body: B, slots: Slots },
        Refusal { text: Bytes },
    }
}

impl<B> ResponseBody<B> {
    /// The body of a response with this status.
    pub(crate) fn service(body: B, status: StatusCode, mut slots: Slots) -> Self
    where
        B: Body,
    {
        // Nobody polls a body that has ended before it began, and who has it may keep it. One that goes
        // with another protocol says nothing about when that ends.
        if slots.are_held() && status != StatusCode::SWITCHING_PROTOCOLS && body.is_end_stream() {
            slots.release();
        }
        Self { kind: Kind::Service { body, slots } }
    }

    pub(crate) fn refusal(text: Bytes) -> Self {
        Self { kind: Kind::Refusal { text } }
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
            KindProjection::Service { mut body, slots } => {
                let frame = ready!(body.as_mut().poll_frame(cx));
                // A body that says it has ended is not polled once more.
                if slots.are_held() && (!matches!(frame, Some(Ok(_))) || body.is_end_stream()) {
                    slots.release();
                }
                Poll::Ready(frame)
            }
            KindProjection::Refusal { text } if text.is_empty() => Poll::Ready(None),
            KindProjection::Refusal { text } => {
                Poll::Ready(Some(Ok(Frame::data(std::mem::take(text)))))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match &self.kind {
            Kind::Service { body, .. } => body.is_end_stream(),
            Kind::Refusal { text } => text.is_empty(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match &self.kind {
            Kind::Service { body, .. } => body.size_hint(),
            Kind::Refusal { text } => SizeHint::with_exact(text.len() as u64),
        }
    }
}
