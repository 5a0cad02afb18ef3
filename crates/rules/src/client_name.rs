//! Names of clients that operators may see. A client named by a possible secret has none.

use serde::ser::{Serialize, SerializeMap, Serializer};

use tidegate_core::Request;

use crate::condition::may_be_secret;
use crate::{PickedAttribute, Rule};

/// Maximum length of a value that operators see.
const MAX_SHOWN_BYTES: usize = 256;

/// The name of a rule's client, as `/v1/check` and `/v1/clients` take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClientName {
    /// The value of the first attribute that the rule counts by.
    Value(Box<str>),
    /// Attributes and their values.
    Parts(Box<[(Box<str>, Box<str>)]>),
}

impl ClientName {
    /// Returns the name of the client that a rule counts a request for; `None` if a value may be a secret, or if the
    /// request lacks an attribute.
    #[must_use]
    pub fn of(rule: &Rule, request: &Request<'_>) -> Option<Self> {
        let picked: Option<Vec<_>> = rule.per().iter().map(|chain| chain.pick(request)).collect();
        let shown = |picked: &PickedAttribute<'_>| {
            let value = shown_value(picked.attribute, picked.value)?;
            Some((Box::from(picked.attribute), Box::from(value)))
        };
        match picked?.as_slice() {
            [only] if only.alternative == 0 => shown(only).map(|(_, value)| Self::Value(value)),
            parts => parts.iter().map(shown).collect::<Option<_>>().map(Self::Parts),
        }
    }
}

/// Serializes to a string, or to an object of strings.
impl Serialize for ClientName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Value(value) => serializer.serialize_str(value),
            Self::Parts(parts) => {
                let mut map = serializer.serialize_map(Some(parts.len()))?;
                for (attribute, value) in parts {
                    map.serialize_entry(attribute, value)?;
                }
                map.end()
            }
        }
    }
}

/// Returns the value if it may be shown.
fn shown_value<'v>(attribute: &str, value: &'v str) -> Option<&'v str> {
    Some(value).filter(|value| !may_be_secret(attribute) && value.len() <= MAX_SHOWN_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_may_be_secrets_are_not_shown() {
        for attribute in [
            "api_key",
            "user",
            "session",
            "bearer",
            "cookie.sid",
            "header.authorization",
            "header.x-tenant",
            "query.token",
            "claim.sub",
            "anything",
            "IP",
            "",
        ] {
            assert_eq!(shown_value(attribute, "value"), None, "{attribute}");
        }
        assert_eq!(shown_value("ip", "192.0.2.7"), Some("192.0.2.7"));
        assert_eq!(shown_value("path", &"x".repeat(257)), None);
    }
}
