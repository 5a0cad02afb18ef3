//! The choice of the condition under which an item is indexed.

use std::cmp::Reverse;
use std::collections::HashMap;

use ipnet::IpNet;
use smallvec::SmallVec;

use crate::condition::{Condition, ValueTest};
use crate::glob::Glob;
use crate::pattern_set::FixedHasher;

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
    /// A text anywhere in the value.
    Infix(&'c str),
}

/// An end of a glob that at most this many conditions share is used rather than an infix: the check of a few candidates is
/// cheaper than a search in the whole value.
const MAX_CONDITIONS_BY_END: u32 = 8;

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
                    patterns.globs().flat_map(ends).for_each(&mut count);
                    patterns.globs().flat_map(infixes).for_each(count);
                }
                ValueTest::In(networks) => {
                    networks.iter().copied().map(IndexTerm::Network).for_each(count);
                }
                ValueTest::Present | ValueTest::Absent | ValueTest::Not(_) => {}
            }
        }
        Self { counts }
    }

    /// Returns the condition with the terms that the fewest other items share, and its position; `None` if no condition
    /// has any.
    pub(crate) fn most_selective(
        &self,
        conditions: &'c [Condition],
    ) -> Option<(usize, &'c Condition)> {
        let (position, condition, _) = conditions
            .iter()
            .enumerate()
            .filter_map(|(position, condition)| Some((position, condition, self.terms(condition)?)))
            .min_by_key(|(_, condition, terms)| {
                let attribute = condition.attribute();
                let shared = terms.iter().map(|&term| self.count(attribute, term)).max();
                // Among equals the one that fewer requests match: every request for an API starts with its prefix,
                // only some name a given customer.
                let breadth = terms.iter().map(breadth).max();
                (shared, breadth, terms.len())
            })?;
        Some((position, condition))
    }

    /// Returns the terms of a condition; `None` if some value could satisfy it without any of them.
    fn terms(&self, condition: &'c Condition) -> Option<SmallVec<[IndexTerm<'c>; 1]>> {
        match condition.test() {
            ValueTest::OneOf(patterns) => {
                let exact = patterns.exact().map(|text| Some(IndexTerm::Exact(text)));
                let globs =
                    patterns.globs().map(|glob| self.glob_term(condition.attribute(), glob));
                exact.chain(globs).collect()
            }
            ValueTest::In(networks) => {
                Some(networks.iter().copied().map(IndexTerm::Network).collect())
            }
            ValueTest::Present | ValueTest::Absent | ValueTest::Not(_) => None,
        }
    }

    /// Returns the term of a glob; `None` if it has no literal.
    fn glob_term(&self, attribute: &'c str, glob: &'c Glob) -> Option<IndexTerm<'c>> {
        let with_count = |term| (self.count(attribute, term), term);
        let end = ends(glob).map(with_count).min_by_key(|&(count, _)| count);
        if let Some((count, end)) = end
            && count <= MAX_CONDITIONS_BY_END
        {
            return Some(end);
        }
        // Among equals an end is cheaper to find, and a long infix is in fewer values.
        let infixes = infixes(glob).map(with_count);
        end.into_iter()
            .chain(infixes)
            .min_by_key(|&(count, term)| (count, breadth(&term), Reverse(infix_length(&term))))
            .map(|(_, term)| term)
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

/// Returns the literals between the stars of a glob.
fn infixes(glob: &Glob) -> impl Iterator<Item = IndexTerm<'_>> {
    glob.inner_texts().map(IndexTerm::Infix)
}

fn infix_length(term: &IndexTerm<'_>) -> usize {
    match term {
        IndexTerm::Infix(text) => text.len(),
        _ => 0,
    }
}

fn breadth(term: &IndexTerm<'_>) -> u8 {
    match term {
        IndexTerm::Exact(_) => 0,
        IndexTerm::Network(_) => 1,
        IndexTerm::Prefix(_) | IndexTerm::Suffix(_) => 2,
        IndexTerm::Infix(_) => 3,
    }
}
