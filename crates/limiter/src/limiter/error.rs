//! Why a limiter did not do what it was asked to.

use thiserror::Error;
use tidegate_core::Decision;

use crate::store::StoreError;

/// A rule that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("no rule is named {name:?}")]
pub struct UnknownRule {
    /// The name asked for.
    pub name: String,
}

/// Why a rule has no handle.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum NoHandle {
    /// There is no such rule.
    #[error(transparent)]
    Unknown(#[from] UnknownRule),
    /// The rule does not count by exactly one attribute.
    #[error("rule {rule:?} counts by {found} attributes, a handle needs one")]
    Parts {
        /// The rule.
        rule: String,
        /// How many attributes it counts by.
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

/// Why a client could not be forgotten.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum ForgetError {
    /// There is no such rule.
    #[error(transparent)]
    Unknown(#[from] UnknownRule),
    /// The store did not confirm it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Why waiting would not help.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// The cost is more than one of the limits ever admits.
    #[error("the request costs more than one of its limits ever admits")]
    NeverFits(Decision),
    /// The client is blocked, and the decision says until when.
    #[error("the client is blocked")]
    Blocked(Decision),
    /// The store failed, and a rule denies then.
    #[error("the store failed, and a rule denies then")]
    Unavailable(Decision),
}
