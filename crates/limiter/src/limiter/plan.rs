//! The first step of a check: a request becomes the charges of the rules that apply to it.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{
    Key, Keyer, Limit, Outcome, RefundToken, Request, RuleIndex, RuleOutcome, Scope, Timestamp,
};
use tidegate_rules::{AttributeChain, Mode, Rule, RuleSet};

use super::error::NotASingleKeyRule;
use crate::clock::Clock;
use crate::store::{Charge, ChargeMode, Refund};

/// A request, and the rules that it is charged to.
#[derive(Clone, Copy, Debug)]
pub struct CheckRequest<'a, 'q> {
    /// The client's attributes and the cost. A cost of 0 peeks.
    pub request: &'a Request<'q>,
    /// The rules to charge.
    pub target: CheckTarget<'a>,
}

impl CheckRequest<'_, '_> {
    pub(crate) fn mode(&self) -> ChargeMode {
        ChargeMode::of_cost(self.request.costs())
    }
}

/// Targets every rule that matches the request.
impl<'a, 'q> From<&'a Request<'q>> for CheckRequest<'a, 'q> {
    fn from(request: &'a Request<'q>) -> Self {
        Self { request, target: CheckTarget::AllMatching }
    }
}

/// The rules that a request is charged to.
#[derive(Clone, Copy, Debug)]
pub enum CheckTarget<'a> {
    /// Every rule that matches the request.
    AllMatching,
    /// One rule, internal or not, whether or not it matches.
    Rule(RuleIndex),
    /// The client's bucket of one rule, under a limit of the caller.
    ///
    /// If the bucket was charged under another limit before, its state is migrated ([`Limit::migrate`]). A
    /// caller that alternates between window lengths should count by the length too.
    RuleWithLimit(RuleIndex, &'a Arc<Limit>),
}

/// The charge of one rule for one request.
#[derive(Clone, Copy)]
pub(crate) struct RuleCharge<'r> {
    /// The index of its request among those that are checked together.
    pub(crate) request_index: usize,
    pub(crate) rule_index: RuleIndex,
    pub(crate) rule: &'r Rule,
    pub(crate) key: Key,
    /// The key of the first overflow bucket of the rule.
    pub(crate) overflow_key: Key,
    pub(crate) limit: &'r Arc<Limit>,
    pub(crate) cost: u64,
    pub(crate) mode: ChargeMode,
}

pub(crate) type RuleCharges<'r> = SmallVec<[RuleCharge<'r>; 4]>;

impl<'r> RuleCharge<'r> {
    pub(crate) fn charge(&self) -> Charge<'r> {
        let Self { key, overflow_key, limit, cost, .. } = *self;
        Charge { key, overflow_key, limit, cost, independent: !self.is_enforced() }
    }

    /// Returns whether the rule can deny.
    pub(crate) fn is_enforced(&self) -> bool {
        self.rule.mode() == Mode::Enforce
    }

    pub(crate) fn rule_outcome(&self, outcome: &Outcome) -> RuleOutcome {
        RuleOutcome {
            rule_index: self.rule_index,
            rule: self.rule.shared_name(),
            limit: Arc::clone(self.limit),
            outcome: *outcome,
            shadow: !self.is_enforced(),
        }
    }

    pub(crate) fn refund(&self, refund_token: Option<RefundToken>) -> Refund {
        Refund { key: self.key, limit: Arc::clone(self.limit), cost: self.cost, refund_token }
    }
}

/// The keys of the clients of one rule.
#[derive(Debug)]
struct RuleKeys {
    scope: Scope,
    overflow_key: Key,
    /// True if only the value of one attribute and the cost decide about a request.
    has_single_key: bool,
}

/// The rules of one limiter, prepared for planning.
#[derive(Debug)]
pub(crate) struct ChargePlanner {
    rules: RuleSet,
    /// The clock for the end of overrides.
    clock: Clock,
    /// For each rule, the keys of its clients.
    keys: Vec<RuleKeys>,
    /// For each rule, its position in the order of charging.
    ranks: Vec<usize>,
}

impl ChargePlanner {
    pub(crate) fn new(keyer: &Keyer, clock: Clock, rules: RuleSet) -> Self {
        let keys = |(_, rule): (RuleIndex, &Rule)| {
            let scope = keyer.scope(rule.name(), rule.per().iter().map(AttributeChain::as_str));
            let overflow_key = scope.overflow_key();
            let has_single_key = NotASingleKeyRule::of(rule).is_none();
            RuleKeys { scope, overflow_key, has_single_key }
        };
        let keys = rules.all().map(keys).collect();
        Self { keys, ranks: ranks(&rules), rules, clock }
    }

    pub(crate) fn rules(&self) -> &RuleSet {
        &self.rules
    }

    /// Returns the rule with this index.
    ///
    /// # Panics
    /// No rule has this index.
    pub(crate) fn rule(&self, index: RuleIndex) -> &Rule {
        self.rules.get(index).expect("a target is a rule of this limiter")
    }

