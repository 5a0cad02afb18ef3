//! Request headers that a client must not set, because the gateway sets them or the upstream trusts them.
//!
//! CGI, WSGI and similar interfaces read `X_Forwarded_For` as `X-Forwarded-For`. A name with underscores is therefore
//! reserved if the same name with hyphens has a meaning here.

use hyper::header::{
    AUTHORIZATION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, COOKIE, HOST,
    HeaderMap, HeaderName, TRAILER,
};

use crate::head::is_hop_by_hop;

/// The kind of a reserved header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReservedHeader {
    /// The address, host or scheme of the client. Only a trusted proxy may set it.
    Forwarding,
    /// The state of a rate limit. The gateway sets it with `upstream_headers`.
    RateLimit,
    /// A name with underscores that an upstream may read as a header of the gateway.
    Underscores,
}

impl ReservedHeader {
    /// Returns the kind of a header; `None` if it is not reserved. Names are in lower case.
    pub(crate) fn of(name: &str) -> Option<Self> {
        if name.bytes().any(|byte| byte == b'_') {
            let hyphenated = name.replace('_', "-");
            let is_reserved = Self::hyphenated(&hyphenated).is_some() || is_hop_by_hop(&hyphenated);
            return is_reserved.then_some(Self::Underscores);
        }
        Self::hyphenated(name)
    }

    fn hyphenated(name: &str) -> Option<Self> {
        match name {
            "forwarded"
            | "x-real-ip"
            | "client-ip"
            | "x-client-ip"
            | "x-cluster-client-ip"
            | "true-client-ip"
            | "cf-connecting-ip" => Some(Self::Forwarding),
            _ if name.starts_with("x-forwarded-") => Some(Self::Forwarding),
            _ if name.starts_with("ratelimit") || name.starts_with("x-ratelimit-") => {
                Some(Self::RateLimit)
            }
            _ => None,
        }
    }
}

/// Removes the headers of a map that match a condition.
pub(crate) fn remove_headers(headers: &mut HeaderMap, condition: impl Fn(&HeaderName) -> bool) {
    let removed: Vec<HeaderName> = headers.keys().filter(|name| condition(name)).cloned().collect();
    for name in removed {
        headers.remove(name);
    }
}

/// Removes trailer fields that an upstream could read as headers of the request: those that identify the client, frame
/// the message or choose its target (RFC 9110, section 6.5.1).
pub(crate) fn clean_trailers(trailers: &mut HeaderMap) {
    remove_headers(trailers, |name| {
        [AUTHORIZATION, COOKIE, HOST, TRAILER, CONTENT_LENGTH].contains(name)
            || [CONTENT_ENCODING, CONTENT_RANGE, CONTENT_TYPE].contains(name)
            || is_hop_by_hop(name.as_str())
            || ReservedHeader::of(name.as_str()).is_some()
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn underscores_are_reserved_if_the_name_with_hyphens_has_a_meaning() {
        use ReservedHeader::{Forwarding, RateLimit, Underscores};
        for (name, expected) in [
            ("x-forwarded-for", Some(Forwarding)),
            ("x-forwarded-port", Some(Forwarding)),
            ("x-real-ip", Some(Forwarding)),
            ("forwarded", Some(Forwarding)),
            ("ratelimit", Some(RateLimit)),
            ("ratelimit-policy", Some(RateLimit)),
            ("x-ratelimit-remaining", Some(RateLimit)),
            ("x_forwarded_for", Some(Underscores)),
            ("x-forwarded_for", Some(Underscores)),
            ("x_real_ip", Some(Underscores)),
            ("x_ratelimit_limit", Some(Underscores)),
            ("transfer_encoding", Some(Underscores)),
            ("content_length", Some(Underscores)),
            ("my_header", None),
            ("accept", None),
            ("te", None),
        ] {
            assert_eq!(ReservedHeader::of(name), expected, "{name}");
        }
    }

    #[test]
    fn trailers_keep_only_fields_without_a_meaning_in_a_head() {
        let mut trailers = HeaderMap::new();
        for name in [
            "x-check",
            "x-forwarded-for",
            "x_real_ip",
            "authorization",
            "cookie",
            "ratelimit",
            "te",
            "connection",
            "content-length",
        ] {
            trailers.append(HeaderName::from_static(name), "1".parse().unwrap());
        }
        clean_trailers(&mut trailers);
        assert_eq!(trailers.keys().collect::<Vec<_>>(), ["x-check"]);
    }
}
