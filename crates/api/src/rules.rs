//! The rules of a server, their versions and the nodes that have them.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{DocumentError, Text};

/// The active rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "Rules", deny_unknown_fields))]
pub struct RulesView<T: Text = String> {
    /// The version, which grows with every change.
    pub version: u64,
    /// The hash, equal on nodes that have the same rules.
    pub hash: T,
    /// The source of the rules.
    pub source: T,
    /// The author of this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<T>,
    /// The reason for this version.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<T>,
    /// The time of the push in Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at: Option<u64>,
    /// The rules, in their order.
    pub rules: Vec<RuleView<T>>,
    /// Valid parts of rules that have no effect; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<DocumentError<T>>,
}

/// A rule. Values that may be secrets are not shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "Rule", deny_unknown_fields))]
#[serde(rename_all = "camelCase")]
pub struct RuleView<T: Text = String> {
    /// The name.
    pub name: T,
    /// The mode.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["enforce", "shadow", "off"])))]
    pub mode: T,
    /// The conditions that a request has to meet.
    pub r#match: Vec<ConditionView<T>>,
    /// The attributes that the rule counts by.
    pub per: Vec<T>,
    /// The limit.
    #[serde(flatten)]
    pub limit: LimitView<T>,
    /// The accuracy across a fleet.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["exact", "leased", "synced", "split"])))]
    pub accuracy: T,
    /// The bound across N nodes, if it differs from the bound of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fleet: Option<T>,
    /// The decision while the store does not reply.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["allow", "deny", "local"])))]
    pub on_store_failure: T,
    /// The share of clients that the rule applies to, like 10%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<T>,
    /// Limits by tier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tiers: Option<TiersView<T>>,
    /// Limits of single clients.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overrides: Vec<OverrideView<T>>,
    /// The penalty of clients that continue after denials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub penalty: Option<T>,
    /// The answer to callers that send negative hits.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["deny", "allow"])))]
    pub caller_refunds: T,
}

/// A limit, its algorithm and its bound.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "LimitView"))]
pub struct LimitView<T: Text = String> {
    /// The limit: `100 per 60 s, burst 200`.
    pub limit: T,
    /// The algorithm.
    pub algorithm: T,
    /// The most that the limit admits.
    pub bound: T,
}

/// A condition of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Condition", deny_unknown_fields)
)]
pub struct ConditionView<T: Text = String> {
    /// The attribute.
    pub attribute: T,
    /// The values that match.
    pub wanted: T,
}

/// The tiers of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "Tiers", deny_unknown_fields))]
pub struct TiersView<T: Text = String> {
    /// The attribute that names the tier.
    pub by: T,
    /// The tiers and their limits.
    pub limits: Vec<TierView<T>>,
}

/// The limit of a tier.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "Tier", deny_unknown_fields))]
pub struct TierView<T: Text = String> {
    /// The name of the tier.
    pub tier: T,
    /// The limit.
    #[serde(flatten)]
    pub limit: LimitView<T>,
}

/// The limit of single clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Override", deny_unknown_fields)
)]
pub struct OverrideView<T: Text = String> {
    /// The conditions that a request has to meet.
    pub r#match: Vec<ConditionView<T>>,
    /// The end of the override in Unix seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<u64>,
    /// The share of clients that the override applies to, like 10%.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rollout: Option<T>,
    /// The limit.
    #[serde(flatten)]
    pub limit: LimitView<T>,
}

/// A version that was pushed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "PushedRules", deny_unknown_fields)
)]
pub struct PushedRules<T: Text = String> {
    /// The version.
    pub version: u64,
    /// The hash of the rules.
    pub hash: T,
    /// The number of rules.
    pub rules: u64,
    /// Valid parts of rules that have no effect; at most 100.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<DocumentError<T>>,
}

/// The difference between two sets of rules, by the names of the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "RulesDifference", deny_unknown_fields)
)]
#[serde(default)]
pub struct RulesDifference<T: Text = String> {
    /// Rules that only the new set has.
    pub added: Vec<T>,
    /// Rules that only the old set has.
    pub removed: Vec<T>,
    /// Rules that differ.
    pub changed: Vec<RuleChange<T>>,
    /// Number of rules that are the same in both sets.
    pub same: u64,
    /// Valid parts of the new rules that have no effect; at most 100.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<DocumentError<T>>,
}

/// A rule with fields that differ.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "RuleChange", deny_unknown_fields)
)]
#[serde(default)]
pub struct RuleChange<T: Text = String> {
    /// The name of the rule.
    pub rule: T,
    /// The fields that differ.
    pub fields: Vec<FieldChange<T>>,
}

/// The old and the new value of a field; null if the rule does not have it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "FieldChange", deny_unknown_fields)
)]
#[serde(default)]
pub struct FieldChange<T: Text = String> {
    /// The field.
    pub field: T,
    /// The old value.
    pub from: Option<T>,
    /// The new value.
    pub to: Option<T>,
}

/// The versions that are kept, the latest first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "RulesHistory", deny_unknown_fields)
)]
pub struct RulesHistory<T: Text = String> {
    /// The versions.
    pub versions: Vec<VersionEntry<T>>,
}

/// A version of the rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "VersionEntry", deny_unknown_fields)
)]
pub struct VersionEntry<T: Text = String> {
    /// The version.
    pub version: u64,
    /// The hash of the rules.
    #[serde(default)]
    pub hash: T,
    /// The time of the push in Unix seconds.
    pub at: u64,
    /// The author.
    #[serde(default)]
    pub by: T,
    /// The reason.
    #[serde(default)]
    pub note: T,
    /// Length of the document in bytes.
    pub bytes: u64,
}

/// The version of this node, and of the nodes that share its source of rules.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "RulesStatus", deny_unknown_fields)
)]
pub struct RulesStatus<T: Text = String> {
    /// The name of this node.
    #[serde(default)]
    pub node: T,
    /// The source of its rules.
    pub source: T,
    /// The version that is active on this node.
    pub version: u64,
    /// The latest version that this node knows.
    #[serde(default)]
    pub latest: u64,
    /// True if the source has a later version than the active one.
    #[serde(default)]
    pub behind: bool,
    /// The reason why the latest document is not active.
    #[serde(default)]
    pub problem: Option<T>,
    /// The reason why other nodes are not listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unknown: Option<T>,
    /// The nodes that share the source.
    #[serde(default)]
    pub nodes: Vec<NodeReport<T>>,
}

/// The version of the rules that a node has. Nodes store this report in Redis as well.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "NodeReport", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase")]
pub struct NodeReport<T: Text = String> {
    /// The name of the node.
    pub node: T,
    /// The source of its rules.
    pub source: T,
    /// The version that is active.
    pub version: u64,
    /// The hash of the active rules.
    pub hash: T,
    /// True if the source has a later version.
    #[serde(default)]
    pub behind: bool,
    /// The reason why the latest document is not active.
    pub problem: Option<T>,
    /// The time of the report in Unix seconds.
    #[serde(default)]
    pub seen: u64,
}
