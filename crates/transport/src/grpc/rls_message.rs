//! The messages of a `ShouldRateLimit` call, with bytes in place of strings.
//!
//! Envoy copies header values of clients into strings of the protocol without validation. A decoder that requires UTF-8
//! rejects such a call, and Envoy then forwards the request uncounted. The wire format of both types is the same.

use bytes::Bytes;
use prost::Message;
use tidegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::RateLimitOverride;

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RawRateLimitRequest {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) domain: Bytes,
    #[prost(message, repeated, tag = "2")]
    pub(crate) descriptors: Vec<RawDescriptor>,
    #[prost(uint32, tag = "3")]
    pub(crate) hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct RawDescriptor {
    #[prost(message, repeated, tag = "1")]
    pub(crate) entries: Vec<RawEntry>,
    #[prost(message, optional, tag = "2")]
    pub(crate) limit: Option<RateLimitOverride>,
    #[prost(message, optional, tag = "3")]
    pub(crate) hits_addend: Option<u64>,
    #[prost(bool, tag = "4")]
    pub(crate) is_negative_hits: bool,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry`.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct RawEntry {
    #[prost(bytes = "bytes", tag = "1")]
    pub(crate) key: Bytes,
    #[prost(bytes = "bytes", tag = "2")]
    pub(crate) value: Bytes,
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_proto::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
    use tidegate_proto::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::Entry;
    use tidegate_proto::envoy::service::ratelimit::v3::RateLimitRequest;

    use super::*;

    prop_compose! {
        fn descriptor()(
            entries in proptest::collection::vec((".{0,8}", ".{0,8}"), 0..4),
            limit in proptest::option::of((any::<u32>(), any::<i32>())),
            hits_addend: Option<u64>,
            is_negative_hits: bool,
        ) -> RateLimitDescriptor {
            let entries = entries.into_iter().map(|(key, value)| Entry { key, value }).collect();
            let limit = limit
                .map(|(requests_per_unit, unit)| RateLimitOverride { requests_per_unit, unit });
            RateLimitDescriptor { entries, limit, hits_addend, is_negative_hits }
        }
    }

    proptest! {
        #[test]
        fn messages_are_encoded_as_the_generated_ones(
            domain in ".{0,8}",
            descriptors in proptest::collection::vec(descriptor(), 0..4),
            hits_addend: u32,
        ) {
            let generated = RateLimitRequest { domain, descriptors, hits_addend };
            let encoded = generated.encode_to_vec();
            let raw = RawRateLimitRequest::decode(encoded.as_slice()).unwrap();
            prop_assert_eq!(raw.encode_to_vec(), encoded);
            prop_assert_eq!(&raw.domain, &generated.domain);
            for (raw, generated) in raw.descriptors.iter().zip(&generated.descriptors) {
                for (raw, generated) in raw.entries.iter().zip(&generated.entries) {
                    prop_assert_eq!(&raw.key, &generated.key);
                    prop_assert_eq!(&raw.value, &generated.value);
                }
            }
        }
    }
}
