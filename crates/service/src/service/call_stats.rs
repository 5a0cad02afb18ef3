//! Statistics of calls, recorded once per call.

use tidegate_core::{CallStatus, Decision, Request, Timestamp};
use tidegate_rules::RuleSet;

use crate::active_rules::ActiveRules;
use crate::call::Protocol;
use crate::metrics::MetricSources;
use crate::source_status::SourceStatus;
use crate::stats::{CounterIds, ServerCounters};
use crate::top::TopClients;

/// Maximum number of rules of one check that the client ranking counts.
const MAX_RANKED_RULES: usize = 4;

/// Counters and client ranking of the calls that this process has answered.
#[derive(Debug)]
pub struct CallStats {
    /// Counters of calls, rules and listeners.
    pub counters: ServerCounters,
    /// The clients with most requests and denials.
    pub top: TopClients,
}

/// The listener of a call, its start and its end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTiming {
    pub(crate) protocol: Protocol,
    pub(crate) began: Timestamp,
    pub(crate) at: Timestamp,
}

impl CallStats {
    pub(crate) fn new() -> Self {
        Self { counters: ServerCounters::new(), top: TopClients::new() }
    }

    /// Assigns counters to rules that become active.
    pub(crate) fn register_rules(&self, rules: &RuleSet) -> CounterIds {
        self.counters.register_rules(rules, |number| self.top.clear_rule(number))
    }

    /// Records a call: one request and its decision, or several that were decided together. The strictest status of
    /// them is the status of the call.
    #[inline]
    pub(crate) fn record<'d, 'q: 'd>(
        &self,
        rules: &ActiveRules,
        timing: CallTiming,
        decisions: impl IntoIterator<Item = (&'d Request<'q>, &'d Decision)>,
    ) {
        let (mut status, mut blocked) = (CallStatus::Allowed, false);
        for (request, decision) in decisions {
            status = status.stricter(CallStatus::of(decision.status()));
            blocked |= decision.block().is_some();
            self.record_decision(rules, request, decision, timing.at);
        }
        let took = timing.at.since(timing.began);
        self.counters.record_call(timing.protocol, status, blocked, took);
    }

    #[inline]
    fn record_decision(
        &self,
        active: &ActiveRules,
        request: &Request<'_>,
        decision: &Decision,
        at: Timestamp,
    ) {
        let (rules, counter_ids) = (active.limiter().rules(), active.counter_ids());
        self.counters.record_decision(counter_ids, rules, decision);
        for outcome in decision.rule_outcomes().iter().take(MAX_RANKED_RULES) {
            if let Some(number) = counter_ids.number(outcome.rule_index)
                && let Some(rule) = rules.get(outcome.rule_index)
            {
                let denied = !outcome.outcome.is_allowed();
                self.top.record(number, rule, request, denied, at, active.limiter().blocks());
            }
        }
    }

    /// Returns the inputs of the metrics beside the counters.
    pub(crate) fn sources<'a>(
        &self,
        active_rules: &'a ActiveRules,
        source_status: &'a SourceStatus,
        ready: bool,
    ) -> MetricSources<'a> {
        MetricSources { active_rules, source_status, ready, missed: self.top.missed() }
    }
}
