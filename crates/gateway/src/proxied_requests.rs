//! The requests in flight on one client connection, which decide its phase.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate_net::listener::{Activity, Phase};

/// Counters of the requests of one connection.
#[derive(Debug)]
pub(crate) struct ProxiedRequests {
    in_flight: AtomicUsize,
    /// Requests that wait in a queue or for the upstream. These waits have timeouts of their own.
    waiting: AtomicUsize,
    /// Requests that were sent to an upstream and abandoned before the response.
    abandoned: AtomicUsize,
    pub(crate) activity: Arc<Activity>,
}

/// A request in flight, until it is dropped.
#[derive(Debug)]
pub(crate) struct ProxiedRequest {
    requests: Arc<ProxiedRequests>,
    is_waiting: bool,
}

impl ProxiedRequests {
    pub(crate) fn new(activity: Arc<Activity>) -> Self {
        let (in_flight, waiting) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { in_flight, waiting, abandoned: AtomicUsize::new(0), activity }
    }

    /// Counts a request that the client has abandoned.
    pub(crate) fn count_abandoned(&self) {
        self.abandoned.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of abandoned requests.
    pub(crate) fn abandoned(&self) -> usize {
        self.abandoned.load(Ordering::Relaxed)
    }

    /// Counts a new request as in flight and waiting.
    pub(crate) fn begin(self: &Arc<Self>) -> ProxiedRequest {
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.update_phase();
        ProxiedRequest { requests: Arc::clone(self), is_waiting: true }
    }

    /// Sets the phase of the connection, and restarts its timeout.
    fn update_phase(&self) {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        let waiting = self.waiting.load(Ordering::Relaxed);
        self.activity.set_phase(match (in_flight, waiting) {
            (0, _) => Phase::Idle,
            (_, 0) => Phase::Request,
            _ => Phase::Waiting,
        });
    }
}

impl ProxiedRequest {
    /// Records that the upstream has responded. From now on the timeout of the body applies.
    pub(crate) fn on_response(&mut self) {
        if std::mem::take(&mut self.is_waiting) {
            self.requests.waiting.fetch_sub(1, Ordering::Relaxed);
            self.requests.update_phase();
        }
    }
}

impl Drop for ProxiedRequest {
    fn drop(&mut self) {
        if self.is_waiting {
            self.requests.waiting.fetch_sub(1, Ordering::Relaxed);
        }
        self.requests.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.requests.update_phase();
    }
}
