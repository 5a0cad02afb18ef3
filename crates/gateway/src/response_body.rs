//! The bodies of responses, passed through frame by frame.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::{Body, Frame, Incoming, SizeHint};

use crate::direct_conn::DirectBody;
use crate::pace::ResponseProgress;
use crate::pool::PooledConn;

/// The body of an upstream's response.
#[derive(Debug)]
pub(crate) enum UpstreamBody {
    Hyper(Incoming),
    Direct(DirectBody),
}

impl Body for UpstreamBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.get_mut() {
            Self::Hyper(body) => {
                let frame = Pin::new(body).poll_frame(context);
                frame.map(|frame| frame.map(|frame| frame.map_err(io::Error::other)))
            }
            Self::Direct(body) => Pin::new(body).poll_frame(context),
        }
    }

    fn is_end_stream(&self) -> bool {
        match self {
            Self::Hyper(body) => body.is_end_stream(),
            Self::Direct(body) => body.is_end_stream(),
        }
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Hyper(body) => body.size_hint(),
            Self::Direct(body) => body.size_hint(),
        }
    }
}

/// The body of a response to the client: the upstream's, or one that the gateway made.
///
/// The guards `G` are released after the last frame, or when the body is dropped: because the upstream or the client
/// closed, or the connection was aborted.
pub(crate) enum ResponseBody<G> {
    Local(Full<Bytes>),
    Upstream {
        body: UpstreamBody,
        pooled: Option<PooledConn>,
        guards: Option<G>,
        progress: Arc<ResponseProgress>,
    },
}

impl<G> ResponseBody<G> {
    /// Wraps the body of an upstream. Its HTTP/1 connection `pooled` returns to the pool after the last frame.
    pub(crate) fn from_upstream(
        body: UpstreamBody,
        pooled: Option<PooledConn>,
        guards: G,
        progress: Arc<ResponseProgress>,
    ) -> Self {
        let mut response = Self::Upstream { body, pooled, guards: Some(guards), progress };
        response.release_at_end();
        response
    }

    /// Releases the connection and the guards if the last frame was read: hyper does not poll again then.
    fn release_at_end(&mut self) {
        if let Self::Upstream { body, pooled, guards, progress } = self
            && body.is_end_stream()
        {
            if let Some(pooled) = pooled.take() {
                pooled.release();
            }
            *guards = None;
            progress.on_read();
        }
    }
}

impl<G: Unpin> Body for ResponseBody<G> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match &mut *self {
            Self::Local(body) => {
                let frame = Pin::new(body).poll_frame(context);
                frame.map(|frame| frame.map(|frame| frame.map_err(|never| match never {})))
            }
            Self::Upstream { body, pooled, guards, progress } => {
                progress.on_read();
                let frame = Pin::new(body).poll_frame(context);
                match &frame {
                    Poll::Ready(None) => {
                        if let Some(pooled) = pooled.take() {
                            pooled.release();
                        }
                        *guards = None;
                    }
                    Poll::Ready(Some(Err(_))) => (*pooled, *guards) = (None, None),
                    Poll::Ready(Some(Ok(frame))) => {
                        progress.on_frame(frame.data_ref().map_or(0, Bytes::len));
                        self.release_at_end();
                    }
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
