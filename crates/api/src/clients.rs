//! Clients: their ranking, and the state of one of them.

use std::fmt;

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Text, is_false};

/// The name of a rule's client: a value, or attributes with their values in the rule's order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "ClientName"))]
#[serde(untagged)]
pub enum ClientName<T: Text = String> {
    /// The value of the only attribute that the rule counts by.
    Value(T),
    /// The attributes that the rule counts by, and their values.
    #[serde(
        with = "crate::pairs",
        bound(serialize = "T: Serialize", deserialize = "T: Deserialize<'de>")
    )]
    #[cfg_attr(feature = "schema", schemars(with = "std::collections::BTreeMap<T, T>"))]
    Parts(Vec<(T, T)>),
}

/// Writes `192.0.2.7`, or `ip=192.0.2.7 path=/login`.
impl<T: Text + fmt::Display> fmt::Display for ClientName<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Value(value) => value.fmt(f),
            Self::Parts(parts) => {
                parts.iter().enumerate().try_for_each(|(index, (name, value))| {
                    let space = if index == 0 { "" } else { " " };
                    write!(f, "{space}{name}={value}")
                })
            }
        }
    }
}

/// The clients with the most requests, or with the most denials.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(rename = "Top", deny_unknown_fields))]
#[serde(default)]
pub struct ClientRanking<T: Text = String> {
    /// The order of the ranking.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["traffic", "denials"])))]
    pub by: T,
    /// The start of the counted time in Unix seconds.
    pub since: u64,
    /// Length of the counted time in seconds.
    pub seconds: u64,
    /// The clients, the busiest first.
    pub clients: Vec<RankedClient<T>>,
}

/// A client in a ranking.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "RankedClient", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase", default)]
pub struct RankedClient<T: Text = String> {
    /// The rule that counts the client.
    pub rule: T,
    /// The id of the client on the block list.
    pub id: T,
    /// The name of the client; null if it may be a secret.
    pub client: Option<ClientName<T>>,
    /// Requests of the client, in a ranking by traffic.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<u64>,
    /// Denials of the client, in a ranking by denials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub denials: Option<u64>,
    /// A lower bound of the count, which may include requests of other clients.
    pub at_least: u64,
}

impl<T: Text> RankedClient<T> {
    /// Returns the requests or the denials, whichever the ranking counts.
    pub fn count(&self) -> u64 {
        self.requests.or(self.denials).unwrap_or_default()
    }
}

/// The state of a client under a rule. A rule that is off has no limit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Standing", deny_unknown_fields)
)]
#[serde(rename_all = "camelCase")]
pub struct ClientStatus<T: Text = String> {
    /// The rule.
    pub rule: T,
    /// The id of the client on the block list; null if the rule has one bucket for all clients.
    pub id: Option<T>,
    /// The name of the client; null if it may be a secret.
    pub client: Option<ClientName<T>>,
    /// True if a request of cost 1 would be admitted.
    pub allowed: bool,
    /// The most that can be spent at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limit: Option<u64>,
    /// The part of the limit that is left.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<u64>,
    /// The Unix second at which the whole limit can be spent again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reset_time: Option<u64>,
    /// Seconds to wait, while no request is admitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after: Option<u64>,
    /// True if the client is on the block list.
    #[serde(default, skip_serializing_if = "is_false")]
    #[cfg_attr(feature = "schema", schemars(extend("const" = true)))]
    pub blocked: bool,
}

/// A refund to a client of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Refund", deny_unknown_fields)
)]
pub struct RefundRequest<T: Text = String> {
    /// The rule.
    pub rule: T,
    /// The client; not needed for a rule with one bucket for all clients.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub client: Option<ClientName<T>>,
    /// The amount to refund.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(range(min = 1), extend("default" = 1)))]
    pub cost: Option<u64>,
}
