//! Entry points of the fuzz targets: parsers of this crate that read text of clients.

use std::net::IpAddr;

use hyper::header::{HeaderMap, HeaderValue};

use crate::envoy::{EnvoyMatch, EnvoyRules};
use crate::identity::forwarded::ForwardedHeader;

/// Parses a text as a file of envoyproxy/ratelimit, and finds the limits of a few descriptors.
///
/// # Panics
/// An error has no position, or a limit has no rule.
pub fn envoy_yaml(text: &str) {
    let rules = match EnvoyRules::parse(&[("fuzz".to_owned(), text.to_owned())]) {
        Ok(rules) => rules,
        Err(error) => {
            let error = error.to_string();
            assert!(error.lines().next().is_some_and(|line| line.starts_with("fuzz")), "{error}");
            return;
        }
    };
    let native = tidegate_rules::RuleSet::new(rules.rules());
    let native = native.unwrap_or_else(|errors| panic!("the names of rules are unique: {errors}"));
    assert_eq!(rules.dump().lines().count() == 0, rules.is_empty());
    for domain in ["d", "rl", "example7", "example10", "quota"] {
        for (key, value) in
            [("k", "v"), ("foo", "a"), ("file", "test1"), ("service", "service_1"), ("", "")]
        {
            for depth in 0..4 {
                if let EnvoyMatch::Limited(limit, request) =
                    rules.find(domain, &vec![(key, value); depth])
                {
                    let rule = native.rule(&limit.rule).expect("a limit has a rule");
                    assert_eq!(rule.parts(&request).len(), rule.per().len());
                }
            }
        }
    }
}

/// Puts arbitrary bytes before the field value of a trusted proxy, and checks that the address of the proxy is used.
///
/// # Panics
/// The bytes of the client changed the address.
pub fn forwarded(bytes: &[u8]) {
    let (proxy, client) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([192, 0, 2, 7]));
    let is_trusted = |address| address == proxy;
    for (header, added) in [
        (ForwardedHeader::XForwardedFor, &b", 192.0.2.7, 10.0.0.1"[..]),
        (ForwardedHeader::Forwarded, b", for=\"192.0.2.7:80\";host=\"a,\\\"b\", for=10.0.0.1"),
    ] {
        let Ok(forged) = HeaderValue::from_bytes(bytes) else { return };
        let mut headers = HeaderMap::from_iter([(header.name(), forged)]);
        let _ = header.client_address(proxy, &headers, is_trusted);
        let Ok(joined) = HeaderValue::from_bytes(&[bytes, added].concat()) else { return };
        headers.insert(header.name(), joined);
        assert_eq!(header.client_address(proxy, &headers, is_trusted), client, "{headers:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn forged_addresses_are_ignored(text in "[\"\\\\,;=for \t\\[\\]:.0-9a-f_é]{0,60}") {
            super::forwarded(text.as_bytes());
        }
    }
}
