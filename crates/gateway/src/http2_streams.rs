//! The streams of an HTTP/2 connection, polled by the task of the connection.
//!
//! When the connection ends, its streams are dropped with it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;
use parking_lot::Mutex;

use crate::pace::{PaceLimit, PacedResponses, ResponseProgress};

type StreamFuture = PacedResponses<Pin<Box<dyn Future<Output = ()> + Send>>>;

/// Streams that are polled.
pub(crate) type RunningStreams = FuturesUnordered<StreamFuture>;

/// An executor that queues new streams until the connection polls them.
#[derive(Clone)]
pub(crate) struct Http2Streams {
    new: Arc<Mutex<NewStreams>>,
    pace_limit: Arc<PaceLimit>,
}

#[derive(Default)]
struct NewStreams {
    streams: Vec<StreamFuture>,
    /// The progress of the stream that hyper executes next.
    opened: Option<Arc<ResponseProgress>>,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Http2Streams {
    fn execute(&self, stream: F) {
        let mut new = self.new.lock();
        let progress = new.opened.take().unwrap_or_default();
        let pace_limit = Arc::clone(&self.pace_limit);
        new.streams.push(PacedResponses::new(Box::pin(stream), progress, pace_limit));
    }
}

impl Http2Streams {
    /// Creates an executor that ends streams with a response that is taken too slowly.
    pub(crate) fn new(pace_limit: Arc<PaceLimit>) -> Self {
        Self { new: Arc::default(), pace_limit }
    }

    /// Returns the progress of a new stream. hyper calls the service for a stream, and executes the stream right after.
    pub(crate) fn open(&self) -> Arc<ResponseProgress> {
        Arc::clone(self.new.lock().opened.insert(Arc::default()))
    }

    /// Polls every stream. Returns whether one was new or has ended: then the connection must be polled again, because
    /// it may have something to write.
    pub(crate) fn poll(&self, running: &mut RunningStreams, context: &mut Context<'_>) -> bool {
        let mut changed = false;
        for stream in self.new.lock().streams.drain(..) {
            changed = true;
            running.push(stream);
        }
        while let Poll::Ready(Some(_)) = running.poll_next_unpin(context) {
            changed = true;
        }
        changed
    }
}
