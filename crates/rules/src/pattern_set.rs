//! A set of texts and patterns that finds those which match a value.
//!
//! The work for a value is bounded, whatever the value:
//!
//! - Texts need one hash lookup. Patterns with a literal start or end are found by a trie.
//! - A pattern is compared with the value directly only if at most [`MAX_DIRECT_GLOBS`] patterns can be found by the same
//!   start or end of a value.
//! - All other patterns share one pass over the value, which finds the texts between their stars ([`InnerTextIndex`]).

mod inner_text_index;
mod occurrences;
mod prefix_trie;

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, DefaultHasher};

use smallvec::SmallVec;

use crate::condition::ValuePattern;
use crate::glob::Glob;
use crate::pattern_set::inner_text_index::InnerTextIndex;
use crate::pattern_set::prefix_trie::PrefixTrie;

/// The hasher of tables with keys from an operator's document.
///
/// Its key is fixed. Clients choose only the values that are looked up, never those that are stored, and therefore
/// cannot cause collisions.
pub(crate) type FixedHasher = BuildHasherDefault<DefaultHasher>;

/// The items of one pattern.
pub(crate) type ItemList = SmallVec<[u32; 2]>;

/// Maximum number of patterns with texts between stars that a start or an end of a value leads to. The comparison of a
/// few patterns is cheaper than a pass over the whole value.
const MAX_DIRECT_GLOBS: u32 = 8;

/// Flag of a trie entry: the position of a glob that must be compared. Without it the entry is an item.
const UNDECIDED_FLAG: u32 = 1 << 31;

/// Texts and patterns, each with a position, that are matched together.
///
/// The result is that of a comparison with each pattern. The time is linear in the length of the value plus the number of
/// patterns that contain only texts which the value contains too.
///
/// ```
/// use tidegate_rules::{PatternSet, ValuePattern};
///
/// let routes = ["/v1/*/items", "/v1/**", "**/items"].map(ValuePattern::like);
/// let routes = PatternSet::new(routes.iter().enumerate());
/// assert_eq!(routes.first("/v1/7/items"), Some(0));
/// assert_eq!(routes.first("/v2/items"), Some(2));
/// assert_eq!(routes.first("/v2"), None);
/// ```
#[derive(Clone, Debug, Default)]
pub struct PatternSet {
    exact: HashMap<Box<str>, ItemList, FixedHasher>,
    prefixes: PrefixTrie,
    suffixes: PrefixTrie,
    /// Globs that the tries lead to and that have another part to compare.
    undecided: Box<[(Glob, ItemList)]>,
    inner: Option<Box<InnerTextIndex>>,
}

impl PatternSet {
    /// Creates a set of patterns with their positions, which are below 2^31.
    #[must_use]
    pub fn new<'p>(patterns: impl IntoIterator<Item = (usize, &'p ValuePattern)>) -> Self {
        let mut builder = PatternSetBuilder::default();
        for (position, pattern) in patterns {
            let item = u32::try_from(position).unwrap_or(u32::MAX) & !UNDECIDED_FLAG;
            match pattern {
                ValuePattern::Exact(text) => builder.add_exact(text, item),
                ValuePattern::Glob(glob) => builder.add_glob(glob, item),
            }
        }
        builder.finish()
    }

    /// Returns the position of the first pattern that matches the whole value.
    #[must_use]
    pub fn first(&self, value: &str) -> Option<usize> {
        let mut first: Option<u32> = None;
        self.visit(value, &mut |item| {
            first = Some(first.map_or(item, |first| first.min(item)));
        });
        first.and_then(|item| usize::try_from(item).ok())
    }

    /// Calls `found` with the position of every pattern that matches the whole value. The order is arbitrary.
    pub fn matching(&self, value: &str, mut found: impl FnMut(usize)) {
        self.visit(value, &mut |item| {
            if let Ok(position) = usize::try_from(item) {
                found(position);
            }
        });
    }

    /// Calls `found` with the items of every pattern that matches the value. An item of several patterns may be passed
    /// several times.
    #[inline]
    pub(crate) fn visit(&self, value: &str, found: &mut impl FnMut(u32)) {
        if !self.exact.is_empty()
            && let Some(items) = self.exact.get(value)
        {
            items.iter().copied().for_each(&mut *found);
        }
        let mut by_end = |entry: u32| {
            if entry & UNDECIDED_FLAG == 0 {
                return found(entry);
            }
            let glob = usize::try_from(entry & !UNDECIDED_FLAG);
            if let Some((glob, items)) = glob.ok().and_then(|glob| self.undecided.get(glob))
                && glob.matches(value)
            {
                items.iter().copied().for_each(&mut *found);
            }
        };
        self.prefixes.visit(value.bytes(), &mut by_end);
        self.suffixes.visit(value.bytes().rev(), &mut by_end);
        if let Some(inner) = &self.inner {
            inner.visit(value, found);
        }
    }
}

/// Builds a [`PatternSet`].
#[derive(Default)]
pub(crate) struct PatternSetBuilder<'p> {
    exact: HashMap<Box<str>, ItemList, FixedHasher>,
    /// By text, so that a pattern of many items is matched once.
    globs: HashMap<&'p str, (&'p Glob, ItemList), FixedHasher>,
}

impl<'p> PatternSetBuilder<'p> {
    /// Adds an item that a text leads to.
    pub(crate) fn add_exact(&mut self, text: &'p str, item: u32) {
        push_once(self.exact.entry(text.into()).or_default(), item);
    }

