//! Finds the few items of many whose conditions a request may satisfy.
//!
//! An item is found through one of its conditions only: the one that the fewest others share, so
//! that ten thousand rules for `method: GET` and a path of their own are found by their paths.
//! What an attribute says leads to the items filed under it. Those that say nothing else are found
//! for sure, the others are then checked in full.
//! Items without a condition to file them under are candidates for every request.

mod filing;
mod nets;
mod trie;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use smallvec::SmallVec;

use super::condition::{Condition, present};
use super::network::address;
use crate::request::Request;
use filing::{Census, Filing};
use nets::Nets;
use trie::Trie;

/// How tables of the operator's words are hashed.
///
/// The key is fixed, and no randomness is drawn: clients choose what is looked up, never what is
/// stored, so they can't fill one bucket of the table to slow the others down.
pub(super) type Hashing = BuildHasherDefault<DefaultHasher>;

/// Items that are filed under the same word, each perhaps with [`SURE`].
type Items = SmallVec<[u32; 2]>;

/// Marks an item whose conditions all hold for whoever finds it. Reading them to be certain would fetch
/// three or four places of memory that among very many items are in no cache.
const SURE: u32 = 1 << 31;

/// Up to this many attributes it is quicker to ask the request for each than to look up each
/// attribute that the request has.
const FEW_ATTRIBUTES: usize = 8;

/// An index over the conditions of some items, which are known by their place.
#[derive(Clone, Debug, Default)]
pub(super) struct Matcher {
    always: Box<[u32]>,
    attributes: Box<[AttributeIndex]>,
    /// Empty when there are few attributes.
    by_name: HashMap<Box<str>, usize, Hashing>,
}

impl Matcher {
    /// Files each item under the most telling of its conditions.
    pub(super) fn new<'c>(items: impl Iterator<Item = &'c [Condition]> + Clone) -> Self {
        let census = Census::of(items.clone().flatten());
        let mut always = Vec::new();
        let mut drafts: Vec<Draft<'c>> = Vec::new();
        let mut by_name: HashMap<&str, usize, Hashing> = HashMap::default();
        for (item, conditions) in (0..).zip(items) {
            let Some((condition, filings)) = census.most_telling(conditions) else {
                always.push(item);
                continue;
            };
            let place = *by_name.entry(condition.attribute()).or_insert_with(|| {
                drafts.push(Draft::new(condition.attribute()));
                drafts.len() - 1
            });
            // Items are far fewer than would need this bit.
            let sure = matches!(conditions, [only] if only.is_exact()) && item < SURE;
            let item = if sure { item | SURE } else { item };
            if let Some(draft) = drafts.get_mut(place) {
                filings.into_iter().for_each(|filing| draft.file(filing, item));
            }
        }
        let few = drafts.len() <= FEW_ATTRIBUTES;
        Self {
            always: always.into(),
            attributes: drafts.into_iter().map(Draft::finish).collect(),
            by_name: match few {
                true => HashMap::default(),
                false => by_name.into_iter().map(|(name, place)| (name.into(), place)).collect(),
            },
        }
    }

    /// Calls `found` with every item that the request may satisfy, and whether it does for sure: none is
    /// missed, the order is any, some may come twice, and some that are not sure may turn out not to
    /// match.
    #[inline]
    pub(super) fn candidates(&self, request: &Request<'_>, mut found: impl FnMut(usize, bool)) {
        let mut found = |item: u32| {
            if let Ok(place) = usize::try_from(item & !SURE) {
                found(place, item & SURE != 0);
            }
        };
        self.always.iter().copied().for_each(&mut found);
        if self.attributes.len() <= FEW_ATTRIBUTES {
            for index in &self.attributes {
                if let Some(value) = present(request, &index.name) {
                    index.candidates(value, &mut found);
                }
            }
            return;
        }
        for (name, value) in request.attributes() {
            let place = self.by_name.get(name);
            if let Some(index) = place.and_then(|&place| self.attributes.get(place))
                // Of a name given twice the first value counts.
                && present(request, name).is_some_and(|first| std::ptr::eq(first, value))
            {
                index.candidates(value, &mut found);
            }
        }
    }
}

/// The items that are found by what one attribute says.
#[derive(Clone, Debug)]
struct AttributeIndex {
    name: Box<str>,
    exact: HashMap<Box<str>, Items, Hashing>,
    prefixes: Trie,
    suffixes: Trie,
    nets: Nets,
}

impl AttributeIndex {
    #[inline]
    fn candidates(&self, value: &str, found: &mut impl FnMut(u32)) {
        if !self.exact.is_empty()
            && let Some(items) = self.exact.get(value)
        {
            items.iter().copied().for_each(&mut *found);
        }
        self.prefixes.along(value.bytes(), found);
        self.suffixes.along(value.bytes().rev(), found);
        if !self.nets.is_empty()
            && let Some(address) = address(value)
        {
            self.nets.around(address, found);
        }
    }
}

/// An attribute's index while it grows.
struct Draft<'c> {
    name: &'c str,
    exact: HashMap<Box<str>, Items, Hashing>,
    prefixes: HashMap<Vec<u8>, Items, Hashing>,
    suffixes: HashMap<Vec<u8>, Items, Hashing>,
    nets: Nets,
}

impl<'c> Draft<'c> {
    fn new(name: &'c str) -> Self {
        Self {
            name,
            exact: HashMap::default(),
            prefixes: HashMap::default(),
            suffixes: HashMap::default(),
            nets: Nets::default(),
        }
    }

    fn file(&mut self, filing: Filing<'c>, item: u32) {
        let items = match filing {
            Filing::Exact(text) => self.exact.entry(text.into()).or_default(),
            Filing::Prefix(text) => self.prefixes.entry(text.into()).or_default(),
            Filing::Suffix(text) => self.suffixes.entry(text.bytes().rev().collect()).or_default(),
            Filing::Network(network) => self.nets.entry(network),
        };
        // A list may lead to the same word twice.
        if items.last() != Some(&item) {
            items.push(item);
        }
    }

    fn finish(self) -> AttributeIndex {
        AttributeIndex {
            name: self.name.into(),
            exact: self.exact,
            prefixes: Trie::new(self.prefixes),
            suffixes: Trie::new(self.suffixes),
            nets: self.nets,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::condition::Test;
    use super::*;

    fn item<const N: usize>(conditions: [(&str, Test); N]) -> Vec<Condition> {
        conditions.into_iter().map(|(attribute, test)| Condition::new(attribute, test)).collect()
    }

    fn within(network: &str) -> Test {
        Test::within([network.parse().unwrap()])
    }

    /// Counted and not timed, so that it says the same on every machine.
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
