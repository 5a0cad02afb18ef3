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

type StreamFuture = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Streams that are polled.
pub(crate) type RunningStreams = FuturesUnordered<StreamFuture>;

/// An executor that queues new streams until the connection polls them.
#[derive(Clone, Default)]
pub(crate) struct Http2Streams {
    new: Arc<Mutex<Vec<StreamFuture>>>,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Http2Streams {
    fn execute(&self, stream: F) {
        self.new.lock().push(Box::pin(stream));
    }
}

impl Http2Streams {
    /// Polls every stream. Returns whether one was new or has ended: then the connection must be polled again, because
    /// it may have something to write.
    pub(crate) fn poll(&self, running: &mut RunningStreams, context: &mut Context<'_>) -> bool {
        let mut changed = false;
        for stream in self.new.lock().drain(..) {
            changed = true;
            running.push(stream);
        }
        while let Poll::Ready(Some(())) = running.poll_next_unpin(context) {
            changed = true;
        }
        changed
    }
}