    /// Adds an item that a pattern leads to.
    pub(crate) fn add_glob(&mut self, glob: &'p Glob, item: u32) {
        let (_, items) = self.globs.entry(glob.as_str()).or_insert_with(|| (glob, ItemList::new()));
        push_once(items, item);
    }

    pub(crate) fn finish(self) -> PatternSet {
        let mut globs: Vec<(&Glob, ItemList)> = self.globs.into_values().collect();
        globs.sort_unstable_by_key(|(glob, _)| glob.as_str());
        let ends = EndCounts::new(globs.iter().map(|(glob, _)| *glob));
        let mut undecided = Vec::new();
        let mut tries: [HashMap<Vec<u8>, ItemList, FixedHasher>; 2] = Default::default();
        let mut inner = Vec::new();
        for (glob, items) in globs {
            let Some((end, text)) = ends.best(glob) else {
                inner.push((glob, items));
                continue;
            };
            let [prefixes, suffixes] = &mut tries;
            let (entries, other) = match end {
                GlobEnd::Prefix => (prefixes.entry(text).or_default(), glob.suffix()),
                GlobEnd::Suffix => (suffixes.entry(text).or_default(), glob.prefix()),
            };
            if other.is_empty() && glob.has_any_middle() {
                entries.extend(items);
            } else {
                let position = u32::try_from(undecided.len()).unwrap_or(u32::MAX);
                entries.push(position | UNDECIDED_FLAG);
                undecided.push((glob.clone(), items));
            }
        }
        let [prefixes, suffixes] = tries;
        PatternSet {
            exact: self.exact,
            prefixes: PrefixTrie::new(prefixes),
            suffixes: PrefixTrie::new(suffixes),
            undecided: undecided.into(),
            inner: InnerTextIndex::new(inner).map(Box::new),
        }
    }
}

/// Adds an item, unless it is the last one: a list may contain the same pattern twice.
pub(crate) fn push_once(items: &mut ItemList, item: u32) {
    if items.last() != Some(&item) {
        items.push(item);
    }
}

/// An end of a glob.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GlobEnd {
    Prefix,
    Suffix,
}

/// The number of globs that a value with a given start or end leads to.
struct EndCounts {
    /// Globs with texts between stars, by end, including those with a shorter end that is a part of it.
    nested: [HashMap<Vec<u8>, u32, FixedHasher>; 2],
    /// Globs without texts between stars, by end.
    plain: [HashMap<Vec<u8>, u32, FixedHasher>; 2],
}

impl EndCounts {
    fn new<'p>(globs: impl Iterator<Item = &'p Glob> + Clone) -> Self {
        let ends = [GlobEnd::Prefix, GlobEnd::Suffix];
        let count = |end, inner| {
            let mut counts: HashMap<Vec<u8>, u32, FixedHasher> = HashMap::default();
            for glob in globs.clone().filter(|glob| glob.has_inner_texts() == inner) {
                *counts.entry(end_text(glob, end)).or_default() += 1;
            }
            counts
        };
        Self {
            nested: ends.map(|end| with_nested(count(end, true))),
            plain: ends.map(|end| count(end, false)),
        }
    }

    /// Returns the end under which a glob is found; `None` if each of its ends leads to too many globs that must be
    /// compared.
    fn best(&self, glob: &Glob) -> Option<(GlobEnd, Vec<u8>)> {
        let has_inner = glob.has_inner_texts();
        let [prefixes, suffixes] = if has_inner { &self.nested } else { &self.plain };
        let count_of = |counts: &HashMap<Vec<u8>, u32, FixedHasher>, text: &[u8]| {
            counts.get(text).copied().unwrap_or(u32::MAX)
        };
        let (prefix, suffix) = (end_text(glob, GlobEnd::Prefix), end_text(glob, GlobEnd::Suffix));
        // Every value has an empty end.
        let by_prefix = (prefix.is_empty(), count_of(prefixes, &prefix));
        let by_suffix = (suffix.is_empty(), count_of(suffixes, &suffix));
        let (end, text, (_, count)) = match by_suffix < by_prefix {
            true => (GlobEnd::Suffix, suffix, by_suffix),
            false => (GlobEnd::Prefix, prefix, by_prefix),
        };
        (!has_inner || count <= MAX_DIRECT_GLOBS).then_some((end, text))
    }
}

/// Returns the bytes of an end in the order of a trie: those of a suffix are reversed.
fn end_text(glob: &Glob, end: GlobEnd) -> Vec<u8> {
    match end {
        GlobEnd::Prefix => glob.prefix().bytes().collect(),
        GlobEnd::Suffix => glob.suffix().bytes().rev().collect(),
    }
}

/// Adds to the count of each text those of all shorter texts that it starts with.
fn with_nested(counts: HashMap<Vec<u8>, u32, FixedHasher>) -> HashMap<Vec<u8>, u32, FixedHasher> {
    let mut sorted: Vec<(Vec<u8>, u32)> = counts.into_iter().collect();
    sorted.sort_unstable();
    let mut sums: Vec<u32> = Vec::with_capacity(sorted.len());
    // Positions of the texts that the current one starts with, shortest first.
    let mut nested: Vec<usize> = Vec::new();
    for (position, (text, count)) in sorted.iter().enumerate() {
        while let Some(&outer) = nested.last()
            && !sorted.get(outer).is_some_and(|(outer, _)| text.starts_with(outer))
        {
            nested.pop();
        }
        let before = nested.last().and_then(|&outer| sums.get(outer)).copied().unwrap_or(0);
        sums.push(count.saturating_add(before));
        nested.push(position);
    }
    sorted.into_iter().map(|(text, _)| text).zip(sums).collect()
}
