//! The parts of one client's limit during one request.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Key, Limit, Outcome, RefundToken, Span, Verdict};

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

/// The end of a request to the parts.
pub(crate) enum ShardsResult {
    Peeked,
    Spent,
    /// With the shortest wait that a part reported for this cost.
    Denied(Option<Span>),
}

/// All parts of a client's limit, and the outcomes that one request got from them.
pub(crate) struct ShardSet {
    pub(crate) parts: Arc<[LimitPart]>,
    pub(crate) seen: SmallVec<[Option<Outcome>; 8]>,
}

impl ShardSet {
    pub(crate) fn new(parts: Arc<[LimitPart]>) -> Self {
        let seen = parts.iter().map(|_| None).collect();
        Self { parts, seen }
    }

    /// Returns the tokens that are left in all parts that were seen.
    pub(crate) fn left(&self) -> u64 {
        self.seen.iter().flatten().map(|outcome| outcome.remaining).sum()
    }

    /// Returns the outcome of the whole limit, as far as its parts were seen.
    ///
    /// # Errors
    /// The request was not admitted, and a part could not be reached.
    pub(crate) fn combined_outcome(
        &self,
        charge: &Charge<'_>,
        end: &ShardsResult,
        failed: Option<StoreError>,
    ) -> Result<Outcome, StoreError> {
        let (limit, cost) = (charge.limit.capacity(), charge.cost.max(1));
        let seen = || self.seen.iter().flatten();
        // Parts that were not charged are assumed to be like the one that was: all are used alike.
        let charged = seen().find(|outcome| outcome.refund_token().is_some());
        let unseen = u64::try_from(self.parts.len() - seen().count()).unwrap_or(u64::MAX);
        let guess = charged.map_or(0, |outcome| outcome.remaining.saturating_mul(unseen));
        let most = match end {
            ShardsResult::Peeked => limit,
            ShardsResult::Spent => limit.saturating_sub(cost),
            // Other requests were faster; what they took may be refunded.
            ShardsResult::Denied(_) => limit.min(cost - 1),
        };
        let remaining = self.left().saturating_add(guess).min(most);
        let reset_after = seen().map(|outcome| outcome.reset_after).max().unwrap_or(Span::ZERO);
        let passes = match end {
            ShardsResult::Peeked => cost <= remaining,
            ShardsResult::Spent => true,
            ShardsResult::Denied(_) => false,
        };
        let verdict = match failed {
            _ if passes => Verdict::Allow { delay: Span::ZERO, refund_token: None },
            Some(error) => return Err(error),
            None => {
                let reported = match end {
                    ShardsResult::Denied(reported) => *reported,
                    // A peek is for a cost of 1.
                    ShardsResult::Peeked if cost == 1 => {
                        seen().filter_map(Outcome::retry_after).min()
                    }
                    ShardsResult::Peeked | ShardsResult::Spent => None,
                };
                let wait = || estimated_wait(charge.limit, cost, remaining, reset_after);
                let wait = reported.unwrap_or_else(wait).max(Span::MICROSECOND);
                Verdict::Deny { retry_after: (cost <= limit).then_some(wait) }
            }
        };
        Ok(Outcome { limit, remaining, reset_after, verdict })
    }

    /// Charges all of the cost to one part.
    pub(crate) async fn charge_one<S: Store>(
        &mut self,
        store: &Arc<S>,
        charge: &Charge<'_>,
        place: usize,
    ) -> Result<Outcome, StoreError> {
        let asked = self.parts[place].charge(charge, charge.cost, false);
        let outcome =
            match store.charge(std::slice::from_ref(&asked), ChargeMode::Spend).await.pop() {
                Some(ChargeResult::Outcome(outcome)) => Ok(outcome),
                Some(ChargeResult::Failed(error)) => Err(error),
                Some(ChargeResult::Skipped) | None => Err(unanswered()),
            }?;
        self.seen[place] = Some(outcome);
        Ok(outcome)
    }

    /// Peeks at the wanted parts, all at once. A part that could not be reached has nothing left.
    pub(crate) async fn peek<S: Store>(
        &mut self,
        store: &Arc<S>,
        charge: &Charge<'_>,
        wanted: impl Fn(Option<&Outcome>) -> bool,
    ) -> Option<StoreError> {
        let places = (0..self.parts.len()).filter(|at| wanted(self.seen[*at].as_ref()));
        let places: SmallVec<[usize; 8]> = places.collect();
        if places.is_empty() {
            return None;
        }
        let peeks = places.iter().map(|at| self.parts[*at].charge(charge, 0, true));
        let peeks: SmallVec<[Charge<'_>; 8]> = peeks.collect();
        let mut away = None;
        for (at, answer) in places.iter().zip(store.charge(&peeks, ChargeMode::Peek).await) {
            self.seen[*at] = answer.outcome().copied();
            match answer {
                ChargeResult::Outcome(_) => {}
                ChargeResult::Failed(error) => away = Some(error),
                ChargeResult::Skipped => away = Some(unanswered()),
            }
        }
        away
    }

    /// Charges the cost to as many parts as it takes, all of it or nothing. Returns whether it
    /// fitted; other requests may have been faster.
    pub(crate) async fn charge_several<S: Store>(
        &mut self,
        store: &Arc<S>,
        charge: &Charge<'_>,
        taken: &mut LocalCharges,
    ) -> Result<bool, StoreError> {
        let mut rest = charge.cost;
        let mut asked: SmallVec<[(usize, u64); 8]> = SmallVec::new();
        for (at, seen) in self.seen.iter().enumerate() {
            let cost = seen.map_or(0, |outcome| outcome.remaining).min(rest);
            if cost > 0 {
                asked.push((at, cost));
                rest -= cost;
            }
        }
        let charges = asked.iter().map(|(at, cost)| self.parts[*at].charge(charge, *cost, false));
        let charges: SmallVec<[Charge<'_>; 8]> = charges.collect();
        let answers = store.charge(&charges, ChargeMode::Spend).await;
        let (mut got, mut failed) = (Vec::new(), None);
        for ((at, cost), answer) in asked.iter().zip(answers) {
            match answer {
                ChargeResult::Outcome(outcome) => {
                    self.seen[*at] = Some(outcome);
                    let part = &self.parts[*at];
                    got.extend(
                        outcome
                            .refund_token()
                            .map(|refund_token| part.refund(*cost, Some(refund_token))),
                    );
                }
                ChargeResult::Failed(error) => failed = Some(error),
                ChargeResult::Skipped => {}
            }
        }
        if got.len() == asked.len() {
            taken.extend(got.into_iter().map(LocalCharge::Stored));
            return Ok(true);
        }
        // A part that fails does not hold the others back in a store.
        if !got.is_empty() {
            store.refund_detached(got);
        }
        failed.map_or(Ok(false), Err)
    }
}

/// Estimates the wait until a cost fits into all parts together.
fn estimated_wait(limit: &Limit, cost: u64, remaining: u64, reset_after: Span) -> Span {
    if limit.algorithm() != Algorithm::TokenBucket {
        return reset_after;
    }
    // The missing part refills in its share of the time in which all of it does.
    let used = u128::from(limit.capacity().saturating_sub(remaining).max(1));
    let missing = u128::from(cost.saturating_sub(remaining));
    let wait = (u128::from(reset_after.as_micros()) * missing).div_ceil(used);
    Span::from_micros(u64::try_from(wait).unwrap_or(u64::MAX))
}

fn unanswered() -> StoreError {
    let reason = "it answered nothing".into();
    StoreError::Unavailable { store: "store".into(), reason }
}
