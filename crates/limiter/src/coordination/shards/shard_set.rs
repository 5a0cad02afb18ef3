//! The parts of one client's limit during one request.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Key, Limit, Outcome, RefundToken, Span, Verdict};

use crate::coordination::client_map::no_reply;
use crate::coordination::{LocalCharge, LocalCharges};
use crate::store::{Charge, ChargeMode, ChargeResult, Refund, Store, StoreError};

/// One part of a client's limit.
pub(crate) struct LimitPart {
    pub(crate) key: Key,
    pub(crate) limit: Arc<Limit>,
}

impl LimitPart {
    fn charge<'a>(&'a self, whole: &Charge<'_>, cost: u64, independent: bool) -> Charge<'a> {
        Charge {
            key: self.key,
            overflow_key: whole.overflow_key,
            limit: &self.limit,
            cost,
            independent,
        }
    }

    pub(crate) fn refund(&self, cost: u64, refund_token: Option<RefundToken>) -> Refund {
        Refund { key: self.key, limit: Arc::clone(&self.limit), cost, refund_token }
    }
}

/// The result of a request to the parts.
pub(crate) enum ShardsResult {
    Peeked,
    Spent,
    /// Denied, with the shortest wait that a part returned for this cost.
    Denied(Option<Span>),
}

/// All parts of a client's limit, and the outcomes that one request got from them.
pub(crate) struct ShardSet {
    pub(crate) parts: Arc<[LimitPart]>,
    /// The last outcome of each part; `None` if the part was not charged, or was unreachable.
    pub(crate) outcomes: SmallVec<[Option<Outcome>; 8]>,
}

impl ShardSet {
    pub(crate) fn new(parts: Arc<[LimitPart]>) -> Self {
        let outcomes = parts.iter().map(|_| None).collect();
        Self { parts, outcomes }
    }

    /// Returns the remaining tokens of all parts with an outcome.
    pub(crate) fn remaining(&self) -> u64 {
        self.outcomes.iter().flatten().map(|outcome| outcome.remaining).sum()
    }

    /// Returns the outcome of the whole limit, computed from the outcomes of its parts.
    ///
    /// # Errors
    /// The request was not admitted, and a part was unreachable.
    pub(crate) fn combined_outcome(
        &self,
        charge: &Charge<'_>,
        result: &ShardsResult,
        failed: Option<StoreError>,
    ) -> Result<Outcome, StoreError> {
        let (limit, cost) = (charge.limit.capacity(), charge.cost.max(1));
        let outcomes = || self.outcomes.iter().flatten();
        // All parts get the same load, so the charged part is an estimate for those without an outcome.
        let charged = outcomes().find(|outcome| outcome.refund_token().is_some());
        let unknown = u64::try_from(self.parts.len() - outcomes().count()).unwrap_or(u64::MAX);
        let estimate = charged.map_or(0, |outcome| outcome.remaining.saturating_mul(unknown));
        let max_remaining = match result {
            ShardsResult::Peeked => limit,
            ShardsResult::Spent => limit.saturating_sub(cost),
            // Concurrent requests took the tokens, and refunds may have added some since.
            ShardsResult::Denied(_) => limit.min(cost - 1),
        };
        let remaining = self.remaining().saturating_add(estimate).min(max_remaining);
        let reset_after = outcomes().map(|outcome| outcome.reset_after).max().unwrap_or(Span::ZERO);
        let is_allowed = match result {
            ShardsResult::Peeked => cost <= remaining,
            ShardsResult::Spent => true,
            ShardsResult::Denied(_) => false,
        };
        let verdict = match failed {
            _ if is_allowed => Verdict::Allow { delay: Span::ZERO, refund_token: None },
            Some(error) => return Err(error),
            None => {
                let returned = match result {
                    ShardsResult::Denied(returned) => *returned,
                    // Parts are peeked with cost 0, which counts as 1.
                    ShardsResult::Peeked if cost == 1 => {
                        outcomes().filter_map(Outcome::retry_after).min()
                    }
                    ShardsResult::Peeked | ShardsResult::Spent => None,
                };
                let wait = || estimated_wait(charge.limit, cost, remaining, reset_after);
                let wait = returned.unwrap_or_else(wait).max(Span::MICROSECOND);
                Verdict::Deny { retry_after: (cost <= limit).then_some(wait) }
            }
        };
        Ok(Outcome { limit, remaining, reset_after, verdict })
    }

