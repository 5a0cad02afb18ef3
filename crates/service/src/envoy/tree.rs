//! The tree that finds the limit of a descriptor: at most two hash lookups per level, and no allocation.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tidegate_rules::{PatternSet, ValuePattern};

/// The descriptors at one depth below the same parent, by key.
#[derive(Debug, Default)]
pub(crate) struct DescriptorLevel(HashMap<Box<str>, KeyNodes>);

/// The nodes of one key.
#[derive(Debug, Default)]
struct KeyNodes {
    exact: HashMap<Box<str>, DescriptorNode>,
    /// The nodes of values with `*`, in the order of the file.
    patterns: Vec<DescriptorNode>,
    /// The positions in `patterns` by text.
    pattern_texts: HashMap<Box<str>, usize>,
    /// Finds the first of `patterns` that matches; set by [`DescriptorLevel::finish`].
    pattern_set: PatternSet,
    /// The node of the key without a value, which matches any value.
    any: Option<Box<DescriptorNode>>,
}

/// One descriptor of the configuration.
#[derive(Debug, Default)]
pub(crate) struct DescriptorNode {
    /// The index of its limit, if it has one.
    pub(crate) limit: Option<usize>,
    pub(crate) below: DescriptorLevel,
}

/// The reason why a node can't be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AddError {
    /// The level already has this key and value.
    Duplicate,
    /// The key already has the most patterns.
    TooManyPatterns,
}

impl DescriptorLevel {
    /// Most patterns of one key.
    pub(crate) const MAX_PATTERNS: usize = 1_000;

    /// Prepares the search among the patterns of each key. No node can be added after it.
    pub(crate) fn finish(mut self) -> Self {
        for nodes in self.0.values_mut() {
            // A single `*` of a native pattern does not match a slash, `**` does.
            let pattern = |text: &str| ValuePattern::like(&text.replace('*', "**"));
            let patterns: Vec<(usize, ValuePattern)> = nodes
                .pattern_texts
                .iter()
                .map(|(text, &position)| (position, pattern(text)))
                .collect();
            nodes.pattern_set =
                PatternSet::new(patterns.iter().map(|(position, pattern)| (*position, pattern)));
        }
        self
    }

    /// Returns the index of the limit at the last entry.
    pub(crate) fn find(&self, entries: &[(&str, &str)]) -> Option<usize> {
        let (last, path) = entries.split_last()?;
        let mut level = self;
        for entry in path {
            level = &level.next(entry)?.below;
        }
        level.next(last)?.limit
    }

    fn next(&self, (key, value): &(&str, &str)) -> Option<&DescriptorNode> {
        let nodes = self.0.get(*key)?;
        let exact = nodes.exact.get(*value);
        exact.or_else(|| nodes.find_pattern(value)).or(nodes.any.as_deref())
    }

    /// Adds the node of a key and an optional value.
    pub(crate) fn add(
        &mut self,
        key: &str,
        value: Option<&str>,
        node: DescriptorNode,
    ) -> Result<(), AddError> {
        let nodes = self.0.entry(key.into()).or_default();
        let Some(value) = value else {
            let is_free = nodes.any.is_none();
            nodes.any.get_or_insert(Box::new(node));
            return if is_free { Ok(()) } else { Err(AddError::Duplicate) };
        };
        if value.contains('*') {
            if nodes.pattern_texts.contains_key(value) {
                return Err(AddError::Duplicate);
            }
            if nodes.patterns.len() == Self::MAX_PATTERNS {
                return Err(AddError::TooManyPatterns);
            }
            nodes.pattern_texts.insert(value.into(), nodes.patterns.len());
            nodes.patterns.push(node);
            return Ok(());
        }
        match nodes.exact.entry(value.into()) {
            Entry::Vacant(entry) => {
                entry.insert(node);
                Ok(())
            }
            Entry::Occupied(_) => Err(AddError::Duplicate),
        }
    }
}

impl KeyNodes {
    fn find_pattern(&self, value: &str) -> Option<&DescriptorNode> {
        // A value with the same text as a pattern matches that pattern, even if an earlier one matches too.
        let has_star = !self.patterns.is_empty() && value.contains('*');
        let same_text = if has_star { self.pattern_texts.get(value).copied() } else { None };
        self.patterns.get(same_text.or_else(|| self.pattern_set.first(value))?)
    }
}
