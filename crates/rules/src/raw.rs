//! The shape of a rules document: the keys of its maps, before their values are read.

use crate::error::{ErrorReport, choice, quote};
use crate::nearest::did_you_mean;
use crate::source_range::SourceRange;
use crate::yaml::{YamlKey, YamlNode, YamlValue};

/// Defines [`RawRule`] and its keys from one list.
macro_rules! raw_rule {
    ($($field:ident = $key:literal),+ $(,)?) => {
        /// A rule of a document: each key with its value, not yet parsed.
        pub(crate) struct RawRule<'n> {
            $(pub(crate) $field: Option<&'n YamlNode<'n>>,)+
        }

        impl<'n> RawRule<'n> {
            pub(crate) const KEYS: [&'static str; [$($key),+].len()] = [$($key),+];

            pub(crate) fn read(node: &'n YamlNode<'n>, report: &mut ErrorReport) -> Option<Self> {
                // The name first, because every other error reports it.
                report.set_rule(peek(node, "name").and_then(YamlNode::text));
                let [$($field),+] = keys(node, "rule", Self::KEYS, report)?;
                Some(Self { $($field),+ })
            }
        }
    };
}

raw_rule! {
    name = "name",
    matching = "match",
    per = "per",
    limit = "limit",
    burst = "burst",
    queue = "queue",
    hold = "hold",
    algorithm = "algorithm",
    tiers = "tiers",
    overrides = "overrides",
    accuracy = "accuracy",
    sync = "sync",
    max_ahead = "max_ahead",
    shards = "shards",
    hot = "hot",
    on_store_failure = "on_store_failure",
    mode = "mode",
    rollout = "rollout",
    penalty = "penalty",
    caller_refunds = "caller_refunds",
}

/// Returns the value of a key of a map, without any report.
pub(crate) fn peek<'n>(node: &'n YamlNode<'n>, key: &str) -> Option<&'n YamlNode<'n>> {
    let YamlValue::Map(entries) = &node.value else {
        return None;
    };
    entries.iter().find(|(name, _)| name.text == key).map(|(_, value)| value)
}

/// Returns the values of the known keys of a map. Reports unknown keys as errors.
pub(crate) fn keys<'n, const N: usize>(
    node: &'n YamlNode<'n>,
    what: &str,
    known: [&'static str; N],
    report: &mut ErrorReport,
) -> Option<[Option<&'n YamlNode<'n>>; N]> {
    let entries = map(node, what, report)?;
    let mut values = [None; N];
    for (name, value) in entries {
        let slot = known.iter().zip(&mut values).find(|(key, _)| **key == name.text);
        if let Some((_, slot)) = slot {
            *slot = Some(value);
            continue;
        }
        let (found, wanted) = (quote(&name.text), choice(known));
        let meant = did_you_mean(&name.text, known);
        report.add(name.at, format!("{what} has no key {found}, wanted {wanted}{meant}"));
    }
    Some(values)
}

/// Returns the entries of a map, or reports an error.
pub(crate) fn map<'n>(
    node: &'n YamlNode<'n>,
    what: &str,
    report: &mut ErrorReport,
) -> Option<&'n [(YamlKey<'n>, YamlNode<'n>)]> {
    match &node.value {
        YamlValue::Map(entries) => Some(entries),
        _ => {
            report.add(node.at, format!("{what} must be a map, found {}", node.describe()));
            None
        }
    }
}

/// Returns the items of a list, or reports an error.
pub(crate) fn list<'n>(
    node: &'n YamlNode<'n>,
    what: &str,
    most: usize,
    report: &mut ErrorReport,
) -> Option<&'n [YamlNode<'n>]> {
    match &node.value {
        YamlValue::List(items) if items.len() <= most => Some(items),
        YamlValue::List(items) => {
            let found = items.len();
            report.add(node.at, format!("{what} must have at most {most} items, found {found}"));
            None
        }
        _ => {
            report.add(node.at, format!("{what} must be a list, found {}", node.describe()));
            None
        }
    }
}

/// Returns the text of a scalar, or reports an error.
pub(crate) fn text<'n>(
    node: &'n YamlNode<'n>,
    what: &str,
    report: &mut ErrorReport,
) -> Option<&'n str> {
    let text = node.text();
    if text.is_none() {
        report.add(node.at, format!("{what} must be a text, found {}", node.describe()));
    }
    text
}

/// Returns a whole number, or reports an error.
pub(crate) fn whole(node: &YamlNode<'_>, what: &str, report: &mut ErrorReport) -> Option<u64> {
    let digits = node
        .text()
        .filter(|text| text.starts_with(|c: char| c.is_ascii_digit()))
        .map(|text| text.replace('_', ""));
    let number = digits.and_then(|digits| digits.parse().ok());
    if number.is_none() {
        report.add(node.at, format!("{what} must be a whole number, found {}", node.describe()));
    }
    number
}

/// Returns the value of a known word; the value of the first word if the key is absent.
pub(crate) fn word<T: Copy, const N: usize>(
    node: Option<&YamlNode<'_>>,
    what: &str,
    words: [(&str, T); N],
    report: &mut ErrorReport,
) -> Option<T> {
    let Some(node) = node else {
        return words.first().map(|(_, value)| *value);
    };
    let known = words.iter().find(|(word, _)| node.text() == Some(*word));
    if known.is_none() {
        let words = || words.iter().map(|(word, _)| *word);
        let (wanted, found) = (choice(words()), node.describe());
        let meant = node.text().map(|text| did_you_mean(text, words())).unwrap_or_default();
        report.add(node.at, format!("{what} must be {wanted}, found {found}{meant}"));
    }
    known.map(|(_, value)| *value)
}

/// Returns the value of a key that is required, or reports an error.
pub(crate) fn required<'n>(
    node: Option<&'n YamlNode<'n>>,
    what: &str,
    at: SourceRange,
    report: &mut ErrorReport,
) -> Option<&'n YamlNode<'n>> {
    if node.is_none() {
        report.add(at, format!("{what} is missing"));
    }
    node
}

/// Returns the value, or reports the error on the line of `node`.
pub(crate) fn or_report<T, E: ToString>(
    result: Result<T, E>,
    node: &YamlNode<'_>,
    report: &mut ErrorReport,
) -> Option<T> {
    result.map_err(|error| report.add(node.at, error.to_string())).ok()
}
