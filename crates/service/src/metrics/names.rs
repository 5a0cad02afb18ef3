//! Every metric by name, and what it says. `docs/guide/operating.md` has the same list for people.
//!
//! Counters are named without `_total`, which their samples get; the name says the unit.

/// What a metric is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    Histogram,
    /// Says something by its labels, and is always 1.
    Info,
}

/// A metric's name and what it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal, $help:literal;)*) => {
        $(pub(crate) const $constant: Metric =
            Metric { name: $name, kind: Kind::$kind, help: $help };)*

        /// All of them.
        #[cfg(test)]
        pub(crate) const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    BUILD: Info "tidegate_build", "Which release this is.";
    READY: Gauge "tidegate_ready", "1 when calls should be sent here, else 0.";

    CHECKS: Counter "tidegate_checks", "Checks by the listener they came through and the answer they got.";
    CHECK_DURATION: Histogram "tidegate_check_duration_seconds", "From a decoded call to its decision, by listener.";
    DECISIONS: Counter "tidegate_decisions", "What each rule answered to the checks that it applied to.";
    STORE_FAILURES: Counter "tidegate_store_failures", "Checks that a rule answered without the store, by its answer.";

    RULES: Gauge "tidegate_rules", "Rules in force.";
    RULES_VERSION: Info "tidegate_rules_version", "Which rules are in force: nodes with the same rules have the same version.";
    RULES_NUMBER: Gauge "tidegate_rules_number", "The number of the version in force; it only ever grows.";
    RULES_BEHIND: Gauge "tidegate_rules_behind", "1 when the source has other rules than those in force, else 0.";
    RULES_SOURCE_UP: Gauge "tidegate_rules_source_up", "1 when the source of the rules could be asked last time, else 0.";
    RULES_SOURCE_FAILURES: Counter "tidegate_rules_source_failures", "How often the source of the rules could not be asked.";
    RULES_REJECTED: Counter "tidegate_rules_rejected", "Documents that could not be used, while the rules in force stayed.";
    RULES_LOADED: Gauge "tidegate_rules_loaded_timestamp_seconds", "When the rules in force were loaded.";

    CONNECTIONS: Gauge "tidegate_connections", "Open connections by listener.";
    CONNECTIONS_ACCEPTED: Counter "tidegate_connections_accepted", "Connections accepted by listener.";
    CONNECTIONS_MOST: Gauge "tidegate_connections_limit", "Most open connections by listener; more wait to be accepted.";

    UPSTREAM_REQUESTS: Counter "tidegate_upstream_requests", "Requests that the gateway let pass, by what became of them at their upstream.";
    UPSTREAM_IN_FLIGHT: Gauge "tidegate_upstream_in_flight", "Requests under way at an upstream, from this node.";
    UPSTREAM_MOST: Gauge "tidegate_upstream_in_flight_limit", "Most requests under way at an upstream, from this node.";
    UPSTREAM_UP: Gauge "tidegate_upstream_up", "1 when requests are sent to the server, else 0.";

    BLOCKED: Gauge "tidegate_blocked_clients", "Entries of the block list.";
    BLOCKS_REFUSED: Counter "tidegate_blocks_refused", "Clients that were not blocked because the list is full.";
    BLOCKS_EVICTED: Counter "tidegate_blocks_evicted", "Penalties that made room for an operator's entry.";

    TOP_MISSED: Counter "tidegate_top_missed", "Checks that the ranking of clients passed over while it was read.";

    MEMORY_KEYS: Gauge "tidegate_memory_keys", "Clients with a bucket of their own in memory.";
    MEMORY_MOST: Gauge "tidegate_memory_keys_limit", "Most clients that memory has room for.";
    MEMORY_BYTES: Gauge "tidegate_memory_table_bytes", "Bytes of the tables that hold the buckets in memory.";
    MEMORY_EXPIRED: Counter "tidegate_memory_expired", "Buckets that were dropped from memory because they said nothing any more.";
    MEMORY_OVERFLOWED: Counter "tidegate_memory_overflowed", "Charges of newcomers that went to shared buckets because memory is full.";

    FLEET: Gauge "tidegate_fleet_nodes", "Nodes that share the store, as far as this one knows.";

    LEASED_CLIENTS: Gauge "tidegate_leased_clients", "Clients of whose limits this node holds a part ahead of use.";
    LEASED_TOKENS: Gauge "tidegate_leased_tokens", "What it holds of them and has not used.";

    REDIS_REQUESTS: Counter "tidegate_redis_requests", "Checks that were handed to a server.";
    REDIS_CALLS: Counter "tidegate_redis_calls", "Script calls that carried them.";
    REDIS_ASKS: Counter "tidegate_redis_asks", "Questions of rules that nodes decide ahead of the store: for tokens to hold, or to tell what was admitted.";
    REDIS_ASK_CALLS: Counter "tidegate_redis_ask_calls", "Script calls that carried those.";
    REDIS_REMEMBERED: Counter "tidegate_redis_remembered_denials", "Checks that were denied from memory, without asking again.";
    REDIS_LATE: Counter "tidegate_redis_late", "Parts of checks without an answer by their deadline, left to their rules.";
    REDIS_LOST: Counter "tidegate_redis_lost_refunds", "Charges that could not be given back; they stand until the limit heals.";
    REDIS_FAILOVERS: Counter "tidegate_redis_failovers", "How often another server took the place of a master.";

    REDIS_UP: Gauge "tidegate_redis_up", "1 when the server can be asked, else 0.";
    REDIS_DURATION: Histogram "tidegate_redis_call_duration_seconds", "How long script calls took, those that failed too, by server.";
    REDIS_TIMEOUTS: Counter "tidegate_redis_timeouts", "Script calls that a server did not answer in time.";
    REDIS_FAILURES: Counter "tidegate_redis_failures", "Script calls that a server refused, or that were lost with their connection.";
    REDIS_OPENED: Counter "tidegate_redis_breaker_opened", "How often a server was given up until a probe was answered.";
    REDIS_CONNECTED: Counter "tidegate_redis_connections", "Connections made to a server; all but the first are reconnections.";
    REDIS_MEMORY: Gauge "tidegate_redis_used_memory_bytes", "Memory that a server uses, in bytes.";
    REDIS_MOST_MEMORY: Gauge "tidegate_redis_max_memory_bytes", "Memory that a server may use, in bytes; 0 when nothing bounds it.";
    REDIS_KEYS: Gauge "tidegate_redis_keys", "Keys of a server, in all of its databases.";
    REDIS_EVICTED: Counter "tidegate_redis_evicted_keys", "Keys that a server threw out for want of memory; their clients began anew.";

    CPU: Counter "process_cpu_seconds", "Processor time spent, in seconds.";
    RESIDENT: Gauge "process_resident_memory_bytes", "Memory in use, in bytes.";
    VIRTUAL: Gauge "process_virtual_memory_bytes", "Address space in use, in bytes.";
    OPEN_FILES: Gauge "process_open_fds", "Open file descriptors.";
    MOST_FILES: Gauge "process_max_fds", "Most file descriptors that may be open.";
    THREADS: Gauge "process_threads", "Threads.";
    STARTED: Gauge "process_start_time_seconds", "When the process started, in Unix time.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_a_line_for_every_metric() {
        let guide = include_str!("../../../../docs/guide/operating.md");
        for metric in ALL {
            let name = match metric.kind {
                Kind::Counter => format!("`{}_total", metric.name),
                Kind::Info => format!("`{}_info", metric.name),
                Kind::Gauge | Kind::Histogram => format!("`{}", metric.name),
            };
            assert!(
                guide.lines().any(|line| line.starts_with("| `") && line.contains(&name)),
                "{name}"
            );
        }
    }

    #[test]
    fn names_and_words_are_as_prometheus_wants_them() {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        for metric in ALL {
            assert!(metric.name.chars().all(plain), "{}", metric.name);
            assert!(!metric.name.ends_with("_total") && !metric.name.ends_with("_info"));
            assert!(metric.help.ends_with('.') && !metric.help.contains(['\n', '\\', '"']));
        }
    }
}
