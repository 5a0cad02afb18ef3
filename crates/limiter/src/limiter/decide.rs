//! The last step of a check: results of charges become a decision, and denials count towards penalties.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Decision, Outcome, Request, RuleOutcome, RuleOutcomes, UndecidedRule};
use tidegate_rules::OnStoreFailure;

use super::Limiter;
use super::plan::{CheckRequest, RuleCharge};
use crate::block::{BlockAction, BlockOrigin, DenialCounter, Entry, Reason};
use crate::store::{ChargeMode, Store};

/// The results of some charges, by the store or by the rules' `on_store_failure`.
#[derive(Default)]
pub(crate) struct RuleResults {
    /// Outcomes, each with the index of its charge.
    pub(crate) outcomes: SmallVec<[(usize, Outcome); 4]>,
    /// Indices of the charges without an outcome: the store failed, and the rule allows or denies.
    pub(crate) undecided: Vec<usize>,
}

impl RuleResults {
    /// Adds the results of other charges. `index_of` maps their indices to indices of this batch.
    pub(crate) fn extend(&mut self, other: Self, index_of: impl Fn(usize) -> usize) {
        let outcomes = other.outcomes.into_iter();
        self.outcomes.extend(outcomes.map(|(index, outcome)| (index_of(index), outcome)));
        self.undecided.extend(other.undecided.into_iter().map(index_of));
    }

    /// Returns the charges of enforced rules that deny, by their outcome or without one.
    pub(crate) fn denying<'a, 'r>(
        &'a self,
        charges: &'a [RuleCharge<'r>],
    ) -> impl Iterator<Item = &'a RuleCharge<'r>> {
        let denied = self.outcomes.iter().filter(|(_, outcome)| !outcome.is_allowed());
        let denied = denied.map(|(index, _)| &charges[*index]);
        let undecided = self.undecided.iter().map(|index| &charges[*index]);
        denied
            .filter(|charge| charge.is_enforced())
            .chain(undecided.filter(|charge| denies_on_failure(charge)))
    }

    /// Returns the decision about one of the requests, with its rules in their order.
    pub(crate) fn decision(&self, charges: &[RuleCharge<'_>], request_index: usize) -> Decision {
        let of_request = |index: &usize| charges[*index].request_index == request_index;
        let outcomes = self.outcomes.iter().filter(|(index, _)| of_request(index));
        let outcomes = outcomes.map(|(index, outcome)| charges[*index].rule_outcome(outcome));
        let mut outcomes: RuleOutcomes = outcomes.collect();
        outcomes.sort_by_key(|outcome| outcome.rule_index);
        let decision = Decision::of(outcomes);
        if self.undecided.is_empty() {
            return decision;
        }
        let undecided = self.undecided.iter().filter(|index| of_request(index));
        let undecided: Vec<&RuleCharge<'_>> = undecided.map(|index| &charges[*index]).collect();
        let unavailable = undecided.iter().any(|charge| denies_on_failure(charge));
        let undecided = undecided.iter().map(|charge| UndecidedRule {
            rule_index: charge.rule_index,
            rule: charge.rule.shared_name(),
        });
        decision.with_undecided(undecided.collect(), unavailable)
    }
}

fn denies_on_failure(charge: &RuleCharge<'_>) -> bool {
    charge.rule.on_store_failure() == OnStoreFailure::Deny
}

impl<S: Store> Limiter<S> {
    /// Returns the decision about a client on the block list: blocked or allowed. No rule is matched for it, and no store
    /// is called.
    #[inline]
    pub(crate) fn listed(&self, request: &Request<'_>) -> Option<Decision> {
        if self.inner.blocks.is_empty() {
            return None;
        }
        let now = self.inner.clock.now();
        let entry = self.inner.blocks.find(request, now)?;
        match entry.allows(now) {
            true => Some(Decision::allow_listed()),
            false => entry.block(now).map(Decision::blocked),
        }
    }

    /// Counts denials towards the penalties of the rules that denied. A peek counts nothing.
    #[inline]
    pub(crate) fn record_denials(&self, check: &CheckRequest<'_, '_>, decision: &Decision) {
        let Some(penalties) = &self.inner.penalties else { return };
        if check.mode() == ChargeMode::Peek {
            return;
        }
        for denied in decision.rule_outcomes().iter().filter(|rule| !rule.outcome.is_allowed()) {
            self.record_denial(penalties, check.request, denied);
        }
    }

    #[cold]
    fn record_denial(
        &self,
        penalties: &DenialCounter,
        request: &Request<'_>,
        denied: &RuleOutcome,
    ) {
        let inner = &self.inner;
        let rule = inner.planner.rule(denied.rule_index);
        let Some(penalty) = rule.penalty() else { return };
        let Some(subject) = inner.blocks.client_of(rule, request) else { return };
        let now = inner.clock.now();
        let key = inner.planner.plan_with_limit(denied.rule_index, request, &denied.limit).key;
        if !penalties.is_due(key, penalty, &denied.limit, inner.store.share().of, now) {
            return;
        }
        if denied.shadow {
            tracing::info!(rule = %denied.rule, %subject, "shadow rule would block client");
            return;
        }
        let (rule, span) = (rule.shared_name(), penalty.block());
        let origin = BlockOrigin::Penalty { rule: Arc::clone(&rule) };
        let (until, reason) = (now + span, Reason::default());
        let (subject_of_entry, action) = (subject.clone(), BlockAction::Block);
        let entry = Entry { subject: subject_of_entry, action, until, reason, origin, added: now };
        match inner.blocks.add(entry, now) {
            Ok(()) => tracing::info!(%rule, %subject, %span, "client blocked"),
            // Only a debug message: clients that fill the list must not fill the log too. The list counts it.
            Err(error) => tracing::debug!(%rule, %error, "cannot block client, penalty skipped"),
        }
    }
}
