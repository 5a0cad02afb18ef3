//! The name, kind and help text of every metric. `docs/guide/operating.md` has the same list.
//!
//! Names of counters have no `_total` here, and names of infos no `_info`; the suffix is added to their samples. If a
//! metric has a unit, its name ends with it.

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    Histogram,
    /// A constant 1. The labels carry the information.
    Info,
}

/// The name, kind and help text of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Metric {
    pub(crate) name: &'static str,
    pub(crate) kind: MetricKind,
    pub(crate) help: &'static str,
}

macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal, $help:literal;)*) => {
        $(pub(crate) const $constant: Metric =
            Metric { name: $name, kind: MetricKind::$kind, help: $help };)*

        /// All metrics.
        #[cfg(test)]
        pub(crate) const ALL: &[Metric] = &[$($constant),*];
    };
}

metrics! {
    BUILD: Info "tidegate_build", "The release.";
    READY: Gauge "tidegate_ready", "1 if the node is ready for traffic, else 0.";

    CHECKS: Counter "tidegate_checks", "Checks by listener and result.";
    INVALID_CALLS: Counter "tidegate_invalid_calls", "Invalid calls by listener and reason.";
    CHECK_DURATION: Histogram "tidegate_check_duration_seconds", "Time from the decoded call to its decision, by listener.";
    DECISIONS: Counter "tidegate_decisions", "Outcomes of each rule for the checks that it applied to.";
    STORE_FAILURES: Counter "tidegate_store_failures", "Checks that a rule decided without the store, by its on_store_failure.";

    RULES: Gauge "tidegate_rules", "Active rules.";
    RULES_VERSION: Info "tidegate_rules_version", "Hash of the active rules; equal on nodes with equal rules.";
    RULES_NUMBER: Gauge "tidegate_rules_number", "Version number of the active rules; it never decreases.";
    RULES_BEHIND: Gauge "tidegate_rules_behind", "1 if the source has a document that is not active, else 0.";
    RULES_SOURCE_UP: Gauge "tidegate_rules_source_up", "1 if the last request to the source of the rules succeeded, else 0.";
    RULES_SOURCE_FAILURES: Counter "tidegate_rules_source_failures", "Failed requests to the source of the rules.";
    RULES_REJECTED: Counter "tidegate_rules_rejected", "Documents that could not be used; the active rules stayed.";
    RULES_LOADED: Gauge "tidegate_rules_loaded_timestamp_seconds", "Unix time at which the active rules were loaded.";

    CONNECTIONS: Gauge "tidegate_connections", "Open connections by listener.";
    CONNECTIONS_ACCEPTED: Counter "tidegate_connections_accepted", "Connections accepted by listener.";
    CONNECTIONS_LIMIT: Gauge "tidegate_connections_limit", "Share of open connections by listener; a new one beyond it replaces an idle one.";
    CONNECTIONS_EVICTED: Counter "tidegate_connections_evicted", "Idle connections that a full listener closed for new ones.";
    CONNECTIONS_REFUSED: Counter "tidegate_connections_refused", "New connections that a listener did not accept, by reason.";
    UPSTREAM_CONNECTIONS: Gauge "tidegate_upstream_connections", "Open connections to upstreams.";
    UPSTREAM_CONNECTIONS_LIMIT: Gauge "tidegate_upstream_connections_limit", "Most open connections to upstreams.";
    AUTH_FAILURES: Counter "tidegate_auth_failures", "Wrong tokens and passwords by listener.";
    CONNECTIONS_ABANDONING: Counter "tidegate_connections_abandoning", "Connections that a listener closed because they abandoned too many requests.";
    SLOW_BODIES: Counter "tidegate_slow_bodies", "Requests that a listener ended because the client sent or took a body too slowly.";

    UPSTREAM_REQUESTS: Counter "tidegate_upstream_requests", "Requests that the gateway admitted, by their result at the upstream.";
    UPSTREAM_IN_FLIGHT: Gauge "tidegate_upstream_in_flight", "Requests in flight from this node to an upstream.";
    UPSTREAM_LIMIT: Gauge "tidegate_upstream_in_flight_limit", "Most requests in flight from this node to an upstream.";
    UPSTREAM_UP: Gauge "tidegate_upstream_up", "1 if the server gets requests, else 0.";

    BLOCKED: Gauge "tidegate_blocked_clients", "Entries of the block list that block.";
    ALLOW_LISTED: Gauge "tidegate_allow_listed_clients", "Entries of the block list that allow.";
    BLOCKS_REFUSED: Counter "tidegate_blocks_refused", "Entries rejected because the block list was full.";
    BLOCKS_EVICTED: Counter "tidegate_blocks_evicted", "Penalties evicted for entries of an operator.";

    TOP_MISSED: Counter "tidegate_top_missed", "Checks that the client ranking did not count because of a concurrent read.";

    MEMORY_KEYS: Gauge "tidegate_memory_keys", "Clients with a bucket in memory.";
    MEMORY_LIMIT: Gauge "tidegate_memory_keys_limit", "Most clients in memory.";
    MEMORY_BYTES: Gauge "tidegate_memory_bytes", "Size of tables, logs and slots in flight in memory, in bytes.";
    MEMORY_BYTES_LIMIT: Gauge "tidegate_memory_bytes_limit", "Most bytes of tables, logs and slots in flight.";
    MEMORY_EXPIRED: Counter "tidegate_memory_expired", "Buckets removed from memory because they were full again.";
    MEMORY_OVERFLOWED: Counter "tidegate_memory_overflowed", "Charges of new clients to overflow buckets because the memory store was full.";
    MEMORY_GROWTH_DENIED: Counter "tidegate_memory_growth_denied", "Charges denied because a log or slots in flight could not grow in a full memory store.";

    FLEET: Gauge "tidegate_fleet_nodes", "Nodes that share the store, as known to this node.";

    LEASED_CLIENTS: Gauge "tidegate_leased_clients", "Clients with leases on this node.";
    LEASED_TOKENS: Gauge "tidegate_leased_tokens", "Unused tokens of the leases on this node.";

    REDIS_REQUESTS: Counter "tidegate_redis_requests", "Checks sent to a Redis server.";
    REDIS_CALLS: Counter "tidegate_redis_calls", "Script calls that carried checks.";
    REDIS_ASKS: Counter "tidegate_redis_asks", "Lease requests and usage reports of leased and synced rules.";
    REDIS_ASK_CALLS: Counter "tidegate_redis_ask_calls", "Script calls that carried lease requests and usage reports.";
    REDIS_REMEMBERED: Counter "tidegate_redis_remembered_denials", "Denials from the cache of this node, without a call.";
    REDIS_LATE: Counter "tidegate_redis_late", "Parts of checks without a reply before their deadline.";
    REDIS_LOST: Counter "tidegate_redis_lost_refunds", "Charges that could not be refunded.";
    REDIS_FAILOVERS: Counter "tidegate_redis_failovers", "Changes of a master.";

    REDIS_UP: Gauge "tidegate_redis_up", "1 if the server is usable, else 0.";
    REDIS_DURATION: Histogram "tidegate_redis_call_duration_seconds", "Duration of script calls by server, failed ones included.";
    REDIS_TIMEOUTS: Counter "tidegate_redis_timeouts", "Script calls that timed out.";
    REDIS_FAILURES: Counter "tidegate_redis_failures", "Script calls that a server rejected, or that were lost with their connection.";
    REDIS_OPENED: Counter "tidegate_redis_breaker_opened", "Number of times that the breaker of a server opened.";
    REDIS_CONNECTED: Counter "tidegate_redis_connections", "Connections opened to a server; all but the first are reconnections.";
    REDIS_MEMORY: Gauge "tidegate_redis_used_memory_bytes", "Memory that a server uses, in bytes.";
    REDIS_MAX_MEMORY: Gauge "tidegate_redis_max_memory_bytes", "Memory that a server may use, in bytes; 0 means no maximum.";
    REDIS_KEYS: Gauge "tidegate_redis_keys", "Keys of a server, in all of its databases.";
    REDIS_EVICTED: Counter "tidegate_redis_evicted_keys", "Keys that a server evicted for lack of memory; their clients start with a full limit.";

    CPU: Counter "process_cpu_seconds", "CPU time, user and system, in seconds.";
    RESIDENT: Gauge "process_resident_memory_bytes", "Resident memory, in bytes.";
    VIRTUAL: Gauge "process_virtual_memory_bytes", "Virtual memory, in bytes.";
    OPEN_FILES: Gauge "process_open_fds", "Open file descriptors.";
    MAX_FILES: Gauge "process_max_fds", "Most open file descriptors.";
    THREADS: Gauge "process_threads", "Threads.";
    STARTED: Gauge "process_start_time_seconds", "Unix time at which the process started.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guide_lists_every_metric() {
        let guide = include_str!("../../../../docs/guide/operating.md");
        for metric in ALL {
            let name = match metric.kind {
                MetricKind::Counter => format!("`{}_total", metric.name),
                MetricKind::Info => format!("`{}_info", metric.name),
                MetricKind::Gauge | MetricKind::Histogram => format!("`{}", metric.name),
            };
            assert!(
                guide.lines().any(|line| line.starts_with("| `") && line.contains(&name)),
                "{name}"
            );
        }
    }

    #[test]
    fn names_and_help_texts_follow_the_prometheus_format() {
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        for metric in ALL {
            assert!(metric.name.chars().all(plain), "{}", metric.name);
            assert!(!metric.name.ends_with("_total") && !metric.name.ends_with("_info"));
            assert!(metric.help.ends_with('.') && !metric.help.contains(['\n', '\\', '"']));
        }
    }
}
