//! Errors of a limiter.

use thiserror::Error;
use tidegate_core::Decision;
use tidegate_rules::{Accuracy, Mode, Rule};

use crate::store::StoreError;

/// No rule has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no rule is named {name:?}")]
pub struct UnknownRule {
    /// The requested name.
    pub name: String,
}

/// The error of [`Limiter::rule`](crate::Limiter::rule).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NotASingleKeyRule {
    /// No rule has this name.
    #[error(transparent)]
    Unknown(#[from] UnknownRule),
    /// The rule does not count by exactly one attribute.
    #[error("rule {rule:?} counts by {found} attributes, a handle needs one")]
    Parts {
        /// The rule.
        rule: String,
        /// The number of attributes that it counts by.
        found: usize,
    },
    /// The limit depends on more than the key.
    #[error(
        "rule {rule:?} has tiers, overrides, a rollout, a penalty or a mode, which need a whole request to decide"
    )]
    Varies {
        /// The rule.
        rule: String,
    },
}

impl NotASingleKeyRule {
    /// Returns the reason why a rule has no handle by key; `None` if it has one.
    pub(crate) fn of(rule: &Rule) -> Option<Self> {
        let name = || rule.name().to_owned();
        if rule.per().len() != 1 {
            return Some(Self::Parts { rule: name(), found: rule.per().len() });
        }
        let needs_request = rule.penalty().is_some() || rule.rollout().is_some();
        let coordinated = rule.accuracy() != Accuracy::Exact;
        let varies = rule.tiers().is_some() || !rule.overrides().is_empty();
        let is_enforced = rule.mode() == Mode::Enforce;
        (varies || needs_request || coordinated || !is_enforced)
            .then(|| Self::Varies { rule: name() })
    }
}

/// The error of [`Limiter::reset`](crate::Limiter::reset).
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ResetError {
    /// No rule has this name.
    #[error(transparent)]
    Unknown(#[from] UnknownRule),
    /// The store did not confirm it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The error of [`Limiter::acquire`](crate::Limiter::acquire): the request would not fit after any wait.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The cost is above the capacity of one of the limits.
    #[error("the request costs more than one of its limits ever admits")]
    ExceedsCapacity(Decision),
    /// The client is blocked. The decision has the remaining time.
    #[error("the client is blocked")]
    Blocked(Decision),
    /// The store failed, and a rule denies in that case.
    #[error("the store failed, and a rule denies then")]
    Unavailable(Decision),
}
