//! Configuration files of envoyproxy/ratelimit.
//!
//! Each limit becomes a native rule that applies only to calls that name it. A tree finds the limit of a descriptor; the
//! limiter counts and decides.

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
use self::tree::DescriptorLevel;
use crate::config_error::ConfigError;

/// Every limit of a directory of envoyproxy/ratelimit files.
#[derive(Debug, Default)]
pub struct EnvoyRules {
    domains: HashMap<Box<str>, DescriptorLevel>,
    /// The limits in the order of the files. The trees contain indexes into this list.
    limits: Vec<EnvoyLimit>,
    rules: Vec<Rule>,
}

/// The files of a directory: for each its name in errors, and its text.
pub(crate) type EnvoyFiles = Vec<(String, String)>;

/// Reads the `*.yaml` and `*.yml` files of a directory, in the order of their names.
///
/// # Errors
/// The directory can't be read or has no such file.
pub fn read_folder(folder: &Path) -> Result<EnvoyFiles, ConfigError> {
    folder::read(folder)
}

/// The limit that applies to a descriptor.
#[derive(Debug)]
#[allow(clippy::large_enum_variant, reason = "a box would cost an allocation per call")]
pub enum EnvoyMatch<'a> {
    /// No limit.
    Nothing,
    /// A limit that allows everything.
    Unlimited(&'a EnvoyLimit),
    /// A limit, and the request that [its rule](EnvoyLimit::rule) counts.
    Limited(&'a EnvoyLimit, Request<'a>),
}

impl EnvoyRules {
    /// Most limits of all files together.
    pub(crate) const MAX_LIMITS: usize = tidegate_rules::RuleSet::MAX_RULES;

    /// Parses files.
    ///
    /// # Errors
    /// [`ConfigError::Invalid`]: every error, with its file and line.
    pub fn parse(files: &[(String, String)]) -> Result<Self, ConfigError> {
        build::build_rules(files)
    }

    /// Returns the native rule of each limit, in the order of the files. An unlimited one has none.
    pub fn rules(&self) -> Vec<Rule> {
        self.rules.clone()
    }

    /// Returns the number of limits, including unlimited ones.
    pub fn len(&self) -> usize {
        self.limits.len()
    }

    /// Returns whether there is no limit.
    pub fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }

    /// Returns the limit for a descriptor of a domain.
    ///
    /// Each level prefers the exact key and value, then the patterns with `*` in the order of the file, then the key
    /// without a value. There is no backtracking: a choice at one level is final. A limit applies only at the depth of
    /// the last entry.
    pub fn find<'a>(&'a self, domain: &'a str, entries: &[(&'a str, &'a str)]) -> EnvoyMatch<'a> {
        let index = self.domains.get(domain).and_then(|level| level.find(entries));
        match index.and_then(|index| self.limits.get(index)) {
            None => EnvoyMatch::Nothing,
            Some(limit) if limit.is_unlimited() => EnvoyMatch::Unlimited(limit),
            Some(limit) => EnvoyMatch::Limited(limit, limit.request(domain, entries)),
        }
    }

    /// Returns the limits as envoyproxy/ratelimit lists them on `/rlconfig`, one line each.
    pub fn dump(&self) -> String {
        self.limits.iter().map(|limit| format!("{limit}\n")).collect()
    }
}

/// Removes the limits of one call that another limit of the call replaces: they are neither enforced nor charged.
///
/// A limit that is itself replaced still replaces others. An unlimited one stays.
pub(crate) fn drop_replaced<'a>(matches: &mut [EnvoyMatch<'a>]) {
    let mut replaced: SmallVec<[&'a str; 4]> = SmallVec::new();
    for item in matches.iter() {
        if let EnvoyMatch::Unlimited(limit) | EnvoyMatch::Limited(limit, _) = item {
            let limit: &'a EnvoyLimit = limit;
            replaced.extend(limit.replaces.iter().map(|name| &**name));
        }
    }
    for item in matches {
        if let EnvoyMatch::Limited(limit, _) = item
            && limit.name.as_deref().is_some_and(|name| replaced.contains(&name))
        {
            *item = EnvoyMatch::Nothing;
        }
    }
}

#[cfg(test)]
mod tests;