    /// Charges the whole cost to one part.
    pub(crate) async fn charge_one<S: Store>(
        &mut self,
        store: &Arc<S>,
        charge: &Charge<'_>,
        index: usize,
    ) -> Result<Outcome, StoreError> {
        let part = self.parts[index].charge(charge, charge.cost, false);
        let outcome = match store.charge(std::slice::from_ref(&part), ChargeMode::Spend).await.pop()
        {
            Some(ChargeResult::Outcome(outcome)) => Ok(outcome),
            Some(ChargeResult::Failed(error)) => Err(error),
            Some(ChargeResult::Skipped) | None => Err(no_reply()),
        }?;
        self.outcomes[index] = Some(outcome);
        Ok(outcome)
    }

    /// Peeks at the wanted parts in one call. An unreachable part counts as having no tokens. Returns the error of
    /// an unreachable part.
    pub(crate) async fn peek<S: Store>(
        &mut self,
        store: &Arc<S>,
        charge: &Charge<'_>,
        wanted: impl Fn(Option<&Outcome>) -> bool,
    ) -> Option<StoreError> {
        let indices = (0..self.parts.len()).filter(|at| wanted(self.outcomes[*at].as_ref()));
        let indices: SmallVec<[usize; 8]> = indices.collect();
        if indices.is_empty() {
            return None;
        }
        let peeks = indices.iter().map(|at| self.parts[*at].charge(charge, 0, true));
        let peeks: SmallVec<[Charge<'_>; 8]> = peeks.collect();
        let mut failed = None;
        for (at, result) in indices.iter().zip(store.charge(&peeks, ChargeMode::Peek).await) {
            self.outcomes[*at] = result.outcome().copied();
            match result {
                ChargeResult::Outcome(_) => {}
                ChargeResult::Failed(error) => failed = Some(error),
                ChargeResult::Skipped => failed = Some(no_reply()),
            }
        }
        failed
    }

    /// Charges the cost to as many parts as needed, all of it or nothing. Returns `false` if concurrent requests
    /// took the tokens first.
    pub(crate) async fn charge_several<S: Store>(
        &mut self,
        store: &Arc<S>,
        charge: &Charge<'_>,
        local_charges: &mut LocalCharges,
    ) -> Result<bool, StoreError> {
        let mut rest = charge.cost;
        let mut costs: SmallVec<[(usize, u64); 8]> = SmallVec::new();
        for (at, outcome) in self.outcomes.iter().enumerate() {
            let cost = outcome.map_or(0, |outcome| outcome.remaining).min(rest);
            if cost > 0 {
                costs.push((at, cost));
                rest -= cost;
            }
        }
        let charges = costs.iter().map(|(at, cost)| self.parts[*at].charge(charge, *cost, false));
        let charges: SmallVec<[Charge<'_>; 8]> = charges.collect();
        let results = store.charge(&charges, ChargeMode::Spend).await;
        let (mut refunds, mut failed) = (Vec::new(), None);
        for ((at, cost), result) in costs.iter().zip(results) {
            match result {
                ChargeResult::Outcome(outcome) => {
                    self.outcomes[*at] = Some(outcome);
                    let (part, token) = (&self.parts[*at], outcome.refund_token());
                    refunds.extend(token.map(|token| part.refund(*cost, Some(token))));
                }
                ChargeResult::Failed(error) => failed = Some(error),
                ChargeResult::Skipped => {}
            }
        }
        if refunds.len() == costs.len() {
            local_charges.extend(refunds.into_iter().map(LocalCharge::Stored));
            return Ok(true);
        }
        // A store charges the other parts even if one fails.
        if !refunds.is_empty() {
            store.refund_detached(refunds);
        }
        failed.map_or(Ok(false), Err)
    }
}

/// Estimates the wait until a cost fits into all parts together.
fn estimated_wait(limit: &Limit, cost: u64, remaining: u64, reset_after: Span) -> Span {
    if limit.algorithm() != Algorithm::TokenBucket {
        return reset_after;
    }
    // Used tokens refill at a constant rate, all of them within `reset_after`.
    let used = u128::from(limit.capacity().saturating_sub(remaining).max(1));
    let missing = u128::from(cost.saturating_sub(remaining));
    let wait = (u128::from(reset_after.as_micros()) * missing).div_ceil(used);
    Span::from_micros(u64::try_from(wait).unwrap_or(u64::MAX))
}
