//! The limiter: it plans the charges of a request, makes them, and decides, also while the store fails.

mod admission;
mod builder;
mod decide;
mod error;
mod execute;
mod fallback;
mod plan;
mod receipt;
mod slot_guard;

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{
    Algorithm, Decision, Keyer, Limit, Quota, QuotaError, Request, RuleIndex, Span, Timestamp,
};
use tidegate_rules::{Rule, RuleSet};

use self::fallback::StoreFallback;
use self::plan::{ChargePlanner, RuleCharge, RuleCharges};
use crate::block::{BlockList, DenialCounter};
use crate::clock::Clock;
use crate::coordination::Coordinator;
use crate::per_key::PerKey;
use crate::store::memory::MemoryStore;
use crate::store::{Charge, ChargeMode, Store};

pub use self::admission::Admission;
pub use self::builder::LimiterBuilder;
pub use self::error::{AcquireError, NotASingleKeyRule, ResetError, UnknownRule};
pub use self::fallback::FailureCounts;
pub use self::plan::{CheckRequest, CheckTarget};
pub use self::receipt::Receipt;
pub(crate) use self::receipt::RefundGuard;
pub use self::slot_guard::SlotGuard;

/// Decides requests by a set of rules. Clones share everything.
///
/// The rules of one limiter never change. [`with_rules`](Self::with_rules) makes the next one, and a
/// [`LiveLimiter`](crate::LiveLimiter) replaces rules while requests are decided.
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
/// assert_eq!(decision.strictest_rule().unwrap().outcome.remaining, 99);
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
    planner: ChargePlanner,
    fallback: StoreFallback,
    blocks: Arc<BlockList>,
    /// Charges of limits that are leased, synced, split or sharded. `None` if the store has no fleet.
    coordinator: Option<Arc<Coordinator>>,
    /// The denials of clients, if a rule has a penalty.
    penalties: Option<Arc<DenialCounter>>,
}

