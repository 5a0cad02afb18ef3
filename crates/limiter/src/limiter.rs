//! Match, charge, decide; and what happens when the store fails.

mod blocking;
mod error;
mod failing;

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::rule::{Chain, Mode};
use tidegate_core::{
    Algorithm, Decision, Key, Keyer, Limit, Policies, Policy, Quota, QuotaError, Request, Rule,
    RuleSet, Ruling, Scope, Span, Timestamp,
};

use crate::block::{BlockList, PenaltyBox};
use crate::clock::Clock;
use crate::per_key::{PerKey, Waiting};
use crate::store::memory::MemoryStore;
use crate::store::{Answers, Charge, Refund, Store, StoreError};

pub use self::error::{AcquireError, ForgetError, NoHandle, UnknownRule};
pub use self::failing::FailureCounts;
use self::failing::{Failing, Verdicts};

/// Decides requests by a set of rules. Clones share everything.
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
    /// The denials of clients, if there is a rule with a penalty.
    penalties: Option<PenaltyBox>,
}

/// A charge to be made for one rule.
struct Ask<'r> {
    place: usize,
    rule: &'r Rule,
    key: Key,
    shared: Key,
    limit: &'r Arc<Limit>,
}

/// What a request was charged, for taking it back.
#[derive(Clone, Debug, Default)]
pub struct Receipt {
    refunds: SmallVec<[Refund; 2]>,
}

impl Receipt {
    /// Whether there is nothing to take back.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.refunds.is_empty()
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

    /// A limiter to be given its rules, and perhaps a clock and a store.
    #[must_use]
    pub fn builder() -> Builder {
        Builder { rules: RuleSet::default(), clock: None, blocks: None, store: () }
    }
}

/// Collects what a [`Limiter`] needs.
#[derive(Debug)]
pub struct Builder<St = ()> {
    rules: RuleSet,
    clock: Option<Clock>,
    blocks: Option<Arc<BlockList>>,
    store: St,
}

impl<St> Builder<St> {
    /// The rules to decide by. Without any, every request is allowed.
    #[must_use]
    pub fn rules(mut self, rules: RuleSet) -> Self {
        self.rules = rules;
        self
    }

    /// The clock for overrides that end, for waiting, and for a memory store made here.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Who is blocked. Without a list: one of its own, empty, under the secret of the store's keys.
    #[must_use]
    pub fn blocks(mut self, blocks: Arc<BlockList>) -> Self {
        self.blocks = Some(blocks);
        self
    }
}

impl Builder {
    /// Where spending is remembered. Without one: in memory, with default room.
    #[must_use]
    pub fn store<S: Store>(self, store: Arc<S>) -> Builder<Arc<S>> {
        Builder { rules: self.rules, clock: self.clock, blocks: self.blocks, store }
    }

    /// The limiter, on a memory store of its own.
    #[must_use]
    pub fn build(self) -> Limiter {
        let clock = self.clock.unwrap_or_default();
        let store = Arc::new(MemoryStore::new(clock.clone()));
        Limiter::assemble(store, clock, self.rules, self.blocks)
    }
}

impl<S: Store> Builder<Arc<S>> {
    /// The limiter.
    #[must_use]
    pub fn build(self) -> Limiter<S> {
        Limiter::assemble(self.store, self.clock.unwrap_or_default(), self.rules, self.blocks)
    }
}

