//! What a server tells of itself.
//!
//! A server may be newer or older than this command: what it does not tell counts as nothing.

use std::collections::BTreeMap;

use serde::Deserialize;

use tidegate_core::TerminalSafe;

/// `GET /v1/live`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Live {
    pub(super) node: TerminalSafe,
    pub(super) release: TerminalSafe,
    /// Unix seconds.
    pub(super) started: u64,
    pub(super) ready: bool,
    /// Unix seconds.
    pub(super) at: u64,
    pub(super) rules_version: u64,
    pub(super) store: TerminalSafe,
    pub(super) blocked: u64,
    /// Oldest first.
    pub(super) seconds: Vec<Second>,
    pub(super) rules: Vec<RuleCounts>,
}

/// What happened in one second.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Second {
    /// Unix seconds.
    pub(super) at: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) blocked: u64,
    pub(super) failed_open: u64,
    pub(super) unavailable: u64,
    pub(super) invalid: u64,
    pub(super) p50_micros: Option<u64>,
    pub(super) p99_micros: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RuleCounts {
    pub(super) rule: TerminalSafe,
    pub(super) total: Outcomes,
    pub(super) per_second: Outcomes,
}

/// What a rule said, how often, or how often in a second.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Outcomes {
    pub(super) allowed: f64,
    pub(super) denied: f64,
    pub(super) shadow_denied: f64,
    pub(super) failed_open: f64,
    pub(super) failed_closed: f64,
    pub(super) blocked: f64,
}

/// `GET /v1/top`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Ranking {
    /// How long was counted.
    pub(super) seconds: u64,
    pub(super) clients: Vec<Ranked>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Ranked {
    pub(super) rule: TerminalSafe,
    pub(super) id: TerminalSafe,
    /// Nothing when it is not to be shown.
    pub client: Option<TerminalSafe>,
    #[serde(alias = "denials")]
    pub(super) requests: u64,
}

/// `GET /v1/fleet`.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Fleet {
    pub(super) latest: u64,
    /// Why other nodes are not listed.
    pub(super) unknown: Option<TerminalSafe>,
    pub(super) nodes: Vec<Node>,
    pub(super) store: Store,
    pub(super) doors: Vec<Door>,
    pub(super) upstreams: Vec<Upstream>,
    pub(super) process: Process,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Node {
    pub(super) node: TerminalSafe,
    pub(super) version: u64,
    pub(super) behind: bool,
    pub(super) problem: Option<TerminalSafe>,
    /// Unix seconds.
    pub(super) seen: u64,
}

/// Where counters are: the members of either kind.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Store {
    pub(super) kind: TerminalSafe,
    pub(super) keys: u64,
    pub(super) max_keys: u64,
    pub(super) bytes: u64,
    pub(super) overflowed: u64,
    pub(super) fleet: u64,
    pub(super) late: u64,
    pub(super) lost: u64,
    pub(super) failovers: u64,
    pub(super) leased_clients: u64,
    pub(super) leased_tokens: u64,
    pub(super) servers: Vec<RedisServer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct RedisServer {
    pub(super) server: TerminalSafe,
    /// Not while its breaker is open.
    pub(super) up: bool,
    pub(super) opened: u64,
    pub(super) timeouts: u64,
    pub(super) failures: u64,
    pub(super) p50_micros: Option<u64>,
    pub(super) p99_micros: Option<u64>,
    pub(super) memory: Option<u64>,
    pub(super) keys: Option<u64>,
    pub(super) evicted: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Door {
    pub(super) door: TerminalSafe,
    pub(super) open: u64,
    pub(super) accepted: u64,
    pub(super) most: Option<u64>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Upstream {
    pub(super) upstream: TerminalSafe,
    pub(super) in_flight: u64,
    pub(super) most: Option<u64>,
    pub(super) outcomes: BTreeMap<String, u64>,
    pub(super) servers: Vec<UpstreamServer>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct UpstreamServer {
    pub(super) server: TerminalSafe,
    pub(super) up: bool,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct Process {
    pub cpu_seconds: f64,
    pub resident_bytes: u64,
    pub threads: u64,
    pub open_files: u64,
}
