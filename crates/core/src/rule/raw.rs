//! The shape of a rules document: which keys stand where, before anyone looks at their values.

use super::error::{Report, choice, quoted};
use super::mark::Mark;
use super::yaml::{Name, Node, Value};
use crate::nearest::did_you_mean;

/// A rule as it was written: each key with its value still unread.
pub(super) struct RawRule<'n> {
    pub(super) name: Option<&'n Node<'n>>,
    pub(super) matching: Option<&'n Node<'n>>,
    pub(super) per: Option<&'n Node<'n>>,
    pub(super) limit: Option<&'n Node<'n>>,
    pub(super) burst: Option<&'n Node<'n>>,
    pub(super) queue: Option<&'n Node<'n>>,
    pub(super) hold: Option<&'n Node<'n>>,
    pub(super) algorithm: Option<&'n Node<'n>>,
    pub(super) tiers: Option<&'n Node<'n>>,
    pub(super) overrides: Option<&'n Node<'n>>,
    pub(super) accuracy: Option<&'n Node<'n>>,
    pub(super) sync: Option<&'n Node<'n>>,
    pub(super) max_ahead: Option<&'n Node<'n>>,
    pub(super) shards: Option<&'n Node<'n>>,
    pub(super) hot: Option<&'n Node<'n>>,
    pub(super) on_store_failure: Option<&'n Node<'n>>,
    pub(super) mode: Option<&'n Node<'n>>,
    pub(super) rollout: Option<&'n Node<'n>>,
    pub(super) penalty: Option<&'n Node<'n>>,
}

impl<'n> RawRule<'n> {
    pub(super) const KEYS: [&'static str; 19] = [
        "name",
        "match",
        "per",
        "limit",
        "burst",
        "queue",
        "hold",
        "algorithm",
        "tiers",
        "overrides",
        "accuracy",
        "sync",
        "max_ahead",
        "shards",
        "hot",
        "on_store_failure",
        "mode",
        "rollout",
        "penalty",
    ];

    pub(super) fn read(node: &'n Node<'n>, report: &mut Report) -> Option<Self> {
        // The name first: every other error wants to say it.
        report.enter(peek(node, "name").and_then(Node::text));
        let [
            name,
            matching,
            per,
            limit,
            burst,
            queue,
            hold,
            algorithm,
            tiers,
            overrides,
            accuracy,
            sync,
            max_ahead,
            shards,
            hot,
            on_store_failure,
            mode,
            rollout,
            penalty,
        ] = keys(node, "rule", Self::KEYS, report)?;
        Some(Self {
            name,
            matching,
            per,
            limit,
            burst,
            queue,
            hold,
            algorithm,
            tiers,
            overrides,
            accuracy,
            sync,
            max_ahead,
            shards,
            hot,
            on_store_failure,
            mode,
            rollout,
            penalty,
        })
    }
}

pub(super) fn peek<'n>(node: &'n Node<'n>, key: &str) -> Option<&'n Node<'n>> {
    let Value::Map(entries) = &node.value else {
        return None;
    };
    entries.iter().find(|(name, _)| name.text == key).map(|(_, value)| value)
}

/// The values of the known keys of a map; reports the keys that are unknown.
pub(super) fn keys<'n, const N: usize>(
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
        let (found, wanted) = (quoted(&name.text), choice(known));
        let meant = did_you_mean(&name.text, known);
        report.add(name.at, format!("{what} has no key {found}, wanted {wanted}{meant}"));
    }
    Some(values)
}

/// The entries of a map, or an error.
pub(super) fn map<'n>(
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
pub(super) fn list<'n>(
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
pub(super) fn text<'n>(node: &'n Node<'n>, what: &str, report: &mut Report) -> Option<&'n str> {
    let text = node.text();
    if text.is_none() {
        report.add(node.at, format!("{what} must be a text, found {}", node.shown()));
    }
    text
}

/// A whole number, or an error.
pub(super) fn whole(node: &Node<'_>, what: &str, report: &mut Report) -> Option<u64> {
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

/// One of some words; the value of the first when nothing is written.
pub(super) fn word<T: Copy, const N: usize>(
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

pub(super) fn required<'n>(
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
pub(super) fn noted<T, E: ToString>(
    result: Result<T, E>,
    node: &Node<'_>,
    report: &mut Report,
) -> Option<T> {
    result.map_err(|error| report.add(node.at, error.to_string())).ok()
}