impl<S: Store> Limiter<S> {
    fn assemble(
        store: Arc<S>,
        clock: Clock,
        rules: RuleSet,
        blocks: Option<Arc<BlockList>>,
    ) -> Self {
        let keyer = store.keyer();
        let scopes = rules.rules().iter().map(|rule| {
            let scope = keyer.scope(rule.name(), rule.per().iter().map(Chain::as_str));
            let shared = scope.shared();
            (scope, shared)
        });
        let scopes = scopes.collect();
        let ranks = ranks(&rules);
        let failing = Failing::new(rules.rules().len(), clock.clone());
        let blocks = blocks.unwrap_or_else(|| {
            let (Keyer::Local { seed: secret } | Keyer::Fleet { secret }) = keyer;
            Arc::new(BlockList::new(secret))
        });
        let punishing = rules.rules().iter().any(|rule| rule.penalty().is_some());
        let penalties = punishing.then(|| PenaltyBox::new(clock.clone()));
        let inner = Inner { store, clock, rules, scopes, ranks, failing, blocks, penalties };
        Self { inner: Arc::new(inner) }
    }

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
        self.decide(&places, request).await
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
        let place = self.place(name)?;
        if let Some(decision) = self.blocked(request) {
            return Ok(decision);
        }
        let off = self.inner.rules.rules()[place].mode() == Mode::Off;
        let places: &[usize] = if off { &[] } else { &[place] };
        let decision = self.decide(places, request).await.0;
        self.note_denials(request, &decision);
        Ok(decision)
    }

    /// Takes back what a request was charged, as far as it still counts. How many charges gave
    /// anything back.
    ///
    /// # Errors
    /// The store did not confirm it; it is not tried again.
    pub async fn refund(&self, receipt: Receipt) -> Result<usize, StoreError> {
        self.inner.store.refund(&receipt.refunds).await
    }

    /// As [`refund`](Self::refund), without waiting for the store's answer.
    pub fn refund_detached(&self, receipt: Receipt) {
        if !receipt.is_empty() {
            self.inner.store.refund_detached(receipt.refunds.into_vec());
        }
    }

    /// Forgets what the client that a request names has spent under a rule.
    ///
    /// # Errors
    /// There is no such rule, or the store did not confirm it.
    pub async fn forget(&self, rule: &str, request: &Request<'_>) -> Result<(), ForgetError> {
        let ask = self.ask(self.place(rule)?, request);
        if let Some(penalties) = &self.inner.penalties {
            penalties.forget(ask.key);
        }
        Ok(self.inner.store.forget(ask.key).await?)
    }

    /// Waits until a request was charged and its turn has come.
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
    /// limit: tiers, overrides and penalties need a request to look at. It does not look at the block
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
        let varies = rule.tiers().is_some() || !rule.overrides().is_empty();
        if varies || rule.penalty().is_some() || rule.mode() != Mode::Enforce {
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

    fn ask(&self, place: usize, request: &Request<'_>) -> Ask<'_> {
        let (rule, (scope, shared)) = (&self.inner.rules.rules()[place], &self.inner.scopes[place]);
        // Only an override can end, and reading a clock costs as much as a decision.
        let dated = !rule.overrides().is_empty();
        let now = if dated { self.inner.clock.now() } else { Timestamp::EPOCH };
        let limit = rule.limit_for(request, now).limit;
        Ask { place, rule, key: scope.key(rule.parts(request)), shared: *shared, limit }
    }

    async fn decide(&self, places: &[usize], request: &Request<'_>) -> (Decision, Receipt) {
        if places.is_empty() {
            return (Decision::of(Policies::new()), Receipt::default());
        }
        let mut asks: SmallVec<[Ask<'_>; 4]> =
            places.iter().map(|place| self.ask(*place, request)).collect();
        if asks.len() > 1 {
            asks.sort_by_key(|ask| self.inner.ranks[ask.place]);
        }
        let charges: SmallVec<[Charge<'_>; 4]> = asks
            .iter()
            .map(|ask| Charge {
                key: ask.key,
                shared: ask.shared,
                limit: ask.limit,
                cost: request.costs(),
                alone: ask.rule.mode() == Mode::Shadow,
            })
            .collect();
        let answers = self.inner.store.charge(&charges).await;
        let verdicts = self.inner.failing.settle(&*self.inner.store, &asks, &charges, &answers);
        let receipt = receipt(&asks, &answers, request.costs());
        let decision = self.decision(&asks, verdicts);
        if decision.is_allowed() || receipt.is_empty() {
            return (decision, receipt);
        }
        // What one rule denied without the store, others may have been charged for in it.
        let given_back = |refund: &Refund| {
            let ask = asks.iter().find(|ask| ask.key == refund.key);
            ask.is_some_and(|ask| ask.rule.mode() == Mode::Enforce)
        };
        let (back, kept) = receipt.refunds.into_iter().partition(given_back);
        self.refund_detached(Receipt { refunds: back });
        (decision, Receipt { refunds: kept })
    }

    /// All verdicts together, in the order of the rules.
    fn decision(&self, asks: &[Ask<'_>], verdicts: Verdicts) -> Decision {
        let mut policies: SmallVec<[(usize, Policy); 4]> = verdicts
            .outcomes
            .iter()
            .map(|(index, outcome)| {
                let ask = &asks[*index];
                let policy = Policy {
                    rule: ask.rule.shared_name(),
                    limit: Arc::clone(ask.limit),
                    outcome: *outcome,
                    shadow: ask.rule.mode() == Mode::Shadow,
                };
                (ask.place, policy)
            })
            .collect();
        policies.sort_by_key(|(place, _)| *place);
        let decision = Decision::of(policies.into_iter().map(|(_, policy)| policy).collect());
        if verdicts.undecided.is_empty() {
            return decision;
        }
        decision.with_undecided(verdicts.undecided, verdicts.unavailable)
    }

    /// How many checks each rule answered without the store, in the order of the rules.
    pub fn failures(&self) -> impl Iterator<Item = (&Rule, FailureCounts)> {
        self.inner.rules.rules().iter().zip(self.inner.failing.counts())
    }
}

/// What was spent, for taking it back.
fn receipt(asks: &[Ask<'_>], answers: &Answers, cost: u64) -> Receipt {
    let spent = asks.iter().zip(answers).filter_map(|(ask, answer)| {
        let slip = answer.outcome()?.slip()?;
        Some(Refund { key: ask.key, limit: Arc::clone(ask.limit), cost, slip })
    });
    Receipt { refunds: spent.collect() }
}

/// For each rule, its place when they are charged from the narrowest to the widest.
///
/// A rule that counts by more attributes is narrower: a denial is likelier there, and stops the rest
/// before what everybody shares is charged.
fn ranks(rules: &RuleSet) -> Vec<usize> {
    let mut places: Vec<usize> = (0..rules.rules().len()).collect();
    places.sort_by_key(|place| std::cmp::Reverse(rules.rules()[*place].per().len()));
    let mut ranks = vec![0; places.len()];
    for (rank, place) in places.into_iter().enumerate() {
        ranks[place] = rank;
    }
    ranks
}
