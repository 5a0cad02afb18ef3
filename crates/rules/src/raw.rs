//! The shape of a rules document: the keys of its maps, before their values are read.

use crate::error::{Report, choice, quote};
use crate::mark::Mark;
use crate::nearest::did_you_mean;
use crate::yaml::{Name, Node, Value};

/// Defines [`RawRule`] and its keys from one list.
macro_rules! raw_rule {
    ($($field:ident = $key:literal),+ $(,)?) => {
        /// A rule of a document: each key with its value, not yet read.
        pub(crate) struct RawRule<'n> {
            $(pub(crate) $field: Option<&'n Node<'n>>,)+
        }

        impl<'n> RawRule<'n> {
            pub(crate) const KEYS: [&'static str; [$($key),+].len()] = [$($key),+];

            pub(crate) fn read(node: &'n Node<'n>, report: &mut Report) -> Option<Self> {
                // The name first, because every other error reports it.
                report.enter(peek(node, "name").and_then(Node::text));
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
}

/// The value of a key of a map, without any report.
pub(crate) fn peek<'n>(node: &'n Node<'n>, key: &str) -> Option<&'n Node<'n>> {
    let Value::Map(entries) = &node.value else {
        return None;
    };
    entries.iter().find(|(name, _)| name.text == key).map(|(_, value)| value)
}

/// The values of the known keys of a map. Reports unknown keys.
pub(crate) fn keys<'n, const N: usize>(
    node: &'n Node<'n>,
    what: &str,
    known: [&'static str; N],
    report: &mut Report,
) -> Option<[Option<&'n Node<'n>>; N]> {
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

/// The entries of a map, or an error.
pub(crate) fn map<'n>(
    node: &'n Node<'n>,
    what: &str,
    report: &mut Report,
) -> Option<&'n [(Name<'n>, Node<'n>)]> {
    match &node.value {
        Value::Map(entries) => Some(entries),
        _ => {
            report.add(node.at, format!("{what} must be a map, found {}", node.shown()));
            None
        }
    }
}

/// The items of a list, or an error.
pub(crate) fn list<'n>(
    node: &'n Node<'n>,
    what: &str,
    most: usize,
    report: &mut Report,
) -> Option<&'n [Node<'n>]> {
    match &node.value {
        Value::List(items) if items.len() <= most => Some(items),
        Value::List(items) => {
            let found = items.len();
            report.add(node.at, format!("{what} must have at most {most} items, found {found}"));
            None
        }
        _ => {
            report.add(node.at, format!("{what} must be a list, found {}", node.shown()));
            None
        }
    }
}

/// The text of a scalar, or an error.
pub(crate) fn text<'n>(node: &'n Node<'n>, what: &str, report: &mut Report) -> Option<&'n str> {
    let text = node.text();
    if text.is_none() {
        report.add(node.at, format!("{what} must be a text, found {}", node.shown()));
    }
    text
}

/// A whole number, or an error.
pub(crate) fn whole(node: &Node<'_>, what: &str, report: &mut Report) -> Option<u64> {
    let digits = node
        .text()
        .filter(|text| text.starts_with(|c: char| c.is_ascii_digit()))
        .map(|text| text.replace('_', ""));
    let number = digits.and_then(|digits| digits.parse().ok());
    if number.is_none() {
        report.add(node.at, format!("{what} must be a whole number, found {}", node.shown()));
    }
    number
}

/// The value of one of some words; that of the first if the key is absent.
pub(crate) fn word<T: Copy, const N: usize>(
    node: Option<&Node<'_>>,
    what: &str,
    words: [(&str, T); N],
    report: &mut Report,
) -> Option<T> {
    let Some(node) = node else {
        return words.first().map(|(_, value)| *value);
    };
    let known = words.iter().find(|(word, _)| node.text() == Some(*word));
    if known.is_none() {
        let words = || words.iter().map(|(word, _)| *word);
        let (wanted, found) = (choice(words()), node.shown());
        let meant = node.text().map(|text| did_you_mean(text, words())).unwrap_or_default();
        report.add(node.at, format!("{what} must be {wanted}, found {found}{meant}"));
    }
    known.map(|(_, value)| *value)
}

/// The value of a key that must be there, or an error.
pub(crate) fn required<'n>(
    node: Option<&'n Node<'n>>,
    what: &str,
    at: Mark,
    report: &mut Report,
) -> Option<&'n Node<'n>> {
    if node.is_none() {
        report.add(at, format!("{what} is missing"));
    }
    node
}

/// The value, or an error on the line of `node`.
pub(crate) fn noted<T, E: ToString>(
    result: Result<T, E>,
    node: &Node<'_>,
    report: &mut Report,
) -> Option<T> {
    result.map_err(|error| report.add(node.at, error.to_string())).ok()
}
