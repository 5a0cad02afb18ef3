//! Connection counters of a listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Counters of a listener: connections that are open, that were accepted, refused, evicted, or closed because they
/// abandoned requests, and that may be open at once; bodies that were too slow; wrong tokens and passwords.
#[derive(Debug, Default)]
pub struct ConnectionCounts {
    open: AtomicU64,
    accepted: AtomicU64,
    abandoning: AtomicU64,
    slow_bodies: AtomicU64,
    max: usize,
    max_upstream: usize,
    auth_failures: AtomicU64,
    evicted: AtomicU64,
    /// By [`RefusalReason`].
    refused: [AtomicU64; RefusalReason::ALL.len()],
    /// Open connections to upstreams; only of the gateway.
    upstream_open: AtomicU64,
}

/// The reason why a new connection was not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RefusalReason {
    /// The listener has its maximum of connections, and none of them is idle.
    Full,
    /// The client address has its maximum of connections.
    Client,
    /// The process or the system has no file descriptor. The connection waits until there is one.
    Files,
}

impl RefusalReason {
    pub const ALL: [Self; 3] = [Self::Full, Self::Client, Self::Files];

    /// Returns the name in metrics and logs.
    pub fn label(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Client => "client",
            Self::Files => "files",
        }
    }
}

/// Counts a connection as open until it is dropped.
#[derive(Debug)]
pub struct OpenConnection(Arc<ConnectionCounts>);

impl ConnectionCounts {
    /// Returns the counters of a listener with this limit of open connections.
    pub fn new(max: usize) -> Self {
        Self { max, ..Self::default() }
    }

    /// Returns these counters with a limit of connections to upstreams.
    #[must_use]
    pub fn with_max_upstream(self, max_upstream: usize) -> Self {
        Self { max_upstream, ..self }
    }

    /// Returns the limit of connections to upstreams; 0 if the listener has none.
    pub fn max_upstream(&self) -> usize {
        self.max_upstream
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
        self.max
    }

    /// Counts an idle connection that was closed for a new one.
    pub(crate) fn count_evicted(&self) {
        self.evicted.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of idle connections that were closed for new ones.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// Counts a connection to an upstream as open.
    pub fn open_upstream(&self) {
        self.upstream_open.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a connection to an upstream as closed.
    pub fn close_upstream(&self) {
        self.upstream_open.fetch_sub(1, Ordering::Relaxed);
    }

    /// Returns the number of open connections to upstreams.
    pub fn upstream_open(&self) -> u64 {
        self.upstream_open.load(Ordering::Relaxed)
    }

    /// Counts a new connection that was not accepted.
    pub(crate) fn count_refused(&self, reason: RefusalReason) {
        self.refused[reason as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of new connections that were not accepted for this reason.
    pub fn refused(&self, reason: RefusalReason) -> u64 {
        self.refused[reason as usize].load(Ordering::Relaxed)
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
