//! Limits that a caller sends with each key, as `CL.THROTTLE` does.
//!
//! Their buckets belong to an internal rule that no request matches. So they never share a bucket with a rule of a
//! document. They are counted, blocked and expired like all others.

use std::sync::Arc;

use tidegate_core::{Algorithm, CallError, CallStatus, Limit, Quota, Request, RuleIndex};
use tidegate_limiter::{CheckTarget, StoreError};
use tidegate_rules::{OnStoreFailure, Rule, RuleError};

use crate::active_rules::ActiveRules;
use crate::call::insert;

/// The name of the internal rule.
pub(crate) const RULE_NAME: &str = "cl.throttle";
/// The attribute that identifies its buckets.
const KEY_ATTRIBUTE: &str = "key";

/// Returns the internal rule. It denies while the store fails: the caller has set no `on_store_failure`, so the call is
/// answered with status unavailable.
///
/// # Errors
/// None: the rule is valid.
pub(crate) fn rule() -> Result<Rule, RuleError> {
    let rule = Rule::new(RULE_NAME, Algorithm::TokenBucket, Quota::per_second(1))?
        .with_per(KEY_ATTRIBUTE)?;
    Ok(rule.with_on_store_failure(OnStoreFailure::Deny))
}

/// Returns the request that is charged for a key.
///
/// # Errors
/// The key is too long.
pub(crate) fn request(key: &str, cost: u64) -> Result<Request<'_>, CallError> {
    let mut request = Request::new().cost(cost);
    insert(&mut request, KEY_ATTRIBUTE, KEY_ATTRIBUTE, key)?;
    Ok(request)
}

/// Returns the index of the internal rule.
pub(crate) fn rule_index(rules: &ActiveRules) -> Option<RuleIndex> {
    rules.limiter.rules().rule_index(RULE_NAME)
}

/// Returns the target of a check under a limit of the caller.
///
/// # Errors
/// The internal rule is missing. Every set of active rules contains it.
pub(crate) fn target<'l>(
    rules: &ActiveRules,
    limit: &'l Arc<Limit>,
) -> Result<CheckTarget<'l>, CallError> {
    let index = rule_index(rules);
    let index = index.ok_or_else(|| CallError::invalid("limit", "one", "a rule in its place"))?;
    Ok(CheckTarget::RuleWithLimit(index, limit))
}

/// Returns the error of a refund that the store did not confirm. It does not name the store; the log does.
pub(crate) fn unconfirmed(error: &StoreError) -> CallError {
    tracing::debug!(%error, "refund not confirmed");
    CallError {
        status: CallStatus::Unavailable,
        reason: None,
        path: "store".to_owned(),
        found: "no answer".to_owned(),
        wanted: "a confirmed refund".to_owned(),
    }
}
