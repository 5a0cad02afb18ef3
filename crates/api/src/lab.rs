//! Simulations over the admin API, and the report of a simulation.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A simulation to run. Every field has a default; all defaults together are the boundary attack.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Experiment", deny_unknown_fields, transform = crate::openapi::lab_defaults)
)]
#[serde(rename_all = "camelCase")]
pub struct LabRequest {
    /// The distribution of requests over time and clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(extend("enum" = ["steady", "bursty", "boundary", "burst", "zipf", "retry-storm"]))
    )]
    pub traffic: Option<String>,
    /// The algorithms; each has a line in the report.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 5)))]
    pub algorithms: Option<Vec<String>>,
    /// Requests that the limit admits in a window, for each client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub limit: Option<u64>,
    /// Length of a window.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 10, max = 3_600_000)))]
    pub window_millis: Option<u64>,
    /// Requests that a token_bucket admits at once; null for the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 1_000_000)))]
    pub burst: Option<u64>,
    /// The point of a window at which a boundary attack begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(max = 99)))]
    pub attack_percent: Option<u64>,
    /// Requests in a burst, of each client.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100_000)))]
    pub count: Option<u64>,
    /// Requests per second, of all clients at all nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 100_000)))]
    pub rate: Option<u64>,
    /// Number of clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 10_000)))]
    pub clients: Option<u64>,
    /// Number of nodes that share the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 50)))]
    pub nodes: Option<u64>,
    /// The accuracy across the nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["exact", "leased", "synced", "split"])))]
    pub accuracy: Option<String>,
    /// Time between two syncs of a node.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 10, max = 60_000)))]
    pub sync_millis: Option<u64>,
    /// The most that a node admits before it reports to the others; null for a tenth of the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_ahead: Option<MaxAheadSetting>,
    /// Length of the simulation, in virtual time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1, max = 3_600_000)))]
    pub length_millis: Option<u64>,
    /// The seed of the random generator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
}

/// A number of tokens, or `unbounded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(inline))]
#[serde(untagged)]
pub enum MaxAheadSetting {
    /// At most this many tokens.
    Tokens(#[cfg_attr(feature = "schema", schemars(range(min = 1)))] u64),
    /// No bound.
    Unbounded(UnboundedWord),
}

/// The word `unbounded`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(inline))]
pub enum UnboundedWord {
    /// No bound.
    #[serde(rename = "unbounded")]
    Unbounded,
}

/// The report of a simulation, and the time that it took.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Simulation", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase")]
pub struct LabReport {
    /// The report.
    #[serde(flatten)]
    pub result: SimulationResult,
    /// Duration of the simulation in microseconds.
    pub took_micros: u64,
}

/// The report of a simulation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
pub struct SimulationResult {
    /// The title.
    pub title: String,
    /// The head of the report: words and their meanings.
    #[serde(with = "crate::pairs")]
    #[cfg_attr(feature = "schema", schemars(with = "std::collections::BTreeMap<String, String>"))]
    pub about: Vec<(String, String)>,
    /// A line for each limit.
    pub lines: Vec<SimulationLine>,
    /// Notes below the table.
    pub notes: Vec<String>,
}

/// The outcome of the traffic under one limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(deny_unknown_fields))]
#[serde(rename_all = "camelCase")]
pub struct SimulationLine {
    /// The name of the limit.
    pub name: String,
    /// The limit as text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<String>,
    /// Requests that arrived, with retries.
    pub offered: u64,
    /// Requests that were admitted.
    pub admitted: u64,
    /// Requests that this limit denied.
    pub denied: u64,
    /// Length of the limit's window.
    pub window_seconds: f64,
    /// The most that one client was admitted in any span as long as the window.
    pub most: u64,
    /// Time from the first to the last of those.
    pub within_seconds: f64,
    /// The most that the algorithm admits in any such span.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bound: Option<u64>,
    /// The most in an aligned window, if the algorithm promises less there.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub aligned: Option<AlignedPeak>,
    /// Excess over a bound.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<u64>,
    /// Longest wait for a turn.
    pub longest_wait_seconds: f64,
    /// Requests during the outage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outage: Option<OutageCounts>,
    /// Requests that were admitted because the store did not reply; each may exceed the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_open: Option<u64>,
    /// Requests that were denied because the store did not reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_closed: Option<u64>,
    /// Requests that a node decided by its share because the store did not reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed_local: Option<u64>,
    /// Admissions that the textbook's formula expects in one window: limit x (1 + (nodes - 1) x lag / window).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub textbook: Option<u64>,
    /// Requests over time.
    pub timeline: Timeline,
}

impl SimulationLine {
    /// Returns the pace of the worst window in requests per second; `None` if its requests came at once.
    #[must_use]
    pub fn pace(&self) -> Option<f64> {
        (self.within_seconds > 0.0).then(|| self.most as f64 / self.within_seconds)
    }
}

/// The most requests in a window that starts at a multiple of its length, and the bound for such windows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(deny_unknown_fields))]
pub struct AlignedPeak {
    /// The most requests of one client.
    pub most: u64,
    /// The most that the algorithm admits.
    pub bound: u64,
}

/// Requests during an outage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(deny_unknown_fields))]
pub struct OutageCounts {
    /// Requests that arrived.
    pub offered: u64,
    /// Requests that were admitted.
    pub admitted: u64,
}

/// Requests that arrived and were admitted in each piece of the time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(deny_unknown_fields))]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    /// Length of a piece.
    pub piece_seconds: f64,
    /// Requests that arrived in each piece.
    pub offered: Vec<u64>,
    /// Requests that were admitted in each piece.
    pub admitted: Vec<u64>,
}
