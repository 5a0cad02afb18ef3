//! What was asked of a server and how it did, for metrics.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::address::Address;
use super::super::report::{Latency, ServerReport, ServerUse};
use super::Node;

/// What was asked of a server and how it did.
#[derive(Debug, Default)]
pub(super) struct Tally {
    connections: AtomicU64,
    /// How often the server was given up.
    pub(super) opened: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) failures: AtomicU64,
    counts: [AtomicU64; Latency::CLASSES],
    /// Microseconds.
    sum: AtomicU64,
    longest: AtomicU64,
    usage: Mutex<Option<ServerUse>>,
    /// Where the last connection led.
    last: Mutex<Option<Address>>,
}

impl Tally {
    /// Counts a call that took so long.
    pub(super) fn note_call(&self, took: Duration) {
        let class = Latency::BOUNDS.partition_point(|bound| *bound < took);
        self.counts[class].fetch_add(1, Ordering::Relaxed);
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.sum.fetch_add(micros, Ordering::Relaxed);
        self.longest.fetch_max(micros, Ordering::Relaxed);
    }

    /// Counts a connection. Whether it leads elsewhere than the one before.
    pub(super) fn note_connection(&self, address: &Address) -> bool {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let before = self.last.lock().replace(address.clone());
        before.is_some_and(|before| before != *address)
    }

    fn latency(&self) -> Latency {
        Latency {
            counts: std::array::from_fn(|class| self.counts[class].load(Ordering::Relaxed)),
            sum: Duration::from_micros(self.sum.load(Ordering::Relaxed)),
            longest: Duration::from_micros(self.longest.load(Ordering::Relaxed)),
        }
    }
}

impl Node {
    /// How the server has done so far.
    pub(in super::super) fn report(&self) -> ServerReport {
        let Tally { connections, opened, timeouts, failures, usage, .. } = &self.tally;
        ServerReport {
            name: self.name().to_owned(),
            is_up: self.is_up(),
            connections: connections.load(Ordering::Relaxed),
            opened: opened.load(Ordering::Relaxed),
            timeouts: timeouts.load(Ordering::Relaxed),
            failures: failures.load(Ordering::Relaxed),
            latency: self.tally.latency(),
            usage: *usage.lock(),
        }
    }

    /// Asks the server how much it holds. One that does not say keeps what it said before.
    pub(in super::super) async fn weigh(&self) {
        let Some(link) = self.link() else { return };
        let mut info = redis::cmd("INFO");
        info.arg("memory").arg("stats").arg("keyspace");
        let told: Result<Vec<u8>, _> = info.query_async(&mut link.connection()).await;
        match told {
            Ok(told) => {
                if let Some(usage) = ServerUse::read(&String::from_utf8_lossy(&told)) {
                    *self.tally.usage.lock() = Some(usage);
                }
            }
            Err(error) => {
                tracing::debug!(store = %self.name, %error, "server does not say what it holds");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_counted_once_in_the_class_that_it_fits() {
        let tally = Tally::default();
        let took = [0, 100, 101, 1_000, 1_001, 100_000, 100_001].map(Duration::from_micros);
        took.iter().for_each(|took| tally.note_call(*took));
        let latency = tally.latency();
        assert_eq!(latency.counts, [2, 1, 0, 1, 1, 0, 0, 0, 0, 1, 1]);
        assert_eq!((latency.count(), latency.sum), (7, took.iter().sum()));
        assert_eq!(latency.longest, Duration::from_micros(100_001));
    }
}
