//! What fuzzers reach: one function for each reader of what strangers send.

use std::net::IpAddr;

use hyper::header::{HeaderMap, HeaderValue};

use crate::identity::forwarded::ForwardedHeader;

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
