//! Decides simulated requests with the production limiter, on one node or on several.

use futures_util::FutureExt;
use tidegate_core::{Decision, Request, RuleIndex, Span, Timestamp};
use tidegate_limiter::{FailureCounts, Limiter, ManualClock, MemoryStore};
use tidegate_rules::{Mode, OnStoreFailure, Rule, RuleSet};

use crate::faults::FaultPlan;
use crate::fleet::{SimFleet, SyncPhase};
use crate::stats::{TrialOutcome, TrialStats};
use crate::template::{ClientNames, RequestTemplate};
use crate::traffic::Arrival;

/// Capacity for every client of a simulation: in a full store clients would share buckets.
const MAX_KEYS: usize = 2 * MemoryStore::DEFAULT_MAX_KEYS;

/// Rules on simulated nodes, with the template of the requests that they decide.
pub(crate) struct SimDecider {
    rules: RuleSet,
    nodes: DecidingNodes,
    template: RequestTemplate,
    names: ClientNames,
    /// For each rule, true if it counts clients separately.
    per_client: Vec<bool>,
}

enum DecidingNodes {
    /// One node on a store in memory, which never fails.
    Single(Box<Limiter>, ManualClock),
    Fleet(Box<SimFleet>),
}

/// The part of a decision that determines a client's retry.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ClientReply {
    pub(crate) admitted: bool,
    pub(crate) retry_after: Option<Span>,
}

impl SimDecider {
    /// Creates one node.
    pub(crate) fn single(rules: RuleSet, template: RequestTemplate, start: Timestamp) -> Self {
        let time = ManualClock::starting_at(start);
        let store = MemoryStore::with_max_keys(MAX_KEYS, time.clock());
        let builder = Limiter::builder().rules(rules.clone()).clock(time.clock());
        let limiter = Box::new(builder.store(store.into()).build());
        Self::new(rules, template, DecidingNodes::Single(limiter, time))
    }

    /// Creates nodes that share a store.
    pub(crate) fn fleet(
        rules: RuleSet,
        template: RequestTemplate,
        (nodes, phase, faults): (u64, SyncPhase, FaultPlan),
        start: Timestamp,
    ) -> Self {
        let fleet = SimFleet::new(&rules, nodes, phase, faults, start);
        Self::new(rules, template, DecidingNodes::Fleet(Box::new(fleet)))
    }

    fn new(rules: RuleSet, template: RequestTemplate, nodes: DecidingNodes) -> Self {
        let per_client = |rule: &Rule| {
            let named = |name: &str| template.names_client(name);
            rule.per().iter().any(|chain| chain.attributes().any(named)) && rule.mode() != Mode::Off
        };
        let per_client = rules.rules().iter().map(per_client).collect();
        Self { rules, nodes, template, names: ClientNames::default(), per_client }
    }

    /// Returns empty statistics for each rule.
    pub(crate) fn rule_stats(
        &self,
        name: impl Fn(&Rule) -> String,
        length: Span,
        start: Timestamp,
    ) -> Vec<TrialStats> {
        let mut names = ClientNames::default();
        let request = self.template.request(0, &mut names).unwrap_or_default();
        let stats = |rule: &Rule| {
            let limit = rule.limit_for(&request, start).limit;
            TrialStats::new(name(rule), limit.map(|limit| &**limit), length)
        };
        self.rules.rules().iter().map(stats).collect()
    }

    /// Decides a request, and counts it in the statistics of all rules together, if there are some, and of each rule.
    pub(crate) fn decide(
        &mut self,
        arrival: Arrival,
        now: Timestamp,
        total: Option<&mut TrialStats>,
        by_rule: &mut [TrialStats],
    ) -> ClientReply {
        let Arrival { client, at, node } = arrival;
        let decision = match self.template.request(client, &mut self.names) {
            Ok(request) => self.nodes.check(node, client, &request, now),
            Err(_) => None,
        };
        // Simulated stores reply at once, and the attributes were validated before.
        let decision = decision.unwrap_or_else(|| Decision::of(Default::default()));
        let admitted = decision.is_allowed();
        if let Some(total) = total {
            let delay = decision.delay();
            let outcome =
                if admitted { TrialOutcome::Admitted(delay) } else { TrialOutcome::Denied };
            total.record(client, at, now, outcome);
        }
        let mut record = |rule: RuleIndex, outcome: TrialOutcome| {
            let client = if self.per_client[rule.0] { client } else { 0 };
            by_rule[rule.0].record(client, at, now, outcome);
        };
        for rule in decision.rule_outcomes() {
            let outcome = match rule.outcome.is_allowed() {
                false => TrialOutcome::Denied,
                true if admitted || rule.shadow => TrialOutcome::Admitted(rule.outcome.delay()),
                true => TrialOutcome::DeniedElsewhere,
            };
            record(rule.rule_index, outcome);
        }
        for undecided in decision.undecided() {
            let rule = self.rules.get(undecided.rule_index);
            let outcome = match rule.map(Rule::on_store_failure) {
                Some(OnStoreFailure::Deny) => TrialOutcome::Denied,
                _ if admitted => TrialOutcome::Admitted(Span::ZERO),
                _ => TrialOutcome::DeniedElsewhere,
            };
            record(undecided.rule_index, outcome);
        }
        ClientReply { admitted, retry_after: decision.retry_after() }
    }

    /// Adds to each rule's statistics the number of requests decided without the store.
    pub(crate) fn record_failures(&self, by_rule: &mut [TrialStats]) {
        let DecidingNodes::Fleet(fleet) = &self.nodes else { return };
        for (stats, FailureCounts { open, closed, local }) in
            by_rule.iter_mut().zip(fleet.failures())
        {
            stats.record_failures(open, closed, local);
        }
    }
}

impl DecidingNodes {
    fn check(
        &mut self,
        node: u64,
        client: u64,
        request: &Request<'_>,
        now: Timestamp,
    ) -> Option<Decision> {
        match self {
            Self::Single(limiter, time) => {
                time.advance(now.since(time.now()));
                limiter.check(request).now_or_never()
            }
            Self::Fleet(fleet) => fleet.check(node, client, request, now),
        }
    }
}
