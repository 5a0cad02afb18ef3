//! Response bodies.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Frame, SizeHint};

pub(crate) type Body = BoxBody<Bytes, BodyAborted>;

/// The error of a body or connection that ended early.
#[derive(Debug)]
pub(crate) struct BodyAborted;

impl fmt::Display for BodyAborted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body breaks off")
    }
}

impl std::error::Error for BodyAborted {}

pub(crate) fn empty() -> Body {
    Empty::new().map_err(|never: Infallible| match never {}).boxed()
}

pub(crate) fn text(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never: Infallible| match never {}).boxed()
}

/// A generated body of any length, without a buffer.
#[derive(Debug)]
pub(crate) struct PatternBody {
    left: u64,
    /// The part of `left` that is never sent.
    missing: u64,
    has_length: bool,
    /// True if the earlier bytes had time to be sent.
    rested: bool,
}

const PIECE: &[u8] = &[b'x'; 64 * 1024];

impl PatternBody {
    pub(crate) fn sized(length: u64) -> Self {
        Self { left: length, missing: 0, has_length: true, rested: false }
    }

    pub(crate) fn unsized_(length: u64) -> Self {
        Self { has_length: false, ..Self::sized(length) }
    }

    /// Announces `length` bytes and ends after `sent` of them.
    pub(crate) fn broken(length: u64, sent: u64) -> Self {
        Self { missing: length - sent, ..Self::sized(length) }
    }
}

impl hyper::body::Body for PatternBody {
    type Data = Bytes;
    type Error = BodyAborted;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyAborted>>> {
        let there = self.left - self.missing;
        if there == 0 && self.missing > 0 && !self.rested {
            // An immediate error would also drop buffered bytes.
            self.rested = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if there == 0 {
            return Poll::Ready((self.missing > 0).then_some(Err(BodyAborted)));
        }
        let length = there.min(PIECE.len() as u64);
        self.left -= length;
        let length = usize::try_from(length).expect("no longer than a piece");
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&PIECE[..length])))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        if self.has_length { SizeHint::with_exact(self.left) } else { SizeHint::default() }
    }
}
