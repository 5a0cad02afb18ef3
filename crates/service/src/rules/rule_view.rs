//! The JSON of a rule for operators: everything but values that may be secrets.

use std::borrow::Cow;

use tidegate_api::{ConditionView, LimitView, OverrideView, RuleView, TierView, TiersView};
use tidegate_core::Limit;
use tidegate_rules::{AttributeChain, CanonicalRule, Condition, Override, Rule, TierLimits};

/// Returns the JSON of a rule, for `/v1/rules` and for differences.
pub fn rule_view(rule: &Rule) -> RuleView<Cow<'_, str>> {
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
        caller_refunds,
    } = rule.canonical();
    RuleView {
        name: name.into(),
        mode: mode.name().into(),
        r#match: condition_views(conditions),
        per: per.iter().map(|chain: &AttributeChain| chain.as_str().into()).collect(),
        limit: limit_view(limit),
        accuracy: accuracy.name().into(),
        fleet: accuracy.bound(limit).map(|bound| bound.to_string().into()),
        on_store_failure: on_store_failure.name().into(),
        rollout: rollout.map(|share| share.to_string().into()),
        tiers: tiers.map(tiers_view),
        overrides: overrides.iter().map(|item| override_view(item, limit)).collect(),
        penalty: penalty.map(|penalty| penalty.describe(limit).into()),
        caller_refunds: caller_refunds.name().into(),
    }
}

fn limit_view(limit: &Limit) -> LimitView<Cow<'_, str>> {
    LimitView {
        limit: limit.to_string().into(),
        algorithm: limit.algorithm().name().into(),
        bound: limit.bound().to_string().into(),
    }
}

fn condition_views(conditions: &[Condition]) -> Vec<ConditionView<Cow<'_, str>>> {
    let views = conditions.iter().map(|condition| ConditionView {
        attribute: Cow::from(condition.attribute()),
        wanted: condition.redacted().into(),
    });
    views.collect()
}

fn tiers_view(tiers: &TierLimits) -> TiersView<Cow<'_, str>> {
    let limits = tiers
        .iter()
        .map(|(tier, limit)| TierView { tier: Cow::from(tier), limit: limit_view(limit) });
    TiersView { by: tiers.by().into(), limits: limits.collect() }
}

fn override_view<'a>(item: &'a Override, rule_limit: &'a Limit) -> OverrideView<Cow<'a, str>> {
    let exempt = || LimitView {
        limit: Override::EXEMPT_WORD.into(),
        algorithm: rule_limit.algorithm().name().into(),
        bound: "not counted and not limited".into(),
    };
    OverrideView {
        r#match: condition_views(item.conditions()),
        until: item.until().map(|until| until.as_secs_ceil()),
        rollout: item.rollout().map(|share| share.to_string().into()),
        limit: item.limit().map_or_else(exempt, |limit| limit_view(limit)),
    }
}
