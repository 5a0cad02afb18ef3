//! Request and response bodies, passed through frame by frame.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::pool::PooledConn;
use crate::reserved_headers::clean_trailers;

/// Most bytes of a body that are buffered while its request waits in a queue.
const MAX_BUFFERED_BYTES: usize = 64 * 1024;

/// The body of a request to the upstream.
pub(crate) struct RequestBody {
    /// `None` for a request without a body.
    body: Option<Incoming>,
    /// Frames that were read while the request waited in a queue.
    #[allow(clippy::box_collection, reason = "bodies are moved often, and few are buffered")]
    buffered: Option<Box<VecDeque<Frame<Bytes>>>>,
    /// `None` for a request without a body.
    progress: Option<Arc<UploadProgress>>,
}

/// The progress of a request body. The task that waits for the response reads it.
#[derive(Debug, Default)]
pub(crate) struct UploadProgress {
    frames: AtomicU64,
    ended: AtomicBool,
    failed: AtomicBool,
}

impl UploadProgress {
    /// Returns the number of frames that were passed to the upstream connection.
    pub(crate) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Returns whether the whole body was passed on.
    pub(crate) fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// Returns whether the client closed before the end of the body, or framed it wrongly.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    pub(crate) fn new(body: Incoming) -> Self {
        match body.is_end_stream() {
            true => Self::empty(),
            false => Self { body: Some(body), buffered: None, progress: Some(Arc::default()) },
        }
    }

    /// Returns the body of a request that has none.
    pub(crate) const fn empty() -> Self {
        Self { body: None, buffered: None, progress: None }
    }

    /// Returns the progress of the upload; `None` for a request without a body.
    pub(crate) fn progress(&self) -> Option<Arc<UploadProgress>> {
        self.progress.clone()
    }

    /// Buffers the body, up to 64 KiB. Returns whether it is complete.
    ///
    /// hyper notices that a client disconnects only after it has read the body of the request in flight. Cancel safe:
    /// frames that were read stay in the buffer.
    ///
    /// # Errors
    /// The body ended early or is framed wrongly.
    pub(crate) async fn buffer(&mut self) -> Result<bool, hyper::Error> {
        let Some(body) = &mut self.body else { return Ok(true) };
        let mut read = 0;
        while read < MAX_BUFFERED_BYTES && !body.is_end_stream() {
            let next = poll_fn(|context| Pin::new(&mut *body).poll_frame(context)).await;
            let Some(frame) = next.transpose()? else { return Ok(true) };
            read += frame.data_ref().map_or(0, Bytes::len);
            self.buffered.get_or_insert_default().push_back(frame);
        }
        Ok(body.is_end_stream())
    }

    fn is_buffer_empty(&self) -> bool {
        self.buffered.as_ref().is_none_or(|buffered| buffered.is_empty())
    }

    fn record_progress(&self, frame: &Poll<Option<Result<Frame<Bytes>, hyper::Error>>>) {
        let Some(progress) = &self.progress else { return };
        match frame {
            Poll::Ready(Some(Ok(_))) => {
                progress.frames.fetch_add(1, Ordering::Relaxed);
                if self.is_end_stream() {
                    progress.ended.store(true, Ordering::Relaxed);
                }
            }
            Poll::Ready(Some(Err(_))) => progress.failed.store(true, Ordering::Relaxed),
            Poll::Ready(None) => progress.ended.store(true, Ordering::Relaxed),
            Poll::Pending => {}
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let buffered = self.buffered.as_mut().and_then(|buffered| buffered.pop_front());
        let frame = match buffered {
            Some(frame) => Poll::Ready(Some(Ok(frame))),
            None => match &mut self.body {
                Some(body) => Pin::new(body).poll_frame(context),
                None => Poll::Ready(None),
            },
        };
        self.record_progress(&frame);
        frame.map(|frame| frame.map(|frame| frame.map(clean_frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_buffer_empty() && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let Some(body) = &self.body else { return SizeHint::with_exact(0) };
        let unread = body.size_hint();
        let Some(buffered) = &self.buffered else { return unread };
        let lengths = buffered.iter().filter_map(Frame::data_ref).map(Bytes::len);
        let buffered = lengths.map(|length| u64::try_from(length).unwrap_or(u64::MAX)).sum::<u64>();
        let mut hint = SizeHint::new();
        hint.set_lower(unread.lower().saturating_add(buffered));
        if let Some(upper) = unread.upper() {
            hint.set_upper(upper.saturating_add(buffered));
        }
        hint
    }
}

/// Removes trailer fields that the upstream must not get. Trailers without a field become an empty frame of data.
fn clean_frame(frame: Frame<Bytes>) -> Frame<Bytes> {
    match frame.into_trailers() {
        Ok(mut trailers) => {
            clean_trailers(&mut trailers);
            match trailers.is_empty() {
                true => Frame::data(Bytes::new()),
                false => Frame::trailers(trailers),
            }
        }
        Err(frame) => frame,
    }
}

/// The body of a response to the client: the upstream's, or one that the gateway made.
///
/// The guards `G` are released after the last frame, or when the body is dropped: because the upstream or the client
/// closed, or the connection was aborted.
pub(crate) enum ResponseBody<G> {
    Local(Full<Bytes>),
    Upstream { body: Incoming, pooled: Option<PooledConn>, guards: Option<G> },
}

impl<G> ResponseBody<G> {
    /// Wraps the body of an upstream. Its HTTP/1 connection `pooled` returns to the pool after the last frame.
    pub(crate) fn from_upstream(body: Incoming, pooled: Option<PooledConn>, guards: G) -> Self {
        let mut response = Self::Upstream { body, pooled, guards: Some(guards) };
        response.release_at_end();
        response
    }

    /// Releases the connection and the guards if the last frame was read: hyper does not poll again then.
    fn release_at_end(&mut self) {
        if let Self::Upstream { body, pooled, guards } = self
            && body.is_end_stream()
        {
            if let Some(pooled) = pooled.take() {
                pooled.release();
            }
            *guards = None;
        }
    }
}

impl<G: Unpin> Body for ResponseBody<G> {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        match &mut *self {
            Self::Local(body) => {
                let frame = Pin::new(body).poll_frame(context);
                frame.map(|frame| frame.map(|frame| frame.map_err(|never| match never {})))
            }
            Self::Upstream { body, pooled, guards } => {
                let frame = Pin::new(body).poll_frame(context);
                match &frame {
                    Poll::Ready(None) => {
                        if let Some(pooled) = pooled.take() {
                            pooled.release();
                        }
                        *guards = None;
                    }
                    Poll::Ready(Some(Err(_))) => (*pooled, *guards) = (None, None),
                    Poll::Ready(Some(Ok(_))) => self.release_at_end(),
                    Poll::Pending => {}
                }
                frame
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Local(body) => body.is_end_stream(),
            Self::Upstream { body, .. } => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Local(body) => body.size_hint(),
            Self::Upstream { body, .. } => body.size_hint(),
        }
    }
}
