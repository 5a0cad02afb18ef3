//! Bodies on their way through, frame by frame.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use super::pool::Kept;

/// The body of a request, on its way to the upstream.
pub(super) struct Up {
    /// Nothing of a request without a body.
    body: Option<Incoming>,
    /// What was read while the request had to wait.
    #[allow(clippy::box_collection, reason = "bodies are moved often, and few have waited")]
    ahead: Option<Box<VecDeque<Frame<Bytes>>>>,
    /// Nothing of a request without a body.
    upload: Option<Arc<Upload>>,
}

/// How far the body of a request has come, for whoever waits for the answer.
#[derive(Debug, Default)]
pub(super) struct Upload {
    frames: AtomicU64,
    ended: AtomicBool,
    failed: AtomicBool,
}

impl Upload {
    /// How many frames the upstream was given.
    pub(super) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Whether all of it has come.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Whether the client broke it off, or framed it wrongly.
    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

impl Up {
    /// Most that is read of a request that waits, in bytes.
    const AHEAD: usize = 64 * 1024;

    pub(super) fn new(body: Incoming) -> Self {
        match body.is_end_stream() {
            true => Self::empty(),
            false => Self { body: Some(body), ahead: None, upload: Some(Arc::default()) },
        }
    }

    /// No body.
    pub(super) const fn empty() -> Self {
        Self { body: None, ahead: None, upload: None }
    }

    /// How far it has come; nothing if there is no body.
    pub(super) fn upload(&self) -> Option<Arc<Upload>> {
        self.upload.clone()
    }

    /// Reads ahead, so that the connection notices when the client leaves: as long as a body is on its
    /// way, nobody looks at what comes after it. Returns when there is nothing more to read, or too
    /// much of it: whether that was all. What was read is not lost when the future is dropped.
    ///
    /// # Errors
    /// The client broke the body off.
    pub(super) async fn read_ahead(&mut self) -> Result<bool, hyper::Error> {
        let Some(body) = &mut self.body else { return Ok(true) };
        let mut read = 0;
        while read < Self::AHEAD && !body.is_end_stream() {
            let next = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
            let Some(frame) = next.transpose()? else { return Ok(true) };
            read += frame.data_ref().map_or(0, Bytes::len);
            self.ahead.get_or_insert_default().push_back(frame);
        }
        Ok(body.is_end_stream())
    }

    fn has_none_ahead(&self) -> bool {
        self.ahead.as_ref().is_none_or(|ahead| ahead.is_empty())
    }

    fn note(&self, frame: &Poll<Option<Result<Frame<Bytes>, hyper::Error>>>) {
        let Some(upload) = &self.upload else { return };
        match frame {
            Poll::Ready(Some(Ok(_))) => {
                upload.frames.fetch_add(1, Ordering::Relaxed);
                if self.is_end_stream() {
                    upload.ended.store(true, Ordering::Relaxed);
                }
            }
            Poll::Ready(Some(Err(_))) => upload.failed.store(true, Ordering::Relaxed),
            Poll::Ready(None) => upload.ended.store(true, Ordering::Relaxed),
            Poll::Pending => {}
        }
    }
}

impl Body for Up {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let ahead = self.ahead.as_mut().and_then(|ahead| ahead.pop_front());
        let frame = match ahead {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => match &mut self.body {
                Some(body) => Pin::new(body).poll_frame(context),
                None => Poll::Ready(None),
            },
        };
        self.note(&frame);
        frame
    }

    fn is_end_stream(&self) -> bool {
        self.has_none_ahead() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let Some(body) = &self.body else { return SizeHint::with_exact(0) };
        let rest = body.size_hint();
        let Some(ahead) = &self.ahead else { return rest };
        let ahead = ahead.iter().filter_map(Frame::data_ref);
        let ahead = ahead.map(|data| u64::try_from(data.len()).unwrap_or(u64::MAX)).sum::<u64>();
        let mut hint = SizeHint::new();
        hint.set_lower(rest.lower().saturating_add(ahead));
        if let Some(upper) = rest.upper() {
            hint.set_upper(upper.saturating_add(ahead));
        }
        hint
    }
}

/// The body of an answer: the upstream's, with everything that is to be let go of when it ends, or our own.
///
/// However it ends, it ends by being dropped: read to its end, broken off by the upstream, left by
/// the client, or cut off with its connection.
pub(super) enum Down<G> {
    Own(Full<Bytes>),
    Passing { body: Incoming, kept: Option<Kept>, guards: Option<G> },
}

impl<G> Down<G> {
    /// The upstream's body. `kept` is its connection, which can be used again after the last frame.
    pub(super) fn passing(body: Incoming, kept: Option<Kept>, guards: G) -> Self {
        let mut down = Self::Passing { body, kept, guards: Some(guards) };
        down.let_go_at_the_end();
        down
    }

    /// Once the last frame was read, nobody need poll again.
    fn let_go_at_the_end(&mut self) {
        if let Self::Passing { body, kept, guards } = self
            && body.is_end_stream()
        {
            if let Some(kept) = kept.take() {
                kept.back();
            }
            *guards = None;
        }
    }
}

impl<G: Unpin> Body for Down<G> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Own(body) => {
                let frame = Pin::new(body).poll_frame(context);
                frame.map(|frame| frame.map(|frame| frame.map_err(|never| match never {})))
            }
            Self::Passing { body, kept, guards } => {
                let frame = Pin::new(body).poll_frame(context);
                match &frame {
                    Poll::Ready(None) => {
                        if let Some(kept) = kept.take() {
                            kept.back();
                        }
                        *guards = None;
                    }
                    Poll::Ready(Some(Err(_))) => (*kept, *guards) = (None, None),
                    Poll::Ready(Some(Ok(_))) => self.let_go_at_the_end(),
                    Poll::Pending => {}
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Own(body) => body.is_end_stream(),
            Self::Passing { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Own(body) => body.size_hint(),
            Self::Passing { body, .. } => body.size_hint(),
        }
    }
}
