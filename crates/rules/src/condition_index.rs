//! An index that finds, among many items, the few that may apply to a request.
//!
//! An item is indexed by one of its conditions only: the one that the fewest other items share. Of ten thousand
//! rules with `method: GET` and different paths, each is found by its path. An item with only this condition matches
//! without another check if the condition is a text or `**text**`; all conditions of other candidates are checked. An
//! item without a condition that can be indexed is a candidate for every request.

mod infix_index;
mod network_index;
mod prefix_trie;
mod terms;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use smallvec::SmallVec;
use tidegate_core::Request;

use crate::condition::{Condition, present};
use crate::condition_index::infix_index::InfixIndex;
use crate::condition_index::network_index::NetworkIndex;
use crate::condition_index::prefix_trie::PrefixTrie;
use crate::condition_index::terms::{IndexTerm, TermCounts, is_decided_by_index};
use crate::ignored::IgnoredDifferences;
use crate::network::parse_address;

/// The hasher of tables with keys from an operator's document.
///
/// Its key is fixed. Clients choose only the values that are looked up, never those that are stored, and therefore
/// cannot cause collisions.
pub(crate) type FixedHasher = BuildHasherDefault<DefaultHasher>;

/// Items that are indexed under the same term, each with or without [`CERTAIN_FLAG`].
type ItemList = SmallVec<[u32; 2]>;

/// Flag of an item with one condition that the index decides: a result of the index needs no other check. That check
/// would cause three or four cache misses in a large set, or a search in a long value.
const CERTAIN_FLAG: u32 = 1 << 31;

/// Up to this many indexed attributes it is faster to look up each of them in the request than to look up each
/// attribute of the request in the index.
const MAX_PROBED_ATTRIBUTES: usize = 8;

/// An index over the conditions of some items, which are identified by their position.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConditionIndex {
    always: Box<[u32]>,
    attributes: Box<[AttributeIndex]>,
    /// Positions in `attributes`. Empty if there are few attributes.
    by_name: HashMap<Box<str>, SmallVec<[usize; 1]>, FixedHasher>,
}

impl ConditionIndex {
    /// Indexes each item under the most selective of its conditions.
    pub(crate) fn new<'c>(items: impl Iterator<Item = &'c [Condition]> + Clone) -> Self {
        let counts = TermCounts::of(items.clone().flatten());
        let mut always = Vec::new();
        let mut builders: Vec<IndexBuilder<'c>> = Vec::new();
        let mut positions: HashMap<(&str, IgnoredDifferences), usize, FixedHasher> =
            HashMap::default();
        for (item, conditions) in (0..).zip(items) {
            let Some((condition, terms)) = counts.most_selective(conditions) else {
                always.push(item);
                continue;
            };
            let (name, ignored) = (condition.attribute(), condition.ignored());
            let index = *positions.entry((name, ignored)).or_insert_with(|| {
                builders.push(IndexBuilder::new(name, ignored));
                builders.len() - 1
            });
            // The number of items is far below this bit.
            let certain =
                matches!(conditions, [only] if is_decided_by_index(only)) && item < CERTAIN_FLAG;
            let item = if certain { item | CERTAIN_FLAG } else { item };
            if let Some(builder) = builders.get_mut(index) {
                terms.into_iter().for_each(|term| builder.add(term, item));
            }
        }
        let mut by_name: HashMap<Box<str>, SmallVec<[usize; 1]>, FixedHasher> = HashMap::default();
        if builders.len() > MAX_PROBED_ATTRIBUTES {
            for ((name, _), position) in positions {
                by_name.entry(name.into()).or_default().push(position);
            }
        }
        let attributes = builders.into_iter().map(IndexBuilder::finish).collect();
        Self { always: always.into(), attributes, by_name }
    }

    /// Calls `found` with every item that the request may satisfy, and whether that is certain. The order is
    /// arbitrary, and an item may be passed twice.
    #[inline]
    pub(crate) fn candidates(&self, request: &Request<'_>, mut found: impl FnMut(usize, bool)) {
        let mut found = |item: u32| {
            if let Ok(index) = usize::try_from(item & !CERTAIN_FLAG) {
                found(index, item & CERTAIN_FLAG != 0);
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
            if let Some(positions) = self.by_name.get(name)
                // If a name is given twice, the first value counts.
                && present(request, name).is_some_and(|first| std::ptr::eq(first, value))
            {
                for index in positions.iter().filter_map(|&position| self.attributes.get(position))
                {
                    index.candidates(value, &mut found);
                }
            }
        }
    }
}

/// The items that are indexed under values of one attribute, and ignore the same differences between values.
#[derive(Clone, Debug)]
struct AttributeIndex {
    name: Box<str>,
    ignored: IgnoredDifferences,
    exact: HashMap<Box<str>, ItemList, FixedHasher>,
    prefixes: PrefixTrie,
    suffixes: PrefixTrie,
    nets: NetworkIndex,
    infixes: Option<InfixIndex>,
}

impl AttributeIndex {
    #[inline]
    fn candidates(&self, value: &str, found: &mut impl FnMut(u32)) {
        match self.ignored.is_none() {
            true => self.folded_candidates(value, found),
            false => self.folded_candidates(&self.ignored.fold(value), found),
        }
    }

    #[inline]
    fn folded_candidates(&self, value: &str, found: &mut impl FnMut(u32)) {
        if !self.exact.is_empty()
            && let Some(items) = self.exact.get(value)
        {
            items.iter().copied().for_each(&mut *found);
        }
        self.prefixes.visit(value.bytes(), found);
        self.suffixes.visit(value.bytes().rev(), found);
        if !self.nets.is_empty()
            && let Some(address) = parse_address(value)
        {
            self.nets.visit(address, found);
        }
        if let Some(infixes) = &self.infixes {
            infixes.visit(value, found);
        }
    }
}

