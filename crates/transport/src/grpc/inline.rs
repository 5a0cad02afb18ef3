//! Runs the calls of a connection where their bytes were read, and not in tasks of their own.
//!
//! A check in memory never waits. A task for it would cost more than the check, and would make the
//! connection write each reply by itself; this way replies to calls that came together leave together.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Waker};

use hyper::rt::Executor;
use parking_lot::Mutex;

/// A call that is being answered.
pub(super) type Answering = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The calls that one connection has read and nobody has looked at yet.
#[derive(Clone, Default)]
pub(super) struct Inline {
    waiting: Arc<Mutex<Vec<Answering>>>,
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Inline {
    fn execute(&self, answering: F) {
        self.waiting.lock().push(Box::pin(answering));
    }
}

impl Inline {
    /// Takes every waiting call as far as it goes; one that has to wait goes on as a task. Whether
    /// there was any.
    ///
    /// `batch` is empty before and after; it is there to be used again.
    pub(super) fn run(&self, batch: &mut Vec<Answering>) -> bool {
        std::mem::swap(&mut *self.waiting.lock(), batch);
        let found = !batch.is_empty();
        // Whoever has to wait is polled again by its task, which is when somebody has to be woken.
        let mut context = Context::from_waker(Waker::noop());
        for mut answering in batch.drain(..) {
            if answering.as_mut().poll(&mut context).is_pending() {
                tokio::spawn(answering);
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
    async fn a_call_that_need_not_wait_is_answered_at_once_and_another_when_it_can_be() {
        let (inline, mut batch) = (Inline::default(), Vec::new());
        let (send_quick, mut quick) = oneshot::channel();
        let (send_slow, slow) = oneshot::channel();
        let (release, released) = oneshot::channel::<()>();
        inline.execute(async move { send_quick.send(()).unwrap() });
        inline.execute(async move {
            released.await.unwrap();
            send_slow.send(()).unwrap();
        });
        assert!(quick.try_recv().is_err());
        assert!(inline.run(&mut batch));
        assert!(quick.try_recv().is_ok());
        assert!(!inline.run(&mut batch));
        release.send(()).unwrap();
        slow.await.unwrap();
    }
}
