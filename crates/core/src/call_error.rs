//! The status of a call, and the error of a call that can't be decided.

use std::borrow::Cow;
use std::fmt;

use crate::decision::DecisionStatus;
use crate::request::{Request, RequestError};

/// The status of a call, with its label or code in each protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallStatus {
    /// Every rule allows the request.
    Allowed,
    /// The client is over its limit.
    Denied,
    /// The store failed, and a rule has `on_store_failure: deny`.
    Unavailable,
    /// The call is malformed.
    Invalid,
    /// The call names a rule that does not exist.
    UnknownRule,
    /// The call is about slots in flight that are no longer held.
    Gone,
}

impl CallStatus {
    /// Every status, in the order of their counters.
    pub const ALL: [Self; 6] = [
        Self::Allowed,
        Self::Denied,
        Self::Unavailable,
        Self::Invalid,
        Self::UnknownRule,
        Self::Gone,
    ];

    /// Returns the status of a decision.
    #[must_use]
    pub const fn of(status: DecisionStatus) -> Self {
        match status {
            DecisionStatus::Allow => Self::Allowed,
            DecisionStatus::Deny => Self::Denied,
            DecisionStatus::Unavailable => Self::Unavailable,
        }
    }

    /// Returns the stricter status of two decisions. A denial is stricter than a failed store, so that a client over its
    /// limit gets the denial.
    #[must_use]
    pub const fn stricter(self, other: Self) -> Self {
        match (self, other) {
            (Self::Denied, _) | (_, Self::Allowed) => self,
            (Self::Unavailable, Self::Unavailable) => self,
            _ => other,
        }
    }

    /// Returns the value of the metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::Invalid => "invalid",
            Self::UnknownRule => "unknown_rule",
            Self::Gone => "gone",
        }
    }

    /// Returns the HTTP status.
    #[must_use]
    pub const fn http(self) -> u16 {
        match self {
            Self::Allowed => 200,
            Self::Invalid => 400,
            Self::UnknownRule => 404,
            Self::Gone => 410,
            Self::Denied => 429,
            Self::Unavailable => 503,
        }
    }

    /// Returns the gRPC status code. A denial is 0 (OK), because the reply message carries it.
    #[must_use]
    pub const fn grpc(self) -> i32 {
        match self {
            Self::Allowed | Self::Denied => 0,
            Self::Invalid => 3,
            Self::UnknownRule | Self::Gone => 5,
            Self::Unavailable => 14,
        }
    }
}

/// The reason why a call is invalid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InvalidReason {
    /// The bytes are not a message of the protocol.
    Undecodable,
    /// The message, or a part of it, is over a size limit.
    TooLarge,
    /// The message lacks a field, or has a value that is not allowed.
    Malformed,
    /// The caller may not do this: a refund that no rule allows, or a call of a web page.
    NotAllowed,
}

impl InvalidReason {
    /// Every reason, in the order of their counters.
    pub const ALL: [Self; 4] =
        [Self::Undecodable, Self::TooLarge, Self::Malformed, Self::NotAllowed];

    /// Returns the value of the metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Undecodable => "undecodable",
            Self::TooLarge => "too_large",
            Self::Malformed => "malformed",
            Self::NotAllowed => "not_allowed",
        }
    }
}

/// The error of a call that can't be decided: where it is, what was found, what is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CallError {
    /// The status of the call.
    pub status: CallStatus,
    /// The reason, if the call is invalid.
    pub reason: Option<InvalidReason>,
    /// The place in the call: `checks[3].cost`.
    pub path: String,
    /// The value or kind that was found.
    pub found: String,
    /// The value or kind that is wanted.
    pub wanted: String,
}

impl CallError {
    /// Returns the error of a malformed call.
    pub fn invalid(
        path: impl Into<String>,
        found: impl Into<String>,
        wanted: impl Into<String>,
    ) -> Self {
        let (path, found, wanted) = (path.into(), found.into(), wanted.into());
        let reason = Some(InvalidReason::Malformed);
        Self { status: CallStatus::Invalid, reason, path, found, wanted }
    }

    /// Returns the same error of an invalid call with another reason.
    #[must_use]
    pub fn because(mut self, reason: InvalidReason) -> Self {
        self.reason = Some(reason);
        self
    }

    /// Returns the error of an attribute that [`Request`] rejects.
    #[must_use]
    pub fn rejected_attribute(path: &str, error: &RequestError) -> Self {
        use RequestError::{Name, TooMany, Value};
        let error = match error {
            Name { found } => Self::invalid(
                path,
                format!("a name of {found} bytes"),
                format!("1 to {} bytes", Request::MAX_NAME),
            ),
            Value { found, .. } => Self::invalid(
                path,
                format!("{found} bytes"),
                format!("at most {} bytes", Request::MAX_VALUE),
            ),
            TooMany => Self::invalid(
                path,
                "one attribute too many",
                format!("at most {} attributes", Request::MAX_ATTRIBUTES),
            ),
        };
        error.because(InvalidReason::TooLarge)
    }

    /// Returns the same error for an item of a larger call, such as `checks[3]`: `cost` becomes `checks[3].cost`, and
    /// `body`, the whole item, becomes `checks[3]`.
    #[must_use]
    pub fn within(mut self, item: &str) -> Self {
        self.path = match self.path.as_str() {
            "body" => item.to_owned(),
            path => format!("{item}.{path}"),
        };
        self
    }
}

impl fmt::Display for CallError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, wanted {}", self.path, self.found, self.wanted)
    }
}

/// Most characters of a caller's text that an error quotes.
const MAX_QUOTED_CHARS: usize = 64;

/// Returns at most 64 characters of a text, with `…` if some of it is left out.
#[must_use]
pub fn truncate(text: &str) -> Cow<'_, str> {
    let end = text.char_indices().nth(MAX_QUOTED_CHARS).and_then(|(end, _)| text.get(..end));
    end.map_or(text.into(), |start| format!("{start}…").into())
}

/// Returns the [truncated](truncate) text in quotes.
#[must_use]
pub fn quote(text: &str) -> String {
    format!("{:?}", truncate(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn denial_is_stricter_than_a_failed_store() {
        use CallStatus::{Allowed, Denied, Unavailable};
        for (one, other, both) in [
            (Allowed, Allowed, Allowed),
            (Allowed, Denied, Denied),
            (Allowed, Unavailable, Unavailable),
            (Denied, Unavailable, Denied),
        ] {
            assert_eq!((one.stricter(other), other.stricter(one)), (both, both));
        }
    }
}
