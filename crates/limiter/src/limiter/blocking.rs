//! Clients that are blocked, and those who earn it.

use std::sync::Arc;

use tidegate_core::{Decision, Policy, Request};

use super::Limiter;
use crate::block::{By, Entry, PenaltyBox, Reason};
use crate::store::Store;

impl<S: Store> Limiter<S> {
    /// The denial of a client that is blocked: no rule is matched for it, and the store not touched.
    #[inline]
    pub(super) fn blocked(&self, request: &Request<'_>) -> Option<Decision> {
        if self.inner.blocks.is_empty() {
            return None;
        }
        let now = self.inner.clock.now();
        self.inner.blocks.find(request, now)?.block(now).map(Decision::blocked)
    }

    /// Counts denials towards the penalties of the rules that denied. A look counts nothing.
    #[inline]
    pub(super) fn note_denials(&self, request: &Request<'_>, decision: &Decision) {
        let Some(penalties) = &self.inner.penalties else { return };
        if request.costs() == 0 {
            return;
        }
        for policy in decision.policies().iter().filter(|policy| !policy.outcome.is_allowed()) {
            self.note_denial(penalties, request, policy);
        }
    }

    #[cold]
    fn note_denial(&self, penalties: &PenaltyBox, request: &Request<'_>, policy: &Policy) {
        let inner = &self.inner;
        let Some(place) = inner.rules.place(&policy.rule) else { return };
        let rule = &inner.rules.rules()[place];
        let Some(penalty) = rule.penalty() else { return };
        let Some(subject) = inner.blocks.client_of(rule, request) else { return };
        let (now, key) = (inner.clock.now(), self.ask(place, request).key);
        if !penalties.is_due(key, penalty, &policy.limit, inner.store.share().of, now) {
            return;
        }
        if policy.shadow {
            tracing::info!(rule = %policy.rule, %subject, "a client would be blocked");
            return;
        }
        let (rule, span) = (rule.shared_name(), penalty.block());
        let by = By::Penalty { rule: Arc::clone(&rule) };
        let (until, reason) = (now + span, Reason::default());
        let entry = Entry { subject: subject.clone(), until, reason, by, added: now };
        match inner.blocks.add(entry, now) {
            Ok(()) => tracing::info!(%rule, %subject, %span, "client blocked"),
            // Counted by the list; whoever fills it must not fill the log as well.
            Err(error) => tracing::debug!(%rule, %error, "client not blocked"),
        }
    }
}
