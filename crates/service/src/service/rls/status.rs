//! The status of one descriptor.

use tidegate_core::{Decision, RuleOutcome, Span};

use super::Unit;
use super::descriptor_checks::{DescriptorChecks, DescriptorLimit};

/// The status of a descriptor: the state of the strictest limit that applies to it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct DescriptorStatus {
    /// Set if the descriptor is over its limit.
    pub over_limit: bool,
    /// The limit; `None` if none applies.
    pub limit: Option<CurrentLimit>,
    /// Hits that remain of the limit.
    pub remaining: u32,
    /// Time until the whole limit is available again. Set if `limit` is.
    pub reset_after: Option<Span>,
}

/// A limit in the terms of Envoy.
#[derive(Debug, PartialEq, Eq)]
pub struct CurrentLimit {
    /// Requests per unit.
    pub requests_per_unit: u32,
    /// The unit; `Unknown` if Envoy has no name for the window.
    pub unit: Unit,
    /// The name of the limit.
    pub name: String,
}

impl DescriptorStatus {
    /// Returns the status of a descriptor after the decisions about its checks, which are in the same order.
    pub(crate) fn new(descriptor: &DescriptorChecks<'_>, decisions: &[Decision]) -> Self {
        let (by_rules, own) = match (descriptor.checks_rules, decisions) {
            (true, [by_rules, own @ ..]) => (Some(by_rules), own.first()),
            (_, own) => (None, own.first()),
        };
        let mut status = match (by_rules.map(Self::by_rules), own) {
            (Some(status), Some(own)) => status.stricter(Self::by_own(&descriptor.own, own)),
            (Some(status), None) => status,
            (None, Some(own)) => Self::by_own(&descriptor.own, own),
            (None, None) => Self::default(),
        };
        if matches!(descriptor.own, DescriptorLimit::Unlimited(_))
            && status.limit.is_none()
            && !status.over_limit
        {
            status.remaining = u32::MAX;
        }
        // A refund is never denied, also if the limit is exhausted.
        Self { over_limit: status.over_limit && !descriptor.is_refund, ..status }
    }

    /// Returns the status by the matching rules, without shadow rules.
    fn by_rules(decision: &Decision) -> Self {
        let over_limit = !decision.is_allowed();
        let Some(outcome) = decision.strictest_rule() else {
            let wait = decision.block().map(|block| block.retry_after);
            return Self { over_limit, reset_after: wait, ..Self::default() };
        };
        let quota = outcome.limit.quota();
        let limit = CurrentLimit {
            requests_per_unit: saturating_u32(quota.amount()),
            unit: Unit::from_window(quota.window()),
            name: outcome.rule.as_ref().to_owned(),
        };
        Self::with_limit(limit, outcome, over_limit)
    }

    /// Returns the status by the limit of the descriptor.
    fn by_own(own: &DescriptorLimit<'_>, decision: &Decision) -> Self {
        let over_limit = !decision.is_allowed();
        let Some(outcome) = decision.rule_outcomes().first() else {
            return Self { over_limit, ..Self::default() };
        };
        match own {
            DescriptorLimit::Nothing | DescriptorLimit::Unlimited(_) => {
                Self { over_limit, ..Self::default() }
            }
            DescriptorLimit::Override { amount, unit, .. } => {
                let (requests_per_unit, unit, name) = (*amount, *unit, String::new());
                Self::with_limit(
                    CurrentLimit { requests_per_unit, unit, name },
                    outcome,
                    over_limit,
                )
            }
            DescriptorLimit::Envoy { limit, .. } => {
                let current = CurrentLimit {
                    requests_per_unit: limit.requests_per_unit,
                    unit: limit.unit,
                    name: limit.name.as_deref().unwrap_or_default().to_owned(),
                };
                // With quota_mode, an exhausted limit is reported and the request is allowed.
                let exhausted = limit.quota && !limit.shadow && !outcome.outcome.is_allowed();
                Self::with_limit(current, outcome, over_limit || exhausted)
            }
        }
    }

    fn with_limit(limit: CurrentLimit, outcome: &RuleOutcome, over_limit: bool) -> Self {
        Self {
            over_limit,
            limit: Some(limit),
            remaining: saturating_u32(outcome.outcome.remaining),
            reset_after: Some(outcome.outcome.reset_after),
        }
    }

    /// Returns the stricter status: over its limit, then with a limit, then with less remaining.
    fn stricter(self, other: Self) -> Self {
        let severity = |status: &Self| {
            let least = std::cmp::Reverse(status.remaining);
            (status.over_limit, status.limit.is_some(), least, status.reset_after)
        };
        if severity(&other) > severity(&self) { other } else { self }
    }
}

fn saturating_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
