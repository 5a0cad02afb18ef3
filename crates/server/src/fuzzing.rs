//! What fuzzers reach: whatever reads a stranger's text. Nobody else should use it.

use std::net::IpAddr;

use hyper::header::{HeaderMap, HeaderValue};

use crate::identity::forwarded::ForwardedHeader;
use crate::rules::envoy::{EnvoyRules, Found};
use crate::transport::http;
use crate::transport::resp::rehearse;

/// Sends any bytes to the RESP door, where no decision is made, at once and in pieces.
///
/// # Panics
/// The pieces are answered otherwise than the whole.
pub fn resp(bytes: &[u8]) {
    let whole = rehearse(&[bytes]);
    // The first byte says where to cut.
    let cut = bytes.first().map_or(0, |first| usize::from(*first)) % (bytes.len() + 1);
    let (head, tail) = bytes.split_at(cut);
    assert_eq!(rehearse(&[head, tail]), whole);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(rehearse(&single), whole);
}

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
    assert_eq!(rules.dump().lines().count() == 0, rules.len() == 0);
    for domain in ["d", "rl", "example7", "example10", "quota"] {
        for (key, value) in
            [("k", "v"), ("foo", "a"), ("file", "test1"), ("service", "service_1"), ("", "")]
        {
            for depth in 0..4 {
                if let Found::Limited(limit, request) =
                    rules.find(domain, &vec![(key, value); depth])
                {
                    let rule = native.rule(&limit.rule).expect("a limit has a rule");
                    assert_eq!(rule.parts(&request).len(), rule.per().len());
                }
            }
        }
    }
}

/// Any bytes as the words of a client before those of a proxy: never a panic, and never believed.
///
/// # Panics
/// A client got through with what it made up.
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

/// Reads any bytes as the body of a check, a batch or a call of Envoy's.
///
/// # Panics
/// What is refused has no place, or its text is too long to be told.
pub fn check_json(body: &[u8]) {
    for fault in http::rehearse(body) {
        assert!(!fault.path.is_empty() && !fault.wanted.is_empty(), "{fault:?}");
        assert!(fault.to_string().len() < 2_048, "{} bytes are told", fault.to_string().len());
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
