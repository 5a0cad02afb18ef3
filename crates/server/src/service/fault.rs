//! How calls end, and why one is not decided.

use std::borrow::Cow;
use std::fmt;

use tidegate::Request;

/// How a call ended. The table from endings to what each protocol calls them is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Allowed,
    /// The client is over its share.
    Denied,
    /// A rule that denies when the store fails could not be decided.
    Unavailable,
    /// The call can't be understood.
    Invalid,
    /// The call names a rule that is not there.
    UnknownRule,
    /// The call is about slots in flight that are no longer held.
    Gone,
}

impl Ending {
    pub(crate) const ALL: [Self; 6] = [
        Self::Allowed,
        Self::Denied,
        Self::Unavailable,
        Self::Invalid,
        Self::UnknownRule,
        Self::Gone,
    ];

    /// What metrics call it.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::Unavailable => "unavailable",
            Self::Invalid => "invalid",
            Self::UnknownRule => "unknown_rule",
            Self::Gone => "gone",
        }
    }

    /// The HTTP status.
    pub(crate) const fn http(self) -> u16 {
        match self {
            Self::Allowed => 200,
            Self::Invalid => 400,
            Self::UnknownRule => 404,
            Self::Gone => 410,
            Self::Denied => 429,
            Self::Unavailable => 503,
        }
    }

    /// The gRPC status code, for calls that answer a denial with a message.
    pub(crate) const fn grpc(self) -> i32 {
        match self {
            Self::Allowed | Self::Denied => 0,
            Self::Invalid => 3,
            Self::UnknownRule | Self::Gone => 5,
            Self::Unavailable => 14,
        }
    }
}

/// Why a call was not decided: where, found, wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) ending: Ending,
    /// Where in the call: `checks[3].cost`.
    pub(crate) place: String,
    pub(crate) found: String,
    pub(crate) wanted: String,
}

impl Fault {
    pub(crate) fn invalid(
        place: impl Into<String>,
        found: impl Into<String>,
        wanted: impl Into<String>,
    ) -> Self {
        Self {
            ending: Ending::Invalid,
            place: place.into(),
            found: found.into(),
            wanted: wanted.into(),
        }
    }

    /// A client that belongs to no rule.
    pub(super) fn client_without_rule() -> Self {
        Self::invalid("rule", "nothing", "the rule that client belongs to")
    }

    /// An attribute that a [`Request`] does not take.
    pub(crate) fn refused(place: &str, error: &tidegate::RequestError) -> Self {
        use tidegate::RequestError::{Name, TooMany, Value};
        match error {
            Name { found } => Self::invalid(
                place,
                format!("a name of {found} bytes"),
                format!("1 to {} bytes", Request::MAX_NAME),
            ),
            Value { found, .. } => Self::invalid(
                place,
                format!("{found} bytes"),
                format!("at most {} bytes", Request::MAX_VALUE),
            ),
            TooMany => Self::invalid(
                place,
                "one attribute too many",
                format!("at most {} attributes", Request::MAX_ATTRIBUTES),
            ),
            other => Self::invalid(place, other.to_string(), "an attribute"),
        }
    }

    /// The same fault of an item of a larger call: `checks[3]`.
    pub(crate) fn within(mut self, item: &str) -> Self {
        self.place = match self.place.as_str() {
            "body" => item.to_owned(),
            place => format!("{item}.{place}"),
        };
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: found {}, wanted {}", self.place, self.found, self.wanted)
    }
}

/// Longest text of a caller that is echoed back, in characters.
const ECHO: usize = 64;

/// The beginning of a text.
pub(crate) fn cut(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(ECHO) {
        Some((end, _)) => format!("{}…", &text[..end]).into(),
        None => text.into(),
    }
}

/// What a caller wrote, in quotes, cut if it is long.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", cut(text))
}
