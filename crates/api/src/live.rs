//! The activity of a node, second by second.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Text;

/// The last seconds of a node. All times are Unix seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "Live", deny_unknown_fields))]
#[serde(rename_all = "camelCase", default)]
pub struct LiveReport<T: Text = String> {
    /// The name of the node.
    pub node: T,
    /// The version of the program.
    pub release: T,
    /// The start of the process in Unix seconds.
    pub started: u64,
    /// True if calls should be sent to this node.
    pub ready: bool,
    /// The time of this report in Unix seconds.
    pub at: u64,
    /// The version of the active rules.
    pub rules_version: u64,
    /// The hash of the active rules.
    pub rules_hash: T,
    /// The kind of store.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["memory", "redis"])))]
    pub store: T,
    /// Entries of the block list.
    pub blocked: u64,
    /// Whole seconds, the oldest first.
    #[cfg_attr(feature = "schema", schemars(length(max = 300)))]
    pub seconds: Vec<LiveSecond>,
    /// The active rules, in their order.
    pub rules: Vec<RuleActivity<T>>,
}

/// One whole second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(deny_unknown_fields))]
#[serde(rename_all = "camelCase", default)]
pub struct LiveSecond {
    /// The start of the second, in Unix seconds.
    pub at: u64,
    /// The checks of this second.
    #[serde(flatten)]
    pub checks: CheckCounts,
    /// Decisions of rules that admit requests while the store does not reply.
    pub failed_open: u64,
    /// Duration that half of the checks did not exceed, in microseconds; null without checks.
    pub p50_micros: Option<u64>,
    /// Duration that 99 % of the checks did not exceed, in microseconds; null without checks.
    pub p99_micros: Option<u64>,
}

/// Checks of all listeners by their result, each counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema))]
#[serde(rename_all = "camelCase", default)]
pub struct CheckCounts {
    /// Checks that were admitted.
    pub allowed: u64,
    /// Checks that a rule denied.
    pub denied: u64,
    /// Checks of blocked clients.
    pub blocked: u64,
    /// Checks that were rejected because the store did not reply.
    pub unavailable: u64,
    /// Invalid calls, and calls that name an unknown rule or slot.
    pub invalid: u64,
}

/// The outcomes of a rule.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "RuleActivity", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase", default)]
pub struct RuleActivity<T: Text = String> {
    /// The name of the rule.
    pub rule: T,
    /// Outcomes since the start of the process, or since the rule was added.
    pub total: PerOutcome<u64>,
    /// Outcomes per second, over the last ten seconds.
    pub per_second: PerOutcome<f64>,
}

/// A number for each outcome of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(inline, deny_unknown_fields))]
#[serde(rename_all = "camelCase", default)]
pub struct PerOutcome<N: Default> {
    /// The rule admitted the request.
    pub allowed: N,
    /// The rule denied the request.
    pub denied: N,
    /// The rule would have admitted the request in shadow mode.
    pub shadow_allowed: N,
    /// The rule would have denied the request in shadow mode.
    pub shadow_denied: N,
    /// The rule admitted the request because the store did not reply.
    pub failed_open: N,
    /// The rule denied the request because the store did not reply.
    pub failed_closed: N,
    /// The client was on the block list because of this rule's penalty.
    pub blocked: N,
}

impl<N: Default> PerOutcome<N> {
    /// Combines the numbers of each outcome.
    pub fn zip_with<M: Default, R: Default>(
        self,
        other: PerOutcome<M>,
        combine: impl Fn(N, M) -> R,
    ) -> PerOutcome<R> {
        PerOutcome {
            allowed: combine(self.allowed, other.allowed),
            denied: combine(self.denied, other.denied),
            shadow_allowed: combine(self.shadow_allowed, other.shadow_allowed),
            shadow_denied: combine(self.shadow_denied, other.shadow_denied),
            failed_open: combine(self.failed_open, other.failed_open),
            failed_closed: combine(self.failed_closed, other.failed_closed),
            blocked: combine(self.blocked, other.blocked),
        }
    }

    /// Applies a function to each number.
    pub fn map<M: Default>(self, apply: impl Fn(N) -> M) -> PerOutcome<M> {
        PerOutcome {
            allowed: apply(self.allowed),
            denied: apply(self.denied),
            shadow_allowed: apply(self.shadow_allowed),
            shadow_denied: apply(self.shadow_denied),
            failed_open: apply(self.failed_open),
            failed_closed: apply(self.failed_closed),
            blocked: apply(self.blocked),
        }
    }
}
