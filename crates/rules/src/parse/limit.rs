//! Reads limits: those of a rule, of its tiers and of its overrides.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tidegate_core::quota::window_of;
use tidegate_core::{Algorithm, Limit, Quota, Timestamp};

use crate::error::{ErrorReport, quote};
use crate::limits::{Override, TierLimits};
use crate::nearest::did_you_mean;
use crate::parse::{condition, rollout};
use crate::pattern_set::FixedHasher;
use crate::per::{AttributeChain, check_attribute};
use crate::raw::{keys, list, map, or_report, required, text, whole};
use crate::rule::Rule;
use crate::set::RuleSet;
use crate::yaml::{YamlNode, YamlValue};

/// Reads `100 per second` or `{amount: 250, window: 15m, burst: 500}`.
pub(crate) fn quota(node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<Quota> {
    match &node.value {
        YamlValue::Text(text) => or_report(text.parse(), node, report),
        YamlValue::Map(_) => {
            let [amount, window, burst] =
                keys(node, "limit", ["amount", "window", "burst"], report)?;
            let amount = required(amount, "limit.amount", node.at, report)
                .and_then(|node| whole(node, "limit.amount", report));
            let window = required(window, "limit.window", node.at, report).and_then(|node| {
                let text = text(node, "limit.window", report)?;
                or_report(window_of(text.trim()), node, report)
            });
            let quota = match burst {
                Some(node) => {
                    let burst = whole(node, "limit.burst", report);
                    Quota::per(amount?, window?).burst(burst?)
                }
                None => Quota::per(amount?, window?),
            };
            Some(quota)
        }
        YamlValue::Nothing | YamlValue::List(_) => {
            report.add(
                node.at,
                format!(
                    "limit must read like \"100 per minute\" or {{amount: 250, window: 15m}}, found {}",
                    node.describe()
                ),
            );
            None
        }
    }
}

/// Returns the limit that counts a quota, or an error on the line of `node`.
pub(crate) fn checked(
    algorithm: Algorithm,
    quota: Quota,
    node: &YamlNode<'_>,
    report: &mut ErrorReport,
) -> Option<Arc<Limit>> {
    or_report(Limit::new(algorithm, quota).map(Arc::new), node, report)
}

fn limit(
    algorithm: Algorithm,
    node: &YamlNode<'_>,
    report: &mut ErrorReport,
) -> Option<Arc<Limit>> {
    let quota = quota(node, report)?;
    checked(algorithm, quota, node, report)
}

/// Limits by their text. A hundred thousand overrides usually have only a few different limits.
type LimitCache<'n> = HashMap<&'n str, Arc<Limit>, FixedHasher>;

/// Reads a limit; the same text returns the same [`Arc`].
fn shared_limit<'n>(
    algorithm: Algorithm,
    node: &'n YamlNode<'n>,
    known: &mut LimitCache<'n>,
    report: &mut ErrorReport,
) -> Option<Arc<Limit>> {
    let Some(text) = node.text() else {
        return limit(algorithm, node, report);
    };
    if let Some(limit) = known.get(text) {
        return Some(Arc::clone(limit));
    }
    let limit = limit(algorithm, node, report)?;
    known.insert(text, Arc::clone(&limit));
    Some(limit)
}

/// Reads `{by: claim.plan, limits: {free: 10 per second}}`.
pub(crate) fn tiers(
    node: &YamlNode<'_>,
    algorithm: Algorithm,
    report: &mut ErrorReport,
) -> Option<TierLimits> {
    let [by, limits] = keys(node, "tiers", ["by", "limits"], report)?;
    let by = required(by, "tiers.by", node.at, report).and_then(|node| {
        let by = text(node, "tiers.by", report)?;
        or_report(check_attribute(by).map(|()| by), node, report)
    });
    let limits = required(limits, "tiers.limits", node.at, report)
        .and_then(|node| tier_limits(node, algorithm, report));
    Some(TierLimits::new(by?, limits?))
}

