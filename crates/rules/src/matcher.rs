//! Finds the few items among many whose conditions a request may satisfy.
//!
//! An item is indexed by one of its conditions only: the one that the fewest other items share, so
//! that ten thousand rules for `method: GET` and a path of their own are found by their paths.
//! The value of an attribute leads to the items that are indexed under it. Items without another condition match for
//! certain, the others are then checked in full.
//! Items without a condition that can be indexed are candidates for every request.

mod network_index;
mod prefix_trie;
mod terms;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use smallvec::SmallVec;
use tidegate_core::Request;

use crate::condition::{Condition, present};
use crate::matcher::network_index::NetworkIndex;
use crate::matcher::prefix_trie::PrefixTrie;
use crate::matcher::terms::{IndexTerm, TermCounts};
use crate::network::address;

/// The hasher of tables whose keys the operator writes.
///
/// Its key is fixed: clients choose the values that are looked up, never those that are stored, so that they can't
/// fill one bucket of the table to slow down the others.
pub(crate) type Hashing = BuildHasherDefault<DefaultHasher>;

/// Items that are indexed under the same term, each perhaps with [`CERTAIN`].
type Items = SmallVec<[u32; 2]>;

/// Marks an item whose conditions all hold when it is found. Checking them would read three or four places of memory
/// that, among very many items, are in no cache.
const CERTAIN: u32 = 1 << 31;

/// Up to this many indexed attributes it is faster to look up each of them in the request than to look up each
/// attribute of the request in the index.
const MAX_PROBED_ATTRIBUTES: usize = 8;

/// An index over the conditions of some items, which are identified by their position.
#[derive(Clone, Debug, Default)]
pub(crate) struct Matcher {
    always: Box<[u32]>,
    attributes: Box<[AttributeIndex]>,
    /// Empty if there are few attributes.
    by_name: HashMap<Box<str>, usize, Hashing>,
}

impl Matcher {
    /// Indexes each item under the most selective of its conditions.
    pub(crate) fn new<'c>(items: impl Iterator<Item = &'c [Condition]> + Clone) -> Self {
        let counts = TermCounts::of(items.clone().flatten());
        let mut always = Vec::new();
        let mut builders: Vec<IndexBuilder<'c>> = Vec::new();
        let mut by_name: HashMap<&str, usize, Hashing> = HashMap::default();
        for (item, conditions) in (0..).zip(items) {
            let Some((condition, terms)) = counts.most_selective(conditions) else {
                always.push(item);
                continue;
            };
            let index = *by_name.entry(condition.attribute()).or_insert_with(|| {
                builders.push(IndexBuilder::new(condition.attribute()));
                builders.len() - 1
            });
            // There are far fewer items than would need this bit.
            let certain = matches!(conditions, [only] if only.is_exact()) && item < CERTAIN;
            let item = if certain { item | CERTAIN } else { item };
            if let Some(builder) = builders.get_mut(index) {
                terms.into_iter().for_each(|term| builder.add(term, item));
            }
        }
        let few = builders.len() <= MAX_PROBED_ATTRIBUTES;
        Self {
            always: always.into(),
            attributes: builders.into_iter().map(IndexBuilder::finish).collect(),
            by_name: match few {
                true => HashMap::default(),
                false => by_name.into_iter().map(|(name, index)| (name.into(), index)).collect(),
            },
        }
    }

    /// Calls `found` with every item that the request may satisfy, and whether it does for certain. None is
    /// missed; the order is arbitrary, and an item may be found twice.
    #[inline]
    pub(crate) fn candidates(&self, request: &Request<'_>, mut found: impl FnMut(usize, bool)) {
        let mut found = |item: u32| {
            if let Ok(index) = usize::try_from(item & !CERTAIN) {
                found(index, item & CERTAIN != 0);
            }
        };
        self.always.iter().copied().for_each(&mut found);
        if self.attributes.len() <= MAX_PROBED_ATTRIBUTES {
            for index in &self.attributes {
                if let Some(value) = present(request, &index.name) {
                    index.candidates(value, &mut found);
                }
            }
            return;
        }
        for (name, value) in request.attributes() {
            let position = self.by_name.get(name);
            if let Some(index) = position.and_then(|&position| self.attributes.get(position))
                // If a name is given twice, the first value counts.
                && present(request, name).is_some_and(|first| std::ptr::eq(first, value))
            {
                index.candidates(value, &mut found);
            }
        }
    }
}

