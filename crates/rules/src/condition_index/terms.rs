//! The terms under which items are indexed.

use std::collections::HashMap;

use ipnet::IpNet;
use smallvec::SmallVec;

use crate::condition::{Condition, ValueTest};
use crate::condition_index::FixedHasher;
use crate::glob::Glob;

/// A part of a value that leads to the items indexed under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum IndexTerm<'c> {
    /// The whole value.
    Exact(&'c str),
    /// The start of the value.
    Prefix(&'c str),
    /// The end of the value.
    Suffix(&'c str),
    /// A network that contains the value.
    Network(IpNet),
}

/// The number of items that could be indexed under each term of each attribute.
pub(crate) struct TermCounts<'c> {
    counts: HashMap<(&'c str, IndexTerm<'c>), u32, FixedHasher>,
}

impl<'c> TermCounts<'c> {
    pub(crate) fn of(conditions: impl Iterator<Item = &'c Condition>) -> Self {
        let mut counts = HashMap::default();
        for condition in conditions {
            let mut count = |term| *counts.entry((condition.attribute(), term)).or_insert(0) += 1;
            match condition.test() {
                ValueTest::OneOf(patterns) => {
                    patterns.exact().map(IndexTerm::Exact).for_each(&mut count);
                    patterns.globs().flat_map(ends).for_each(count);
                }
                ValueTest::In(networks) => {
                    networks.iter().copied().map(IndexTerm::Network).for_each(count);
                }
                ValueTest::Present | ValueTest::Absent => {}
            }
        }
        Self { counts }
    }

    /// Returns the condition with the terms that the fewest other items share; `None` if no condition has any.
    pub(crate) fn most_selective(
        &self,
        conditions: &'c [Condition],
    ) -> Option<(&'c Condition, SmallVec<[IndexTerm<'c>; 1]>)> {
        conditions
            .iter()
            .filter_map(|condition| Some((condition, self.terms(condition)?)))
            .min_by_key(|(condition, terms)| {
                let attribute = condition.attribute();
                let shared = terms.iter().map(|&term| self.count(attribute, term)).max();
                // Among equals the one that fewer requests match: every request for an API starts with its prefix,
                // only some name a given customer.
                let breadth = terms.iter().map(breadth).max();
                (shared, breadth, terms.len())
            })
    }

    /// Returns the terms of a condition; `None` if some value could satisfy it without any of them.
    fn terms(&self, condition: &'c Condition) -> Option<SmallVec<[IndexTerm<'c>; 1]>> {
        match condition.test() {
            ValueTest::OneOf(patterns) => {
                let exact = patterns.exact().map(|text| Some(IndexTerm::Exact(text)));
                let globs = patterns.globs().map(|glob| {
                    ends(glob).min_by_key(|&end| self.count(condition.attribute(), end))
                });
                exact.chain(globs).collect()
            }
            ValueTest::In(networks) => {
                Some(networks.iter().copied().map(IndexTerm::Network).collect())
            }
            ValueTest::Present | ValueTest::Absent => None,
        }
    }

    fn count(&self, attribute: &'c str, term: IndexTerm<'c>) -> u32 {
        self.counts.get(&(attribute, term)).copied().unwrap_or(0)
    }
}

/// Returns the literal start and end of a glob, if they are not empty.
fn ends(glob: &Glob) -> impl Iterator<Item = IndexTerm<'_>> {
    let prefix = Some(glob.prefix()).filter(|text| !text.is_empty());
    let suffix = Some(glob.suffix()).filter(|text| !text.is_empty());
    prefix.map(IndexTerm::Prefix).into_iter().chain(suffix.map(IndexTerm::Suffix))
}

fn breadth(term: &IndexTerm<'_>) -> u8 {
    match term {
        IndexTerm::Exact(_) => 0,
        IndexTerm::Network(_) => 1,
        IndexTerm::Prefix(_) | IndexTerm::Suffix(_) => 2,
    }
}
