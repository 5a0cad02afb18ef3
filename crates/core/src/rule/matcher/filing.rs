//! Under which words an item is filed.

use std::collections::HashMap;

use ipnet::IpNet;
use smallvec::SmallVec;

use super::super::condition::{Condition, Test};
use super::super::glob::Glob;
use super::Hashing;

/// A word that leads from a value to the items filed under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Filing<'c> {
    /// The whole value.
    Exact(&'c str),
    /// What the value starts with.
    Prefix(&'c str),
    /// What the value ends with.
    Suffix(&'c str),
    /// A network that the value lies in.
    Network(IpNet),
}

/// How many items could be filed under each word of each attribute.
pub(super) struct Census<'c> {
    counts: HashMap<(&'c str, Filing<'c>), u32, Hashing>,
}

impl<'c> Census<'c> {
    pub(super) fn of(conditions: impl Iterator<Item = &'c Condition>) -> Self {
        let mut counts = HashMap::default();
        for condition in conditions {
            let mut count =
                |filing| *counts.entry((condition.attribute(), filing)).or_insert(0) += 1;
            match condition.test() {
                Test::OneOf(patterns) => {
                    patterns.exact().map(Filing::Exact).for_each(&mut count);
                    patterns.globs().flat_map(ends).for_each(count);
                }
                Test::In(networks) => {
                    networks.iter().copied().map(Filing::Network).for_each(count);
                }
                Test::Present | Test::Absent => {}
            }
        }
        Self { counts }
    }

    /// The condition that leads to the fewest items besides the one it belongs to, and the words
    /// to file it under; `None` when no condition names any.
    pub(super) fn most_telling(
        &self,
        conditions: &'c [Condition],
    ) -> Option<(&'c Condition, SmallVec<[Filing<'c>; 1]>)> {
        conditions
            .iter()
            .filter_map(|condition| Some((condition, self.filings(condition)?)))
            .min_by_key(|(condition, filings)| {
                let attribute = condition.attribute();
                let shared = filings.iter().map(|&filing| self.count(attribute, filing)).max();
                // Among equals the one that fewer requests will walk into: every request for an
                // API starts with its prefix, only some name a given customer.
                let breadth = filings.iter().map(breadth).max();
                (shared, breadth, filings.len())
            })
    }

    /// The words of a condition; `None` when some value could satisfy it without any of them.
    fn filings(&self, condition: &'c Condition) -> Option<SmallVec<[Filing<'c>; 1]>> {
        match condition.test() {
            Test::OneOf(patterns) => {
                let exact = patterns.exact().map(|text| Some(Filing::Exact(text)));
                let globs = patterns.globs().map(|glob| {
                    ends(glob).min_by_key(|&end| self.count(condition.attribute(), end))
                });
                exact.chain(globs).collect()
            }
            Test::In(networks) => Some(networks.iter().copied().map(Filing::Network).collect()),
            Test::Present | Test::Absent => None,
        }
    }

    fn count(&self, attribute: &'c str, filing: Filing<'c>) -> u32 {
        self.counts.get(&(attribute, filing)).copied().unwrap_or(0)
    }
}

/// The literal ends of a glob, those that are not empty.
fn ends(glob: &Glob) -> impl Iterator<Item = Filing<'_>> {
    let prefix = Some(glob.prefix()).filter(|text| !text.is_empty());
    let suffix = Some(glob.suffix()).filter(|text| !text.is_empty());
    prefix.map(Filing::Prefix).into_iter().chain(suffix.map(Filing::Suffix))
}

fn breadth(filing: &Filing<'_>) -> u8 {
    match filing {
        Filing::Exact(_) => 0,
        Filing::Network(_) => 1,
        Filing::Prefix(_) | Filing::Suffix(_) => 2,
    }
}
