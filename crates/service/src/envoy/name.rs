//! What limits and the entries of descriptors are called in the native rules.

use std::collections::HashMap;

use tidegate_core::Request;
use tidegate_rules::Rule;

use super::limit::DOMAIN;

/// Longest key of a descriptor in bytes: there is room for `#2` behind it.
pub(crate) const MAX_KEY: usize = Request::MAX_NAME - 8;

/// Hexadecimal digits behind a name that would not be unique or whole otherwise.
const DIGITS: usize = 12;

/// One step of a limit's path: a key, and its value if it has one.
pub(crate) type Step<'y> = (&'y str, Option<&'y str>);

/// The path as envoyproxy/ratelimit spells it: `domain.key_value.key`. Two paths may spell the same.
pub(crate) fn spelled(domain: &str, path: &[Step<'_>]) -> String {
    let mut spelled = domain.to_owned();
    for (key, value) in path {
        spelled.push('.');
        spelled.push_str(key);
        if let Some(value) = value {
            spelled.push('_');
            spelled.push_str(value);
        }
    }
    spelled
}

/// The name of the rule for each path: readable, unique, and of what names are made of.
///
/// It is the path as it is spelled where that will do; else its beginning and a hash of the path, which
/// does not depend on what else there is. Counters go by it, so it stays what it is.
pub(crate) fn rules(paths: &[(String, [u8; 32])]) -> Vec<String> {
    let mut count: HashMap<String, usize> = HashMap::new();
    let plain: Vec<String> = paths.iter().map(|(spelled, _)| plain(spelled)).collect();
    for name in &plain {
        *count.entry(name.clone()).or_default() += 1;
    }
    let whole = |name: &str, spelled: &str| {
        name == spelled && name.len() <= Rule::MAX_NAME_CHARS && count.get(name) == Some(&1)
    };
    let named = paths.iter().zip(&plain).map(|((spelled, hash), name)| {
        if whole(name, spelled) {
            return name.clone();
        }
        let mut name = name.clone();
        name.truncate(Rule::MAX_NAME_CHARS - DIGITS - 1);
        let hex = blake3::Hash::from(*hash).to_hex();
        format!("{name}-{}", &hex[..DIGITS])
    });
    named.collect()
}

/// A hash of a path in which no two paths meet.
pub(crate) fn hash(domain: &str, path: &[Step<'_>]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let mut word = |word: &str| {
        hasher.update(&u64::try_from(word.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(word.as_bytes());
    };
    word(domain);
    for (key, value) in path {
        word(key);
        // No value is not an empty one, and neither is spelled like the other.
        word(if value.is_some() { "=" } else { "" });
        word(value.unwrap_or_default());
    }
    *hasher.finalize().as_bytes()
}

/// The text with everything replaced that a name does not have; only ASCII is left.
fn plain(text: &str) -> String {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    text.chars().map(|c| if known(c) { c } else { '_' }).collect()
}

/// The attributes that the entries of a descriptor become: its keys, a repeated one as `key#2`.
///
/// No two are the same, and none is the domain's.
pub(crate) fn attributes(path: &[Step<'_>]) -> Vec<Box<str>> {
    let mut names: Vec<Box<str>> = Vec::with_capacity(path.len());
    for (key, _) in path {
        let key = attribute(key);
        let free = |name: &str| name != DOMAIN && names.iter().all(|known| **known != *name);
        let name = if free(&key) {
            key
        } else {
            let mut numbered = (2..).map(|number| format!("{key}#{number}"));
            numbered.find(|name| free(name)).unwrap_or_default()
        };
        names.push(name.into());
    }
    names
}

/// The key as an attribute that a rule can count by.
fn attribute(key: &str) -> String {
    let name: String =
        key.chars().map(|c| if c == '|' || c.is_control() { '_' } else { c }).collect();
    match name.trim() {
        "" => "_".to_owned(),
        trimmed => trimmed.to_owned(),
    }
}
