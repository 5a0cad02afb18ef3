//! Checks of single clients that a listener decides together.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{CallStatus, Limit, Outcome, Request, RuleIndex, Timestamp, is_unescaped};
use tidegate_limiter::{Charge, MemoryStore, trace};

use super::{Service, throttle};
use crate::active_rules::ActiveRules;
use crate::call::{Protocol, logs_replies, request_of_client};
use crate::store::AnyStore;
use crate::top::RankedCheck;

/// Checks that are decided at one instant, in order, each as [`Service::check`] decides it.
///
/// A batch reads the clock twice, adds to each counter once, and prefetches the memory of its clients. It takes only the
/// checks that are decided in memory by the cost and the value that names the client. It rejects all others, and they are
/// left to the caller.
#[derive(Debug)]
pub struct CheckBatch<'r> {
    service: &'r Service,
    store: &'r MemoryStore,
    rules: &'r ActiveRules,
    protocol: Protocol,
    /// The name and the index of the rule of the latest check.
    latest_rule: Option<(&'r [u8], RuleIndex)>,
    /// The rule of the limits that callers send.
    throttle_rule: Option<RuleIndex>,
    checks: SmallVec<[BatchedCheck<'r>; CheckBatch::MAX_CHECKS]>,
}

/// A check that waits for its decision.
#[derive(Debug)]
struct BatchedCheck<'r> {
    charge: Charge<'r>,
    rule_index: RuleIndex,
    /// The value that names the client, which is text.
    client: &'r [u8],
    is_denied: bool,
}

impl<'r> CheckBatch<'r> {
    /// Most checks of one batch. Processors limit the number of outstanding fetches.
    pub const MAX_CHECKS: usize = 16;

    /// Returns an empty batch. Returns `None` if each check has to be decided on its own: by a store that has to be awaited,
    /// or while calls are logged or traced.
    pub fn new(service: &'r Service, rules: &'r ActiveRules, protocol: Protocol) -> Option<Self> {
        let AnyStore::Memory(store) = &*service.store else { return None };
        if trace::is_enabled() || logs_replies() {
            return None;
        }
        let (latest_rule, throttle_rule, checks) = (None, None, SmallVec::new());
        Some(Self { service, store, rules, protocol, latest_rule, throttle_rule, checks })
    }

    /// Returns whether the batch has no room for another check.
    pub fn is_full(&self) -> bool {
        self.checks.len() == Self::MAX_CHECKS
    }

    /// Adds a check of one rule for the client that a value names. Returns `false` if the batch can't take it, for example
    /// because the client or the rule has to be escaped to be text.
    #[inline]
    pub fn add(&mut self, rule: &'r [u8], client: &'r [u8], cost: u64) -> bool {
        let rule_index = match self.latest_rule {
            Some((name, index)) if name == rule => Some(index),
            _ => self.find_rule(rule),
        };
        rule_index.is_some_and(|index| self.add_charge(index, client, None, cost))
    }

    fn find_rule(&mut self, rule: &'r [u8]) -> Option<RuleIndex> {
        let name = std::str::from_utf8(rule).ok().filter(|_| is_unescaped(rule))?;
        let index = self.rules.limiter.rules().user_rule_index(name)?;
        self.latest_rule = Some((rule, index));
        Some(index)
    }

    /// Adds a charge of a key under a limit of the caller. Returns `false` if the batch can't take it.
    #[inline]
    pub fn add_throttle(&mut self, key: &'r [u8], limit: &'r Arc<Limit>, cost: u64) -> bool {
        let rule_index = self.throttle_rule.or_else(|| throttle::rule_index(self.rules));
        self.throttle_rule = rule_index;
        rule_index.is_some_and(|index| self.add_charge(index, key, Some(limit), cost))
    }

    #[inline]
    fn add_charge(
        &mut self,
        rule_index: RuleIndex,
        client: &'r [u8],
        limit: Option<&'r Arc<Limit>>,
        cost: u64,
    ) -> bool {
        if self.is_full() || client.len() > Request::MAX_VALUE || !is_unescaped(client) {
            return false;
        }
        let charge = self.rules.limiter.single_charge(rule_index, client, limit, cost);
        let Some(charge) = charge else { return false };
        self.store.prefetch(charge.key);
        self.checks.push(BatchedCheck { charge, rule_index, client, is_denied: false });
        true
    }

    /// Decides the checks in order, and passes the outcome of each to `visit`. The batch is empty then.
    #[inline]
    pub fn decide(&mut self, mut visit: impl FnMut(&Outcome)) {
        if self.checks.is_empty() {
            return;
        }
        let began = self.store.clock().now();
        for check in &mut self.checks {
            let outcome = self.store.charge_one(&check.charge, began);
            check.is_denied = !outcome.is_allowed();
            visit(&outcome);
        }
        let at = self.service.clock.now();
        let denied = self.checks.iter().filter(|check| check.is_denied).count();
        let counters = &self.service.stats.counters;
        for (status, count) in
            [(CallStatus::Allowed, self.checks.len() - denied), (CallStatus::Denied, denied)]
        {
            counters.record_calls(self.protocol, status, at.since(began), count);
        }
        self.count_rules();
        self.rank_clients(at);
        self.checks.clear();
    }
}

impl CheckBatch<'_> {
    /// Counts the outcome of each check for its rule. Checks of one rule in a row are counted together.
    fn count_rules(&self) {
        let (counters, ids) = (&self.service.stats.counters, self.rules.counter_ids());
        let alike = |one: &BatchedCheck<'_>, next: &BatchedCheck<'_>| {
            (one.rule_index, one.is_denied) == (next.rule_index, next.is_denied)
        };
        for run in self.checks.chunk_by(alike) {
            let BatchedCheck { rule_index, is_denied, .. } = run[0];
            counters.rules.add_enforced(ids, rule_index, is_denied, run.len());
        }
    }

    /// Adds a sample of the checks to the client ranking.
    fn rank_clients(&self, at: Timestamp) {
        let (limiter, ids) = (&self.rules.limiter, self.rules.counter_ids());
        let Some(mut ranking) = self.service.stats.top.lock(self.checks.len()) else { return };
        for check in &self.checks {
            let Some(weight) = ranking.sample(at) else { continue };
            if let Some(number) = ids.number(check.rule_index)
                && let Some(rule) = limiter.rules().get(check.rule_index)
                && let Ok(client) = std::str::from_utf8(check.client)
                && let Some(request) = request_of_client(rule, client)
            {
                let ranked =
                    RankedCheck { number, rule, request: &request, denied: check.is_denied };
                ranking.add(ranked, at, weight, limiter.blocks());
            }
        }
    }
}
