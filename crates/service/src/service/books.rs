//! The books: what was asked and answered, entered once per call.

use tidegate_core::{CallStatus, Decision, Request, Timestamp};
use tidegate_rules::RuleSet;

use crate::metrics::{Lines, Metrics, Sources};
use crate::rules::Standing;
use crate::service::{InForce, Via};
use crate::top::Top;

/// Most rules of one check whose client is counted among the busiest.
const RANKED: usize = 4;

/// What a server knows of the calls that it has answered.
#[derive(Debug)]
pub struct Books {
    pub metrics: Metrics,
    pub top: Top,
}

/// When a call began and ended, and which door it came through.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    pub(super) via: Via,
    pub(super) began: Timestamp,
    pub(super) at: Timestamp,
}

impl Books {
    pub(super) fn new() -> Self {
        Self { metrics: Metrics::new(), top: Top::new() }
    }

    /// Where rules that come into force are counted.
    pub(super) fn enlist(&self, rules: &RuleSet) -> Lines {
        self.metrics.enlist(rules, |number| self.top.forget(number))
    }

    /// Enters a call: one request and its decision, or several that were decided together. Of those the
    /// strictest is how the call ended.
    #[inline]
    pub(super) fn enter<'d, 'q: 'd>(
        &self,
        by: &InForce,
        answered: Answered,
        decided: impl IntoIterator<Item = (&'d Request<'q>, &'d Decision)>,
    ) {
        let (mut ending, mut blocked) = (CallStatus::Allowed, false);
        for (request, decision) in decided {
            ending = ending.or(CallStatus::of(decision.status()));
            blocked |= decision.block().is_some();
            self.decided(by, request, decision, answered.at);
        }
        let took = answered.at.since(answered.began);
        self.metrics.answered(answered.via, ending, blocked, took);
    }

    #[inline]
    fn decided(&self, by: &InForce, request: &Request<'_>, decision: &Decision, at: Timestamp) {
        let (rules, lines) = (by.limiter().rules(), by.lines());
        self.metrics.decided(lines, rules, decision);
        for outcome in decision.rule_outcomes().iter().take(RANKED) {
            if let Some(number) = lines.number(outcome.rule_index)
                && let Some(rule) = rules.get(outcome.rule_index)
            {
                let denied = !outcome.outcome.is_allowed();
                self.top.note(number, rule, request, denied, at, by.limiter().blocks());
            }
        }
    }

    /// Where the rest of the metrics comes from.
    pub(crate) fn sources<'a>(
        &self,
        in_force: &'a InForce,
        standing: &'a Standing,
        ready: bool,
    ) -> Sources<'a> {
        Sources { in_force, standing, ready, missed: self.top.missed() }
    }
}
