//! Reads rules from the tree of a YAML document.
//!
//! Every function reports its errors and continues with the rest, so that one run reports all errors of a document. A
//! rule with an error is left out, and the report then fails the whole document.

pub(crate) mod condition;
mod limit;

use std::collections::HashMap;

use tidegate_core::algorithm::Concurrency;
use tidegate_core::quota::window_of;
use tidegate_core::{Algorithm, Limit, Quota, QuotaError, Span};

use crate::accuracy::{Accuracy, MaxAhead, SyncInterval, SyncSettings};
use crate::error::ErrorReport;
use crate::limits::{Override, OverrideList, TierLimits};
use crate::lint::RuleLinter;
use crate::pattern_set::FixedHasher;
use crate::penalty::{DenialThreshold, Penalty};
use crate::per::AttributeChain;
use crate::raw::{RawRule, keys, list, or_report, peek, required, text, whole, word};
use crate::rollout::Rollout;
use crate::rule::{
    CallerRefunds, Mode, OnStoreFailure, PENALTY_NEEDS_PER, ROLLOUT_NEEDS_PER, Rule, check_name,
};
use crate::set::{RuleSet, check_size};
use crate::source_range::SourceRange;
use crate::yaml::{self, YamlNode};

/// Reads all rules of a document.
pub(crate) fn document(
    yaml: &str,
    report: &mut ErrorReport,
    linter: Option<&mut RuleLinter<'_>>,
) -> Vec<Rule> {
    let Some(root) = root(yaml, report) else {
        return Vec::new();
    };
    let Some([rules]) = keys(&root, "document", ["rules"], report) else {
        return Vec::new();
    };
    let Some(rules) = rules else {
        report.add(root.at, "rules is missing");
        return Vec::new();
    };
    listed(rules, report, linter)
}

/// Reads the rules of a larger document, from the list that `path` leads to.
pub(crate) fn part(
    yaml: &str,
    path: &[&str],
    report: &mut ErrorReport,
    linter: Option<&mut RuleLinter<'_>>,
) -> Vec<Rule> {
    let Some(root) = root(yaml, report) else {
        return Vec::new();
    };
    let mut node = &root;
    for key in path {
        let Some(inner) = peek(node, key) else {
            report.add(node.at, format!("{key} is missing"));
            return Vec::new();
        };
        node = inner;
    }
    listed(node, report, linter)
}

fn root<'y>(yaml: &'y str, report: &mut ErrorReport) -> Option<YamlNode<'y>> {
    if yaml.len() > RuleSet::MAX_DOCUMENT_BYTES {
        let (most, found) = (RuleSet::MAX_DOCUMENT_BYTES, yaml.len());
        report.add(None, format!("document must be at most {most} bytes long, found {found}"));
        return None;
    }
    yaml::read(yaml).map_err(|error| report.add(error.at, error.message)).ok()
}

fn listed(
    rules: &YamlNode<'_>,
    report: &mut ErrorReport,
    mut linter: Option<&mut RuleLinter<'_>>,
) -> Vec<Rule> {
    let at = rules.at;
    let Some(nodes) = list(rules, "rules", RuleSet::MAX_RULES, report) else {
        return Vec::new();
    };
    let mut first_lines = HashMap::with_capacity_and_hasher(nodes.len(), FixedHasher::default());
    let mut rules = Vec::with_capacity(nodes.len());
    for node in nodes {
        let rule = RawRule::read(node, report).and_then(|raw| {
            if let Some(name) = raw.name
                && let Some(text) = name.text()
                && let Some(first) = first_lines.insert(text, name.at.line())
            {
                report.add(name.at, format!("name must be unique, found it on line {first} too"));
            }
            let rule = rule(&raw, node.at, report)?;
            if let Some(linter) = &mut linter {
                linter.rule(&rule, &raw);
            }
            Some(rule)
        });
        rules.extend(rule);
    }
    report.set_rule(None);
    let overrides = rules.iter().map(|rule| rule.overrides().len()).sum();
    check_size(rules.len(), overrides, report);
    if let Some(linter) = linter {
        linter.rules(at, nodes.len());
    }
    rules
}

