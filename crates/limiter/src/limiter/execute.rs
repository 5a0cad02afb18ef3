//! The second step of a check: charges are made, all or none, rolled back and refunded.

use smallvec::SmallVec;
use tidegate_core::{Decision, DecisionStatus, Outcome, Request, RuleOutcomes, Span};

use super::decide::RuleResults;
use super::error::AcquireError;
use super::plan::RuleCharge;
use super::receipt::{Receipt, RefundGuard};
use super::{CheckRequest, Limiter};
use crate::coordination::{Coordinator, LocalCharges};
use crate::store::{Charge, ChargeMode, ChargeResult, ChargeResults, Refund, Store, StoreError};
use crate::trace::{self, CheckSpan};

/// Charges of an undecided request that this node made without the store. Rolled back on drop.
struct RollbackGuard<'l, S: Store> {
    limiter: &'l Limiter<S>,
    local_charges: LocalCharges,
}

impl<S: Store> Drop for RollbackGuard<'_, S> {
    fn drop(&mut self) {
        self.limiter.roll_back_detached(std::mem::take(&mut self.local_charges));
    }
}

/// The charges of several requests that are checked together, and their results so far.
struct CheckBatch<'r> {
    charges: Vec<RuleCharge<'r>>,
    results: RuleResults,
    /// For each charge, whether it has no result yet.
    skipped: Vec<bool>,
    /// The charges that this node made without the store.
    local_charges: LocalCharges,
    span: CheckSpan,
}

impl CheckBatch<'_> {
    fn indices(&self, wanted: impl Fn(usize, &RuleCharge<'_>) -> bool) -> Vec<usize> {
        let indices = 0..self.charges.len();
        indices.filter(|index| wanted(*index, &self.charges[*index])).collect()
    }

    /// Returns whether a rule denies any request.
    fn is_denied(&self) -> bool {
        self.results.denying(&self.charges).next().is_some()
    }

    /// Returns the skipped charges of requests that no rule denies.
    fn skipped_charges(&self, mode: ChargeMode) -> Vec<usize> {
        let is_denied = |request_index: usize| {
            let mut denying = self.results.denying(&self.charges);
            denying.any(|charge| charge.request_index == request_index)
        };
        self.indices(|index, charge| {
            self.skipped[index] && charge.mode == mode && !is_denied(charge.request_index)
        })
    }
}

