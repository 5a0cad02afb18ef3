//! Limits that come with the call: CL.THROTTLE names its own for each key.
//!
//! Their buckets belong to a rule that nobody wrote and nothing matches, so that they meet no other
//! rule's, and are counted, blocked and kept like everybody's.

use std::sync::Arc;

use tidegate_core::{Algorithm, CallError, CallStatus, Limit, Quota, Reply, Request};
use tidegate_limiter::{CheckRequest, CheckTarget, StoreError};
use tidegate_rules::{OnStoreFailure, Rule, RuleError};

use crate::service::{InForce, Service, Via};

/// What the rule is called where rules are named.
pub(super) const NAME: &str = "cl.throttle";
/// The attribute that its buckets are told apart by.
const KEY: &str = "key";

/// The rule. Whoever asks this way has none that says what happens without a store, so it is told that
/// nobody knows.
///
/// # Errors
/// Never; it is a rule like any other.
pub(super) fn rule() -> Result<Rule, RuleError> {
    let rule = Rule::new(NAME, Algorithm::TokenBucket, Quota::per_second(1))?.with_per(KEY)?;
    Ok(rule.with_on_store_failure(OnStoreFailure::Deny))
}

impl Service {
    /// Charges a key under a limit of the caller's. A cost of 0 looks.
    ///
    /// # Errors
    /// The key is too long; nothing was charged.
    pub async fn throttle(
        &self,
        via: Via,
        key: &str,
        limit: &Arc<Limit>,
        cost: u64,
    ) -> Result<Reply, CallError> {
        let (began, request) = (self.clock.now(), self.request(via, key, cost)?);
        let by = self.now();
        let claim = CheckRequest { request: &request, target: under(&by, limit)? };
        let decision = by.limiter.check(claim).await;
        Ok(self.reply(&by, via, began, &request, decision))
    }

    /// Gives back `cost` to a key, at most what it has spent, and tells how it stands then.
    ///
    /// # Errors
    /// The key is too long, or the store did not confirm it.
    pub async fn give_back_throttle(
        &self,
        via: Via,
        key: &str,
        limit: &Arc<Limit>,
        cost: u64,
    ) -> Result<Reply, CallError> {
        let (began, request) = (self.clock.now(), self.request(via, key, cost)?);
        let by = self.now();
        let claim = CheckRequest { request: &request, target: under(&by, limit)? };
        let decision = by.limiter.refund_latest(claim).await;
        let decision = decision.map_err(|error| self.refused(via, unconfirmed(&error)))?;
        // What is told is a look.
        Ok(self.reply(&by, via, began, &request.cost(0), decision))
    }

    fn request<'k>(&self, via: Via, key: &'k str, cost: u64) -> Result<Request<'k>, CallError> {
        let mut request = Request::new().cost(cost);
        super::insert(&mut request, KEY, KEY, key).map_err(|fault| self.refused(via, fault))?;
        Ok(request)
    }
}

fn under<'l>(by: &InForce, limit: &'l Arc<Limit>) -> Result<CheckTarget<'l>, CallError> {
    let index = by.limiter.rules().rule_index(NAME);
    let index = index.ok_or_else(|| CallError::invalid("limit", "one", "a rule in its place"))?;
    Ok(CheckTarget::RuleWithLimit(index, limit))
}

/// The caller learns that it is unknown; where the store is stands in the log alone.
fn unconfirmed(error: &StoreError) -> CallError {
    tracing::debug!(%error, "give-back not confirmed");
    CallError {
        status: CallStatus::Unavailable,
        path: "store".to_owned(),
        found: "no answer".to_owned(),
        wanted: "to know what was given back".to_owned(),
    }
}
