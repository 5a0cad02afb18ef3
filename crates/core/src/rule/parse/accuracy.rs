//! Reads how a limit is kept across a fleet: `accuracy`, and the keys that belong to one of its words.

use super::super::accuracy::{Every, MaxAhead, Synced};
use super::super::error::Report;
use super::super::raw::{RawRule, noted, text, whole, word};
use super::super::yaml::Node;
use super::super::{Accuracy, Tiers, limits::Override};
use crate::algorithm::Limit;
use crate::quota::window_of;

/// The words of `accuracy`. Which of the exact ones it is, other keys say.
pub(in super::super) const ACCURACIES: [(&str, Accuracy); 4] = [
    ("exact", Accuracy::Exact),
    ("leased", Accuracy::Leased),
    ("synced", Accuracy::Synced(Synced::USUAL)),
    ("split", Accuracy::Split),
];

/// The words of `hot`.
pub(in super::super) const WHEN_HOT: [(&str, Accuracy); 1] = [("leased", Accuracy::LeasedWhenHot)];

/// The word of `max_ahead` for no bound.
pub(in super::super) const UNBOUNDED: &str = "unbounded";

/// What a rule says of it.
pub(super) fn accuracy(raw: &RawRule<'_>, report: &mut Report) -> Option<Accuracy> {
    let chosen = word(raw.accuracy, "accuracy", ACCURACIES, report);
    let every = raw.sync.map(|node| sync(node, report));
    let ahead = raw.max_ahead.map(|node| max_ahead(node, report));
    let shards = raw.shards.map(|node| shards(node, report));
    let hot = raw.hot.map(|node| word(Some(node), "hot", WHEN_HOT, report));
    let chosen = chosen?;
    // What belongs to another word is an error, whatever it says.
    let is_exact = chosen == Accuracy::Exact;
    let is_synced = matches!(chosen, Accuracy::Synced(_));
    let strays = [
        (raw.sync, "sync", "synced", is_synced),
        (raw.max_ahead, "max_ahead", "synced", is_synced),
        (raw.shards, "shards", "exact", is_exact),
        (raw.hot, "hot", "exact", is_exact),
    ];
    let mut fits = true;
    for (node, key, wanted, is_there) in strays {
        if let Some(node) = node.filter(|_| !is_there) {
            report.add(node.at, format!("{key} needs accuracy {wanted}, found {}", chosen.name()));
            fits = false;
        }
    }
    if let (Some(node), Some(_)) = (raw.hot, raw.shards) {
        report.add(node.at, "hot must stand alone, found it beside shards");
        fits = false;
    }
    let (every, ahead) = (flat(every)?, flat(ahead)?);
    let (shards, hot) = (flat(shards)?, flat(hot)?);
    let accuracy = match chosen {
        Accuracy::Synced(_) => Accuracy::Synced(Synced {
            every: every.unwrap_or_default(),
            max_ahead: ahead.unwrap_or_default(),
        }),
        Accuracy::Exact => shards.map(Accuracy::Sharded).or(hot).unwrap_or(Accuracy::Exact),
        other => other,
    };
    fits.then_some(accuracy)
}

/// Whether every limit of a rule can be kept like that.
pub(super) fn check(
    accuracy: Accuracy,
    raw: &RawRule<'_>,
    limit: &Limit,
    tiers: Option<&Tiers>,
    overrides: &[Override],
    report: &mut Report,
) -> Option<()> {
    let others = tiers.into_iter().flat_map(Tiers::iter).map(|(_, limit)| &**limit);
    let others = others.chain(overrides.iter().map(|item| &**item.limit()));
    let wrong = std::iter::once(limit).chain(others).find_map(|limit| accuracy.suits(limit).err());
    let node = raw.shards.or(raw.hot).or(raw.accuracy);
    match (wrong, node) {
        (Some(wrong), Some(node)) => noted(Err(wrong), node, report),
        _ => Some(()),
    }
}

/// What is written, if anything is and it can be read.
fn flat<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        Some(value) => value.map(Some),
        None => Some(None),
    }
}

fn sync(node: &Node<'_>, report: &mut Report) -> Option<Every> {
    let written = text(node, "sync", report)?;
    let span = window_of(written.trim()).map_err(|error| format!("sync: {error}"));
    let span = noted(span, node, report)?;
    let (least, most) = Every::RANGE;
    let every = Every::new(span)
        .ok_or_else(|| format!("sync must be {least} to {most}, found {}", node.shown()));
    noted(every, node, report)
}

fn max_ahead(node: &Node<'_>, report: &mut Report) -> Option<MaxAhead> {
    if node.text() == Some(UNBOUNDED) {
        return Some(MaxAhead::Unbounded);
    }
    let tokens = node.text().and_then(|text| text.replace('_', "").parse().ok());
    if let Some(tokens) = tokens.filter(|tokens| *tokens > 0) {
        return Some(MaxAhead::Tokens(tokens));
    }
    let found = node.shown();
    report.add(node.at, format!("max_ahead must be 1 or more, or {UNBOUNDED}, found {found}"));
    None
}

fn shards(node: &Node<'_>, report: &mut Report) -> Option<u8> {
    let (least, most) = Accuracy::SHARDS;
    let parts = whole(node, "shards", report)?;
    let parts = u8::try_from(parts).ok().filter(|parts| (least..=most).contains(parts));
    if parts.is_none() {
        let found = node.shown();
        report.add(node.at, format!("shards must be {least} to {most}, found {found}"));
    }
    parts
}
