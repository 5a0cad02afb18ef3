//! Connection counters of a listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counters of a listener: connections that are open, that were accepted, that were closed because they abandoned
/// requests, and that may be open at once; bodies that were too slow; wrong tokens and passwords.
#[derive(Debug, Default)]
pub struct ConnectionCounts {
    open: AtomicU64,
    accepted: AtomicU64,
    abandoning: AtomicU64,
    slow_bodies: AtomicU64,
    max: AtomicUsize,
    auth_failures: AtomicU64,
}

/// Counts a connection as open until it is dropped.
#[derive(Debug)]
pub struct OpenConnection(Arc<ConnectionCounts>);

impl ConnectionCounts {
    /// Raises the limit of open connections; a listener with several sockets calls it for each.
    pub fn add_max(&self, max: usize) {
        self.max.fetch_add(max, Ordering::Relaxed);
    }

    /// Counts a connection as open until the returned guard is dropped.
    pub fn accept(self: &Arc<Self>) -> OpenConnection {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        OpenConnection(Arc::clone(self))
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that were accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Counts a connection that is closed because it abandoned too many requests.
    pub fn count_abandoning(&self) {
        self.abandoning.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of connections that were closed because they abandoned too many requests.
    pub fn abandoning(&self) -> u64 {
        self.abandoning.load(Ordering::Relaxed)
    }

    /// Counts a request that was ended because its client sent or took a body too slowly.
    pub fn count_slow_body(&self) {
        self.slow_bodies.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of requests that were ended because of a slow body.
    pub fn slow_bodies(&self) -> u64 {
        self.slow_bodies.load(Ordering::Relaxed)
    }

    /// Counts a wrong token or password.
    pub(crate) fn count_auth_failure(&self) {
        self.auth_failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of wrong tokens and passwords.
    pub fn auth_failures(&self) -> u64 {
        self.auth_failures.load(Ordering::Relaxed)
    }

    /// Returns the limit of open connections.
    pub fn max(&self) -> usize {
        self.max.load(Ordering::Relaxed)
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_is_counted_as_open_until_it_is_dropped() {
        let counts = Arc::new(ConnectionCounts::default());
        let (first, second) = (counts.accept(), counts.accept());
        assert_eq!((counts.open(), counts.accepted()), (2, 2));
        drop(first);
        assert_eq!((counts.open(), counts.accepted()), (1, 2));
        drop(second);
        assert_eq!((counts.open(), counts.accepted()), (0, 2));
    }
}
