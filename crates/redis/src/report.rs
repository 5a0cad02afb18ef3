//! Reports on the servers, for metrics.

use std::time::Duration;

/// The health and the counters of one server, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReport {
    /// The name of the server: `redis 127.0.0.1:6379`, or that of a Sentinel master.
    pub name: String,
    /// True while the server is connected and its breaker is closed.
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

/// Memory and keys of a server, those of other applications included.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerUse {
    /// Bytes in use.
    pub memory: u64,
    /// Bytes that it may use; 0 when nothing bounds them.
    pub max_memory: u64,
    /// Keys in all of its databases.
    pub keys: u64,
    /// Keys that it threw out for want of memory since it started. Their clients began anew.
    pub evicted: u64,
}

impl ServerUse {
    /// Reads the reply to `INFO memory stats keyspace`; `None` without the memory in use.
    pub(crate) fn read(info: &str) -> Option<Self> {
        let (mut usage, mut said) = (Self::default(), false);
        for (name, value) in info.lines().filter_map(|line| line.trim_end().split_once(':')) {
            let number = || value.parse().unwrap_or(0);
            match name {
                "used_memory" => (usage.memory, said) = (number(), value.parse::<u64>().is_ok()),
                "maxmemory" => usage.max_memory = number(),
                "evicted_keys" => usage.evicted = number(),
                _ if is_database(name) => usage.keys += keys(value).unwrap_or(0),
                _ => {}
            }
        }
        said.then_some(usage)
    }
}

/// Returns whether a field is about one database: `db0`.
fn is_database(name: &str) -> bool {
    let number = name.strip_prefix("db");
    number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
}

/// Returns the number of keys in `keys=12,expires=12,avg_ttl=0`.
fn keys(value: &str) -> Option<u64> {
    value.split(',').find_map(|part| part.strip_prefix("keys="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_and_keys_are_read_from_info() {
        let info = "# Memory\r\nused_memory:1048576\r\nused_memory_human:1.00M\r\nmaxmemory:2097152\r\n\
                    # Stats\r\nevicted_keys:7\r\ndb_something:1\r\n\
                    # Keyspace\r\ndb0:keys=10,expires=9,avg_ttl=5\r\ndb3:keys=2,expires=0,avg_ttl=0\r\n";
        let usage = ServerUse { memory: 1_048_576, max_memory: 2_097_152, keys: 12, evicted: 7 };
        assert_eq!(ServerUse::read(info), Some(usage));
    }

    #[test]
    fn info_without_memory_is_no_sample() {
        assert_eq!(ServerUse::read(""), None);
        assert_eq!(ServerUse::read("used_memory:much\r\nmaxmemory:0\r\n"), None);
    }
}
