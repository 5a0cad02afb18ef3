//! From what was written to rules that can be enforced.
//!
//! Every function reports what is wrong and goes on with the rest, so that one look at a broken
//! document shows all of it. A rule with an error is left out; the report then fails the whole.

pub(super) mod accuracy;
pub(super) mod condition;
mod limit;
mod penalty;
mod rollout;

use std::collections::HashMap;

use smallvec::SmallVec;

use super::error::{Report, quoted};
use super::limits::Overrides;
use super::mark::Mark;
use super::matcher::Hashing;
use super::raw::{RawRule, keys, list, noted, peek, required, text, whole, word};
use super::set::check_size;
use super::yaml::{self, Node};
use super::{Chain, Mode, OnStoreFailure, Rule, RuleSet};
use crate::algorithm::{Algorithm, Concurrency};
use crate::quota::{Quota, QuotaError, window_of};
use crate::request::Request;
use crate::time::Span;

/// Reads all rules of a document.
pub(super) fn document(yaml: &str, report: &mut Report) -> Vec<Rule> {
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
    listed(rules, report)
}

/// Reads the rules that stand in a larger document, in the list that `path` leads to.
pub(super) fn part(yaml: &str, path: &[&str], report: &mut Report) -> Vec<Rule> {
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
    listed(node, report)
}

fn root<'y>(yaml: &'y str, report: &mut Report) -> Option<Node<'y>> {
    if yaml.len() > RuleSet::MAX_DOCUMENT {
        let (most, found) = (RuleSet::MAX_DOCUMENT, yaml.len());
        report.add(None, format!("document must be at most {most} bytes long, found {found}"));
        return None;
    }
    yaml::read(yaml).map_err(|error| report.add(error.at, error.message)).ok()
}

fn listed(rules: &Node<'_>, report: &mut Report) -> Vec<Rule> {
    let Some(nodes) = list(rules, "rules", RuleSet::MAX_RULES, report) else {
        return Vec::new();
    };
    let mut first_lines = HashMap::with_capacity_and_hasher(nodes.len(), Hashing::default());
    let mut rules = Vec::with_capacity(nodes.len());
    for node in nodes {
        let rule = RawRule::read(node, report).and_then(|raw| {
            if let Some(name) = raw.name
                && let Some(text) = name.text()
                && let Some(first) = first_lines.insert(text, name.at.line())
            {
                report.add(name.at, format!("name must be unique, found it on line {first} too"));
            }
            rule(&raw, node.at, report)
        });
        rules.extend(rule);
    }
    report.enter(None);
    let overrides = rules.iter().map(|rule| rule.overrides().len()).sum();
    check_size(rules.len(), overrides, report);
    rules
}

fn rule(raw: &RawRule<'_>, at: Mark, report: &mut Report) -> Option<Rule> {
    let name = required(raw.name, "name", at, report)
        .and_then(|node| Some((node, text(node, "name", report)?)))
        .and_then(|(node, name)| noted(check_name(name).map(|()| name), node, report));
    let conditions = match raw.matching {
        Some(node) => condition::all(node, report),
        None => Some(Vec::new()),
    };
    let per = match raw.per {
        Some(node) => per(node, report),
        None => Some(Vec::new()),
    };
    let algorithm = algorithm(raw, report);
    let mode = word(raw.mode, "mode", MODES, report);
    let on_store_failure = word(raw.on_store_failure, "on_store_failure", ANSWERS, report);
    let accuracy = accuracy::accuracy(raw, report);
    // Limits are read even when the algorithm is unknown: what their texts say can still be wrong.
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
            report.add(node.at, NOBODY_IN_PARTICULAR);
            None
        }
        (Some(node), _) => penalty::penalty(node, report).map(Some),
        (None, _) => Some(None),
    };
    let rollout = rollout::rollout(raw.rollout, per.as_deref(), report);
    if let (Some(accuracy), Some(limit), Some(tiers), Some(overrides)) =
        (accuracy, &limit, &tiers, &overrides)
    {
        accuracy::check(accuracy, raw, limit, tiers.as_ref(), overrides, report)?;
    }
    if let (Some(Algorithm::Concurrency { .. }), Some(OnStoreFailure::Local)) =
        (algorithm, on_store_failure)
    {
        report.add(raw.on_store_failure.map_or(at, |node| node.at), NO_LOCAL_SLOTS);
        return None;
    }
    let mut rule = Rule::with_limit(name?, algorithm?, limit?);
    rule.conditions = conditions?;
    rule.per = per?;
    rule.tiers = tiers?;
    rule.overrides = Overrides::new(overrides?);
    rule.accuracy = accuracy?;
    rule.mode = mode?;
    rule.on_store_failure = on_store_failure?;
    rule.rollout = rollout?;
    rule.penalty = penalty?;
    Some(rule)
}

/// What is wrong with a penalty for clients that the rule does not tell apart.
pub(super) const NOBODY_IN_PARTICULAR: &str =
    "penalty needs per, found none (one bucket for all would block everybody)";

