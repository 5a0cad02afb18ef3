//! A call of Envoy's rate limit service, over gRPC or as JSON.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::Unit;

/// A call: one or more descriptors of a domain.
#[derive(Debug, Default)]
pub struct RlsCall<'a> {
    /// The namespace of the descriptors.
    pub domain: Cow<'a, str>,
    /// The descriptors. Each has limits and a status of its own.
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
}

/// Keys and values that describe a request, from the general to the particular.
#[derive(Debug)]
pub struct Descriptor<'a> {
    /// Keys and values, in the order of the call.
    pub entries: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 4]>,
    /// The cost or refund of the descriptor.
    pub hits: Hits,
    /// The limit per unit, in place of the one in the files of envoyproxy/ratelimit.
    pub limit: Option<(u32, Unit)>,
}

/// The cost of a descriptor, or its refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// Charges this many hits; 0 is a peek.
    Charge(u64),
    /// Refunds this many hits.
    Refund(u64),
}

impl Hits {
    /// Returns the hits of the descriptor itself, or else those of the call, where 0 means unset and counts as 1.
    /// Negative hits are a refund.
    pub fn new(descriptor_hits: Option<u64>, call_hits: u32, negative: bool) -> Self {
        let hits = descriptor_hits.unwrap_or(u64::from(call_hits.max(1)));
        if negative { Self::Refund(hits) } else { Self::Charge(hits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_hits_are_one_and_an_explicit_zero_is_a_peek() {
        assert_eq!(Hits::new(None, 0, false), Hits::Charge(1));
        assert_eq!(Hits::new(None, 7, false), Hits::Charge(7));
        assert_eq!(Hits::new(Some(0), 7, false), Hits::Charge(0));
        assert_eq!(Hits::new(Some(3), 7, true), Hits::Refund(3));
        assert_eq!(Hits::new(None, 0, true), Hits::Refund(1));
    }
}
