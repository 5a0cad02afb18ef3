//! Errors of a limiter.

use thiserror::Error;
use tidegate_core::Decision;

use crate::store::StoreError;

/// No rule has this name.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no rule is named {name:?}")]
pub struct UnknownRule {
    /// The requested name.
    pub name: String,
}

/// The reason why a rule has no handle for single keys.
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

/// The reason why a client's counters could not be reset.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ForgetError {
    /// No rule has this name.
    #[error(transparent)]
    Unknown(#[from] UnknownRule),
    /// The store did not confirm it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The reason why waiting does not help a request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The cost is more than one of the limits ever admits.
    #[error("the request costs more than one of its limits ever admits")]
    ExceedsCapacity(Decision),
    /// The client is blocked. The decision has the time that is left.
    #[error("the client is blocked")]
    Blocked(Decision),
    /// The store failed, and a rule denies in that case.
    #[error("the store failed, and a rule denies then")]
    Unavailable(Decision),
}
