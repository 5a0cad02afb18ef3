//! Match, charge, decide; and what happens when the store fails.

mod blocking;
mod builder;
mod charging;
mod deciding;
mod entering;
mod error;
mod failing;
mod give_back;
mod holding;
mod together;

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::rule::{Accuracy, Mode};
use tidegate_core::{
    Algorithm, Decision, Key, Limit, Quota, QuotaError, Request, Rule, RuleSet, Ruling, Scope, Span,
};

use crate::block::{BlockList, PenaltyBox};
use crate::clock::Clock;
use crate::fleet::{Fleet, Takings};
use crate::per_key::{PerKey, Waiting};
use crate::store::memory::MemoryStore;
use crate::store::{Refund, Store, StoreError};

pub use self::builder::Builder;
pub use self::entering::Turn;
pub use self::error::{AcquireError, ForgetError, NoHandle, UnknownRule};
use self::failing::Failing;
pub use self::failing::FailureCounts;
pub use self::holding::Held;
pub use self::together::{Claim, Under};

/// Decides requests by a set of rules. Clones share everything.
///
/// The rules of one limiter never change. [`with_rules`](Self::with_rules) makes the next one, and a
/// [`LiveLimiter`](crate::LiveLimiter) is for whoever decides while rules change.
///
/// ```
/// use tidegate::{Limiter, Request, RuleSet};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = RuleSet::parse("rules.yaml", "
/// rules:
///   - name: api
///     match: {path: '/v1/**'}
///     per: [user]
///     limit: 100 per minute
/// ")?;
/// let limiter = Limiter::builder().rules(rules).build();
/// let request = Request::new().with("path", "/v1/orders")?.with("user", "alice")?;
/// let decision = limiter.check(&request).await;
/// assert!(decision.is_allowed());
/// assert_eq!(decision.decisive().unwrap().outcome.remaining, 99);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Limiter<S = MemoryStore> {
    inner: Arc<Inner<S>>,
}

impl<S> Clone for Limiter<S> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

#[derive(Debug)]
struct Inner<S> {
    store: Arc<S>,
    clock: Clock,
    rules: RuleSet,
    /// For each rule, the keys of its clients.
    scopes: Vec<(Scope, Key)>,
    /// For each rule, how soon it is charged: narrow ones before wide ones.
    ranks: Vec<usize>,
    failing: Failing,
    blocks: Arc<BlockList>,
    /// What this node keeps of limits that it does not ask about each time, if others share the store.
    fleet: Option<Arc<Fleet>>,
    /// The denials of clients, if there is a rule with a penalty.
    penalties: Option<Arc<PenaltyBox>>,
}

/// What a request was charged, for taking it back.
#[derive(Clone, Debug, Default)]
pub struct Receipt {
    refunds: SmallVec<[Refund; 2]>,
    /// What was taken in a way of its rule's own.
    taken: Takings,
}

impl Receipt {
    /// Of a charge that was made elsewhere.
    #[cfg(feature = "tower")]
    pub(crate) fn of(refund: Option<Refund>) -> Self {
        Self { refunds: refund.into_iter().collect(), ..Self::default() }
    }

    /// Whether there is nothing to take back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.refunds.is_empty() && self.taken.is_empty()
    }
}

impl Limiter<MemoryStore> {
    /// One limit for each key, in memory.
    ///
    /// # Errors
    /// The quota can't be counted exactly.
    pub fn per_key(quota: Quota) -> Result<PerKey, QuotaError> {
        Self::per_key_on(quota, Clock::system())
    }

    /// One limit for each key, in memory, on a clock of the caller's.
    ///
    /// # Errors
    /// The quota can't be counted exactly.
    pub fn per_key_on(quota: Quota, clock: Clock) -> Result<PerKey, QuotaError> {
        let store = Arc::new(MemoryStore::new(clock));
        Self::per_key_in(store, Algorithm::TokenBucket, quota)
    }

