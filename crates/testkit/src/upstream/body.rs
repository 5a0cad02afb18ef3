//! Bodies of answers.

use std::convert::Infallible;
use std::fmt;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::{Frame, SizeHint};

pub(super) type Body = BoxBody<Bytes, BrokenOff>;

/// A body, or the connection it came on, ended before its end.
#[derive(Debug)]
pub(super) struct BrokenOff;

impl fmt::Display for BrokenOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the body breaks off")
    }
}

impl std::error::Error for BrokenOff {}

pub(super) fn empty() -> Body {
    Empty::new().map_err(|never: Infallible| match never {}).boxed()
}

pub(super) fn text(text: impl Into<Bytes>) -> Body {
    Full::new(text.into()).map_err(|never: Infallible| match never {}).boxed()
}

/// As many bytes as are wanted, of which none is kept.
#[derive(Debug)]
pub(super) struct Pattern {
    left: u64,
    /// What of `left` never comes.
    missing: u64,
    has_length: bool,
    /// Whether what is there had the time to be sent.
    rested: bool,
}

const PIECE: &[u8] = &[b'x'; 64 * 1024];

impl Pattern {
    pub(super) fn sized(length: u64) -> Self {
        Self { left: length, missing: 0, has_length: true, rested: false }
    }

    pub(super) fn unsized_(length: u64) -> Self {
        Self { has_length: false, ..Self::sized(length) }
    }

    /// Announces `length` bytes and ends after `sent` of them.
    pub(super) fn broken(length: u64, sent: u64) -> Self {
        Self { missing: length - sent, ..Self::sized(length) }
    }
}

impl hyper::body::Body for Pattern {
    type Data = Bytes;
    type Error = BrokenOff;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BrokenOff>>> {
        let there = self.left - self.missing;
        if there == 0 && self.missing > 0 && !self.rested {
            // An error at once would also drop what was not sent yet.
            self.rested = true;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if there == 0 {
            return Poll::Ready((self.missing > 0).then_some(Err(BrokenOff)));
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
