//! What Envoy can log about a decision, and what its other filters can read: dynamic metadata.

use std::sync::Arc;

use serde_json::{Map, Value};
use tidegate_core::{Decision, retry_after_seconds};

use super::asked::{Asked, DescriptorLimit};
use super::status::Status;

/// Under which name our notes stand.
const OURS: &str = "tidegate";

/// The notes on a call: nothing when it was simply allowed.
///
/// `tidegate` has, as far as they apply: `rule` that denied, `retryAfter` in seconds, `blocked`, `shadow`
/// rules that would have denied, and rules that were `undecided` because the store failed. Beside it
/// stands what the files of envoyproxy/ratelimit say about limits that are not over.
pub(crate) fn of<'d>(
    asked: &[Asked<'_>],
    statuses: &[Status],
    decisions: impl Iterator<Item = &'d Decision> + Clone,
) -> Option<Map<String, Value>> {
    let mut ours = Map::new();
    let decisions = || decisions.clone();
    if let Some(decision) = decisions().find(|decision| !decision.is_allowed()) {
        if let Some(policy) = decision.strictest_rule() {
            ours.insert("rule".to_owned(), Value::from(&*policy.rule));
        }
        if let Some(wait) = decisions().filter_map(retry_after_seconds).max() {
            ours.insert("retryAfter".to_owned(), Value::from(wait));
        }
        if decision.block().is_some() {
            ours.insert("blocked".to_owned(), Value::from(true));
        }
    }
    list(&mut ours, "shadow", decisions().flat_map(would_deny));
    list(&mut ours, "undecided", decisions().flat_map(undecided));
    let mut notes = Map::new();
    for (asked, status) in asked.iter().zip(statuses) {
        if let DescriptorLimit::Unlimited(limit) | DescriptorLimit::Envoy { limit, .. } = &asked.own
            && let Some(Value::Object(theirs)) = &limit.metadata
            && !status.over
        {
            notes.extend(theirs.clone());
        }
    }
    if !ours.is_empty() {
        notes.insert(OURS.to_owned(), Value::Object(ours));
    }
    (!notes.is_empty()).then_some(notes)
}

fn undecided(decision: &Decision) -> impl Iterator<Item = &Arc<str>> {
    decision.undecided().iter().map(|undecided| &undecided.rule)
}

/// The rules in shadow that would have denied.
fn would_deny(decision: &Decision) -> impl Iterator<Item = &Arc<str>> {
    let shadows = decision.rule_outcomes().iter().filter(|policy| policy.shadow);
    shadows.filter(|policy| !policy.outcome.is_allowed()).map(|policy| &policy.rule)
}

fn list<'r>(notes: &mut Map<String, Value>, name: &str, rules: impl Iterator<Item = &'r Arc<str>>) {
    let rules: Vec<Value> = rules.map(|rule| Value::from(&**rule)).collect();
    if !rules.is_empty() {
        notes.insert(name.to_owned(), Value::Array(rules));
    }
}
