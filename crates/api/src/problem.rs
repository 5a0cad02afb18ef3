//! Bodies of errors, `application/problem+json`.

#[cfg(feature = "schema")]
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Text;

/// A problem body of RFC 9457, and for an invalid request the exact place of the error.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Problem", deny_unknown_fields)
)]
#[serde(default)]
pub struct ProblemBody<T: Text = String> {
    /// A URI of the kind of problem, or about:blank.
    #[serde(rename = "type")]
    pub kind: T,
    /// A short text for the kind of problem.
    pub title: T,
    /// The HTTP status.
    pub status: u16,
    /// A sentence about this request.
    pub detail: T,
    /// The rules that denied the request.
    #[serde(rename = "violated-policies", skip_serializing_if = "Vec::is_empty")]
    pub violated_policies: Vec<T>,
    /// The place of the error in an invalid request.
    #[serde(flatten, default)]
    pub error: Option<ErrorDetail<T>>,
}

/// The place of an error in a request, the value found there and the value wanted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "Explained", deny_unknown_fields)
)]
pub struct ErrorDetail<T: Text = String> {
    /// The field, header or parameter.
    #[serde(rename = "where")]
    pub place: T,
    /// The value that was found.
    pub found: T,
    /// The values that are accepted.
    pub wanted: T,
}

/// The reply to a push that expects another version than the active one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "OtherVersion", deny_unknown_fields)
)]
pub struct VersionConflict<T: Text = String> {
    /// The problem.
    #[serde(flatten)]
    pub problem: ProblemBody<T>,
    /// The version that exists instead; 0 if there is none.
    pub version: u64,
}

/// The reply to a rules document with errors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(JsonSchema), schemars(deny_unknown_fields))]
pub struct InvalidRules<T: Text = String> {
    /// The problem.
    #[serde(flatten)]
    pub problem: ProblemBody<T>,
    /// All errors of the document.
    pub errors: Vec<DocumentError<T>>,
}

/// An error or a warning in a rules document.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(
    feature = "schema",
    derive(JsonSchema),
    schemars(rename = "DocumentError", deny_unknown_fields)
)]
#[serde(default)]
pub struct DocumentError<T: Text = String> {
    /// The line, from 1; null if it has no line.
    pub line: Option<u64>,
    /// The text without the line.
    pub message: T,
}