fn rule(raw: &RawRule<'_>, at: SourceRange, report: &mut ErrorReport) -> Option<Rule> {
    let name = required(raw.name, "name", at, report)
        .and_then(|node| Some((node, text(node, "name", report)?)))
        .and_then(|(node, name)| or_report(check_name(name).map(|()| name), node, report));
    let conditions = match raw.matching {
        Some(node) => condition::all(node, report),
        None => Some(Vec::new()),
    };
    let per = match raw.per {
        Some(node) => per(node, report),
        None => Some(Vec::new()),
    };
    let algorithm = algorithm(raw, report);
    let mode = word(raw.mode, "mode", MODE_WORDS, report);
    let on_store_failure =
        word(raw.on_store_failure, "on_store_failure", ON_STORE_FAILURE_WORDS, report);
    let caller_refunds = word(raw.caller_refunds, "caller_refunds", CALLER_REFUNDS_WORDS, report);
    let accuracy = accuracy(raw, report);
    // Limits are read even if the algorithm is unknown, to report their own errors too.
    let counted_by = algorithm.or_else(|| implied(raw)).unwrap_or_default();
    let burst = match raw.burst {
        Some(node) => whole(node, "burst", report).map(Some),
        None => Some(None),
    };
    let limit = required(raw.limit, "limit", at, report)
        .and_then(|node| Some((node, limit::quota(node, report)?)))
        .and_then(|(node, quota)| {
            let quota = match (quota.explicit_burst(), burst?) {
                (Some(_), Some(_)) => {
                    report
                        .add(node.at, "burst must be given once, found it beside limit and in it");
                    return None;
                }
                (_, Some(burst)) => quota.burst(burst),
                (_, None) => quota,
            };
            limit::checked(counted_by, quota, raw.burst.unwrap_or(node), report)
        });
    let tiers = match raw.tiers {
        Some(node) => limit::tiers(node, counted_by, report).map(Some),
        None => Some(None),
    };
    let overrides = match raw.overrides {
        Some(node) => limit::overrides(node, counted_by, per.as_deref(), report),
        None => Some(Vec::new()),
    };
    let penalty = match (raw.penalty, &per) {
        (Some(node), Some(per)) if per.is_empty() => {
            report.add(node.at, PENALTY_NEEDS_PER);
            None
        }
        (Some(node), _) => penalty(node, report).map(Some),
        (None, _) => Some(None),
    };
    let rollout = rollout(raw.rollout, per.as_deref(), report);
    if let (Some(accuracy), Some(limit), Some(tiers), Some(overrides)) =
        (accuracy, &limit, &tiers, &overrides)
    {
        check_accuracy(accuracy, raw, limit, tiers.as_ref(), overrides, report)?;
    }
    if let (Some(Algorithm::Concurrency { .. }), Some(OnStoreFailure::Local)) =
        (algorithm, on_store_failure)
    {
        report.add(raw.on_store_failure.map_or(at, |node| node.at), LOCAL_CONCURRENCY_ERROR);
        return None;
    }
    let mut rule = Rule::with_limit(name?, algorithm?, limit?);
    rule.conditions = conditions?;
    rule.per = per?;
    rule.tiers = tiers?;
    rule.overrides = OverrideList::new(overrides?);
    rule.accuracy = accuracy?;
    rule.mode = mode?;
    rule.on_store_failure = on_store_failure?;
    rule.rollout = rollout?;
    rule.penalty = penalty?;
    rule.caller_refunds = caller_refunds?;
    Some(rule)
}

pub(crate) const MODE_WORDS: [(&str, Mode); 3] = [
    (Mode::Enforce.name(), Mode::Enforce),
    (Mode::Shadow.name(), Mode::Shadow),
    (Mode::Off.name(), Mode::Off),
];

pub(crate) const ON_STORE_FAILURE_WORDS: [(&str, OnStoreFailure); 3] = [
    (OnStoreFailure::Allow.name(), OnStoreFailure::Allow),
    (OnStoreFailure::Deny.name(), OnStoreFailure::Deny),
    (OnStoreFailure::Local.name(), OnStoreFailure::Local),
];

pub(crate) const CALLER_REFUNDS_WORDS: [(&str, CallerRefunds); 2] = [
    (CallerRefunds::Deny.name(), CallerRefunds::Deny),
    (CallerRefunds::Allow.name(), CallerRefunds::Allow),
];

pub(crate) const ALGORITHM_WORDS: [(&str, Algorithm); 6] = [
    ("token_bucket", Algorithm::TokenBucket),
    ("leaky_bucket", Algorithm::LeakyBucket { queue: 0 }),
    ("fixed_window", Algorithm::FixedWindow),
    ("sliding_window", Algorithm::SlidingWindow),
    ("sliding_log", Algorithm::SlidingLog),
    ("concurrency", Algorithm::Concurrency { hold: Concurrency::HOLD }),
];

/// The error of a concurrency limit with `on_store_failure: local`: no other node could release this node's slots.
const LOCAL_CONCURRENCY_ERROR: &str =
    "on_store_failure must be allow or deny with algorithm concurrency, found local";

