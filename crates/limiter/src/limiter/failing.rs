//! What each rule says to a store that does not answer, and how often it had to.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::rule::{Mode, OnStoreFailure};
use tidegate_core::{Limit, Outcome, Rule, RuleSet, Span, Timestamp};

use super::deciding::Ask;
use crate::clock::Clock;
use crate::store::memory::MemoryStore;
use crate::store::{Answer, Answers, Charge, Share, Store, StoreError};

/// How long a rule must have been answered by the store before its next failure is news again.
const QUIET: Span = Span::from_secs(1);

/// Most limits whose parts are kept.
const PARTS: usize = 4_096;

/// How many checks a rule answered without the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FailureCounts {
    /// Let pass: each may have been one more than the limit allows.
    pub open: u64,
    /// Refused.
    pub closed: u64,
    /// Decided by this node's share of the limit.
    pub local: u64,
}

/// Answers for the store when it can't, and counts that.
#[derive(Debug)]
pub(super) struct Failing {
    clock: Clock,
    rules: Vec<Arc<Tally>>,
    /// What clients spent while the store was away, for rules that go on locally.
    local: Arc<OnceLock<MemoryStore>>,
    parts: Arc<Mutex<Parts>>,
}

/// The parts of limits that are this node's own, and the share they were cut for.
#[derive(Debug)]
struct Parts {
    share: Share,
    of: HashMap<Arc<Limit>, Arc<Limit>>,
}

#[derive(Debug, Default)]
struct Tally {
    open: AtomicU64,
    closed: AtomicU64,
    local: AtomicU64,
    /// When the store last failed this rule, in microseconds; 0 when it has been back for a while.
    failed_at: AtomicU64,
    /// How many checks the episode has had.
    episode: AtomicU64,
}

/// What the rules of a request say, each by the store or without it.
#[derive(Default)]
pub(super) struct Verdicts {
    /// Outcomes by the place of their question.
    pub(super) outcomes: SmallVec<[(usize, Outcome); 4]>,
    /// The places of questions that nobody decided.
    pub(super) undecided: Vec<usize>,
    /// Whether the rule of one of those denies then.
    unavailable: bool,
}

impl Verdicts {
    /// Adds what other questions were answered, by the places that those have here.
    pub(super) fn extend(&mut self, other: Self, place_of: impl Fn(usize) -> usize) {
        let outcomes = other.outcomes.into_iter();
        self.outcomes.extend(outcomes.map(|(index, outcome)| (place_of(index), outcome)));
        self.undecided.extend(other.undecided.into_iter().map(place_of));
        self.unavailable |= other.unavailable;
    }

    /// The questions that were answered with a denial, or whose rule denies without an answer.
    pub(super) fn denying<'a, 'r>(
        &'a self,
        asks: &'a [Ask<'r>],
    ) -> impl Iterator<Item = &'a Ask<'r>> {
        let denied = self.outcomes.iter().filter(|(_, outcome)| !outcome.is_allowed());
        let denied = denied.map(|(index, _)| &asks[*index]).filter(|ask| ask.is_enforced());
        let refused = self.undecided.iter().map(|index| &asks[*index]);
        let refused = refused.filter(|ask| ask.rule.on_store_failure() == OnStoreFailure::Deny);
        denied.chain(refused)
    }
}

impl Failing {
    pub(super) fn new(rules: usize, clock: Clock) -> Self {
        let mut tallies = Vec::new();
        tallies.resize_with(rules, Arc::default);
        let parts = Mutex::new(Parts { share: Share::WHOLE, of: HashMap::new() });
        Self { clock, rules: tallies, local: Arc::default(), parts: Arc::new(parts) }
    }

    /// The same for other rules: those of the same name go on with their counts.
    pub(super) fn following(&self, old: &RuleSet, new: &RuleSet) -> Self {
        let kept = |rule: &Rule| Some(Arc::clone(self.rules.get(old.place(rule.name())?)?));
        let rules = new.rules().iter().map(|rule| kept(rule).unwrap_or_default()).collect();
        let (local, parts) = (Arc::clone(&self.local), Arc::clone(&self.parts));
        Self { clock: self.clock.clone(), rules, local, parts }
    }

    pub(super) fn counts(&self) -> impl Iterator<Item = FailureCounts> {
        self.rules.iter().map(|tally| FailureCounts {
            open: tally.open.load(Ordering::Relaxed),
            closed: tally.closed.load(Ordering::Relaxed),
            local: tally.local.load(Ordering::Relaxed),
        })
    }

