//! A rule as an operator may see it: everything but values that may be secrets.

use serde::Serialize;
use tidegate::rule::{Chain, Condition, Mode, OnStoreFailure, Override, Test};
use tidegate::{Limit, Rule};

use crate::top::clear;

/// What `/v1/rules` and differences say of a rule.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Shown<'a> {
    name: &'a str,
    mode: &'static str,
    r#match: Vec<Matched<'a>>,
    per: Vec<&'a str>,
    #[serde(flatten)]
    limit: Limited,
    accuracy: &'static str,
    /// What becomes of the bound across a fleet, where that needs words.
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<String>,
    on_store_failure: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tiers: Option<Tiers<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<Overridden<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty: Option<String>,
}

/// `100 per 60 s, burst 200 (token_bucket)`, and what that admits at the most.
#[derive(Serialize)]
struct Limited {
    limit: String,
    algorithm: &'static str,
    bound: String,
}

#[derive(Serialize)]
struct Matched<'a> {
    attribute: &'a str,
    wanted: String,
}

#[derive(Serialize)]
struct Tiers<'a> {
    by: &'a str,
    limits: Vec<Tier<'a>>,
}

#[derive(Serialize)]
struct Tier<'a> {
    tier: &'a str,
    #[serde(flatten)]
    limit: Limited,
}

#[derive(Serialize)]
struct Overridden<'a> {
    r#match: Vec<Matched<'a>>,
    /// Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<String>,
    #[serde(flatten)]
    limit: Limited,
}

impl<'a> Shown<'a> {
    pub(crate) fn of(rule: &'a Rule) -> Self {
        let tiers = rule.tiers().map(|tiers| Tiers {
            by: tiers.by(),
            limits: tiers
                .iter()
                .map(|(tier, limit)| Tier { tier, limit: limited(limit) })
                .collect(),
        });
        let overridden = |item: &'a Override| Overridden {
            r#match: matched(item.conditions()),
            until: item.until().map(|until| until.as_secs_ceil()),
            rollout: item.rollout().map(|share| share.to_string()),
            limit: limited(item.limit()),
        };
        Self {
            name: rule.name(),
            mode: match rule.mode() {
                Mode::Enforce => "enforce",
                Mode::Shadow => "shadow",
                Mode::Off => "off",
            },
            r#match: matched(rule.conditions()),
            per: rule.per().iter().map(Chain::as_str).collect(),
            limit: limited(rule.limit()),
            accuracy: rule.accuracy().name(),
            fleet: rule.accuracy().bound(rule.limit()).map(|bound| bound.to_string()),
            on_store_failure: match rule.on_store_failure() {
                OnStoreFailure::Allow => "allow",
                OnStoreFailure::Deny => "deny",
                OnStoreFailure::Local => "local",
            },
            rollout: rule.rollout().map(|share| share.to_string()),
            tiers,
            overrides: rule.overrides().iter().map(overridden).collect(),
            penalty: rule.penalty().map(|penalty| penalty.words(rule.limit())),
        }
    }
}

fn limited(limit: &Limit) -> Limited {
    let bound = limit.bound().to_string();
    Limited { limit: limit.to_string(), algorithm: limit.algorithm().name(), bound }
}

/// What a request must be like; of values that may be secrets only how many there are.
fn matched(conditions: &[Condition]) -> Vec<Matched<'_>> {
    let matched = conditions.iter().map(|condition| {
        let attribute = condition.attribute();
        let wanted = match condition.test() {
            Test::OneOf(patterns) if !clear::is_harmless(attribute) => {
                match patterns.exact().len() + patterns.globs().len() {
                    1 => "a value that is not shown".to_owned(),
                    count => format!("one of {count} values that are not shown"),
                }
            }
            test => test.to_string(),
        };
        Matched { attribute, wanted }
    });
    matched.collect()
}