impl Limiter<MemoryStore> {
    /// Returns a builder that takes the rules, and optionally a clock, a store and a block list.
    #[must_use]
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::new()
    }

    /// Makes a handle with one limit for each key, in memory.
    ///
    /// # Errors
    /// The quota can't be counted exactly.
    pub fn per_key(quota: Quota) -> Result<PerKey, QuotaError> {
        Self::per_key_on(quota, Clock::system())
    }

    /// Makes a handle as [`per_key`](Self::per_key) does, with a given clock.
    ///
    /// # Errors
    /// The quota can't be counted exactly.
    pub fn per_key_on(quota: Quota, clock: Clock) -> Result<PerKey, QuotaError> {
        let store = Arc::new(MemoryStore::new(clock));
        Self::per_key_in(store, Algorithm::TokenBucket, quota)
    }

    /// Makes a handle as [`per_key`](Self::per_key) does, with a given algorithm and store.
    ///
    /// # Errors
    /// The quota can't be counted exactly, or the algorithm does not support it.
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
    fn new(store: Arc<S>, clock: Clock, rules: RuleSet, blocks: Option<Arc<BlockList>>) -> Self {
        let blocks = blocks.unwrap_or_else(|| {
            let (Keyer::Local { seed: secret } | Keyer::Fleet { secret }) = store.keyer();
            Arc::new(BlockList::new(secret))
        });
        let fallback = StoreFallback::new(&rules, clock.clone());
        let penalties = DenialCounter::for_rules(&rules, None, &clock);
        let coordinator = store.supports_leases().then(|| Arc::new(Coordinator::new(&clock)));
        let planner = ChargePlanner::new(&store.keyer(), clock.clone(), rules);
        let inner = Inner { store, clock, planner, fallback, blocks, coordinator, penalties };
        Self { inner: Arc::new(inner) }
    }

    /// Makes a limiter with other rules. It shares the store, the block list and the failure counts.
    ///
    /// The usage of a client belongs to the rule's name and the attributes that it counts by. If the limit
    /// changed, the usage is migrated: a bucket keeps its filled fraction, a window its count.
    #[must_use]
    pub fn with_rules(&self, rules: RuleSet) -> Self {
        let old = &*self.inner;
        let (store, clock) = (Arc::clone(&old.store), old.clock.clone());
        let (blocks, coordinator) = (Arc::clone(&old.blocks), old.coordinator.clone());
        let fallback = old.fallback.for_rules(old.planner.rules(), &rules);
        let penalties = DenialCounter::for_rules(&rules, old.penalties.as_ref(), &clock);
        let planner = ChargePlanner::new(&store.keyer(), clock.clone(), rules);
        let inner = Inner { store, clock, planner, fallback, blocks, coordinator, penalties };
        Self { inner: Arc::new(inner) }
    }

    /// Returns the rules.
    #[must_use]
    pub fn rules(&self) -> &RuleSet {
        self.inner.planner.rules()
    }

    /// Returns the clock for waiting.
    #[must_use]
    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    /// Returns the store.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.inner.store
    }

    /// Returns the block list. Penalties of the rules add to it.
    #[must_use]
    pub fn blocks(&self) -> &Arc<BlockList> {
        &self.inner.blocks
    }

    /// Removes expired blocks, and one of `parts` parts of the expired denial counts. Decisions do not
    /// depend on it.
    pub fn sweep_blocks(&self, parts: usize) {
        self.inner.blocks.sweep(self.inner.clock.now());
        if let Some(penalties) = &self.inner.penalties {
            penalties.sweep(parts);
        }
    }

    /// Charges a request to every rule that matches it, or to none of them. A [`CheckRequest`] names
    /// other rules to charge.
    ///
    /// A blocked client is denied before any rule is matched and without a call to the store. If the store
    /// fails, each rule decides by its `on_store_failure`. A rule allows the request if it is off, or if its
    /// rollout excludes the client.
    ///
    /// # Panics
    /// The target is a rule that does not exist.
    pub async fn check<'a, 'q: 'a>(&self, request: impl Into<CheckRequest<'a, 'q>>) -> Decision {
        self.check_into(request.into(), None).await
    }

    /// Checks a request as [`check`](Self::check) does, if nothing has to be awaited: if the client is listed, if no rule
    /// applies, or if the only rule is charged in a store that replies at once. Otherwise returns `None`, and nothing was
    /// charged.
    ///
    /// For servers, which answer most requests without the cost of a future.
    ///
    /// # Panics
    /// The target is a rule that does not exist.
    #[inline]
    pub fn check_now<'a, 'q: 'a>(
        &self,
        request: impl Into<CheckRequest<'a, 'q>>,
    ) -> Option<Decision> {
        let check = request.into();
        if let Some(decision) = self.listed(check.request) {
            return Some(decision);
        }
        let decision = self.charge_now(&self.inner.planner.plan(&check), None)?;
        self.record_denials(&check, &decision);
        Some(decision)
    }

    /// Returns the charge that [`check`](Self::check) would make for the client that `value` names, under one rule.
    /// `limit` replaces the limit of the rule. A charge in the store then decides the request alone.
    ///
    /// Returns `None` if more than the value decides, or if any client is on the block list: [`check`](Self::check)
    /// handles such requests.
    ///
    /// For servers, which charge the requests of a batch together.
    #[inline]
    #[must_use]
    pub fn single_charge<'l>(
        &'l self,
        rule_index: RuleIndex,
        value: &[u8],
        limit: Option<&'l Arc<Limit>>,
        cost: u64,
    ) -> Option<Charge<'l>> {
        if !self.inner.blocks.is_empty() || ChargeMode::of_cost(cost) == ChargeMode::Peek {
            return None;
        }
        self.inner.planner.plan_single_key(rule_index, value, limit, cost)
    }

    /// Checks a request as [`check`](Self::check) does. Returns a receipt for refunds too.
    ///
    /// # Panics
    /// The target is a rule that does not exist.
    pub async fn check_with_receipt<'a, 'q: 'a>(
        &self,
        request: impl Into<CheckRequest<'a, 'q>>,
    ) -> (Decision, Receipt) {
        let mut receipt = Receipt::default();
        let decision = self.check_into(request.into(), Some(&mut receipt)).await;
        (decision, receipt)
    }

    async fn check_into(
        &self,
        check: CheckRequest<'_, '_>,
        mut receipt: Option<&mut Receipt>,
    ) -> Decision {
        if let Some(decision) = self.listed(check.request) {
            return decision;
        }
        let mut charges = self.inner.planner.plan(&check);
        let decision = match self.charge_now(&charges, receipt.as_deref_mut()) {
            Some(decision) => decision,
            // Boxed, so that the future of a check stays small: callers move it several times, and spawn it.
            None => Box::pin(self.charge(&mut charges, receipt)).await,
        };
        self.record_denials(&check, &decision);
        decision
    }

    /// Checks a request as [`check`](Self::check) does, under one rule, whether or not it matches.
    ///
    /// # Errors
    /// No rule has this name.
    pub async fn check_rule(
        &self,
        name: &str,
        request: &Request<'_>,
    ) -> Result<Decision, UnknownRule> {
        let target = CheckTarget::Rule(self.rule_index(name)?);
        Ok(self.check(CheckRequest { request, target }).await)
    }

    /// Checks several requests together: all of them are charged, or none. Returns one decision for each
    /// request. A request that fits is allowed in its own decision, even if another one is denied.
    ///
    /// Costs to the same bucket add up. If two requests have different limits for a bucket, the first limit
    /// counts. Peeks are checked first. If one of them is denied, or any client is blocked, nothing is
    /// charged.
    ///
    /// Usually this takes one call to the store. A peek among requests that spend takes one more. So does a
    /// denial after which other requests have no outcome yet.
    ///
    /// # Panics
    /// A target is a rule that does not exist.
    pub async fn check_all(&self, checks: &[CheckRequest<'_, '_>]) -> Vec<Decision> {
        if let [check] = checks {
            return vec![self.check(*check).await];
        }
        let listed = checks.iter().map(|check| self.listed(check.request)).collect();
        let decisions = self.charge_batch(checks, listed).await;
        for (check, decision) in checks.iter().zip(&decisions) {
            self.record_denials(check, decision);
        }
        decisions
    }

    /// Returns the decision that [`check`](Self::check) would make for a cost of 1, and spends nothing.
    pub async fn peek(&self, request: &Request<'_>) -> Decision {
        self.check(&request.clone().cost(0)).await
    }

    /// Returns the decision of the rules for a cost of 1, whether or not the client is blocked. Spends
    /// nothing, and a denial does not count towards a penalty.
    ///
    /// # Panics
    /// The target is a rule that does not exist.
    pub async fn peek_rules<'a, 'q: 'a>(
        &self,
        request: impl Into<CheckRequest<'a, 'q>>,
    ) -> Decision {
        let mut charges = self.inner.planner.plan(&request.into());
        for charge in &mut charges {
            (charge.mode, charge.cost) = (ChargeMode::Peek, 0);
        }
        self.charge(&mut charges, None).await
    }

    /// Checks a request as [`check`](Self::check) does. Returns a guard for its slots in flight, which are
    /// held until the guard is dropped.
    ///
    /// If the future is dropped before it is ready, the slots are released. If the store is unreachable
    /// then, they expire after their hold time.
    ///
    /// ```
    /// use tidegate::{Limiter, Request, RuleSet};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = "rules: [{name: exports, per: [user], limit: 1 in flight}]";
    /// let limiter = Limiter::builder().rules(RuleSet::parse("rules.yaml", rules)?).build();
    /// let alice = Request::new().with("user", "alice")?;
    /// let (decision, guard) = limiter.acquire_slots(&alice).await;
    /// assert!(decision.is_allowed());
    /// assert!(!limiter.acquire_slots(&alice).await.0.is_allowed());
    /// drop(guard);
    /// assert!(limiter.acquire_slots(&alice).await.0.is_allowed());
    /// # Ok(()) }
    /// ```
    pub async fn acquire_slots(&self, request: &Request<'_>) -> (Decision, SlotGuard<S>) {
        let (decision, receipt) = self.check_with_receipt(request).await;
        (decision, self.guard(receipt))
    }

    /// Returns a guard for the slots in flight of a receipt.
    #[must_use]
    pub fn guard(&self, mut receipt: Receipt) -> SlotGuard<S> {
        SlotGuard::new(&self.inner.store, &self.inner.clock, receipt.take_slots())
    }

    /// Charges a request that may wait in a queue and is in flight after that.
    ///
    /// One charge takes everything that the request needs, or nothing: its cost, its place in the queue of
    /// a leaky bucket, and its slots in flight. So a request in a queue is in flight already, and is not
    /// charged again after its wait. A limit in flight must be high enough to include the queue.
    ///
    /// A leaky bucket denies a request that would wait longer than `max_wait`, as if its queue were full.
    /// Nothing is charged then, and after `retry_after` the wait is short enough.
    ///
    /// If the future is dropped before it is ready, its slots in flight are released, and its place in a
    /// queue is freed if it is the last. As with [`check`](Self::check), it is unknown whether other limits
    /// were charged.
    ///
    /// ```
    /// use tidegate::{Limiter, Request, RuleSet, Span};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = "
    /// rules:
    ///   - {name: gentle, algorithm: leaky_bucket, limit: 100 per second, queue: 50}
    ///   - {name: exports, per: [user], limit: 2 in flight}
    /// ";
    /// let limiter = Limiter::builder().rules(RuleSet::parse("rules.yaml", rules)?).build();
    /// let alice = Request::new().with("user", "alice")?;
    /// let (decision, admission) = limiter.admit(&alice, Span::SECOND).await;
    /// assert!(decision.is_allowed());
    /// let guard = admission.wait().await;
    /// // Here the request is served. Then, or when anything fails:
    /// drop(guard);
    /// # Ok(()) }
    /// ```
    ///
    /// # Panics
    /// The target is a rule that does not exist.
    pub async fn admit<'a, 'q: 'a>(
        &self,
        request: impl Into<CheckRequest<'a, 'q>>,
        max_wait: Span,
    ) -> (Decision, Admission<S>) {
        let check = request.into();
        if let Some(decision) = self.listed(check.request) {
            return (decision, Admission::default());
        }
        let charges = self.inner.planner.plan(&check);
        let limits =
            charges.iter().map(|charge| charge.limit.with_max_wait(max_wait).map(Arc::new));
        let limits: SmallVec<[Option<Arc<Limit>>; 4]> = limits.collect();
        let mut charges: RuleCharges<'_> = charges
            .into_iter()
            .zip(&limits)
            .map(|(charge, limit)| RuleCharge {
                limit: limit.as_ref().unwrap_or(charge.limit),
                ..charge
            })
            .collect();
        let mut receipt = Receipt::default();
        let decision = self.charge(&mut charges, Some(&mut receipt)).await;
        self.record_denials(&check, &decision);
        let Inner { store, clock, coordinator, .. } = &*self.inner;
        if decision.is_allowed() {
            let delay = decision.delay();
            return (decision, Admission::new(store, clock, coordinator.as_ref(), receipt, delay));
        }
        // Shadow rules may have been charged. The denied request is not in flight, so their slots are released.
        let slots = receipt.take_slots();
        if !slots.is_empty() {
            store.refund_detached(slots);
        }
        (decision, Admission::default())
    }

    /// Resets the usage of a client under a rule. Under `accuracy: split` it is reset on this node only.
    ///
    /// # Errors
    /// No rule has this name, or the store did not confirm it.
    pub async fn reset(&self, rule: &str, request: &Request<'_>) -> Result<(), ResetError> {
        let (planner, rule_index) = (&self.inner.planner, self.rule_index(rule)?);
        // An exempt client may have usage from before its exemption.
        let charge = planner.plan_rule(rule_index, request).unwrap_or_else(|| {
            planner.plan_with_limit(rule_index, request, planner.rule(rule_index).limit())
        });
        if let Some(penalties) = &self.inner.penalties {
            penalties.reset(charge.key);
        }
        let coordinator =
            self.inner.coordinator.as_ref().filter(|_| self.uses_coordinator(&charge));
        let reset_here = async || match coordinator {
            Some(coordinator) => {
                coordinator.reset(&self.inner.store, charge.rule.accuracy(), charge.key).await
            }
            None => Ok(()),
        };
        // Local state is reset before the store, so that no old usage is reported to it afterwards. It is
        // reset again after it, because a check in between may have read the old state.
        reset_here().await?;
        self.inner.store.reset(charge.key).await?;
        Ok(reset_here().await?)
    }

    /// Returns a handle for one rule, with a bucket for each value of the attribute that it counts by.
    ///
    /// The handle uses the same buckets as requests with that value, and the base limit of the rule: tiers,
    /// overrides, rollouts and penalties need a whole request. It does not use the block list.
    ///
    /// # Errors
    /// No rule has this name, it does not count by exactly one attribute, or its limit depends on more than
    /// the key.
    pub fn rule(&self, name: &str) -> Result<PerKey<S>, NotASingleKeyRule> {
        let rule_index = self.rule_index(name)?;
        let rule = self.inner.planner.rule(rule_index);
        NotASingleKeyRule::of(rule).map_or(Ok(()), Err)?;
        let (store, clock) = (Arc::clone(&self.inner.store), self.inner.clock.clone());
        let scope = self.inner.planner.scope(rule_index).clone();
        Ok(PerKey::new(store, clock, scope, Arc::clone(rule.limit())))
    }

    fn rule_index(&self, name: &str) -> Result<RuleIndex, UnknownRule> {
        self.rules().rule_index(name).ok_or_else(|| UnknownRule { name: name.to_owned() })
    }

    /// Returns how many checks each rule decided without the store, internal rules last.
    pub fn failures(&self) -> impl Iterator<Item = (&Rule, FailureCounts)> {
        self.rules().all().map(|(_, rule)| rule).zip(self.inner.fallback.counts())
    }

    /// Returns the number of clients with leases on this node, and the number of their unused tokens.
    #[must_use]
    pub fn leased(&self) -> (usize, u64) {
        self.inner.coordinator.as_ref().map_or((0, 0), |coordinator| coordinator.leased())
    }

    /// Runs the background work that is due: it syncs clients of synced rules, and releases leases of idle
    /// clients.
    ///
    /// In a tokio runtime this runs automatically. Other callers, such as simulations, call it at every
    /// [`next_sync_at`](Self::next_sync_at), and a few times per second.
    pub async fn run_background_once(&self) {
        if let Some(coordinator) = &self.inner.coordinator {
            coordinator.run_background_once(&self.inner.store).await;
        }
    }

    /// Returns the time of the next sync of a client, by the limiter's clock.
    #[must_use]
    pub fn next_sync_at(&self) -> Option<Timestamp> {
        self.inner.coordinator.as_ref().and_then(|coordinator| coordinator.next_sync_at())
    }

    /// Reports all unreported usage to the store and releases the leases of this node. Call it before the
    /// node stops.
    pub async fn release_all(&self) {
        if let Some(coordinator) = &self.inner.coordinator {
            coordinator.release_all(&self.inner.store).await;
        }
    }
}