fn algorithm(raw: &RawRule<'_>, report: &mut ErrorReport) -> Option<Algorithm> {
    let written = word(raw.algorithm, "algorithm", ALGORITHM_WORDS, report);
    let queue = raw.queue.map(|node| (node, whole(node, "queue", report)));
    let hold = raw.hold.map(|node| (node, hold(node, report)));
    let chosen = match raw.algorithm {
        None => implied(raw).or(written)?,
        Some(_) => written?,
    };
    let (mut algorithm, name) = (chosen, chosen.name());
    if let Some((node, queue)) = queue {
        algorithm = match chosen {
            Algorithm::LeakyBucket { .. } => Algorithm::LeakyBucket { queue: queue? },
            _ => or_report(Err(QuotaError::NoQueue { algorithm: name }), node, report)?,
        };
    }
    if let Some((node, hold)) = hold {
        algorithm = match chosen {
            Algorithm::Concurrency { .. } => Algorithm::Concurrency { hold: hold? },
            _ => or_report(Err(QuotaError::NoHold { algorithm: name }), node, report)?,
        };
    }
    Some(algorithm)
}

/// Returns the algorithm that the text of a limit implies: `20 in flight`.
fn implied(raw: &RawRule<'_>) -> Option<Algorithm> {
    let quota: Quota = raw.limit.and_then(YamlNode::text)?.parse().ok()?;
    quota.is_in_flight().then_some(Algorithm::Concurrency { hold: Concurrency::HOLD })
}

