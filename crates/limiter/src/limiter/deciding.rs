//! Questions to the store, and the decision that its answers make.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::rule::{Mode, OnStoreFailure};
use tidegate_core::{Decision, Key, Limit, Outcome, Policies, Policy, Request, Rule, Timestamp};

use super::failing::Verdicts;
use super::{Limiter, Receipt};
use crate::store::{Answer, Answers, Charge, Refund, Store};

/// A charge to be made for one rule.
#[derive(Clone, Copy)]
pub(super) struct Ask<'r> {
    /// Which of the claims that are decided together it is for.
    pub(super) claim: usize,
    pub(super) place: usize,
    pub(super) rule: &'r Rule,
    pub(super) key: Key,
    pub(super) shared: Key,
    pub(super) limit: &'r Arc<Limit>,
    pub(super) cost: u64,
}

pub(super) type Asks<'r> = SmallVec<[Ask<'r>; 4]>;

impl<'r> Ask<'r> {
    pub(super) fn charge(&self) -> Charge<'r> {
        let Self { key, shared, limit, cost, .. } = *self;
        Charge { key, shared, limit, cost, alone: !self.is_enforced() }
    }

    /// Whether it can deny.
    pub(super) fn is_enforced(&self) -> bool {
        self.rule.mode() == Mode::Enforce
    }

    /// What the rule says to the request.
    fn policy(&self, outcome: &Outcome) -> Policy {
        Policy {
            rule: self.rule.shared_name(),
            limit: Arc::clone(self.limit),
            outcome: *outcome,
            shadow: !self.is_enforced(),
        }
    }

    pub(super) fn refund(&self, slip: Option<tidegate_core::Slip>) -> Refund {
        Refund { key: self.key, limit: Arc::clone(self.limit), cost: self.cost, slip }
    }
}

impl<S: Store> Limiter<S> {
    /// The question of one rule, under the limit that it has for the request.
    pub(super) fn ask(&self, place: usize, request: &Request<'_>) -> Ask<'_> {
        let rule = &self.inner.rules.rules()[place];
        // Only an override can end, and reading a clock costs as much as a decision.
        let dated = !rule.overrides().is_empty();
        let now = if dated { self.inner.clock.now() } else { Timestamp::EPOCH };
        self.ask_under(place, request, rule.limit_for(request, now).limit)
    }

    /// The question of one rule under any limit.
    pub(super) fn ask_under<'r>(
        &'r self,
        place: usize,
        request: &Request<'_>,
        limit: &'r Arc<Limit>,
    ) -> Ask<'r> {
        let (rule, (scope, shared)) = (&self.inner.rules.rules()[place], &self.inner.scopes[place]);
        let (key, cost) = (scope.key(rule.parts(request)), request.costs());
        Ask { claim: 0, place, rule, key, shared: *shared, limit, cost }
    }

    /// Charges what is asked for one request, all of it or nothing.
    pub(super) async fn decide(&self, mut asks: Asks<'_>) -> (Decision, Receipt) {
        if asks.is_empty() {
            return (Decision::of(Policies::new()), Receipt::default());
        }
        if let [ask] = asks.as_slice()
            && !self.has_own_way(ask)
        {
            let answers = self.inner.store.charge(&[ask.charge()]).await;
            if let [Answer::Decided(outcome)] = answers.as_slice() {
                return self.decided_alone(ask, outcome);
            }
            return self.settled(&asks, &[ask.charge()], &answers);
        }
        asks.sort_by_key(|ask| self.inner.ranks[ask.place]);
        let charges: SmallVec<[Charge<'_>; 4]> = asks.iter().map(Ask::charge).collect();
        let (answers, taken) = self.charge(&asks, &charges).await;
        let (decision, mut receipt) = self.settled(&asks, &charges, &answers);
        if decision.is_allowed() {
            receipt.taken = taken;
        } else {
            self.put_back_detached(taken);
        }
        (decision, receipt)
    }

    /// The decision of a rule that was asked alone and answered, as most are.
    #[inline]
    fn decided_alone(&self, ask: &Ask<'_>, outcome: &Outcome) -> (Decision, Receipt) {
        self.inner.failing.note_success(ask);
        let mut policies = Policies::new();
        policies.push(ask.policy(outcome));
        let mut receipt = Receipt::default();
        receipt.refunds.extend(outcome.slip().map(|slip| ask.refund(Some(slip))));
        (Decision::of(policies), receipt)
    }

    /// The decision that the store's answers make, with what the rules say where it did not answer.
    fn settled(
        &self,
        asks: &[Ask<'_>],
        charges: &[Charge<'_>],
        answers: &Answers,
    ) -> (Decision, Receipt) {
        let verdicts = self.inner.failing.settle(&*self.inner.store, asks, charges, answers);
        let refunds = asks.iter().zip(answers).filter_map(|(ask, answer)| {
            let slip = answer.outcome()?.slip()?;
            Some(ask.refund(Some(slip)))
        });
        let refunds: SmallVec<[Refund; 2]> = refunds.collect();
        let decision = decision(asks, &verdicts, 0);
        if decision.is_allowed() || refunds.is_empty() {
            return (decision, Receipt { refunds, ..Receipt::default() });
        }
        // What one rule denied without the store, others may have been charged for in it.
        let given_back = |refund: &Refund| {
            let ask = asks.iter().find(|ask| ask.key == refund.key);
            ask.is_some_and(Ask::is_enforced)
        };
        let (back, kept) = refunds.into_iter().partition(given_back);
        self.refund_detached(Receipt { refunds: back, ..Receipt::default() });
        (decision, Receipt { refunds: kept, ..Receipt::default() })
    }
}

/// What was found for one claim, in the order of the rules.
pub(super) fn decision(asks: &[Ask<'_>], verdicts: &Verdicts, claim: usize) -> Decision {
    let outcomes = verdicts.outcomes.iter().filter(|(index, _)| asks[*index].claim == claim);
    let mut policies: SmallVec<[(usize, Policy); 4]> = outcomes
        .map(|(index, outcome)| {
            let ask = &asks[*index];
            (ask.place, ask.policy(outcome))
        })
        .collect();
    policies.sort_by_key(|(place, _)| *place);
    let decision = Decision::of(policies.into_iter().map(|(_, policy)| policy).collect());
    if verdicts.undecided.is_empty() {
        return decision;
    }
    let undecided = verdicts.undecided.iter().map(|index| &asks[*index]);
    let undecided: Vec<&Ask<'_>> = undecided.filter(|ask| ask.claim == claim).collect();
    let denies = |ask: &&Ask<'_>| ask.rule.on_store_failure() == OnStoreFailure::Deny;
    let unavailable = undecided.iter().any(denies);
    let names = undecided.iter().map(|ask| ask.rule.shared_name()).collect();
    decision.with_undecided(names, unavailable)
}