/// Builds an [`AttributeIndex`].
struct IndexBuilder<'c> {
    name: &'c str,
    ignored: IgnoredDifferences,
    exact: HashMap<Box<str>, ItemList, FixedHasher>,
    prefixes: HashMap<Vec<u8>, ItemList, FixedHasher>,
    suffixes: HashMap<Vec<u8>, ItemList, FixedHasher>,
    nets: NetworkIndex,
    infixes: HashMap<&'c [u8], ItemList, FixedHasher>,
}

impl<'c> IndexBuilder<'c> {
    fn new(name: &'c str, ignored: IgnoredDifferences) -> Self {
        Self {
            name,
            ignored,
            exact: HashMap::default(),
            prefixes: HashMap::default(),
            suffixes: HashMap::default(),
            nets: NetworkIndex::default(),
            infixes: HashMap::default(),
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
            IndexTerm::Infix(text) => self.infixes.entry(text).or_default(),
        };
        // A list may contain the same term twice.
        if items.last() != Some(&item) {
            items.push(item);
        }
    }

    fn finish(self) -> AttributeIndex {
        AttributeIndex {
            name: self.name.into(),
            ignored: self.ignored,
            exact: self.exact,
            prefixes: PrefixTrie::new(self.prefixes),
            suffixes: PrefixTrie::new(self.suffixes),
            nets: self.nets,
            infixes: InfixIndex::new(self.infixes),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::condition::ValueTest;

    fn item<const N: usize>(conditions: [(&str, ValueTest); N]) -> Vec<Condition> {
        conditions.into_iter().map(|(attribute, test)| Condition::new(attribute, test)).collect()
    }

    fn within(network: &str) -> ValueTest {
        ValueTest::within([network.parse().unwrap()])
    }

    /// Counts candidates instead of time, so that the result is the same on every machine.
    #[test]
    fn a_request_has_few_candidates_among_many_items() {
        let get = || ("method", ValueTest::is("GET"));
        let api = || ("path", ValueTest::like("/v1/**"));
        let items: Vec<Vec<Condition>> = (0..10_000)
            .map(|n| match n % 6 {
                0 => item([get(), ("path", ValueTest::like(&format!("/v1/tenant-{n}/**")))]),
                1 => item([get(), ("path", ValueTest::is(&format!("/v1/route-{n}")))]),
                2 => item([get(), api(), ("api_key", ValueTest::is(&format!("key-{n}")))]),
                3 => item([get(), ("ip", within(&format!("10.{}.{}.0/24", n / 256, n % 256)))]),
                4 => item([api(), ("host", ValueTest::like(&format!("*.customer-{n}.example")))]),
                _ => item([
                    ("user", ValueTest::Present),
                    ("path", ValueTest::like(&format!("/v1/*/{n}"))),
                ]),
            })
            .collect();
        let matcher = ConditionIndex::new(items.iter().map(Vec::as_slice));
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

    #[test]
    fn long_path_has_only_the_candidates_whose_text_it_contains() {
        let globs = [
            |n: usize| format!("**/x{n}/**"),
            |n: usize| format!("/v1/**/x{n}/*"),
            |n: usize| format!("**/shop/*/x{n}/**.json"),
        ];
        for glob in globs {
            let items: Vec<Vec<Condition>> =
                (0..1_000).map(|n| item([("path", ValueTest::like(&glob(n)))])).collect();
            let matcher = ConditionIndex::new(items.iter().map(Vec::as_slice));
            let candidates = |path: String| {
                let mut found = Vec::new();
                let request = Request::new().with("path", path).unwrap();
                matcher.candidates(&request, |item, _| found.push(item));
                found.sort_unstable();
                found
            };
            let path = |text: &str| format!("/v1{}/shop/9/x.json", text.repeat(8_000 / text.len()));
            assert!(candidates(path("/x")).is_empty());
            assert_eq!(candidates(path("/y/x7/x7/x77")), [7, 77]);
            let all: String = (0..1_000).map(|n| format!("/x{n}")).collect();
            assert_eq!(candidates(path(&all)), (0..1_000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn excluded_values_do_not_add_candidates() {
        let items: Vec<Vec<Condition>> = (0..1_000)
            .map(|n| {
                let excluded = ValueTest::like(&format!("/t{n}/static/**")).negated();
                item([("path", ValueTest::like(&format!("/t{n}/**"))), ("path", excluded)])
            })
            .collect();
        let matcher = ConditionIndex::new(items.iter().map(Vec::as_slice));
        for path in ["/t7/orders", "/t7/static/a"] {
            let mut found = Vec::new();
            let request = Request::new().with("path", path).unwrap();
            matcher.candidates(&request, |item, certain| found.push((item, certain)));
            assert_eq!(found, [(7, false)]);
        }
    }

    #[test]
    fn nested_texts_are_each_found_once() {
        let items: Vec<Vec<Condition>> = (1..=40)
            .map(|n| item([("path", ValueTest::like(&format!("**{}**", "a".repeat(n))))]))
            .collect();
        let matcher = ConditionIndex::new(items.iter().map(Vec::as_slice));
        let request = Request::new().with("path", "a".repeat(8_000)).unwrap();
        let mut found = Vec::new();
        matcher.candidates(&request, |item, certain| found.push((item, certain)));
        found.sort_unstable();
        // The index contains the last 32 bytes of a text, so that a longer one is checked again.
        assert_eq!(found, (0..40).map(|item| (item, item < 32)).collect::<Vec<_>>());
    }
}