/// The items that are indexed under values of one attribute.
#[derive(Clone, Debug)]
struct AttributeIndex {
    name: Box<str>,
    exact: HashMap<Box<str>, Items, Hashing>,
    prefixes: PrefixTrie,
    suffixes: PrefixTrie,
    nets: NetworkIndex,
}

impl AttributeIndex {
    #[inline]
    fn candidates(&self, value: &str, found: &mut impl FnMut(u32)) {
        if !self.exact.is_empty()
            && let Some(items) = self.exact.get(value)
        {
            items.iter().copied().for_each(&mut *found);
        }
        self.prefixes.visit(value.bytes(), found);
        self.suffixes.visit(value.bytes().rev(), found);
        if !self.nets.is_empty()
            && let Some(address) = address(value)
        {
            self.nets.visit(address, found);
        }
    }
}

/// Builds an [`AttributeIndex`].
struct IndexBuilder<'c> {
    name: &'c str,
    exact: HashMap<Box<str>, Items, Hashing>,
    prefixes: HashMap<Vec<u8>, Items, Hashing>,
    suffixes: HashMap<Vec<u8>, Items, Hashing>,
    nets: NetworkIndex,
}

impl<'c> IndexBuilder<'c> {
    fn new(name: &'c str) -> Self {
        Self {
            name,
            exact: HashMap::default(),
            prefixes: HashMap::default(),
            suffixes: HashMap::default(),
            nets: NetworkIndex::default(),
        }
    }

    fn add(&mut self, term: IndexTerm<'c>, item: u32) {
        let items = match term {
            IndexTerm::Exact(text) => self.exact.entry(text.into()).or_default(),
            IndexTerm::Prefix(text) => self.prefixes.entry(text.into()).or_default(),
            IndexTerm::Suffix(text) => {
                self.suffixes.entry(text.bytes().rev().collect()).or_default()
            }
            IndexTerm::Network(network) => self.nets.entry(network),
        };
        // A list may contain the same term twice.
        if items.last() != Some(&item) {
            items.push(item);
        }
    }

    fn finish(self) -> AttributeIndex {
        AttributeIndex {
            name: self.name.into(),
            exact: self.exact,
            prefixes: PrefixTrie::new(self.prefixes),
            suffixes: PrefixTrie::new(self.suffixes),
            nets: self.nets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::Test;

    fn item<const N: usize>(conditions: [(&str, Test); N]) -> Vec<Condition> {
        conditions.into_iter().map(|(attribute, test)| Condition::new(attribute, test)).collect()
    }

    fn within(network: &str) -> Test {
        Test::within([network.parse().unwrap()])
    }

    /// Counts candidates instead of time, so that the result is the same on every machine.
    #[test]
    fn a_request_has_few_candidates_among_many_items() {
        let get = || ("method", Test::is("GET"));
        let api = || ("path", Test::like("/v1/**"));
        let items: Vec<Vec<Condition>> = (0..10_000)
            .map(|n| match n % 6 {
                0 => item([get(), ("path", Test::like(&format!("/v1/tenant-{n}/**")))]),
                1 => item([get(), ("path", Test::is(&format!("/v1/route-{n}")))]),
                2 => item([get(), api(), ("api_key", Test::is(&format!("key-{n}")))]),
                3 => item([get(), ("ip", within(&format!("10.{}.{}.0/24", n / 256, n % 256)))]),
                4 => item([api(), ("host", Test::like(&format!("*.customer-{n}.example")))]),
                _ => item([("user", Test::Present), ("path", Test::like(&format!("/v1/*/{n}")))]),
            })
            .collect();
        let matcher = Matcher::new(items.iter().map(Vec::as_slice));
        for n in [0, 6_001, 6_002, 6_003, 6_004, 6_005, 9_999] {
            let path = match n % 6 {
                0 => format!("/v1/tenant-{n}/orders"),
                1 => format!("/v1/route-{n}"),
                _ => format!("/v1/orders/{n}"),
            };
            let request = Request::new()
                .with("method", "GET")
                .and_then(|request| request.with("path", path))
                .and_then(|request| request.with("api_key", format!("key-{n}")))
                .and_then(|request| request.with("ip", format!("10.{}.{}.9", n / 256, n % 256)))
                .and_then(|request| request.with("host", format!("a.customer-{n}.example")))
                .and_then(|request| request.with("user", "u"))
                .unwrap();
            let mut found = Vec::new();
            matcher.candidates(&request, |item, _| found.push(item));
            assert_eq!(found, [n], "{request:?}");
        }
    }
}
