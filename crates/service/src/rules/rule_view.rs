//! The JSON of a rule for operators: everything but values that may be secrets.

use serde::Serialize;
use tidegate_core::Limit;
use tidegate_rules::{CanonicalRule, Chain, Condition, Override, Rule, Tiers};

/// A rule in `/v1/rules` and in differences.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub struct RuleView<'a> {
    name: &'a str,
    mode: &'static str,
    r#match: Vec<ConditionView<'a>>,
    per: Vec<&'a str>,
    #[serde(flatten)]
    limit: LimitView,
    accuracy: &'static str,
    /// The bound across a fleet, where it is not that of the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    fleet: Option<String>,
    on_store_failure: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tiers: Option<TiersView<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    overrides: Vec<OverrideView<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    penalty: Option<String>,
}

/// A limit, `100 per 60 s, burst 200 (token_bucket)`, and the most that it admits.
#[derive(Serialize)]
struct LimitView {
    limit: String,
    algorithm: &'static str,
    bound: String,
}

#[derive(Serialize)]
struct ConditionView<'a> {
    attribute: &'a str,
    wanted: String,
}

#[derive(Serialize)]
struct TiersView<'a> {
    by: &'a str,
    limits: Vec<TierView<'a>>,
}

#[derive(Serialize)]
struct TierView<'a> {
    tier: &'a str,
    #[serde(flatten)]
    limit: LimitView,
}

#[derive(Serialize)]
struct OverrideView<'a> {
    r#match: Vec<ConditionView<'a>>,
    /// Unix seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    until: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    rollout: Option<String>,
    #[serde(flatten)]
    limit: LimitView,
}

impl<'a> RuleView<'a> {
    /// Returns the view of a rule.
    pub fn of(rule: &'a Rule) -> Self {
        let CanonicalRule {
            name,
            conditions,
            per,
            limit,
            tiers,
            overrides,
            mode,
            accuracy,
            on_store_failure,
            rollout,
            penalty,
        } = rule.canonical();
        Self {
            name,
            mode: mode.name(),
            r#match: ConditionView::all(conditions),
            per: per.iter().map(Chain::as_str).collect(),
            limit: LimitView::of(limit),
            accuracy: accuracy.name(),
            fleet: accuracy.bound(limit).map(|bound| bound.to_string()),
            on_store_failure: on_store_failure.name(),
            rollout: rollout.map(|share| share.to_string()),
            tiers: tiers.map(TiersView::of),
            overrides: overrides.iter().map(OverrideView::of).collect(),
            penalty: penalty.map(|penalty| penalty.words(limit)),
        }
    }
}

impl LimitView {
    fn of(limit: &Limit) -> Self {
        let bound = limit.bound().to_string();
        Self { limit: limit.to_string(), algorithm: limit.algorithm().name(), bound }
    }
}

impl<'a> ConditionView<'a> {
    fn all(conditions: &'a [Condition]) -> Vec<Self> {
        let view =
            |item: &'a Condition| Self { attribute: item.attribute(), wanted: item.redacted() };
        conditions.iter().map(view).collect()
    }
}

impl<'a> TiersView<'a> {
    fn of(tiers: &'a Tiers) -> Self {
        let limits =
            tiers.iter().map(|(tier, limit)| TierView { tier, limit: LimitView::of(limit) });
        Self { by: tiers.by(), limits: limits.collect() }
    }
}

impl<'a> OverrideView<'a> {
    fn of(item: &'a Override) -> Self {
        Self {
            r#match: ConditionView::all(item.conditions()),
            until: item.until().map(|until| until.as_secs_ceil()),
            rollout: item.rollout().map(|share| share.to_string()),
            limit: LimitView::of(item.limit()),
        }
    }
}
