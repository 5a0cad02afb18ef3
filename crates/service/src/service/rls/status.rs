//! How one descriptor stands.

use tidegate_core::{Decision, RuleOutcome, Span};

use super::Unit;
use super::asked::{Asked, DescriptorLimit};

/// What is said about a descriptor: the strictest of the limits that apply to it.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Whether the descriptor is over its limit.
    pub over: bool,
    /// Nothing when no limit applies.
    pub limit: Option<CurrentLimit>,
    /// The limit that remains.
    pub remaining: u32,
    /// When the limit is whole again; there whenever a limit is.
    pub reset_after: Option<Span>,
}

/// A limit as Envoy has them.
#[derive(Debug, PartialEq, Eq)]
pub struct CurrentLimit {
    /// Requests per unit.
    pub requests_per_unit: u32,
    /// Unknown for a window that has no name.
    pub unit: Unit,
    /// The name of the limit.
    pub name: String,
}

impl Status {
    /// `decisions` are by the claims that were `asked`.
    pub(crate) fn of(asked: &Asked<'_>, decisions: &[Decision]) -> Self {
        let (by_rules, own) = match (asked.by_rules, decisions) {
            (true, [by_rules, own @ ..]) => (Some(by_rules), own.first()),
            (_, own) => (None, own.first()),
        };
        let mut status = match (by_rules.map(Self::by_rules), own) {
            (Some(status), Some(own)) => status.stricter(Self::by_own(&asked.own, own)),
            (Some(status), None) => status,
            (None, Some(own)) => Self::by_own(&asked.own, own),
            (None, None) => Self::default(),
        };
        if matches!(asked.own, DescriptorLimit::Unlimited(_))
            && status.limit.is_none()
            && !status.over
        {
            status.remaining = u32::MAX;
        }
        // Who gives back is not refused, however much there is left to be given back.
        Self { over: status.over && !asked.gives_back, ..status }
    }

    /// What the rules that match say. Those in shadow say nothing.
    fn by_rules(decision: &Decision) -> Self {
        let over = !decision.is_allowed();
        let Some(policy) = decision.strictest_rule() else {
            let wait = decision.block().map(|block| block.retry_after);
            return Self { over, reset_after: wait, ..Self::default() };
        };
        let quota = policy.limit.quota();
        let limit = CurrentLimit {
            requests_per_unit: saturated(quota.amount()),
            unit: Unit::from_window(quota.window()),
            name: policy.rule.as_ref().to_owned(),
        };
        Self::under(limit, policy, over)
    }

    /// What the limit of a descriptor's own says.
    fn by_own(own: &DescriptorLimit<'_>, decision: &Decision) -> Self {
        let over = !decision.is_allowed();
        let Some(policy) = decision.rule_outcomes().first() else {
            return Self { over, ..Self::default() };
        };
        match own {
            DescriptorLimit::Nothing | DescriptorLimit::Unlimited(_) => {
                Self { over, ..Self::default() }
            }
            DescriptorLimit::Brought { amount, unit, .. } => {
                let (requests_per_unit, unit, name) = (*amount, *unit, String::new());
                Self::under(CurrentLimit { requests_per_unit, unit, name }, policy, over)
            }
            DescriptorLimit::Envoy { limit, .. } => {
                let current = CurrentLimit {
                    requests_per_unit: limit.requests_per_unit,
                    unit: limit.unit,
                    name: limit.name.as_deref().unwrap_or_default().to_owned(),
                };
                // A quota says that it is used up, and denies nobody.
                let used_up = limit.quota && !limit.shadow && !policy.outcome.is_allowed();
                Self::under(current, policy, over || used_up)
            }
        }
    }

    fn under(limit: CurrentLimit, policy: &RuleOutcome, over: bool) -> Self {
        Self {
            over,
            limit: Some(limit),
            remaining: saturated(policy.outcome.remaining),
            reset_after: Some(policy.outcome.reset_after),
        }
    }

    /// The one of two that says more: that it is over, that there is a limit, that less is left.
    fn stricter(self, other: Self) -> Self {
        let weight = |status: &Self| {
            let least = std::cmp::Reverse(status.remaining);
            (status.over, status.limit.is_some(), least, status.reset_after)
        };
        if weight(&other) > weight(&self) { other } else { self }
    }
}

fn saturated(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
