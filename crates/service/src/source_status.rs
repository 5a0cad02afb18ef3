//! How a node stands with its source of rules.

use serde::{Deserialize, Serialize};

/// What a node knows of its source.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceStatus {
    /// The latest number that the source has, as far as this node has heard.
    pub latest: u64,
    /// What the source has is not what is in force, and why.
    pub(crate) problem: Option<String>,
    /// Whether the source could not be asked when it was last tried.
    pub(crate) is_away: bool,
    /// Why the local copy could not be used, until another is written.
    pub(crate) copy_problem: Option<String>,
    /// Documents that could not be used.
    pub(crate) rejected: u64,
    /// How often the source could not be asked.
    pub(crate) failures: u64,
}

impl SourceStatus {
    /// Whether the source has other rules than these.
    pub(crate) fn is_behind(&self, number: u64) -> bool {
        self.latest > number || (self.problem.is_some() && !self.is_away && self.latest > 0)
    }
}

/// What a node says of itself to its fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport {
    /// The name of the node.
    pub node: String,
    /// The name of its source.
    pub source: String,
    /// The version that is active.
    pub version: u64,
    pub(crate) hash: String,
    /// Whether the source has a later version.
    pub behind: bool,
    /// The reason why the latest document is not active.
    pub problem: Option<String>,
    /// When it said so, in Unix seconds.
    #[serde(default)]
    pub(crate) seen: u64,
}
