//! The requests of one connection that are under way, and what the door is told about them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_net::listener::{Activity, Phase};

/// The requests of one connection.
#[derive(Debug)]
pub(super) struct Calls {
    under_way: AtomicUsize,
    /// How many of them wait for a turn or an answer, which has time limits of its own.
    waiting: AtomicUsize,
    pub(super) activity: Arc<Activity>,
}

/// A request that is under way until this is dropped.
#[derive(Debug)]
pub(super) struct Call {
    calls: Arc<Calls>,
    waits: bool,
}

impl Calls {
    pub(super) fn new(activity: Arc<Activity>) -> Self {
        let (under_way, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { under_way, waiting, activity }
    }

    /// A request has come.
    pub(super) fn begin(self: &Arc<Self>) -> Call {
        self.under_way.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.note();
        Call { calls: Arc::clone(self), waits: true }
    }

    /// Every change is a sign of life.
    fn note(&self) {
        let under_way = self.under_way.load(Ordering::Relaxed);
        let waiting = self.waiting.load(Ordering::Relaxed);
        self.activity.set_phase(match (under_way, waiting) {
            (0, _) => Phase::Idle,
            (_, 0) => Phase::Request,
            _ => Phase::Waiting,
        });
    }
}

impl Call {
    /// There is an answer: from now on bytes have to move.
    pub(super) fn answered(&mut self) {
        if std::mem::take(&mut self.waits) {
            self.calls.waiting.fetch_sub(1, Ordering::Relaxed);
            self.calls.note();
        }
    }
}

impl Drop for Call {
    fn drop(&mut self) {
        if self.waits {
            self.calls.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        self.calls.under_way.fetch_sub(1, Ordering::Relaxed);
        self.calls.note();
    }
}
