//! A call of Envoy's rate limit service, whichever way it came.

use std::borrow::Cow;

use smallvec::SmallVec;

use super::Unit;

/// What is asked.
#[derive(Debug, Default)]
pub struct RlsCall<'a> {
    /// Tells the descriptors of one use from those of another.
    pub domain: Cow<'a, str>,
    /// Descriptors, each checked for itself.
    pub descriptors: SmallVec<[Descriptor<'a>; 2]>,
}

/// Keys and values that describe a request, from the general to the particular.
#[derive(Debug)]
pub struct Descriptor<'a> {
    /// Keys and values.
    pub entries: SmallVec<[(Cow<'a, str>, Cow<'a, str>); 4]>,
    /// The cost of the descriptor.
    pub hits: Hits,
    /// How many per unit it may have, in place of what the files of envoyproxy/ratelimit say.
    pub limit: Option<(u32, Unit)>,
}

/// What a descriptor wants to spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hits {
    /// So much; nothing looks whether one would pass.
    Spend(u64),
    /// Refunds this many.
    GiveBack(u64),
}

impl Hits {
    /// What a descriptor and its call say: the descriptor's own hits, else the call's, of which none are
    /// one.
    pub fn of(own: Option<u64>, calls: u32, negative: bool) -> Self {
        let hits = own.unwrap_or(u64::from(calls.max(1)));
        if negative { Self::GiveBack(hits) } else { Self::Spend(hits) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unset_hits_are_one_and_an_explicit_zero_looks() {
        assert_eq!(Hits::of(None, 0, false), Hits::Spend(1));
        assert_eq!(Hits::of(None, 7, false), Hits::Spend(7));
        assert_eq!(Hits::of(Some(0), 7, false), Hits::Spend(0));
        assert_eq!(Hits::of(Some(3), 7, true), Hits::GiveBack(3));
        assert_eq!(Hits::of(None, 0, true), Hits::GiveBack(1));
    }
}
