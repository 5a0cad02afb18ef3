//! Dynamic metadata: Envoy can log it, and its other filters can read it.

use std::sync::Arc;

use serde_json::{Map, Value};
use tidegate_core::{Decision, retry_after_seconds};

use super::descriptor_checks::{DescriptorChecks, DescriptorLimit};
use super::status::DescriptorStatus;

/// The field that holds the metadata of this server.
const OWN_FIELD: &str = "tidegate";

/// Returns the metadata of a call; `None` if there is none to report.
///
/// The field `tidegate` has, if they apply: the `rule` that denied, `retryAfter` in seconds, `blocked`, the `shadow`
/// rules that would have denied, and the rules that are `undecided` because the store failed. The other fields are the
/// metadata in the files of envoyproxy/ratelimit, of the limits that are not exceeded.
pub(crate) fn build<'d>(
    descriptors: &[DescriptorChecks<'_>],
    statuses: &[DescriptorStatus],
    decisions: impl Iterator<Item = &'d Decision> + Clone,
) -> Option<Map<String, Value>> {
    let mut own = Map::new();
    let decisions = || decisions.clone();
    if let Some(decision) = decisions().find(|decision| !decision.is_allowed()) {
        if let Some(outcome) = decision.strictest_rule() {
            own.insert("rule".to_owned(), Value::from(&*outcome.rule));
        }
        if let Some(wait) = decisions().filter_map(retry_after_seconds).max() {
            own.insert("retryAfter".to_owned(), Value::from(wait));
        }
        if decision.block().is_some() {
            own.insert("blocked".to_owned(), Value::from(true));
        }
    }
    insert_rules(&mut own, "shadow", decisions().flat_map(shadow_denials));
    insert_rules(&mut own, "undecided", decisions().flat_map(undecided));
    let mut metadata = Map::new();
    for (descriptor, status) in descriptors.iter().zip(statuses) {
        if let DescriptorLimit::Unlimited(limit) | DescriptorLimit::Envoy { limit, .. } =
            &descriptor.own
            && let Some(Value::Object(configured)) = &limit.metadata
            && !status.over_limit
        {
            metadata.extend(configured.clone());
        }
    }
    if !own.is_empty() {
        metadata.insert(OWN_FIELD.to_owned(), Value::Object(own));
    }
    (!metadata.is_empty()).then_some(metadata)
}

fn undecided(decision: &Decision) -> impl Iterator<Item = &Arc<str>> {
    decision.undecided().iter().map(|undecided| &undecided.rule)
}

/// Returns the shadow rules that would have denied.
fn shadow_denials(decision: &Decision) -> impl Iterator<Item = &Arc<str>> {
    let shadows = decision.rule_outcomes().iter().filter(|outcome| outcome.shadow);
    shadows.filter(|outcome| !outcome.outcome.is_allowed()).map(|outcome| &outcome.rule)
}

fn insert_rules<'r>(
    map: &mut Map<String, Value>,
    name: &str,
    rules: impl Iterator<Item = &'r Arc<str>>,
) {
    let rules: Vec<Value> = rules.map(|rule| Value::from(&**rule)).collect();
    if !rules.is_empty() {
        map.insert(name.to_owned(), Value::Array(rules));
    }
}