/// What is wrong with a share of clients that the rule does not tell apart.
pub(super) const NOBODY_TO_CHOOSE: &str = "rollout needs per, found none";

pub(super) const MODES: [(&str, Mode); 3] =
    [("enforce", Mode::Enforce), ("shadow", Mode::Shadow), ("off", Mode::Off)];

pub(super) const ANSWERS: [(&str, OnStoreFailure); 3] = [
    ("allow", OnStoreFailure::Allow),
    ("deny", OnStoreFailure::Deny),
    ("local", OnStoreFailure::Local),
];

pub(super) const ALGORITHMS: [(&str, Algorithm); 6] = [
    ("token_bucket", Algorithm::TokenBucket),
    ("leaky_bucket", Algorithm::LeakyBucket { queue: 0 }),
    ("fixed_window", Algorithm::FixedWindow),
    ("sliding_window", Algorithm::SlidingWindow),
    ("sliding_log", Algorithm::SlidingLog),
    ("concurrency", Algorithm::Concurrency { hold: Concurrency::HOLD }),
];

/// What is wrong with slots that nobody could release.
pub(super) const NO_LOCAL_SLOTS: &str =
    "on_store_failure must be allow or deny with algorithm concurrency, found local";

fn algorithm(raw: &RawRule<'_>, report: &mut Report) -> Option<Algorithm> {
    let said = word(raw.algorithm, "algorithm", ALGORITHMS, report);
    let queue = raw.queue.map(|node| (node, whole(node, "queue", report)));
    let hold = raw.hold.map(|node| (node, hold(node, report)));
    let chosen = match raw.algorithm {
        None => implied(raw).or(said)?,
        Some(_) => said?,
    };
    let (mut algorithm, name) = (chosen, chosen.name());
    if let Some((node, queue)) = queue {
        algorithm = match chosen {
            Algorithm::LeakyBucket { .. } => Algorithm::LeakyBucket { queue: queue? },
            _ => noted(Err(QuotaError::NoQueue { algorithm: name }), node, report)?,
        };
    }
    if let Some((node, hold)) = hold {
        algorithm = match chosen {
            Algorithm::Concurrency { .. } => Algorithm::Concurrency { hold: hold? },
            _ => noted(Err(QuotaError::NoHold { algorithm: name }), node, report)?,
        };
    }
    Some(algorithm)
}

/// The algorithm of a limit that says how it counts: `20 in flight`.
fn implied(raw: &RawRule<'_>) -> Option<Algorithm> {
    let quota: Quota = raw.limit.and_then(Node::text)?.parse().ok()?;
    quota.is_in_flight().then_some(Algorithm::Concurrency { hold: Concurrency::HOLD })
}

fn hold(node: &Node<'_>, report: &mut Report) -> Option<Span> {
    let written = text(node, "hold", report)?;
    let span = window_of(written.trim()).map_err(|error| format!("hold: {error}"));
    let found = noted(span, node, report)?;
    let (shortest, longest) = Concurrency::HOLDS;
    match (shortest..=longest).contains(&found) {
        true => Some(found),
        false => noted(Err(QuotaError::Hold { found }), node, report),
    }
}

/// Checks that a name can stand in a metric, a header and a URL without quoting.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let known = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    if (1..=Rule::MAX_NAME).contains(&name.len()) && name.chars().all(known) {
        return Ok(());
    }
    Err(format!(
        "name must be 1 to {} letters, digits, '_', '.' or '-', found {}",
        Rule::MAX_NAME,
        quoted(name)
    ))
}

/// Checks the name of an attribute, which may be anything that a chain can spell.
fn check_attribute(name: &str) -> Result<(), String> {
    let fits = (1..=Request::MAX_NAME).contains(&name.len());
    if fits && name.trim() == name && !name.contains(|c: char| c == '|' || c.is_control()) {
        return Ok(());
    }
    Err(format!(
        "attribute must be 1 to {} bytes without '|', found {}",
        Request::MAX_NAME,
        quoted(name)
    ))
}

/// Reads `user | api_key | ip`.
pub(super) fn chain(text: &str) -> Result<Chain, String> {
    let attributes = text.split('|').map(|name| {
        let name = name.trim();
        check_attribute(name).map(|()| Box::from(name))
    });
    let attributes: SmallVec<[Box<str>; 1]> = attributes.collect::<Result<_, String>>()?;
    if attributes.len() > Chain::MAX_ALTERNATIVES {
        let (most, found) = (Chain::MAX_ALTERNATIVES, attributes.len());
        return Err(format!("per must name at most {most} attributes in one chain, found {found}"));
    }
    Ok(Chain::new(attributes))
}

fn per(node: &Node<'_>, report: &mut Report) -> Option<Vec<Chain>> {
    let items = list(node, "per", Rule::MAX_PER, report)?;
    let chains: Vec<Option<Chain>> =
        items.iter().map(|item| noted(chain(text(item, "per", report)?), item, report)).collect();
    chains.into_iter().collect()
}