    /// One limit for each key, by any algorithm, in a store of the caller's.
    ///
    /// # Errors
    /// The quota can't be counted exactly, or does not suit the algorithm.
    pub fn per_key_in(
        store: Arc<MemoryStore>,
        algorithm: Algorithm,
        quota: Quota,
    ) -> Result<PerKey, QuotaError> {
        let limit = Arc::new(Limit::new(algorithm, quota)?);
        let scope = store.keyer().scope("", []);
        let clock = store.clock().clone();
        Ok(PerKey::new(store, clock, scope, limit))
    }
}

impl<S: Store> Limiter<S> {
    /// The rules in force.
    #[must_use]
    pub fn rules(&self) -> &RuleSet {
        &self.inner.rules
    }

    /// The clock for waiting.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// The store behind the limiter.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.inner.store
    }

    /// Who is blocked: the list that this limiter looks at, and adds to by the penalties of its rules.
    #[must_use]
    pub fn blocks(&self) -> &Arc<BlockList> {
        &self.inner.blocks
    }

    /// Gives back the memory of blocks that are over, and of a part of the denials that no longer
    /// count: all of them after `parts` calls. Nothing depends on it but memory.
    pub fn sweep_blocks(&self, parts: usize) {
        self.inner.blocks.sweep(self.inner.clock.now());
        if let Some(penalties) = &self.inner.penalties {
            penalties.sweep(parts);
        }
    }

    /// Charges a request to every rule that matches it, or to none of them.
    ///
    /// A client that is blocked is denied before any rule is matched and without touching the store.
    /// A store that fails is part of the decision: each rule says whether it then allows or denies.
    pub async fn check(&self, request: &Request<'_>) -> Decision {
        self.check_with_receipt(request).await.0
    }

    /// As [`check`](Self::check), with what it takes to undo it.
    pub async fn check_with_receipt(&self, request: &Request<'_>) -> (Decision, Receipt) {
        if let Some(decision) = self.blocked(request) {
            return (decision, Receipt::default());
        }
        let charged = self.charge_matching(request).await;
        self.note_denials(request, &charged.0);
        charged
    }

    async fn charge_matching(&self, request: &Request<'_>) -> (Decision, Receipt) {
        let places = self.inner.rules.matching_places(request);
        self.decide(places.iter().map(|place| self.ask(*place, request)).collect()).await
    }

    /// Answers what [`check`](Self::check) would for a cost of 1, and spends nothing.
    pub async fn peek(&self, request: &Request<'_>) -> Decision {
        self.check(&request.clone().cost(0)).await
    }

    /// Charges a request to one rule alone, whether or not the rule matches it.
    ///
    /// # Errors
    /// There is no rule of that name.
    pub async fn check_rule(
        &self,
        name: &str,
        request: &Request<'_>,
    ) -> Result<Decision, UnknownRule> {
        let under = Under::Rule(self.place(name)?);
        Ok(self.check_claim(Claim { request, under }).await)
    }

    /// Takes back what a request was charged, as far as it still counts. How many charges gave
    /// anything back.
    ///
    /// # Errors
    /// The store did not confirm it; it is not tried again.
    pub async fn refund(&self, receipt: Receipt) -> Result<usize, StoreError> {
        let Receipt { mut refunds, taken } = receipt;
        let count = taken.len();
        let told = self.inner.fleet.as_ref().map(|fleet| fleet.put_back(&self.inner.store, taken));
        let told = told.unwrap_or_default();
        let here = count - told.len();
        refunds.extend(told);
        if refunds.is_empty() {
            return Ok(here);
        }
        Ok(here + self.inner.store.refund(&refunds).await?)
    }

    /// As [`refund`](Self::refund), without waiting for the store's answer.
    pub fn refund_detached(&self, receipt: Receipt) {
        self.put_back_detached(receipt.taken);
        if !receipt.refunds.is_empty() {
            self.inner.store.refund_detached(receipt.refunds.into_vec());
        }
    }

    /// Forgets what the client that a request names has spent under a rule; of a rule that is split, on
    /// this node.
    ///
    /// # Errors
    /// There is no such rule, or the store did not confirm it.
    pub async fn forget(&self, rule: &str, request: &Request<'_>) -> Result<(), ForgetError> {
        let ask = self.ask(self.place(rule)?, request);
        if let Some(penalties) = &self.inner.penalties {
            penalties.forget(ask.key);
        }
        let fleet = self.inner.fleet.as_ref().filter(|_| self.has_own_way(&ask));
        let forget_here = async || match fleet {
            Some(fleet) => fleet.forget(&self.inner.store, ask.rule.accuracy(), ask.key).await,
            None => Ok(()),
        };
        // Before, so that nothing is told after; and after, since somebody may have looked in between.
        forget_here().await?;
        self.inner.store.forget(ask.key).await?;
        Ok(forget_here().await?)
    }

    /// Waits until a request was charged and its turn has come.
    ///
    /// Slots in flight that it takes are held until they are lost: who means to release them comes by
    /// [`hold`](Self::hold).
    ///
    /// Dropping the future while it waits for a leaky bucket's slot gives the slot back if it is the
    /// last.
    ///
    /// # Errors
    /// No wait would make the request fit, the client is blocked, or the store failed under a rule that
    /// then denies.
    pub async fn acquire(&self, request: &Request<'_>) -> Result<Decision, AcquireError> {
        loop {
            if let Some(decision) = self.blocked(request) {
                return Err(AcquireError::Blocked(decision));
            }
            // Who waits its time is not hammering: these denials count towards no penalty.
            let (decision, receipt) = self.charge_matching(request).await;
            // Read after the check: a wait counted from before it would end too early.
            let now = self.inner.clock.now();
            let wait = match decision.ruling() {
                Ruling::Allow => {
                    let delay = decision.delay();
                    if delay > Span::ZERO {
                        let waiting = Waiting::new(&self.inner.store, receipt.refunds.into_vec());
                        self.inner.clock.sleep_until(now + delay).await;
                        waiting.done();
                    }
                    return Ok(decision);
                }
                Ruling::Deny => decision.retry_after(),
                Ruling::Unavailable => return Err(AcquireError::Unavailable(decision)),
            };
            match wait {
                Some(wait) => self.inner.clock.sleep_until(now + wait).await,
                None => return Err(AcquireError::NeverFits(decision)),
            }
        }
    }

    /// A handle on one rule's limit, a bucket for each value of the attribute it counts by.
    ///
    /// The handle meets the same buckets as requests that carry the value, under the rule's own
    /// limit: tiers, overrides, rollouts and penalties need a request to look at. It does not look at the block
    /// list either.
    ///
    /// # Errors
    /// There is no such rule, or it does not count by exactly one attribute.
    pub fn rule(&self, name: &str) -> Result<PerKey<S>, NoHandle> {
        let place = self.place(name)?;
        let rule = &self.inner.rules.rules()[place];
        if rule.per().len() != 1 {
            return Err(NoHandle::Parts { rule: name.to_owned(), found: rule.per().len() });
        }
        let chooses = rule.penalty().is_some() || rule.rollout().is_some();
        let leased = rule.accuracy() != Accuracy::Exact;
        let varies = rule.tiers().is_some() || !rule.overrides().is_empty();
        if varies || chooses || leased || rule.mode() != Mode::Enforce {
            return Err(NoHandle::Varies { rule: name.to_owned() });
        }
        let (store, clock) = (Arc::clone(&self.inner.store), self.inner.clock.clone());
        let scope = self.inner.scopes[place].0.clone();
        Ok(PerKey::new(store, clock, scope, Arc::clone(rule.limit())))
    }

    fn place(&self, name: &str) -> Result<usize, UnknownRule> {
        let place = self.inner.rules.place(name);
        place.ok_or_else(|| UnknownRule { name: name.to_owned() })
    }

    /// How many checks each rule answered without the store, in the order of the rules.
    pub fn failures(&self) -> impl Iterator<Item = (&Rule, FailureCounts)> {
        self.inner.rules.rules().iter().zip(self.inner.failing.counts())
    }
}
