//! The configuration of envoyproxy/ratelimit, read as it is.
//!
//! Each limit of its trees becomes a native rule that applies only where it is named; finding the one
//! for a descriptor is the tree's business, counting and deciding the limiter's.

mod build;
mod folder;
mod limit;
mod name;
mod raw;
mod tree;

use std::collections::HashMap;
use std::path::Path;

use smallvec::SmallVec;
use tidegate_core::Request;
use tidegate_rules::Rule;

pub use self::limit::{EnvoyLimit, Unit};
use self::tree::Level;
use crate::config_error::ConfigError;

/// Every limit of a directory of envoyproxy/ratelimit files.
#[derive(Debug, Default)]
pub struct EnvoyRules {
    domains: HashMap<Box<str>, Level>,
    /// In the order of the files; the trees point here.
    limits: Vec<EnvoyLimit>,
    rules: Vec<Rule>,
}

/// Files that were read: what errors call each, and its text.
pub(crate) type Files = Vec<(String, String)>;

/// Reads the `*.yaml` and `*.yml` files of a directory, in the order of their names.
///
/// # Errors
/// The directory can't be read or has no such file.
pub fn read(folder: &Path) -> Result<Files, ConfigError> {
    folder::read(folder)
}

/// What a descriptor comes to.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "it is used up at once; a box would be one per call")]
pub enum EnvoyMatch<'a> {
    /// No limit is meant for it.
    Nothing,
    /// A limit that lets everything pass.
    Unlimited(&'a EnvoyLimit),
    /// A limit, and the request under whose attributes [its rule](EnvoyLimit::rule) counts.
    Limited(&'a EnvoyLimit, Request<'a>),
}

impl EnvoyRules {
    /// Most limits of all files together.
    pub(crate) const MAX_LIMITS: usize = tidegate_rules::RuleSet::MAX_RULES;

    /// The limits of files that were read.
    ///
    /// # Errors
    /// Everything that is wrong with what they say, each with its file and line.
    pub fn parse(files: &[(String, String)]) -> Result<Self, ConfigError> {
        build::rules(files)
    }

    /// Each limit as a native rule that nothing matches, in the order of the files; an unlimited one
    /// has none.
    pub fn rules(&self) -> Vec<Rule> {
        self.rules.clone()
    }

    /// How many limits there are, unlimited ones among them.
    pub fn len(&self) -> usize {
        self.limits.len()
    }

    /// Returns whether there is no limit.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// The limit for a descriptor of a domain.
    ///
    /// At each level the exact key and value come first, then the patterns with `*` in the order of the
    /// file, then the key alone; there is no way back from a level once it was entered. A limit counts
    /// only at the depth of the last entry.
    pub fn find<'a>(&'a self, domain: &'a str, entries: &[(&'a str, &'a str)]) -> EnvoyMatch<'a> {
        let place = self.domains.get(domain).and_then(|level| level.find(entries));
        match place.and_then(|place| self.limits.get(place)) {
            None => EnvoyMatch::Nothing,
            Some(limit) if limit.is_unlimited() => EnvoyMatch::Unlimited(limit),
            Some(limit) => EnvoyMatch::Limited(limit, limit.request(domain, entries)),
        }
    }

    /// The limits as envoyproxy/ratelimit lists them on `/rlconfig`, one line each.
    pub fn dump(&self) -> String {
        self.limits.iter().map(|limit| format!("{limit}\n")).collect()
    }
}

/// Takes out of one call's findings what another of them replaces, so that it is neither enforced nor
/// charged.
///
/// A limit that is itself replaced still replaces others. An unlimited one stays.
pub(crate) fn drop_replaced<'a>(found: &mut [EnvoyMatch<'a>]) {
    let mut replaced: SmallVec<[&'a str; 4]> = SmallVec::new();
    for item in found.iter() {
        if let EnvoyMatch::Unlimited(limit) | EnvoyMatch::Limited(limit, _) = item {
            let limit: &'a EnvoyLimit = limit;
            replaced.extend(limit.replaces.iter().map(|name| &**name));
        }
    }
    for item in found {
        if let EnvoyMatch::Limited(limit, _) = item
            && limit.name.as_deref().is_some_and(|name| replaced.contains(&name))
        {
            *item = EnvoyMatch::Nothing;
        }
    }
}

#[cfg(test)]
mod tests;
