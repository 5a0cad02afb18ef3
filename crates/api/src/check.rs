//! Checks, batches of checks, and slots in flight.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

use crate::{ClientName, ErrorDetail, ProblemBody, Text, is_false};

/// A request to check: `attributes`, or `rule` with `client`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Check", deny_unknown_fields, extend("anyOf" = [{"required": ["rule"]}, {"required": ["attributes"]}]))
)]
pub struct CheckRequest<T: Text = String, C = ClientName<T>> {
    /// The only rule to check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rule: Option<T>,
    /// The value of the attribute that the rule counts by, or an object when it counts by several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<C>,
    /// The attributes of the request; every rule that matches them is charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(
        feature = "schema",
        schemars(with = "Option<std::collections::BTreeMap<T, T>>", extend("maxProperties" = 64))
    )]
    pub attributes: Option<Attributes<T>>,
    /// The cost of the request; 0 checks without spending.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("default" = 1)))]
    pub cost: Option<u64>,
}

/// Attributes of a request and their values, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Attributes<T: Text>(
    #[serde(with = "crate::pairs", bound(serialize = "T: Serialize"))] pub Vec<(T, T)>,
);

/// Several requests to check, each independent of the others.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "Batch", deny_unknown_fields))]
pub struct BatchRequest<T: Text = String> {
    /// The checks.
    #[cfg_attr(feature = "schema", schemars(length(max = 1000)))]
    pub checks: Vec<CheckRequest<T>>,
}

/// A decision, with the state of the strictest rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Decision", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase")]
pub struct DecisionBody<T: Text = String> {
    /// True if the request is admitted.
    pub allowed: bool,
    /// True if the client is on the block list.
    #[serde(default, skip_serializing_if = "is_false")]
    #[cfg_attr(feature = "schema", schemars(extend("const" = true)))]
    pub blocked: bool,
    /// True if an operator allowed the client, so that no limit applies.
    #[serde(default, skip_serializing_if = "is_false")]
    #[cfg_attr(feature = "schema", schemars(extend("const" = true)))]
    pub allow_listed: bool,
    /// The most that can be spent at once; absent if no limit applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The part of the limit that is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// The Unix second at which the whole limit can be spent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_time: Option<u64>,
    /// Seconds to wait, rounded up; null when the cost is more than the limit ever admits.
    #[serde(default, deserialize_with = "present", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(schema_with = "crate::openapi::nullable_count"))]
    pub retry_after: Option<Option<u64>>,
    /// The rule that decided.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<T>,
    /// Milliseconds to hold the request before it is sent on, from a leaky bucket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay_millis: Option<u64>,
}

/// Reads a field that may be null. An absent field is `None`, null is `Some(None)`.
fn present<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Option<u64>>, D::Error> {
    Option::deserialize(from).map(Some)
}

/// A denial: a problem, and the decision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Denial", deny_unknown_fields, transform = crate::openapi::never_allowed)
)]
pub struct DenialBody<T: Text = String> {
    /// The problem.
    #[serde(flatten)]
    pub problem: ProblemBody<T>,
    /// The decision.
    #[serde(flatten)]
    pub decision: DecisionBody<T>,
}

/// The reply to a check that is not decided: a denial, or the problem of an overloaded server or an invalid call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "Unavailable"))]
#[serde(untagged)]
pub enum UnavailableBody<T: Text = String> {
    /// A rule denies while the store does not reply.
    Denial(DenialBody<T>),
    /// The server is overloaded, or the call is invalid.
    Overload(ProblemBody<T>),
}

/// A decision or an error for each check of a batch, in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Decisions", deny_unknown_fields)
)]
pub struct BatchReply<T: Text = String> {
    /// The decisions and errors.
    pub decisions: Vec<BatchItem<T>>,
}

/// The reply to one check of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "BatchItem", deny_unknown_fields)
)]
#[serde(untagged)]
pub enum BatchItem<T: Text = String> {
    /// The check was decided.
    Decision(DecisionBody<T>),
    /// The check is invalid.
    Error {
        /// The place of the error.
        error: ErrorDetail<T>,
    },
}

/// A decision, and the slots in flight that an admitted request holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(
        rename = "Acquired",
        deny_unknown_fields,
        extend("dependentRequired" = {"slot": ["holdMillis"], "holdMillis": ["slot"]})
    )
)]
#[serde(rename_all = "camelCase")]
pub struct AcquireReply<T: Text = String> {
    /// The decision.
    #[serde(flatten)]
    pub decision: DecisionBody<T>,
    /// A token for the slots in flight that the request took, one of each rule. It permits their release.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("pattern" = "^[A-Za-z0-9_-]+$", "maxLength" = 1400)))]
    pub slot: Option<T>,
    /// Milliseconds until the slots expire unless they are renewed; the shortest hold of the rules.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_millis: Option<u64>,
}

/// Slots in flight to renew or to release.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "Slot", deny_unknown_fields))]
pub struct SlotRequest<T: Text = String> {
    /// The token that an acquire returned.
    pub slot: T,
}

/// Slots in flight that were renewed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Renewed", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase")]
pub struct RenewReply {
    /// Number of rules with held slots.
    #[cfg_attr(feature = "schema", schemars(range(min = 1)))]
    pub held: u64,
    /// Milliseconds until the slots expire unless they are renewed again.
    pub hold_millis: u64,
}

/// Slots in flight that were released.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Released", deny_unknown_fields)
)]
pub struct ReleaseReply {
    /// Number of rules with slots that were still held; 0 after another release, or after the hold.
    pub released: u64,
}
