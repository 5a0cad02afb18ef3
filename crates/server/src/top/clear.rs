//! Which values an operator sees, and which only as a hash.

/// Attributes whose values name a place or a program and open nothing. Every other may be a secret or
/// a person: `api_key`, `session`, `bearer`, `user`, `cookie.*`, `header.*`, `claim.*`, `query.*`.
const HARMLESS: [&str; 8] =
    ["ip", "service", "path", "host", "method", "domain", "remote_address", "generic_key"];

/// Longest value that is shown, in bytes.
const LONGEST: usize = 256;

/// Whether the values of an attribute are harmless to show.
pub(crate) fn is_harmless(attribute: &str) -> bool {
    HARMLESS.contains(&attribute)
}

/// The value if it may be shown as it is.
pub(crate) fn shown<'v>(attribute: &str, value: &'v str) -> Option<&'v str> {
    Some(value).filter(|value| is_harmless(attribute) && value.len() <= LONGEST)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_may_be_a_secret_is_not_shown() {
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
            assert_eq!(shown(attribute, "value"), None, "{attribute}");
        }
        assert_eq!(shown("ip", "192.0.2.7"), Some("192.0.2.7"));
        assert_eq!(shown("path", &"x".repeat(257)), None);
    }
}
