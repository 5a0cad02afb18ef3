//! Entry points of the fuzz targets: parsers of this crate that read text of clients.

use std::net::IpAddr;

use hyper::header::{HeaderMap, HeaderValue};

use crate::envoy::{EnvoyMatch, EnvoyRules};
use crate::identity::forwarded::ForwardedHeader;

/// Reads a text as a file of envoyproxy/ratelimit, and asks what was read about a few descriptors.
///
/// # Panics
/// When a promise is broken: an error without its place, or a limit that has no rule.
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

/// Puts any bytes before the field value of a trusted proxy, and checks that the client address is still the proxy's.
///
/// # Panics
/// A client has chosen its own address.
pub fn forwarded(words: &[u8]) {
    let (proxy, client) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([192, 0, 2, 7]));
    let trusts = |address| address == proxy;
    for (header, added) in [
        (ForwardedHeader::XForwardedFor, &b", 192.0.2.7, 10.0.0.1"[..]),
        (ForwardedHeader::Forwarded, b", for=\"192.0.2.7:80\";host=\"a,\\\"b\", for=10.0.0.1"),
    ] {
        let Ok(alone) = HeaderValue::from_bytes(words) else { return };
        let mut headers = HeaderMap::from_iter([(header.name(), alone)]);
        let _ = header.client(proxy, &headers, trusts);
        let Ok(before) = HeaderValue::from_bytes(&[words, added].concat()) else { return };
        headers.insert(header.name(), before);
        assert_eq!(header.client(proxy, &headers, trusts), client, "{headers:?}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_words_of_a_client_are_believed(words in "[\"\\\\,;=for \t\\[\\]:.0-9a-f_é]{0,60}") {
            super::forwarded(words.as_bytes());
        }
    }
}
