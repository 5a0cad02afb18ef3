//! Runs the calls of a connection in the task of the connection, not in one task per call.
//!
//! A check in memory never waits. A task for it would cost more than the check, and the connection
//! would write each reply separately. Run here, the replies to calls that arrived together are written
//! together.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use hyper::rt::Executor;
use parking_lot::Mutex;

/// A call in progress.
pub(crate) type QueuedCall = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls that one connection has read and not polled yet.
#[derive(Clone, Default)]
pub(crate) struct InlineExecutor {
    queued: Arc<Mutex<Vec<QueuedCall>>>,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for InlineExecutor {
    fn execute(&self, call: F) {
        self.queued.lock().push(Box::pin(call));
    }
}

impl InlineExecutor {
    /// Polls every queued call once and returns `true` if there was one. A call that is not ready
    /// continues in its own task.
    ///
    /// `batch` is empty before and after the call; it is passed in to reuse its memory.
    pub(crate) fn run(&self, batch: &mut Vec<QueuedCall>) -> bool {
        std::mem::swap(&mut *self.queued.lock(), batch);
        let found = !batch.is_empty();
        // No waker is needed here: a pending call is polled again by its task, with the task's waker.
        let mut context = Context::from_waker(Waker::noop());
        for mut call in batch.drain(..) {
            if call.as_mut().poll(&mut context).is_pending() {
                tokio::spawn(call);
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn ready_call_completes_inline_and_pending_call_continues_in_a_task() {
        let (executor, mut batch) = (InlineExecutor::default(), Vec::new());
        let (send_quick, mut quick) = oneshot::channel();
        let (send_slow, slow) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        executor.execute(async move { send_quick.send(()).unwrap() });
        executor.execute(async move {
            released.await.unwrap();
            send_slow.send(()).unwrap();
        });
        assert!(quick.try_recv().is_err());
        assert!(executor.run(&mut batch));
        assert!(quick.try_recv().is_ok());
        assert!(!executor.run(&mut batch));
        release.send(()).unwrap();
        slow.await.unwrap();
    }
}