    /// Puts the store's answers and, where it failed, the rules' own together.
    pub(super) fn settle<S: Store>(
        &self,
        store: &S,
        asks: &[Ask<'_>],
        charges: &[Charge<'_>],
        answers: &Answers,
    ) -> Verdicts {
        let mut verdicts = Verdicts::default();
        let mut on_our_own: SmallVec<[usize; 4]> = SmallVec::new();
        for (index, (ask, answer)) in asks.iter().zip(answers).enumerate() {
            match answer {
                Answer::Decided(outcome) => {
                    verdicts.outcomes.push((index, *outcome));
                    self.note_success(ask);
                }
                Answer::Unasked => {}
                // A rule that only counts has nothing to say without a count.
                Answer::Failed(_) if ask.rule.mode() == Mode::Shadow => {}
                Answer::Failed(error) => match ask.rule.on_store_failure() {
                    OnStoreFailure::Local => {
                        self.note_failure(ask, error, |tally| &tally.local);
                        on_our_own.push(index);
                    }
                    OnStoreFailure::Allow => {
                        self.note_failure(ask, error, |tally| &tally.open);
                        verdicts.undecided.push(index);
                    }
                    OnStoreFailure::Deny => {
                        self.note_failure(ask, error, |tally| &tally.closed);
                        verdicts.undecided.push(index);
                        verdicts.unavailable = true;
                    }
                },
            }
        }
        if !on_our_own.is_empty() {
            self.settle_locally(store.share(), charges, &on_our_own, &mut verdicts);
        }
        verdicts
    }

    /// Charges this node's share of the limits, all of them or none, and none when the request is
    /// refused anyway.
    fn settle_locally(
        &self,
        share: Share,
        charges: &[Charge<'_>],
        indexes: &[usize],
        verdicts: &mut Verdicts,
    ) {
        let refused = verdicts.unavailable
            || verdicts
                .outcomes
                .iter()
                .any(|(index, outcome)| !charges[*index].alone && !outcome.is_allowed());
        let limits: SmallVec<[Arc<Limit>; 4]> =
            indexes.iter().map(|index| self.part(charges[*index].limit, share)).collect();
        let local: SmallVec<[Charge<'_>; 4]> = indexes
            .iter()
            .zip(&limits)
            .map(|(index, limit)| {
                let charge = &charges[*index];
                let cost = if refused { 0 } else { charge.cost };
                Charge { limit, cost, ..charge.clone() }
            })
            .collect();
        let store = self.local.get_or_init(|| MemoryStore::new(self.clock.clone()));
        let outcomes = store.charge_all(&local);
        verdicts
            .outcomes
            .extend(indexes.iter().copied().zip(outcomes.into_iter().map(Outcome::without_slip)));
    }

    /// This node's part of a limit.
    fn part(&self, limit: &Arc<Limit>, share: Share) -> Arc<Limit> {
        let mut parts = self.parts.lock();
        // Callers may bring limits of their own, as many as they like.
        if parts.share != share || parts.of.len() >= PARTS {
            *parts = Parts { share, of: HashMap::new() };
        }
        let part = parts.of.entry(Arc::clone(limit));
        Arc::clone(part.or_insert_with(|| Arc::new(limit.share(share.index, share.of))))
    }

    /// Counts a check that was answered without the store, and says so once per episode.
    fn note_failure(
        &self,
        ask: &Ask<'_>,
        error: &StoreError,
        count: impl Fn(&Tally) -> &AtomicU64,
    ) {
        let tally = &self.rules[ask.place];
        count(tally).fetch_add(1, Ordering::Relaxed);
        tally.episode.fetch_add(1, Ordering::Relaxed);
        let now = self.clock.now().as_micros().max(1);
        if tally.failed_at.swap(now, Ordering::Relaxed) == 0 {
            let answer = match ask.rule.on_store_failure() {
                OnStoreFailure::Allow => "allow",
                OnStoreFailure::Deny => "deny",
                OnStoreFailure::Local => "local",
            };
            let rule = ask.rule.name();
            tracing::warn!(rule, answer, %error, "store failed, rule answers without it");
        }
    }

    /// Ends an episode once the store has answered without a failure for a while.
    #[inline]
    pub(super) fn note_success(&self, ask: &Ask<'_>) {
        let tally = &self.rules[ask.place];
        let failed_at = tally.failed_at.load(Ordering::Relaxed);
        if failed_at != 0 {
            self.end_episode(ask, tally, failed_at);
        }
    }

    #[cold]
    fn end_episode(&self, ask: &Ask<'_>, tally: &Tally, failed_at: u64) {
        if self.clock.now().since(Timestamp::from_micros(failed_at)) < QUIET {
            return;
        }
        // Whoever ends it tells; a failure in between goes on with it.
        let ended =
            tally.failed_at.compare_exchange(failed_at, 0, Ordering::Relaxed, Ordering::Relaxed);
        if ended.is_ok() {
            let checks = tally.episode.swap(0, Ordering::Relaxed);
            let rule = ask.rule.name();
            tracing::info!(rule, checks, "store answers again, after checks without it");
        }
    }
}
