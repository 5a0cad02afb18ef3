//! The tree that finds a descriptor's limit: two look-ups a level, and nothing is spelled out anew.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use tidegate_rules::Glob;

/// What may come next in a descriptor, by key.
#[derive(Debug, Default)]
pub(crate) struct Level(HashMap<Box<str>, Values>);

/// What the value of a key may be.
#[derive(Debug, Default)]
struct Values {
    exact: HashMap<Box<str>, Node>,
    /// Patterns, as they were written and to match by, in the order of the file.
    like: Vec<(Box<str>, Glob, Node)>,
    any: Option<Box<Node>>,
}

/// Where a descriptor that came this far stands.
#[derive(Debug, Default)]
pub(crate) struct Node {
    /// The place of the limit for a descriptor that ends here.
    pub(crate) limit: Option<usize>,
    pub(crate) below: Level,
}

/// Why a node can't be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The level has this key and value already.
    Twice,
    /// The key has too many patterns already.
    TooManyPatterns,
}

impl Level {
    /// Most patterns of one key: they are tried one after another.
    pub(crate) const MAX_PATTERNS: usize = 1_000;

    /// Where the limit stands that the last of the entries leads to.
    pub(crate) fn find(&self, entries: &[(&str, &str)]) -> Option<usize> {
        let (last, path) = entries.split_last()?;
        let mut level = self;
        for entry in path {
            level = &level.next(entry)?.below;
        }
        level.next(last)?.limit
    }

    fn next(&self, (key, value): &(&str, &str)) -> Option<&Node> {
        let values = self.0.get(*key)?;
        let exact = values.exact.get(*value);
        exact.or_else(|| values.like(value)).or(values.any.as_deref())
    }

    /// Adds a node for a key and, if there is one, its value.
    pub(crate) fn add(
        &mut self,
        key: &str,
        value: Option<&str>,
        node: Node,
    ) -> Result<(), Refused> {
        let values = self.0.entry(key.into()).or_default();
        let Some(value) = value else {
            let free = values.any.is_none();
            values.any.get_or_insert(Box::new(node));
            return if free { Ok(()) } else { Err(Refused::Twice) };
        };
        if let Some(glob) = pattern(value) {
            if values.like.iter().any(|(known, ..)| **known == *value) {
                return Err(Refused::Twice);
            }
            if values.like.len() == Self::MAX_PATTERNS {
                return Err(Refused::TooManyPatterns);
            }
            values.like.push((value.into(), glob, node));
            return Ok(());
        }
        match values.exact.entry(value.into()) {
            Entry::Vacant(free) => {
                free.insert(node);
                Ok(())
            }
            Entry::Occupied(_) => Err(Refused::Twice),
        }
    }
}

impl Values {
    fn like(&self, value: &str) -> Option<&Node> {
        // A value that is spelled like a pattern means that one.
        let spelled = || self.like.iter().find(|(text, ..)| **text == *value);
        let spelled = if value.contains('*') { spelled() } else { None };
        let found = spelled.or_else(|| self.like.iter().find(|(_, glob, _)| glob.matches(value)));
        found.map(|(.., node)| node)
    }
}

/// The pattern that a value with a star is: every star stands for any run of characters.
fn pattern(value: &str) -> Option<Glob> {
    // A single star of our own stops at a slash.
    value.contains('*').then(|| Glob::new(&value.replace('*', "**"))).flatten()
}