impl<S: Store> Limiter<S> {
    /// Charges one request to its only rule in a store that replies at once. In every other case returns `None`, and
    /// nothing was charged: [`charge`](Self::charge) decides then, and while spans are enabled, which it writes.
    #[inline]
    pub(crate) fn charge_now(
        &self,
        charges: &[RuleCharge<'_>],
        receipt: Option<&mut Receipt>,
    ) -> Option<Decision> {
        let [charge] = charges else {
            return charges.is_empty().then(|| Decision::of(RuleOutcomes::new()));
        };
        if charge.mode != ChargeMode::Spend || self.uses_coordinator(charge) || trace::is_enabled()
        {
            return None;
        }
        let outcome = self.inner.store.charge_now(&charge.charge())?;
        Some(self.decide_single(charge, &outcome, receipt))
    }

    /// Charges one request to all of its rules, or to none. Adds the charges to the receipt, if the
    /// caller has one.
    ///
    /// Charges and receipt are borrowed: each of them has hundreds of bytes, and a future that owns them
    /// copies them several times.
    pub(crate) async fn charge(
        &self,
        charges: &mut [RuleCharge<'_>],
        mut receipt: Option<&mut Receipt>,
    ) -> Decision {
        let Some(mode) = charges.first().map(|charge| charge.mode) else {
            return Decision::of(RuleOutcomes::new());
        };
        let span = CheckSpan::new();
        if let [charge] = charges
            && !self.uses_coordinator(charge)
        {
            let store_span = span.store_call(1);
            let answers = self.inner.store.charge(&[charge.charge()], mode).await;
            drop(store_span);
            let decision = match answers.as_slice() {
                [ChargeResult::Outcome(outcome)] => self.decide_single(charge, outcome, receipt),
                _ => self.decide_charged(charges, &answers, mode, receipt),
            };
            span.record(&decision);
            return decision;
        }
        self.inner.planner.order(charges);
        let (answers, local_charges) = self.charge_rules(charges, mode, &span).await;
        let decision = self.decide_charged(charges, &answers, mode, receipt.as_deref_mut());
        span.record(&decision);
        if !decision.is_allowed() {
            self.roll_back_detached(local_charges);
        } else if let Some(receipt) = receipt {
            receipt.local_charges = local_charges;
        }
        decision
    }

    /// Decides a request with one rule and a result from the store, the most frequent case.
    #[inline]
    fn decide_single(
        &self,
        charge: &RuleCharge<'_>,
        outcome: &Outcome,
        receipt: Option<&mut Receipt>,
    ) -> Decision {
        self.inner.fallback.record_success(charge);
        if let (Some(receipt), Some(refund_token)) = (receipt, outcome.refund_token()) {
            receipt.refunds.push(charge.refund(Some(refund_token)));
        }
        let mut outcomes = RuleOutcomes::new();
        outcomes.push(charge.rule_outcome(outcome));
        Decision::of(outcomes)
    }

    /// Decides by the results of the store and, where it failed, by `on_store_failure`.
    fn decide_charged(
        &self,
        charges: &[RuleCharge<'_>],
        answers: &ChargeResults,
        mode: ChargeMode,
        mut receipt: Option<&mut Receipt>,
    ) -> Decision {
        let results = self.inner.fallback.apply(&*self.inner.store, charges, answers, mode);
        let decision = results.decision(charges, 0);
        let mut refunds = Vec::new();
        for (charge, answer) in charges.iter().zip(answers) {
            let Some(refund_token) = answer.outcome().and_then(Outcome::refund_token) else {
                continue;
            };
            if !decision.is_allowed() && charge.is_enforced() {
                // Another rule denied without the store, after this one was charged in the store.
                refunds.push(charge.refund(Some(refund_token)));
            } else if let Some(receipt) = &mut receipt {
                receipt.refunds.push(charge.refund(Some(refund_token)));
            }
        }
        if !refunds.is_empty() {
            self.inner.store.refund_detached(refunds);
        }
        decision
    }

    /// Checks several requests together, except those of clients on the block list.
    pub(crate) async fn charge_batch(
        &self,
        checks: &[CheckRequest<'_, '_>],
        listed: Vec<Option<Decision>>,
    ) -> Vec<Decision> {
        let is_blocked = listed.iter().flatten().any(|decision| !decision.is_allowed());
        let charges = self.inner.planner.plan_all(checks, |index| listed[index].is_some());
        let (results, skipped) = (RuleResults::default(), vec![true; charges.len()]);
        let mut batch = CheckBatch {
            charges,
            results,
            skipped,
            local_charges: LocalCharges::new(),
            span: CheckSpan::new(),
        };
        let peeks = batch.indices(|_, charge| charge.mode == ChargeMode::Peek);
        self.charge_some(&mut batch, &peeks, ChargeMode::Peek).await;
        let spends = batch.indices(|_, charge| charge.mode == ChargeMode::Spend);
        let mode = match is_blocked || batch.is_denied() {
            true => ChargeMode::Peek,
            false => ChargeMode::Spend,
        };
        self.charge_some(&mut batch, &spends, mode).await;
        if batch.is_denied() {
            self.roll_back_detached(std::mem::take(&mut batch.local_charges));
            self.refund_batch(&batch);
            self.peek_unasked(&mut batch).await;
        }
        let decided = listed.into_iter().enumerate().map(|(request_index, listed)| {
            listed.unwrap_or_else(|| batch.results.decision(&batch.charges, request_index))
        });
        let decisions: Vec<Decision> = decided.collect();
        if let Some(denied) = decisions.iter().find(|decision| !decision.is_allowed()) {
            batch.span.record(denied);
        } else if let Some(first) = decisions.first() {
            batch.span.record(first);
        }
        decisions
    }

    /// Makes some charges of a batch, or peeks, and adds the results to it.
    async fn charge_some(&self, batch: &mut CheckBatch<'_>, indices: &[usize], mode: ChargeMode) {
        let charges: Vec<RuleCharge<'_>> =
            indices.iter().map(|index| batch.charges[*index]).collect();
        if charges.is_empty() {
            return;
        }
        let (answers, local_charges) = self.charge_rules(&charges, mode, &batch.span).await;
        batch.local_charges.extend(local_charges);
        let results = self.inner.fallback.apply(&*self.inner.store, &charges, &answers, mode);
        batch.results.extend(results, |index| indices[index]);
        for (index, answer) in indices.iter().zip(&answers) {
            batch.skipped[*index] = matches!(answer, ChargeResult::Skipped);
        }
    }

    /// Refunds charges in the store after another rule denied without the store.
    fn refund_batch(&self, batch: &CheckBatch<'_>) {
        let refunds = batch.results.outcomes.iter().filter_map(|(index, outcome)| {
            let charge = &batch.charges[*index];
            let refund_token = outcome.refund_token().filter(|_| charge.is_enforced())?;
            Some(charge.refund(Some(refund_token)))
        });
        let refunds: Vec<Refund> = refunds.collect();
        if !refunds.is_empty() {
            self.inner.store.refund_detached(refunds);
        }
    }

    /// Peeks at charges that were skipped because another request was denied, so that each request has its
    /// own decision. A request that is denied itself needs no more outcomes.
    async fn peek_unasked(&self, batch: &mut CheckBatch<'_>) {
        // Repeated, because the store skips the remaining charges again after a cached denial.
        for _ in 0..batch.charges.len() {
            let peeks = batch.skipped_charges(ChargeMode::Peek);
            let spends = batch.skipped_charges(ChargeMode::Spend);
            if peeks.is_empty() && spends.is_empty() {
                return;
            }
            self.charge_some(batch, &peeks, ChargeMode::Peek).await;
            self.charge_some(batch, &spends, ChargeMode::Peek).await;
        }
    }

    /// Returns whether a charge is made by the coordinator instead of directly in the store. Shadow rules
    /// are always charged in the store.
    pub(crate) fn uses_coordinator(&self, charge: &RuleCharge<'_>) -> bool {
        self.inner.coordinator.is_some()
            && charge.is_enforced()
            && Coordinator::handles(charge.rule.accuracy(), charge.limit)
    }

    /// Makes all charges or none, as [`Store::charge`] does, those of the coordinator first. Returns the
    /// local charges too, for a rollback if the request is denied later.
    async fn charge_rules(
        &self,
        rule_charges: &[RuleCharge<'_>],
        mode: ChargeMode,
        span: &CheckSpan,
    ) -> (ChargeResults, LocalCharges) {
        let charges: SmallVec<[Charge<'_>; 4]> =
            rule_charges.iter().map(RuleCharge::charge).collect();
        let uses_coordinator = |index: usize| self.uses_coordinator(&rule_charges[index]);
        let coordinated = (0..charges.len()).any(uses_coordinator);
        let Some(coordinator) = self.inner.coordinator.as_ref().filter(|_| coordinated) else {
            let _store_span = span.store_call(charges.len());
            return (self.inner.store.charge(&charges, mode).await, LocalCharges::new());
        };
        let mut answers: ChargeResults = charges.iter().map(|_| ChargeResult::Skipped).collect();
        let mut guard = RollbackGuard { limiter: self, local_charges: LocalCharges::new() };
        // If one charge exceeds its capacity, the request is denied, so the others are only peeks.
        let exceeds =
            |charge: &Charge<'_>| !charge.independent && charge.cost > charge.limit.capacity();
        let local_mode = if charges.iter().any(exceeds) { ChargeMode::Peek } else { mode };
        let mut denied = false;
        for index in (0..charges.len()).filter(|index| uses_coordinator(*index)) {
            let (store, accuracy) = (&self.inner.store, rule_charges[index].rule.accuracy());
            let local_charges = &mut guard.local_charges;
            let answer = coordinator
                .charge(store, accuracy, &charges[index], local_mode, local_charges)
                .await;
            denied = answer.outcome().is_some_and(|outcome| !outcome.is_allowed());
            answers[index] = answer;
            if denied {
                break;
            }
        }
        // Independent charges are made even after a denial.
        let open =
            |index: &usize| !uses_coordinator(*index) && (!denied || charges[*index].independent);
        let others: SmallVec<[usize; 4]> = (0..charges.len()).filter(open).collect();
        if !others.is_empty() {
            let stored: SmallVec<[Charge<'_>; 4]> =
                others.iter().map(|index| charges[*index].clone()).collect();
            let store_span = span.store_call(stored.len());
            let stored = self.inner.store.charge(&stored, mode).await;
            drop(store_span);
            for (index, answer) in others.iter().zip(stored) {
                let denies = answer.outcome().is_some_and(|outcome| !outcome.is_allowed());
                denied |= denies && !charges[*index].independent;
                answers[*index] = answer;
            }
        }
        if denied {
            drop(guard);
            return (answers, LocalCharges::new());
        }
        (answers, std::mem::take(&mut guard.local_charges))
    }

    /// Charges a request, and waits until it fits and its wait in the queues of leaky buckets is over.
    ///
    /// Its slots in flight are held until they expire: [`acquire_slots`](Self::acquire_slots) returns a guard
    /// that releases them.
    ///
    /// If the future is dropped while it waits in the queue of a leaky bucket, its place is freed if it is
    /// the last.
    ///
    /// # Errors
    /// The request would not fit after any wait, the client is blocked, or the store failed and a rule then
    /// denies.
    pub async fn acquire(&self, request: &Request<'_>) -> Result<Decision, AcquireError> {
        loop {
            match self.listed(request) {
                Some(decision) if decision.is_allowed() => return Ok(decision),
                Some(decision) => return Err(AcquireError::Blocked(decision)),
                None => {}
            }
            // The caller waits as required, so denials here do not count towards a penalty.
            let mut charges = self.inner.planner.plan(&request.into());
            let mut receipt = Receipt::default();
            let decision = self.charge(&mut charges, Some(&mut receipt)).await;
            // The clock is read after the check, because the wait starts then.
            let now = self.inner.clock.now();
            let wait = match decision.status() {
                DecisionStatus::Allow => {
                    let delay = decision.delay();
                    if delay > Span::ZERO {
                        let guard = RefundGuard::new(&self.inner.store, receipt.refunds.into_vec());
                        self.inner.clock.sleep_until(now + delay).await;
                        guard.disarm();
                    }
                    return Ok(decision);
                }
                DecisionStatus::Deny => decision.retry_after(),
                DecisionStatus::Unavailable => return Err(AcquireError::Unavailable(decision)),
            };
            match wait {
                Some(wait) => self.inner.clock.sleep_until(now + wait).await,
                None => return Err(AcquireError::ExceedsCapacity(decision)),
            }
        }
    }

    /// Refunds the charges of a request, as far as they still count. Returns the number of charges of which
    /// anything was refunded.
    ///
    /// # Errors
    /// The store did not confirm it. It is not retried.
    pub async fn refund(&self, receipt: Receipt) -> Result<usize, StoreError> {
        let Receipt { mut refunds, local_charges } = receipt;
        let count = local_charges.len();
        let coordinator = self.inner.coordinator.as_ref();
        let stored = coordinator
            .map(|coordinator| coordinator.roll_back(&self.inner.store, local_charges))
            .unwrap_or_default();
        let local = count - stored.len();
        refunds.extend(stored);
        if refunds.is_empty() {
            return Ok(local);
        }
        Ok(local + self.inner.store.refund(&refunds).await?)
    }

    /// Refunds as [`refund`](Self::refund) does, without waiting for the store's reply.
    pub fn refund_detached(&self, receipt: Receipt) {
        self.roll_back_detached(receipt.local_charges);
        if !receipt.refunds.is_empty() {
            self.inner.store.refund_detached(receipt.refunds.into_vec());
        }
    }

    /// Refunds up to the request's cost from the latest usage of its client. Returns the decision of
    /// [`peek_rules`](Self::peek_rules) after that.
    ///
    /// For callers without a [`Receipt`]. The limiter does not check that such a charge was made. It never
    /// refunds above a full bucket or from an earlier window. A leaky bucket refunds only places in the
    /// queue that are still in the future. Admissions minus refunds stay within the bound of the bucket. A
    /// bucket that was last charged under another limit refunds nothing.
    ///
    /// # Errors
    /// The store did not confirm it. It is not retried.
    ///
    /// # Panics
    /// The target is a rule that does not exist.
    pub async fn refund_latest<'a, 'q: 'a>(
        &self,
        request: impl Into<CheckRequest<'a, 'q>>,
    ) -> Result<Decision, StoreError> {
        let check = request.into();
        let coordinator = self.inner.coordinator.as_ref();
        let mut refunds: Vec<Refund> = Vec::new();
        let charges = self.inner.planner.plan(&check);
        for charge in charges.iter().filter(|charge| charge.mode == ChargeMode::Spend) {
            match coordinator.filter(|_| self.uses_coordinator(charge)) {
                Some(coordinator) => {
                    let (store, accuracy) = (&self.inner.store, charge.rule.accuracy());
                    refunds.extend(
                        coordinator.refund_latest(store, accuracy, charge.refund(None)).await?,
                    );
                }
                None => refunds.push(charge.refund(None)),
            }
        }
        if !refunds.is_empty() {
            self.inner.store.refund(&refunds).await?;
            if let Some(coordinator) = coordinator {
                refunds.iter().for_each(|refund| coordinator.invalidate(refund.key));
            }
        }
        match self.listed(check.request) {
            Some(decision) => Ok(decision),
            None => Ok(self.peek_rules(check).await),
        }
    }

    /// Releases the slots in flight of a request. Returns how many were still held.
    ///
    /// Other charges of the request stay; [`refund`](Self::refund) returns all of them.
    ///
    /// # Errors
    /// The store did not confirm it. The release is not retried, and slots that are still held expire after
    /// their hold time.
    pub async fn release(&self, mut receipt: Receipt) -> Result<usize, StoreError> {
        let slots = receipt.take_slots();
        match slots.is_empty() {
            true => Ok(0),
            false => self.inner.store.refund(&slots).await,
        }
    }

    /// Renews the slots in flight of a request for another hold time. Returns how many are held; released
    /// slots are not.
    ///
    /// A slot that expired, or that the store lost, is inserted again, above the limit if needed. New
    /// requests are then denied until they fit.
    ///
    /// # Errors
    /// The store did not confirm it. Retry soon: the slots expire one hold time after their last renewal.
    pub async fn renew(&self, receipt: &Receipt) -> Result<usize, StoreError> {
        let slots: Vec<Refund> = receipt.slots().cloned().collect();
        match slots.is_empty() {
            true => Ok(0),
            false => self.inner.store.renew(&slots).await,
        }
    }

    /// Rolls back local charges. Parts of them that are in the store are refunded without waiting for the
    /// reply.
    pub(crate) fn roll_back_detached(&self, local_charges: LocalCharges) {
        let Some(coordinator) =
            self.inner.coordinator.as_ref().filter(|_| !local_charges.is_empty())
        else {
            return;
        };
        let refunds = coordinator.roll_back(&self.inner.store, local_charges);
        if !refunds.is_empty() {
            self.inner.store.refund_detached(refunds);
        }
    }
}
