//! The nodes of a fleet, their store, and the listeners, upstreams and process of one node.

use std::collections::BTreeMap;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{NodeReport, Text};

/// The nodes, their store, and the listeners, upstreams and process of this node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "Fleet", deny_unknown_fields))]
#[serde(rename_all = "camelCase", default)]
pub struct FleetReport<T: Text = String> {
    /// The name of this node.
    pub node: T,
    /// The latest version of the rules that this node knows.
    pub latest: u64,
    /// The reason why other nodes are not listed; null if they are.
    pub unknown: Option<T>,
    /// The nodes that share the source of rules.
    pub nodes: Vec<NodeReport<T>>,
    /// The store.
    pub store: StoreReport<T>,
    /// The listeners of this node.
    pub listeners: Vec<ListenerReport<T>>,
    /// The upstreams of the gateway.
    pub upstreams: Vec<UpstreamReport<T>>,
    /// The process of this node.
    pub process: ProcessReport,
}

/// The store of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "StoreReport", deny_unknown_fields)
)]
#[serde(tag = "kind", rename_all = "camelCase")]
pub enum StoreReport<T: Text = String> {
    /// Counters in the memory of this process.
    #[cfg_attr(feature = "schema", schemars(extend("unevaluatedProperties" = false)))]
    Memory(MemoryReport),
    /// Counters in Redis.
    #[cfg_attr(feature = "schema", schemars(extend("unevaluatedProperties" = false)))]
    Redis(RedisReport<T>),
    /// A kind of store that this reader does not know.
    #[default]
    #[serde(other, skip_serializing)]
    Unknown,
}

/// Counters in the memory of a process.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryReport {
    /// Keys that are stored.
    pub keys: u64,
    /// The limit of stored keys.
    pub max_keys: u64,
    /// Memory of tables, logs and slots in flight in bytes.
    pub bytes: u64,
    /// The most bytes.
    pub max_bytes: u64,
    /// Keys that were removed after they expired.
    pub expired: u64,
    /// Charges that used a shared bucket because the store was full.
    pub overflowed: u64,
    /// Charges that were denied because a client's log or slots could not grow in a full store.
    pub growth_denied: u64,
}

/// Counters in Redis.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "RedisReport"))]
#[serde(rename_all = "camelCase", default)]
pub struct RedisReport<T: Text = String> {
    /// Nodes that share the store, as far as this node knows.
    pub fleet: u64,
    /// Parts of checks without a reply before the deadline.
    pub late: u64,
    /// Charges that could not be refunded.
    pub lost: u64,
    /// Denials from the cache of this node, without a call.
    pub remembered: u64,
    /// Changes to another primary.
    pub failovers: u64,
    /// Clients with a lease on this node.
    pub leased_clients: u64,
    /// Unused tokens of all leases on this node.
    pub leased_tokens: u64,
    /// The servers.
    pub servers: Vec<RedisServerReport<T>>,
}

/// A Redis server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "RedisServer", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase", default)]
pub struct RedisServerReport<T: Text = String> {
    /// The address.
    pub server: T,
    /// True if the breaker is closed. While it is open, no call is sent until a probe succeeds.
    pub up: bool,
    /// Times that the breaker opened.
    pub opened: u64,
    /// Calls without a reply before the deadline.
    pub timeouts: u64,
    /// Calls that failed in another way.
    pub failures: u64,
    /// Connections that were opened.
    pub connections: u64,
    /// Durations of calls in the last ten seconds.
    #[serde(flatten)]
    pub calls: CallTimes,
    /// Memory in bytes; null if the server does not report it.
    pub memory: Option<u64>,
    /// The limit of memory in bytes, 0 for none; null if the server does not report it.
    pub max_memory: Option<u64>,
    /// Keys; null if the server does not report them.
    pub keys: Option<u64>,
    /// Keys that the server evicted; null if the server does not report them.
    pub evicted: Option<u64>,
}

/// Durations of calls in the last ten seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct CallTimes {
    /// Duration that half of the calls did not exceed, in microseconds; null without calls.
    pub p50_micros: Option<u64>,
    /// Duration that 99 % of the calls did not exceed, in microseconds; null without calls.
    pub p99_micros: Option<u64>,
}

/// Connections of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Listener", deny_unknown_fields)
)]
#[serde(default)]
pub struct ListenerReport<T: Text = String> {
    /// The name of the listener.
    pub listener: T,
    /// Open connections.
    pub open: u64,
    /// Connections since the start.
    pub accepted: u64,
    /// The limit of open connections.
    pub most: u64,
}

/// An upstream of the gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Upstream", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase", default)]
pub struct UpstreamReport<T: Text = String> {
    /// The name of the upstream.
    pub upstream: T,
    /// Requests in flight.
    pub in_flight: u64,
    /// The limit of requests in flight; null without one.
    pub most: Option<u64>,
    /// Requests by their outcome.
    pub outcomes: BTreeMap<T, u64>,
    /// The servers.
    pub servers: Vec<UpstreamServerReport<T>>,
}

/// A server of an upstream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "UpstreamServer", deny_unknown_fields)
)]
#[serde(default)]
pub struct UpstreamServerReport<T: Text = String> {
    /// The address.
    pub server: T,
    /// True if the server is healthy.
    pub up: bool,
}

/// Resources of the process. A value that the system does not report is null.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(deny_unknown_fields))]
#[serde(rename_all = "camelCase", default)]
pub struct ProcessReport {
    /// Processor time in seconds.
    pub cpu_seconds: Option<f64>,
    /// Memory in bytes.
    pub resident_bytes: Option<u64>,
    /// Threads.
    pub threads: Option<u64>,
    /// Open files.
    pub open_files: Option<u64>,
}
