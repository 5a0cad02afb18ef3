//! Reports on the servers, for metrics.

use std::time::Duration;

use super::memory_stats::ServerUse;

/// The health and the counters of one server, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReport {
    /// The name of the server: `redis 127.0.0.1:6379`, or that of a Sentinel master.
    pub name: String,
    /// Whether there is a connection, so that the breaker is closed.
    pub is_up: bool,
    /// Connections that were opened; all but the first are reconnections.
    pub connections: u64,
    /// Number of times that the breaker opened.
    pub opened: u64,
    /// Script calls without a reply in time.
    pub timeouts: u64,
    /// Script calls that the server refused, or that were lost with their connection.
    pub failures: u64,
    /// Durations of script calls, failed ones included.
    pub latency: Latency,
    /// The last sample of its memory; `None` before the first, or if the server does not permit `INFO`.
    pub usage: Option<ServerUse>,
}

/// A histogram of call durations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Latency {
    /// For each of [`BOUNDS`](Self::BOUNDS), calls that took at most that long and longer than the one
    /// before; then those that took longer than any.
    pub counts: [u64; Self::CLASSES],
    /// All of them together.
    pub sum: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Latency {
    /// Number of classes.
    pub const CLASSES: usize = 11;

    /// The longest time of each class but the last, which has no bound.
    pub const BOUNDS: [Duration; Self::CLASSES - 1] = [
        Duration::from_micros(100),
        Duration::from_micros(250),
        Duration::from_micros(500),
        Duration::from_millis(1),
        Duration::from_micros(2_500),
        Duration::from_millis(5),
        Duration::from_millis(10),
        Duration::from_millis(25),
        Duration::from_millis(50),
        Duration::from_millis(100),
    ];

    /// Returns the number of calls.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}
