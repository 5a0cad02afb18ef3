//! The streams of an HTTP/2 connection, polled where its bytes are read: they end when it does.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::rt::Executor;
use parking_lot::Mutex;

type Stream = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Where a connection leaves its new streams.
#[derive(Clone, Default)]
pub(super) struct Streams {
    new: Arc<Mutex<Vec<Stream>>>,
}

/// Streams that are under way.
pub(super) type UnderWay = FuturesUnordered<Stream>;

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Streams {
    fn execute(&self, stream: F) {
        self.new.lock().push(Box::pin(stream));
    }
}

impl Streams {
    /// Takes every stream as far as it goes. Whether there was a new one or one has ended: then the
    /// connection may have something to write.
    pub(super) fn poll(&self, under_way: &mut UnderWay, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        for stream in self.new.lock().drain(..) {
            moved = true;
            under_way.push(stream);
        }
        while let Poll::Ready(Some(())) = under_way.poll_next_unpin(context) {
            moved = true;
        }
        moved
    }
}