    pub(crate) fn scope(&self, rule_index: RuleIndex) -> &Scope {
        &self.keys[rule_index.0].scope
    }

    /// Plans the charges of one request, in the order of the rules.
    ///
    /// A rule that exempts the request has no charge. Nor has a target rule that is off, or with a rollout that
    /// excludes the client.
    pub(crate) fn plan<'r>(&'r self, check: &CheckRequest<'r, '_>) -> RuleCharges<'r> {
        let request = check.request;
        let applies = |index: RuleIndex| self.rule(index).applies_to_client(request);
        let mut charges = RuleCharges::new();
        match check.target {
            CheckTarget::AllMatching => {
                for index in &self.rules.matching_indices(request) {
                    if let Some(charge) = self.plan_rule(*index, request) {
                        charges.push(charge);
                    }
                }
            }
            CheckTarget::Rule(index) if applies(index) => {
                if let Some(charge) = self.plan_rule(index, request) {
                    charges.push(charge);
                }
            }
            CheckTarget::RuleWithLimit(index, limit) if applies(index) => {
                charges.push(self.plan_with_limit(index, request, limit));
            }
            CheckTarget::Rule(_) | CheckTarget::RuleWithLimit(..) => {}
        }
        charges
    }

    /// Plans the charge of one rule, under the limit that it has for the request; `None` if it exempts the request.
    #[inline]
    pub(crate) fn plan_rule(
        &self,
        rule_index: RuleIndex,
        request: &Request<'_>,
    ) -> Option<RuleCharge<'_>> {
        let rule = self.rule(rule_index);
        // Only overrides depend on the time, and reading the clock costs as much as a decision.
        let has_overrides = !rule.overrides().is_empty();
        let now = if has_overrides { self.clock.now() } else { Timestamp::EPOCH };
        let limit = rule.limit_for(request, now).limit?;
        Some(self.plan_with_limit(rule_index, request, limit))
    }

    /// Plans the charge of one rule under any limit.
    #[inline]
    pub(crate) fn plan_with_limit<'r>(
        &'r self,
        rule_index: RuleIndex,
        request: &Request<'_>,
        limit: &'r Arc<Limit>,
    ) -> RuleCharge<'r> {
        let rule = self.rule(rule_index);
        let RuleKeys { scope, overflow_key, .. } = &self.keys[rule_index.0];
        let (key, cost) = (scope.key(rule.parts(request)), request.costs());
        let (overflow_key, mode) = (*overflow_key, ChargeMode::of_cost(cost));
        RuleCharge { request_index: 0, rule_index, rule, key, overflow_key, limit, cost, mode }
    }

    /// Plans the charge of a rule for the client that one value names, under the rule's limit or another one. Returns
    /// `None` if more than this value decides.
    #[inline]
    pub(crate) fn plan_single_key<'r>(
        &'r self,
        rule_index: RuleIndex,
        value: &[u8],
        limit: Option<&'r Arc<Limit>>,
        cost: u64,
    ) -> Option<Charge<'r>> {
        let RuleKeys { scope, overflow_key, has_single_key } = self.keys.get(rule_index.0)?;
        if !has_single_key {
            return None;
        }
        let limit = match limit {
            Some(limit) => limit,
            None => self.rules.get(rule_index)?.limit(),
        };
        let key = scope.key_of_value(value);
        Some(Charge { key, overflow_key: *overflow_key, limit, cost, independent: false })
    }

    /// Plans several requests that are checked together, except those that are skipped.
    pub(crate) fn plan_all<'r>(
        &'r self,
        checks: &[CheckRequest<'r, '_>],
        is_skipped: impl Fn(usize) -> bool,
    ) -> Vec<RuleCharge<'r>> {
        let mut charges: Vec<RuleCharge<'r>> = Vec::new();
        for (request_index, check) in checks.iter().enumerate() {
            if is_skipped(request_index) {
                continue;
            }
            for charge in self.plan(check) {
                // A store can't count one bucket under two limits in one call.
                let first = charges.iter().find(|first| first.key == charge.key);
                let limit = first.map_or(charge.limit, |first| first.limit);
                charges.push(RuleCharge { request_index, limit, ..charge });
            }
        }
        self.order(&mut charges);
        charges
    }

    /// Puts charges into the order in which the store is charged.
    pub(crate) fn order(&self, charges: &mut [RuleCharge<'_>]) {
        charges.sort_by_key(|charge| self.ranks[charge.rule_index.0]);
    }
}

/// Returns the position of each rule when they are charged from the narrowest to the widest.
///
/// A rule that counts by more attributes is narrower. A denial is likelier there, and stops the request
/// before a bucket that all clients share is charged.
fn ranks(rules: &RuleSet) -> Vec<usize> {
    let mut order: Vec<(RuleIndex, &Rule)> = rules.all().collect();
    order.sort_by_key(|(_, rule)| std::cmp::Reverse(rule.per().len()));
    let mut ranks = vec![0; order.len()];
    for (rank, (index, _)) in order.into_iter().enumerate() {
        ranks[index.0] = rank;
    }
    ranks
}
