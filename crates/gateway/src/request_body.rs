//! The bodies of requests, passed through frame by frame.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::pace::{ClientPace, PaceLimit};
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
    /// A body that was received with the head; empty otherwise.
    whole: Bytes,
    /// `None` for a request without a body, and for a body that was received with the head.
    progress: Option<Arc<UploadProgress>>,
    /// `None` until the gateway first waits for the client.
    pace: Option<Box<ClientPace>>,
}

/// The reason why a request body failed.
#[derive(Debug)]
pub(crate) enum BodyError {
    /// The client closed before the end of the body, or framed it wrongly.
    Invalid(hyper::Error),
    /// The client sent it too slowly.
    TooSlow,
}

impl fmt::Display for BodyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(error) => error.fmt(f),
            Self::TooSlow => f.write_str("the body was sent too slowly"),
        }
    }
}

impl std::error::Error for BodyError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Invalid(error) => error.source(),
            Self::TooSlow => None,
        }
    }
}

/// The progress of a request body. The task that waits for the response reads it.
#[derive(Debug)]
pub(crate) struct UploadProgress {
    pace_limit: Arc<PaceLimit>,
    frames: AtomicU64,
    awaits_client: AtomicBool,
    open_ended: AtomicBool,
    failed: AtomicBool,
    slow: AtomicBool,
}

impl UploadProgress {
    /// Returns the number of frames that were passed to the upstream connection.
    pub(crate) fn frames(&self) -> u64 {
        self.frames.load(Ordering::Relaxed)
    }

    /// Returns whether the upstream connection waits for the client.
    pub(crate) fn awaits_client(&self) -> bool {
        self.awaits_client.load(Ordering::Relaxed)
    }

    /// Ends the checks of the pace: the upstream has accepted a stream of messages, which may pause.
    pub(crate) fn set_open_ended(&self) {
        self.open_ended.store(true, Ordering::Relaxed);
    }

    /// Returns whether the body ended early, was framed wrongly or was too slow.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Returns whether the body failed because it was too slow.
    pub(crate) fn was_slow(&self) -> bool {
        self.slow.load(Ordering::Relaxed)
    }
}

impl RequestBody {
    /// Wraps the body of a client, which has to keep the minimum pace.
    pub(crate) fn new(body: Incoming, pace_limit: &Arc<PaceLimit>) -> Self {
        if body.is_end_stream() {
            return Self::empty();
        }
        let progress = UploadProgress {
            pace_limit: Arc::clone(pace_limit),
            frames: AtomicU64::new(0),
            awaits_client: AtomicBool::new(false),
            open_ended: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            slow: AtomicBool::new(false),
        };
        let progress = Some(Arc::new(progress));
        Self { body: Some(body), buffered: None, whole: Bytes::new(), progress, pace: None }
    }

    /// Returns a body that was received with the head.
    pub(crate) fn whole(body: Bytes) -> Self {
        Self { body: None, buffered: None, whole: body, progress: None, pace: None }
    }

    /// Returns the body of a request that has none.
    pub(crate) const fn empty() -> Self {
        Self { body: None, buffered: None, whole: Bytes::new(), progress: None, pace: None }
    }

    /// Returns whether the request has no body.
    pub(crate) fn is_empty(&self) -> bool {
        self.progress.is_none() && self.whole.is_empty()
    }

    /// Returns the body that was received with the head; empty otherwise.
    pub(crate) fn received(&self) -> &[u8] {
        &self.whole
    }

    /// Returns the progress of the upload; `None` if nothing of the body has to be read.
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

    /// Records a frame or the end of the body.
    fn record_progress(&mut self, frame: Option<&Result<Frame<Bytes>, BodyError>>) {
        let Some(progress) = &self.progress else { return };
        match frame {
            Some(Ok(_)) => drop(progress.frames.fetch_add(1, Ordering::Relaxed)),
            Some(Err(_)) => progress.failed.store(true, Ordering::Relaxed),
            None => {}
        }
        // Without a wait for the client there is nothing else to record.
        if let Some(pace) = &mut self.pace {
            progress.awaits_client.store(false, Ordering::Relaxed);
            let data = frame.and_then(|frame| frame.as_ref().ok()?.data_ref());
            pace.on_transfer(data.map_or(0, Bytes::len));
        }
    }

    /// Waits for the client. Ready with an error if its body is too slow.
    fn poll_slow(&mut self, context: &mut Context<'_>) -> Poll<BodyError> {
        let Some(progress) = &self.progress else { return Poll::Pending };
        progress.awaits_client.store(true, Ordering::Relaxed);
        let pace = self.pace.get_or_insert_with(|| {
            Box::new(ClientPace::new(Arc::clone(&progress.pace_limit), "request"))
        });
        if progress.open_ended.load(Ordering::Relaxed) {
            return Poll::Pending;
        }
        pace.poll_slow(context).map(|()| {
            progress.slow.store(true, Ordering::Relaxed);
            BodyError::TooSlow
        })
    }
}

impl Drop for RequestBody {
    fn drop(&mut self) {
        if let Some(progress) = &self.progress {
            progress.awaits_client.store(false, Ordering::Relaxed);
        }
    }
}

impl Body for RequestBody {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, BodyError>>> {
        let buffered = self.buffered.as_mut().and_then(|buffered| buffered.pop_front());
        let frame = match (buffered, &mut self.body) {
            (Some(frame), _) => Poll::Ready(Some(Ok(frame))),
            (None, Some(body)) => Pin::new(body).poll_frame(context),
            (None, None) => {
                let whole = std::mem::take(&mut self.whole);
                Poll::Ready((!whole.is_empty()).then(|| Ok(Frame::data(whole))))
            }
        };
        let frame = match frame {
            Poll::Ready(frame) => frame.map(|frame| frame.map_err(BodyError::Invalid)),
            Poll::Pending => Some(Err(ready!(self.poll_slow(context)))),
        };
        self.record_progress(frame.as_ref());
        Poll::Ready(frame.map(|frame| frame.map(clean_frame)))
    }

    fn is_end_stream(&self) -> bool {
        self.is_buffer_empty()
            && self.whole.is_empty()
            && self.body.as_ref().is_none_or(Body::is_end_stream)
    }

    fn size_hint(&self) -> SizeHint {
        let Some(body) = &self.body else {
            return SizeHint::with_exact(u64::try_from(self.whole.len()).unwrap_or(u64::MAX));
        };
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
