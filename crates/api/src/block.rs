//! The block list.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Text;

/// An entry of the block list, which blocks or allows a client. Only an address is shown in the clear.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "Block", deny_unknown_fields))]
#[serde(rename_all = "camelCase")]
pub struct BlockEntry<T: Text = String> {
    /// A network, or attributes and a hash of their values.
    pub id: T,
    /// The network or address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ip: Option<T>,
    /// The attributes that identify the client.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attributes: Option<Vec<T>>,
    /// The effect: requests are denied, or no rule applies to them.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["block", "allow"])))]
    pub action: T,
    /// The end of the entry in Unix seconds, rounded up.
    #[serde(default)]
    pub until: u64,
    /// Seconds until the end of the entry.
    pub seconds_left: u64,
    /// The origin of the entry.
    #[serde(default)]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["operator", "penalty"])))]
    pub by: T,
    /// The rule that added the entry by its penalty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<T>,
    /// The reason that an operator gave.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<T>,
    /// The start of the entry in Unix seconds.
    #[serde(default)]
    pub added: u64,
}

/// The block list, or a part of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "BlockList", deny_unknown_fields)
)]
pub struct BlockPage<T: Text = String> {
    /// The entries, ordered by id.
    pub entries: Vec<BlockEntry<T>>,
    /// The value of `after` that returns the next part; absent at the end of the list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next: Option<T>,
    /// Entries that were not added because the list was full.
    #[serde(default)]
    pub refused: u64,
    /// Entries of penalties that were removed to make room.
    #[serde(default)]
    pub evicted: u64,
}

/// A network, an address or a client to block or to allow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "NewBlock", deny_unknown_fields, transform = crate::openapi::one_target)
)]
pub struct BlockRequest<T: Text = String> {
    /// The client.
    #[serde(flatten)]
    pub target: BlockTarget<T>,
    /// The effect; `block` if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["block", "allow"])))]
    pub action: Option<T>,
    /// Length of the block or the permission.
    #[cfg_attr(feature = "schema", schemars(extend("examples" = ["10m", "1 hour"])))]
    pub r#for: T,
    /// The reason, shown in the list.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<T>,
}

/// A network, an address or a client: `ip`, or `attribute` with `value`, or `id`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Blocked", deny_unknown_fields, transform = crate::openapi::one_target)
)]
pub struct BlockTarget<T: Text = String> {
    /// An address or a network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ip: Option<T>,
    /// The attribute that identifies the client.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attribute: Option<T>,
    /// The value of the attribute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<T>,
    /// An id, as `/v1/top` and `/v1/block` show it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<T>,
}
