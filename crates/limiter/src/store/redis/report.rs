//! What a node knows of each server, for metrics.

use std::time::Duration;

/// How one server has done so far, as this node sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ServerReport {
    /// Which server: `redis 127.0.0.1:6379`, or the name that sentinels know it by.
    pub name: String,
    /// Whether it can be asked.
    pub is_up: bool,
    /// Connections that were made to it; all but the first are reconnections.
    pub connections: u64,
    /// How often it was given up for a while because it failed.
    pub opened: u64,
    /// Script calls that it did not answer in time.
    pub timeouts: u64,
    /// Script calls that it refused, or that were lost with their connection.
    pub failures: u64,
    /// How long script calls took, those that failed too.
    pub latency: Latency,
    /// What it last said of itself; nothing until it has, or when it does not let us ask.
    pub usage: Option<ServerUse>,
}

/// What a server says of its memory and its keys, counters of others included.
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
    /// Reads the reply to `INFO memory stats keyspace`; nothing when it does not say how much is used.
    pub(super) fn read(info: &str) -> Option<Self> {
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

/// Whether a field is about one database: `db0`.
fn is_database(name: &str) -> bool {
    let number = name.strip_prefix("db");
    number.is_some_and(|number| number.bytes().all(|digit| digit.is_ascii_digit()))
}

/// How many keys `keys=12,expires=12,avg_ttl=0` tells of.
fn keys(value: &str) -> Option<u64> {
    value.split(',').find_map(|part| part.strip_prefix("keys="))?.parse().ok()
}

/// How long calls took, counted in a few classes.
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
    /// How many classes there are.
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

    /// How many calls there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_says_what_it_holds() {
        let info = "# Memory\r\nused_memory:1048576\r\nused_memory_human:1.00M\r\nmaxmemory:2097152\r\n\
                    # Stats\r\nevicted_keys:7\r\ndb_something:1\r\n\
                    # Keyspace\r\ndb0:keys=10,expires=9,avg_ttl=5\r\ndb3:keys=2,expires=0,avg_ttl=0\r\n";
        let usage = ServerUse { memory: 1_048_576, max_memory: 2_097_152, keys: 12, evicted: 7 };
        assert_eq!(ServerUse::read(info), Some(usage));
    }

    #[test]
    fn a_server_that_says_nothing_is_not_taken_for_an_empty_one() {
        assert_eq!(ServerUse::read(""), None);
        assert_eq!(ServerUse::read("used_memory:much\r\nmaxmemory:0\r\n"), None);
    }
}
