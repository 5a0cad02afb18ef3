//! All parts of one client, as one request meets them.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Key, Limit, Outcome, Slip};

use crate::coordination::{LocalCharge, LocalCharges};
use crate::store::{Answer, Charge, ChargeMode, Refund, Store, StoreError};

/// One part of a client's limit.
pub(super) struct Part {
    pub(super) key: Key,
    pub(super) limit: Arc<Limit>,
}

impl Part {
    fn charge<'a>(&'a self, whole: &Charge<'_>, cost: u64, alone: bool) -> Charge<'a> {
        Charge { key: self.key, shared: whole.shared, limit: &self.limit, cost, alone }
    }

    pub(super) fn refund(&self, cost: u64, slip: Option<Slip>) -> Refund {
        Refund { key: self.key, limit: Arc::clone(&self.limit), cost, slip }
    }
}

/// All parts of a client, and what one request has heard of each.
pub(super) struct Row {
    pub(super) parts: Arc<[Part]>,
    pub(super) seen: SmallVec<[Option<Outcome>; 8]>,
}

impl Row {
    pub(super) fn new(parts: Arc<[Part]>) -> Self {
        let seen = parts.iter().map(|_| None).collect();
        Self { parts, seen }
    }

    /// How much is left in all parts that were seen.
    pub(super) fn left(&self) -> u64 {
        self.seen.iter().flatten().map(|outcome| outcome.remaining).sum()
    }

    /// Charges all of the cost to one part.
    pub(super) async fn one<S: Store>(
        &mut self,
        store: &Arc<S>,
        charge: &Charge<'_>,
        place: usize,
    ) -> Result<Outcome, StoreError> {
        let asked = self.parts[place].charge(charge, charge.cost, false);
        let outcome =
            match store.charge(std::slice::from_ref(&asked), ChargeMode::Spend).await.pop() {
                Some(Answer::Decided(outcome)) => Ok(outcome),
                Some(Answer::Failed(error)) => Err(error),
                Some(Answer::Unasked) | None => Err(unanswered()),
            }?;
        self.seen[place] = Some(outcome);
        Ok(outcome)
    }

    /// Looks at those parts that are wanted, all at once. One that could not be asked has nothing.
    pub(super) async fn look<S: Store>(
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
        let looks = places.iter().map(|at| self.parts[*at].charge(charge, 0, true));
        let looks: SmallVec<[Charge<'_>; 8]> = looks.collect();
        let mut away = None;
        for (at, answer) in places.iter().zip(store.charge(&looks, ChargeMode::Peek).await) {
            self.seen[*at] = answer.outcome().copied();
            match answer {
                Answer::Decided(_) => {}
                Answer::Failed(error) => away = Some(error),
                Answer::Unasked => away = Some(unanswered()),
            }
        }
        away
    }

    /// Charges the cost to as many parts as it takes, all of it or nothing. Whether it fitted; others may
    /// have been faster.
    pub(super) async fn gather<S: Store>(
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
                Answer::Decided(outcome) => {
                    self.seen[*at] = Some(outcome);
                    let part = &self.parts[*at];
                    got.extend(outcome.slip().map(|slip| part.refund(*cost, Some(slip))));
                }
                Answer::Failed(error) => failed = Some(error),
                Answer::Unasked => {}
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

fn unanswered() -> StoreError {
    let reason = "it answered nothing".into();
    StoreError::Unavailable { store: "store".into(), reason }
}
