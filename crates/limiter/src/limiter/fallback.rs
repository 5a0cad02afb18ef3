//! Decisions of rules while the store fails.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use smallvec::SmallVec;
use tidegate_core::{Limit, Outcome, Span, Timestamp};
use tidegate_rules::{Mode, OnStoreFailure, Rule, RuleSet};

use super::decide::RuleResults;
use super::plan::RuleCharge;
use crate::clock::Clock;
use crate::limit_shares::LimitShares;
use crate::store::memory::MemoryStore;
use crate::store::{Charge, ChargeMode, ChargeResult, ChargeResults, Store, StoreError};

/// An episode of failures ends after this time without one. The next failure is logged again.
const EPISODE_END: Span = Span::from_secs(1);

/// The numbers of checks that a rule decided without the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureCounts {
    /// Allowed. Each may have exceeded the limit.
    pub open: u64,
    /// Denied.
    pub closed: u64,
    /// Decided by this node's share of the limit, allowed or denied.
    pub local: u64,
}

/// Applies `on_store_failure` and counts it.
#[derive(Debug)]
pub(crate) struct StoreFallback {
    clock: Clock,
    /// The counters of each rule.
    counters: Vec<Arc<FallbackCounters>>,
    /// Charges made while the store failed, for rules with `on_store_failure: local`.
    local: Arc<OnceLock<MemoryStore>>,
    shares: Arc<LimitShares>,
}

#[derive(Debug, Default)]
struct FallbackCounters {
    open: AtomicU64,
    closed: AtomicU64,
    local: AtomicU64,
    /// The time of the last failure for this rule, in microseconds; 0 outside of an episode.
    failed_at: AtomicU64,
    /// The number of checks of the episode.
    episode: AtomicU64,
}

impl StoreFallback {
    pub(crate) fn new(rules: &RuleSet, clock: Clock) -> Self {
        let counters = rules.all().map(|_| Arc::default()).collect();
        Self { clock, counters, local: Arc::default(), shares: Arc::default() }
    }

    /// Makes the fallback for other rules. Rules of the same name keep their counts.
    pub(crate) fn for_rules(&self, old: &RuleSet, new: &RuleSet) -> Self {
        let kept = |rule: &Rule| self.counters.get(old.rule_index(rule.name())?.0).map(Arc::clone);
        let counters = new.all().map(|(_, rule)| kept(rule).unwrap_or_default()).collect();
        let (local, shares) = (Arc::clone(&self.local), Arc::clone(&self.shares));
        Self { clock: self.clock.clone(), counters, local, shares }
    }

    pub(crate) fn counts(&self) -> impl Iterator<Item = FailureCounts> {
        self.counters.iter().map(|counters| FailureCounts {
            open: counters.open.load(Ordering::Relaxed),
            closed: counters.closed.load(Ordering::Relaxed),
            local: counters.local.load(Ordering::Relaxed),
        })
    }

    /// Returns the results of charges: from the store if it replied, otherwise by `on_store_failure`.
    pub(crate) fn apply<S: Store>(
        &self,
        store: &S,
        charges: &[RuleCharge<'_>],
        answers: &ChargeResults,
        mode: ChargeMode,
    ) -> RuleResults {
        let mut results = RuleResults::default();
        let mut local: SmallVec<[usize; 4]> = SmallVec::new();
        for (index, (charge, answer)) in charges.iter().zip(answers).enumerate() {
            match answer {
                ChargeResult::Outcome(outcome) => {
                    results.outcomes.push((index, *outcome));
                    self.record_success(charge);
                }
                ChargeResult::Skipped => {}
                // A shadow rule only counts, so without the store it has no outcome.
                ChargeResult::Failed(_) if charge.rule.mode() == Mode::Shadow => {}
                ChargeResult::Failed(error) => {
                    self.record_failure(charge, error);
                    match charge.rule.on_store_failure() {
                        OnStoreFailure::Local => local.push(index),
                        OnStoreFailure::Allow | OnStoreFailure::Deny => {
                            results.undecided.push(index);
                        }
                    }
                }
            }
        }
        if !local.is_empty() {
            self.charge_locally(store, charges, &local, mode, &mut results);
        }
        results
    }

    /// Charges this node's share of the limits, all of them or none. Peeks if another rule denies the
    /// request.
    fn charge_locally<S: Store>(
        &self,
        store: &S,
        charges: &[RuleCharge<'_>],
        indices: &[usize],
        mode: ChargeMode,
        results: &mut RuleResults,
    ) {
        let denied = results.denying(charges).next().is_some();
        let mode = if denied { ChargeMode::Peek } else { mode };
        let share = store.share();
        let limits: SmallVec<[Arc<Limit>; 4]> =
            indices.iter().map(|index| self.shares.share(charges[*index].limit, share)).collect();
        let local: SmallVec<[Charge<'_>; 4]> = indices
            .iter()
            .zip(&limits)
            .map(|(index, limit)| {
                let charge = charges[*index].charge();
                let cost = if mode == ChargeMode::Peek { 0 } else { charge.cost };
                Charge { limit, cost, ..charge }
            })
            .collect();
        let store = self.local.get_or_init(|| MemoryStore::new(self.clock.clone()));
        let outcomes = store.charge_all(&local, mode).into_iter().map(Outcome::non_refundable);
        results.outcomes.extend(indices.iter().copied().zip(outcomes));
    }

    /// Counts a check that was decided without the store. Logs the first of an episode.
    fn record_failure(&self, charge: &RuleCharge<'_>, error: &StoreError) {
        let counters = &self.counters[charge.rule_index.0];
        let (count, answer) = match charge.rule.on_store_failure() {
            OnStoreFailure::Allow => (&counters.open, "allow"),
            OnStoreFailure::Deny => (&counters.closed, "deny"),
            OnStoreFailure::Local => (&counters.local, "local"),
        };
        count.fetch_add(1, Ordering::Relaxed);
        counters.episode.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.now().as_micros().max(1);
        if counters.failed_at.swap(now, Ordering::Relaxed) == 0 {
            let rule = charge.rule.name();
            tracing::warn!(rule, answer, %error, "store failed, rule answers without it");
        }
    }

    /// Ends the episode after [`EPISODE_END`] without a failure.
    #[inline]
    pub(crate) fn record_success(&self, charge: &RuleCharge<'_>) {
        let counters = &self.counters[charge.rule_index.0];
        let failed_at = counters.failed_at.load(Ordering::Relaxed);
        if failed_at != 0 {
            self.end_episode(charge, counters, failed_at);
        }
    }

    #[cold]
    fn end_episode(&self, charge: &RuleCharge<'_>, counters: &FallbackCounters, failed_at: u64) {
        if self.clock.now().since(Timestamp::from_micros(failed_at)) < EPISODE_END {
            return;
        }
        // The thread that wins the compare-and-swap logs the end; a concurrent failure keeps the
        // episode open.
        let ended =
            counters.failed_at.compare_exchange(failed_at, 0, Ordering::Relaxed, Ordering::Relaxed);
        if ended.is_ok() {
            let checks = counters.episode.swap(0, Ordering::Relaxed);
            let rule = charge.rule.name();
            tracing::info!(rule, checks, "store answers again, after checks without it");
        }
    }
}
