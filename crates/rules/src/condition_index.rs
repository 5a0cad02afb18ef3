//! An index that finds, among many items, the few that may apply to a request.
//!
//! An item is indexed by one of its conditions only: the one that the fewest other items share. Of ten thousand
//! rules with `method: GET` and different paths, each is found by its path. The index decides this condition, so that
//! only the other conditions of a candidate are checked. An item without a condition that can be indexed is a candidate
//! for every request.

mod network_index;
mod terms;

use std::collections::HashMap;

use smallvec::SmallVec;
use tidegate_core::Request;

use crate::condition::{Condition, ValueTest, present};
use crate::condition_index::network_index::NetworkIndex;
use crate::condition_index::terms::TermCounts;
use crate::ignored::IgnoredDifferences;
use crate::network::parse_address;
use crate::pattern_set::{FixedHasher, PatternSet, PatternSetBuilder};

/// Up to this many indexed attributes it is faster to look up each of them in the request than to look up each
/// attribute of the request in the index.
const MAX_PROBED_ATTRIBUTES: usize = 8;

/// The position of the condition that the index has decided for an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecidedCondition(u8);

impl DecidedCondition {
    /// No condition is decided.
    const NONE: Self = Self(u8::MAX);

    /// Returns whether a request satisfies all other conditions.
    #[inline]
    pub(crate) fn others_are_satisfied(
        self,
        conditions: &[Condition],
        request: &Request<'_>,
    ) -> bool {
        let decided = usize::from(self.0);
        if conditions.len() == 1 && decided == 0 {
            return true;
        }
        let mut others = conditions.iter().enumerate().filter(|(position, _)| *position != decided);
        others.all(|(_, condition)| condition.is_satisfied(request))
    }
}

/// An index over the conditions of some items, which are identified by their position.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConditionIndex {
    always: Box<[u32]>,
    /// By item.
    decided: Box<[DecidedCondition]>,
    attributes: Box<[AttributeIndex]>,
    /// Positions in `attributes`. Empty if there are few attributes.
    by_name: HashMap<Box<str>, SmallVec<[usize; 1]>, FixedHasher>,
}

impl ConditionIndex {
    /// Indexes each item under the most selective of its conditions.
    pub(crate) fn new<'c>(items: impl Iterator<Item = &'c [Condition]> + Clone) -> Self {
        let counts = TermCounts::of(items.clone().flatten());
        let (mut always, mut decided) = (Vec::new(), Vec::new());
        let mut builders: Vec<IndexBuilder<'c>> = Vec::new();
        let mut positions: HashMap<(&str, IgnoredDifferences), usize, FixedHasher> =
            HashMap::default();
        for (item, conditions) in (0..).zip(items) {
            let Some((position, condition)) = counts.most_selective(conditions) else {
                always.push(item);
                decided.push(DecidedCondition::NONE);
                continue;
            };
            decided.push(DecidedCondition(u8::try_from(position).unwrap_or(u8::MAX)));
            let (name, ignored) = (condition.attribute(), condition.ignored());
            let index = *positions.entry((name, ignored)).or_insert_with(|| {
                builders.push(IndexBuilder::new(name, ignored));
                builders.len() - 1
            });
            if let Some(builder) = builders.get_mut(index) {
                builder.add(condition.test(), item);
            }
        }
        let mut by_name: HashMap<Box<str>, SmallVec<[usize; 1]>, FixedHasher> = HashMap::default();
        if builders.len() > MAX_PROBED_ATTRIBUTES {
            for ((name, _), position) in positions {
                by_name.entry(name.into()).or_default().push(position);
            }
        }
        let attributes = builders.into_iter().map(IndexBuilder::finish).collect();
        Self { always: always.into(), decided: decided.into(), attributes, by_name }
    }

    /// Calls `found` with every item that the request may satisfy, and the condition that the request is known to
    /// satisfy. The order is arbitrary, and an item may be passed twice.
    #[inline]
    pub(crate) fn candidates(
        &self,
        request: &Request<'_>,
        mut found: impl FnMut(usize, DecidedCondition),
    ) {
        let mut found = |item: u32| {
            if let Ok(item) = usize::try_from(item)
                && let Some(&decided) = self.decided.get(item)
            {
                found(item, decided);
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
    patterns: PatternSet,
    nets: NetworkIndex,
}

impl AttributeIndex {
    #[inline]
    fn candidates(&self, value: &str, found: &mut impl FnMut(u32)) {
        match self.ignored.is_none() {
            true => self.patterns.visit(value, found),
            false => self.patterns.visit(&self.ignored.fold(value), found),
        }
        if !self.nets.is_empty()
            && let Some(address) = parse_address(value)
        {
            self.nets.visit(address, found);
        }
    }
}

/// Builds an [`AttributeIndex`].
struct IndexBuilder<'c> {
    name: &'c str,
    ignored: IgnoredDifferences,
    patterns: PatternSetBuilder<'c>,
    nets: NetworkIndex,
}

impl<'c> IndexBuilder<'c> {
    fn new(name: &'c str, ignored: IgnoredDifferences) -> Self {
        Self {
            name,
            ignored,
            patterns: PatternSetBuilder::default(),
            nets: NetworkIndex::default(),
        }
    }

    fn add(&mut self, test: &'c ValueTest, item: u32) {
        match test {
            ValueTest::OneOf(patterns) => {
                patterns.exact().for_each(|text| self.patterns.add_exact(text, item));
                patterns.globs().for_each(|glob| self.patterns.add_glob(glob, item));
            }
            ValueTest::In(networks) => {
                networks.iter().for_each(|&network| self.nets.add(network, item));
            }
            ValueTest::Present | ValueTest::Absent | ValueTest::Not(_) => {}
        }
    }

    fn finish(self) -> AttributeIndex {
        AttributeIndex {
            name: self.name.into(),
            ignored: self.ignored,
            patterns: self.patterns.finish(),
            nets: self.nets,
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
    fn long_path_has_only_the_candidates_that_match_it() {
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
            let all: String = (0..1_000).map(|n| format!("/x{n}")).collect();
            for path in [path("/x"), path("/y/x7/x7/x77"), path(&all), format!("{all}/x7/8")] {
                let matching = (0..1_000)
                    .filter(|&n| ValueTest::like(&glob(n)).passes(Some(&path)))
                    .collect::<Vec<_>>();
                assert_eq!(candidates(path), matching);
            }
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
            matcher.candidates(&request, |item, decided| found.push((item, decided)));
            assert_eq!(found, [(7, DecidedCondition(0))]);
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
        matcher.candidates(&request, |item, _| found.push(item));
        found.sort_unstable();
        assert_eq!(found, (0..40).collect::<Vec<_>>());
    }

    #[test]
    fn candidate_has_all_texts_of_the_indexed_pattern_in_order() {
        let items: Vec<Vec<Condition>> = (0..1_000)
            .map(|n| item([("path", ValueTest::like(&format!("**/a{n}/**/b{n}/**")))]))
            .collect();
        let matcher = ConditionIndex::new(items.iter().map(Vec::as_slice));
        let (mut first, mut second) = (String::new(), String::new());
        for n in 0..500 {
            first += &format!("/a{n}/");
            second += &format!("/b{n}/");
        }
        let count = |path: String| {
            let request = Request::new().with("path", path).unwrap();
            let mut count = 0;
            matcher.candidates(&request, |_, _| count += 1);
            count
        };
        assert_eq!(count(format!("{first}{second}")), 500);
        assert_eq!(count(format!("{second}{first}")), 0);
    }
}