fn tier_limits(
    node: &YamlNode<'_>,
    algorithm: Algorithm,
    report: &mut ErrorReport,
) -> Option<BTreeMap<Box<str>, Arc<Limit>>> {
    let entries = map(node, "tiers.limits", report)?;
    if entries.len() > Rule::MAX_TIERS {
        let (most, found) = (Rule::MAX_TIERS, entries.len());
        report.add(node.at, format!("tiers.limits must have at most {most} tiers, found {found}"));
        return None;
    }
    let limits: Vec<_> = entries
        .iter()
        .map(|(name, node)| {
            let limit = limit(algorithm, node, report);
            if !(1..=Rule::MAX_VALUE_BYTES).contains(&name.text.len()) {
                let (most, found) = (Rule::MAX_VALUE_BYTES, quote(&name.text));
                report.add(name.at, format!("tier must be 1 to {most} bytes long, found {found}"));
                return None;
            }
            Some((Box::from(&*name.text), limit?))
        })
        .collect();
    limits.into_iter().collect()
}

/// Reads `[{match: {api_key: partner-1}, limit: 5000 per second, until: 2027-01-01T00:00:00Z}]`.
pub(crate) fn overrides(
    node: &YamlNode<'_>,
    algorithm: Algorithm,
    per: Option<&[AttributeChain]>,
    report: &mut ErrorReport,
) -> Option<Vec<Override>> {
    let items = list(node, "overrides", RuleSet::MAX_OVERRIDES, report)?;
    let mut known = LimitCache::default();
    let mut overrides = Some(Vec::with_capacity(items.len()));
    for item in items {
        let found = one_override(item, algorithm, per, &mut known, report);
        overrides = overrides.zip(found).map(|(mut overrides, found)| {
            overrides.push(found);
            overrides
        });
    }
    overrides
}

fn one_override<'n>(
    node: &'n YamlNode<'n>,
    algorithm: Algorithm,
    per: Option<&[AttributeChain]>,
    known: &mut LimitCache<'n>,
    report: &mut ErrorReport,
) -> Option<Override> {
    let [matching, limited, until, share] =
        keys(node, "override", ["match", "limit", "until", "rollout"], report)?;
    let conditions = required(matching, "override.match", node.at, report)
        .and_then(|node| condition::all(node, report));
    let limit = required(limited, "override.limit", node.at, report)
        .and_then(|node| limit_or_exempt(algorithm, node, known, report));
    let until = match until {
        Some(node) => instant(node, report).map(Some),
        None => Some(None),
    };
    let share = rollout(share, per, report);
    Some(Override { conditions: conditions?.into(), limit: limit?, until: until?, rollout: share? })
}

/// Reads the limit of an override; `exempt` is `Some(None)`.
fn limit_or_exempt<'n>(
    algorithm: Algorithm,
    node: &'n YamlNode<'n>,
    known: &mut LimitCache<'n>,
    report: &mut ErrorReport,
) -> Option<Option<Arc<Limit>>> {
    let word = Override::EXEMPT_WORD;
    match node.text() {
        Some(text) if text == word => Some(None),
        Some(text) if !text.trim_start().starts_with(|c: char| c.is_ascii_digit()) => {
            let (found, meant) = (quote(text), did_you_mean(text, [word]));
            let wanted = format!("{word}, or read like \"100 per minute\"");
            report.add(node.at, format!("override.limit must be {wanted}, found {found}{meant}"));
            None
        }
        _ => shared_limit(algorithm, node, known, report).map(Some),
    }
}

/// Reads an RFC 3339 time. One before 1970 becomes the epoch, which has passed as well.
fn instant(node: &YamlNode<'_>, report: &mut ErrorReport) -> Option<Timestamp> {
    let time = node.text().and_then(|text| text.parse::<jiff::Timestamp>().ok());
    if time.is_none() {
        report.add(
            node.at,
            format!("until must read like \"2027-01-01T00:00:00Z\", found {}", node.describe()),
        );
    }
    time.map(|time| Timestamp::from_micros(u64::try_from(time.as_microsecond()).unwrap_or(0)))
}