fn hold(node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<Span> {
    let written = text(node, "hold", report)?;
    let span = window_of(written.trim()).map_err(|error| format!("hold: {error}"));
    let found = or_report(span, node, report)?;
    let (shortest, longest) = Concurrency::HOLDS;
    match (shortest..=longest).contains(&found) {
        true => Some(found),
        false => or_report(Err(QuotaError::Hold { found }), node, report),
    }
}

/// Reads `[user | ip, path]`.
fn per(node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<Vec<AttributeChain>> {
    let items = list(node, "per", Rule::MAX_PER_ENTRIES, report)?;
    let chains: Vec<Option<AttributeChain>> = items
        .iter()
        .map(|item| or_report(AttributeChain::parse(text(item, "per", report)?), item, report))
        .collect();
    chains.into_iter().collect()
}

/// The words of `accuracy`. `shards` and `hot` choose among the exact ones.
pub(crate) const ACCURACY_WORDS: [(&str, Accuracy); 4] = [
    ("exact", Accuracy::Exact),
    ("leased", Accuracy::Leased),
    ("synced", Accuracy::Synced(SyncSettings::DEFAULT)),
    ("split", Accuracy::Split),
];

/// The words of `hot`.
pub(crate) const HOT_WORDS: [(&str, Accuracy); 1] = [("leased", Accuracy::LeasedWhenHot)];

/// The word of `max_ahead` for no bound.
pub(crate) const UNBOUNDED_WORD: &str = "unbounded";

/// Reads `accuracy` and the keys that belong to one of its words.
fn accuracy(raw: &RawRule<'_>, report: &mut ErrorReport) -> Option<Accuracy> {
    let chosen = word(raw.accuracy, "accuracy", ACCURACY_WORDS, report);
    let every = raw.sync.map(|node| sync(node, report));
    let ahead = raw.max_ahead.map(|node| max_ahead(node, report));
    let shards = raw.shards.map(|node| shards(node, report));
    let hot = raw.hot.map(|node| word(Some(node), "hot", HOT_WORDS, report));
    let chosen = chosen?;
    // A key that belongs to another word is an error, whatever its value.
    let is_exact = chosen == Accuracy::Exact;
    let is_synced = matches!(chosen, Accuracy::Synced(_));
    let dependent_keys = [
        (raw.sync, "sync", "synced", is_synced),
        (raw.max_ahead, "max_ahead", "synced", is_synced),
        (raw.shards, "shards", "exact", is_exact),
        (raw.hot, "hot", "exact", is_exact),
    ];
    let mut fits = true;
    for (node, key, wanted, is_chosen) in dependent_keys {
        if let Some(node) = node.filter(|_| !is_chosen) {
            report.add(node.at, format!("{key} needs accuracy {wanted}, found {}", chosen.name()));
            fits = false;
        }
    }
    if let (Some(node), Some(_)) = (raw.hot, raw.shards) {
        report.add(node.at, "hot must stand alone, found it beside shards");
        fits = false;
    }
    let (every, ahead) = (transpose(every)?, transpose(ahead)?);
    let (shards, hot) = (transpose(shards)?, transpose(hot)?);
    let accuracy = match chosen {
        Accuracy::Synced(_) => Accuracy::Synced(SyncSettings {
            every: every.unwrap_or_default(),
            max_ahead: ahead.unwrap_or_default(),
        }),
        Accuracy::Exact => shards.map(Accuracy::Sharded).or(hot).unwrap_or(Accuracy::Exact),
        other => other,
    };
    fits.then_some(accuracy)
}

/// Checks that an accuracy suits every limit of a rule.
fn check_accuracy(
    accuracy: Accuracy,
    raw: &RawRule<'_>,
    limit: &Limit,
    tiers: Option<&TierLimits>,
    overrides: &[Override],
    report: &mut ErrorReport,
) -> Option<()> {
    let others = tiers.into_iter().flat_map(TierLimits::iter).map(|(_, limit)| &**limit);
    let others = others.chain(overrides.iter().filter_map(Override::limit).map(|limit| &**limit));
    let wrong =
        std::iter::once(limit).chain(others).find_map(|limit| accuracy.check_limit(limit).err());
    let node = raw.shards.or(raw.hot).or(raw.accuracy);
    match (wrong, node) {
        (Some(wrong), Some(node)) => or_report(Err(wrong), node, report),
        _ => Some(()),
    }
}

/// Returns `Some(None)` if the key is absent, `None` if its value could not be read.
fn transpose<T>(read: Option<Option<T>>) -> Option<Option<T>> {
    match read {
        Some(value) => value.map(Some),
        None => Some(None),
    }
}

fn sync(node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<SyncInterval> {
    let written = text(node, "sync", report)?;
    let span = window_of(written.trim()).map_err(|error| format!("sync: {error}"));
    let span = or_report(span, node, report)?;
    let (least, most) = SyncInterval::RANGE;
    let every = SyncInterval::new(span)
        .ok_or_else(|| format!("sync must be {least} to {most}, found {}", node.describe()));
    or_report(every, node, report)
}

fn max_ahead(node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<MaxAhead> {
    if node.text() == Some(UNBOUNDED_WORD) {
        return Some(MaxAhead::Unbounded);
    }
    let tokens = node.text().and_then(|text| text.replace('_', "").parse().ok());
    if let Some(tokens) = tokens.filter(|tokens| *tokens > 0) {
        return Some(MaxAhead::Tokens(tokens));
    }
    let found = node.describe();
    report.add(node.at, format!("max_ahead must be 1 or more, or {UNBOUNDED_WORD}, found {found}"));
    None
}

fn shards(node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<u8> {
    let (least, most) = Accuracy::SHARD_RANGE;
    let parts = whole(node, "shards", report)?;
    let parts = u8::try_from(parts).ok().filter(|parts| (least..=most).contains(parts));
    if parts.is_none() {
        let found = node.describe();
        report.add(node.at, format!("shards must be {least} to {most}, found {found}"));
    }
    parts
}

/// Reads `{after: 10x, within: 1m, block: 10m}`.
fn penalty(node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<Penalty> {
    let [after, within, block] = keys(node, "penalty", ["after", "within", "block"], report)?;
    let after = required(after, "penalty.after", node.at, report).and_then(|node| {
        let text = text(node, "penalty.after", report)?;
        or_report(text.parse::<DenialThreshold>(), node, report)
    });
    let within = required(within, "penalty.within", node.at, report)
        .and_then(|node| span(node, "penalty.within", report));
    let block = required(block, "penalty.block", node.at, report)
        .and_then(|node| span(node, "penalty.block", report));
    or_report(Penalty::new(after?, within?, block?), node, report)
}

fn span(node: &YamlNode<'_>, what: &str, report: &mut ErrorReport) -> Option<Span> {
    let text = text(node, what, report)?;
    or_report(window_of(text.trim()).map_err(|error| format!("{what}: {error}")), node, report)
}

/// Reads `10%`; `per` is `None` if it could not be read.
fn rollout(
    node: Option<&YamlNode<'_>>,
    per: Option<&[AttributeChain]>,
    report: &mut ErrorReport,
) -> Option<Option<Rollout>> {
    let Some(node) = node else {
        return Some(None);
    };
    if per.is_some_and(<[AttributeChain]>::is_empty) {
        report.add(node.at, ROLLOUT_NEEDS_PER);
        return None;
    }
    let text = text(node, "rollout", report)?;
    or_report(text.parse::<Rollout>(), node, report).map(Some)
}
