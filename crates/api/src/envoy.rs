//! `envoy.service.ratelimit.v3.RateLimitResponse` as proto3 JSON. Zeros and empty text are left out.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::Text;

/// The reply to a `RateLimitRequest`: envoy.service.ratelimit.v3.RateLimitResponse.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "RateLimitResponse", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase")]
pub struct RateLimitReply<T: Text = String, M = Map<String, Value>> {
    /// The decision for the whole request.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["OK", "OVER_LIMIT"])))]
    pub overall_code: T,
    /// The decision for each descriptor, in their order.
    pub statuses: Vec<DescriptorStatus<T>>,
    /// Headers for the response to the client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub response_headers_to_add: Vec<HeaderPair<T>>,
    /// Metadata for Envoy's filters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dynamic_metadata: Option<M>,
}

/// The decision for a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "DescriptorStatus", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase")]
pub struct DescriptorStatus<T: Text = String> {
    /// The decision.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["OK", "OVER_LIMIT"])))]
    pub code: T,
    /// The limit; absent if none applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub current_limit: Option<DescriptorLimit<T>>,
    /// The part of the limit that is left.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub limit_remaining: u32,
    /// Time until the whole limit can be spent again, in seconds: `30s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration_until_reset: Option<T>,
}

/// The limit of a descriptor.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "DescriptorLimit", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase")]
pub struct DescriptorLimit<T: Text = String> {
    /// Requests per unit of time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub requests_per_unit: u32,
    /// The unit of time; absent if Envoy has no name for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<T>,
    /// The name of the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<T>,
}

/// A header.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "HeaderPair", deny_unknown_fields)
)]
pub struct HeaderPair<T: Text = String> {
    /// The name.
    pub key: T,
    /// The value.
    pub value: T,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}
