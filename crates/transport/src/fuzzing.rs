//! Entry points of the fuzz targets: parsers of this crate that read bytes of clients.

use prost::Message;
use tidegate_core::unescape;

use crate::grpc::rls::decode_call;
use crate::grpc::rls_message::RawRateLimitRequest;
use crate::http;
use crate::resp::parse_only;

/// Parses any bytes as RESP commands, in one piece and in several. No decision is made.
///
/// # Panics
/// The replies to the pieces differ from those to the whole.
pub fn resp(bytes: &[u8]) {
    let whole = parse_only(&[bytes]);
    let cut = bytes.first().map_or(0, |first| usize::from(*first)) % (bytes.len() + 1);
    let (head, tail) = bytes.split_at(cut);
    assert_eq!(parse_only(&[head, tail]), whole);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(parse_only(&single), whole);
}

/// Parses any bytes as the body of a check, a batch, an Envoy rate limit call and a slot call.
///
/// # Panics
/// An error has no path, or its text is too long.
pub fn check_json(body: &[u8]) {
    for error in http::parse_only(body) {
        assert!(!error.path.is_empty() && !error.wanted.is_empty(), "{error:?}");
        assert!(error.to_string().len() < 2_048, "error of {} bytes", error.to_string().len());
    }
}

/// Decodes any bytes as a `ShouldRateLimit` call.
///
/// # Panics
/// A text of the call does not stand for the bytes of the message, or an error has no path.
pub fn rls(bytes: &[u8]) {
    let Ok(message) = RawRateLimitRequest::decode(bytes) else { return };
    let call = match decode_call(&message) {
        Ok(call) => call,
        Err(error) => {
            assert!(!error.path.is_empty() && error.to_string().len() < 2_048, "{error:?}");
            return;
        }
    };
    assert_eq!(unescape(&call.domain), message.domain);
    assert_eq!(call.descriptors.len(), message.descriptors.len());
    for (descriptor, raw) in call.descriptors.iter().zip(&message.descriptors) {
        assert_eq!(descriptor.entries.len(), raw.entries.len());
        for ((key, value), raw) in descriptor.entries.iter().zip(&raw.entries) {
            assert_eq!(unescape(key), raw.key);
            assert_eq!(unescape(value), raw.value);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn changed_seeds_of_the_rls_decoder_are_decoded_or_rejected(
            seed in proptest::sample::select(vec![
                &include_bytes!("../../../fuzz/seeds/rls/envoy")[..],
                include_bytes!("../../../fuzz/seeds/rls/limit"),
                include_bytes!("../../../fuzz/seeds/rls/not_utf8"),
            ]),
            changes in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 0..4),
        ) {
            let mut bytes = seed.to_vec();
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            rls(&bytes);
        }
    }
}
