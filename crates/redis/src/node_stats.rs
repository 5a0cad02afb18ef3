//! RedisCounters of one server, for metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::address::Address;
use super::report::{Latency, ServerReport, ServerUse};

/// RedisCounters of one server.
#[derive(Debug, Default)]
pub(crate) struct NodeStats {
    connections: AtomicU64,
    /// Number of times that the breaker opened.
    pub(crate) opened: AtomicU64,
    pub(crate) timeouts: AtomicU64,
    pub(crate) failures: AtomicU64,
    counts: [AtomicU64; Latency::CLASSES],
    /// Microseconds.
    sum: AtomicU64,
    longest: AtomicU64,
    usage: Mutex<Option<ServerUse>>,
    /// The address of the last connection.
    last: Mutex<Option<Address>>,
}

impl NodeStats {
    /// Counts a call by its duration.
    pub(crate) fn record_call(&self, took: Duration) {
        let class = Latency::BOUNDS.partition_point(|bound| *bound < took);
        self.counts[class].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum.fetch_add(micros, Ordering::Relaxed);
        self.longest.fetch_max(micros, Ordering::Relaxed);
    }

    /// Counts a connection. Returns whether it has another address than the one before.
    pub(crate) fn record_connection(&self, address: &Address) -> bool {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let before = self.last.lock().replace(address.clone());
        before.is_some_and(|before| before != *address)
    }

    /// Keeps the last sample of the server's memory.
    pub(crate) fn record_usage(&self, usage: ServerUse) {
        *self.usage.lock() = Some(usage);
    }

    /// Returns the counters as metrics show them.
    pub(crate) fn report(&self, name: &Arc<str>, is_up: bool) -> ServerReport {
        ServerReport {
            name: name.to_string(),
            is_up,
            connections: self.connections.load(Ordering::Relaxed),
            opened: self.opened.load(Ordering::Relaxed),
            timeouts: self.timeouts.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            latency: self.latency(),
            usage: *self.usage.lock(),
        }
    }

    fn latency(&self) -> Latency {
        Latency {
            counts: std::array::from_fn(|class| self.counts[class].load(Ordering::Relaxed)),
            sum: Duration::from_micros(self.sum.load(Ordering::Relaxed)),
            longest: Duration::from_micros(self.longest.load(Ordering::Relaxed)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_once_in_the_class_that_it_fits() {
        let stats = NodeStats::default();
        let took = [0, 100, 101, 1_000, 1_001, 100_000, 100_001].map(Duration::from_micros);
        took.iter().for_each(|took| stats.record_call(*took));
        let latency = stats.latency();
        assert_eq!(latency.counts, [2, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!((latency.count(), latency.sum), (7, took.iter().sum()));
        assert_eq!(latency.longest, Duration::from_micros(100_001));
    }
}
