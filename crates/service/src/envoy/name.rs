//! The names of native rules and of their attributes, from the paths of limits.

use std::collections::HashMap;

use tidegate_core::Request;
use tidegate_rules::Rule;

use super::limit::DOMAIN_ATTRIBUTE;

/// Longest key of a descriptor in bytes. The rest of an attribute name is for a suffix such as `#2`.
pub(crate) const MAX_KEY_BYTES: usize = Request::MAX_NAME - 8;

/// Number of hexadecimal digits of the hash at the end of a rule name.
const HASH_DIGITS: usize = 12;

/// One entry of a limit's path: a key and an optional value.
pub(crate) type PathEntry<'y> = (&'y str, Option<&'y str>);

/// Returns the path as envoyproxy/ratelimit prints it: `domain.key_value.key`. Two paths may have the same text.
pub(crate) fn path_text(domain: &str, path: &[PathEntry<'_>]) -> String {
    let mut text = domain.to_owned();
    for (key, value) in path {
        text.push('.');
        text.push_str(key);
        if let Some(value) = value {
            text.push('_');
            text.push_str(value);
        }
    }
    text
}

/// Returns a unique rule name for each path, from its text and hash.
///
/// The name is the text if that is a valid and unique name, else its beginning and a part of the hash. The hash depends
/// on the path alone. Counters are stored under the name, so the names of existing paths must never change.
pub(crate) fn rule_names(paths: &[(String, [u8; 32])]) -> Vec<String> {
    let mut count: HashMap<String, usize> = HashMap::new();
    let sanitized: Vec<String> = paths.iter().map(|(text, _)| sanitize(text)).collect();
    for name in &sanitized {
        *count.entry(name.clone()).or_default() += 1;
    }
    let is_valid_and_unique = |name: &str, text: &str| {
        name == text && name.len() <= Rule::MAX_NAME_CHARS && count.get(name) == Some(&1)
    };
    let names = paths.iter().zip(&sanitized).map(|((text, hash), name)| {
        if is_valid_and_unique(name, text) {
            return name.clone();
        }
        let mut name = name.clone();
        name.truncate(Rule::MAX_NAME_CHARS - HASH_DIGITS - 1);
        let hex = blake3::Hash::from(*hash).to_hex();
        format!("{name}-{}", &hex[..HASH_DIGITS])
    });
    names.collect()
}

/// Returns a hash of the path. Each part is hashed with its length, so different paths have different hashes.
pub(crate) fn path_hash(domain: &str, path: &[PathEntry<'_>]) -> [u8; 32] {
    let mut hasher = blake3::Hasher::new();
    let mut add = |part: &str| {
        hasher.update(&u64::try_from(part.len()).unwrap_or(u64::MAX).to_le_bytes());
        hasher.update(part.as_bytes());
    };
    add(domain);
    for (key, value) in path {
        add(key);
        // Distinguishes an entry without a value from one with an empty value.
        add(if value.is_some() { "=" } else { "" });
        add(value.unwrap_or_default());
    }
    *hasher.finalize().as_bytes()
}

/// Replaces every character that is not allowed in a rule name by `_`. The result is ASCII.
fn sanitize(text: &str) -> String {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    text.chars().map(|c| if is_allowed(c) { c } else { '_' }).collect()
}

/// Returns the attribute names of the entries of a descriptor: the keys, a repeated one as `key#2`.
///
/// The names are unique, and none is that of the domain.
pub(crate) fn attribute_names(path: &[PathEntry<'_>]) -> Vec<Box<str>> {
    let mut names: Vec<Box<str>> = Vec::with_capacity(path.len());
    for (key, _) in path {
        let key = attribute_name(key);
        let is_free =
            |name: &str| name != DOMAIN_ATTRIBUTE && names.iter().all(|known| **known != *name);
        let name = if is_free(&key) {
            key
        } else {
            let mut numbered = (2..).map(|number| format!("{key}#{number}"));
            numbered.find(|name| is_free(name)).unwrap_or_default()
        };
        names.push(name.into());
    }
    names
}

/// Returns a key as a valid attribute name.
fn attribute_name(key: &str) -> String {
    let name: String =
        key.chars().map(|c| if c == '|' || c.is_control() { '_' } else { c }).collect();
    match name.trim() {
        "" => "_".to_owned(),
        trimmed => trimmed.to_owned(),
    }
}
