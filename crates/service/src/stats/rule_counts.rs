//! Counters of the outcomes of each rule.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_api::PerOutcome;
use tidegate_core::{Decision, RuleIndex, RuleOutcome};
use tidegate_rules::{Mode, OnStoreFailure, Rule, RuleSet};

use super::counter_ids::{CounterIds, CounterRegistry};
use super::sample::per_outcome;
use super::shards::{COUNTERS_PER_LINE, ShardedCounters};

/// Most rules with counters of their own; further rules are counted together. The bound limits the number of time series
/// that Prometheus stores.
pub(crate) const MAX_NAMED_RULES: usize = 1_000;
/// The label of all further rules. No rule can have this name.
pub(crate) const OTHER_RULES_LABEL: &str = "(other)";
/// The label in place of a rule when an operator blocked the client.
pub(crate) const OPERATOR_LABEL: &str = "(operator)";

/// The outcome of one rule for one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OutcomeKind {
    Allowed,
    Denied,
    /// A shadow rule would have allowed it.
    ShadowAllowed,
    ShadowDenied,
    /// The store failed, and the rule has `on_store_failure: allow`.
    FailedOpen,
    FailedClosed,
    /// The client is blocked by the rule's penalty.
    Blocked,
}

impl OutcomeKind {
    const ALL: [Self; 7] = [
        Self::Allowed,
        Self::Denied,
        Self::ShadowAllowed,
        Self::ShadowDenied,
        Self::FailedOpen,
        Self::FailedClosed,
        Self::Blocked,
    ];

    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Allowed => "allowed",
            Self::Denied => "denied",
            Self::ShadowAllowed => "shadow_allowed",
            Self::ShadowDenied => "shadow_denied",
            Self::FailedOpen => "failed_open",
            Self::FailedClosed => "failed_closed",
            Self::Blocked => "blocked",
        }
    }

    fn from_outcome(outcome: &RuleOutcome) -> Self {
        match (outcome.shadow, outcome.outcome.is_allowed()) {
            (false, true) => Self::Allowed,
            (false, false) => Self::Denied,
            (true, true) => Self::ShadowAllowed,
            (true, false) => Self::ShadowDenied,
        }
    }

    /// Returns whether the rule can have this outcome. Other outcomes are exposed only once they are counted.
    fn is_possible(self, rule: &Rule) -> bool {
        let (mode, failing) = (rule.mode(), rule.on_store_failure());
        match self {
            Self::Allowed | Self::Denied => mode == Mode::Enforce,
            Self::ShadowAllowed | Self::ShadowDenied => mode == Mode::Shadow,
            Self::FailedOpen => mode == Mode::Enforce && failing == OnStoreFailure::Allow,
            Self::FailedClosed => mode == Mode::Enforce && failing == OnStoreFailure::Deny,
            Self::Blocked => mode == Mode::Enforce && rule.penalty().is_some(),
        }
    }
}

const _: () = assert!(OutcomeKind::ALL.len() <= COUNTERS_PER_LINE);

/// Counters of outcomes by rule.
#[derive(Debug)]
pub(crate) struct RuleCounts {
    registry: Mutex<CounterRegistry>,
    /// One line for each rule with a number below [`MAX_NAMED_RULES`], one for all others, and one for operators.
    shards: ShardedCounters,
}

const OTHER_RULES_LINE: usize = MAX_NAMED_RULES;
const OPERATOR_LINE: usize = MAX_NAMED_RULES + 1;

impl RuleCounts {
    pub(crate) fn new() -> Self {
        Self { registry: Mutex::default(), shards: ShardedCounters::new(MAX_NAMED_RULES + 2) }
    }

    /// Assigns counters to rules that become active, and resets reused ones. `on_reuse` is called with their numbers.
    pub(crate) fn register_rules(
        &self,
        rules: &RuleSet,
        mut on_reuse: impl FnMut(usize),
    ) -> CounterIds {
        self.registry.lock().register_rules(rules, |number| {
            if number < MAX_NAMED_RULES {
                self.shards.clear(number);
            }
            on_reuse(number);
        })
    }

    /// Counts the outcome of every rule of a decision.
    #[inline]
    pub(crate) fn add(&self, ids: &CounterIds, rules: &RuleSet, decision: &Decision) {
        for outcome in decision.rule_outcomes() {
            self.count(line(ids, Some(outcome.rule_index)), OutcomeKind::from_outcome(outcome));
        }
        for undecided in decision.undecided() {
            self.add_undecided(ids, rules, undecided.rule_index);
        }
        if let Some(block) = decision.block() {
            let penalty_line = |name: &Arc<str>| line(ids, rules.rule_index(name));
            // The rule may be unknown here: block lists are shared with nodes that have other rules.
            let line = block.rule.as_ref().map_or(OPERATOR_LINE, penalty_line);
            self.count(line, OutcomeKind::Blocked);
        }
    }

    /// Counts checks of an enforced rule with the same outcome.
    #[inline]
    pub(crate) fn add_enforced(
        &self,
        ids: &CounterIds,
        rule_index: RuleIndex,
        is_denied: bool,
        count: usize,
    ) {
        let kind = if is_denied { OutcomeKind::Denied } else { OutcomeKind::Allowed };
        self.shards.add(line(ids, Some(rule_index)), kind as usize, count as u64);
    }

    #[cold]
    fn add_undecided(&self, ids: &CounterIds, rules: &RuleSet, rule_index: RuleIndex) {
        let closed = rules
            .get(rule_index)
            .is_some_and(|rule| rule.on_store_failure() == OnStoreFailure::Deny);
        let kind = if closed { OutcomeKind::FailedClosed } else { OutcomeKind::FailedOpen };
        self.count(line(ids, Some(rule_index)), kind);
    }

    #[inline]
    fn count(&self, line: usize, kind: OutcomeKind) {
        self.shards.add(line, kind as usize, 1);
    }

    /// Returns the counts of every rule: its name, an outcome, and how often it occurred.
    pub(crate) fn read<'r>(
        &'r self,
        ids: &'r CounterIds,
        rules: &'r RuleSet,
    ) -> impl Iterator<Item = (&'r str, OutcomeKind, u64)> {
        rows(ids, rules).flat_map(move |CounterRow { line, name, rule, .. }| {
            let rows = OutcomeKind::ALL
                .into_iter()
                .map(move |kind| (name, kind, self.shards.total(line, kind as usize)));
            rows.filter(move |(_, kind, count)| {
                *count > 0 || rule.is_some_and(|rule| kind.is_possible(rule))
            })
        })
    }

    /// Returns the totals of every rule with counters of its own. Other rules, internal rules and operators are included
    /// once they are not zero.
    pub(crate) fn totals(
        &self,
        ids: &CounterIds,
        rules: &RuleSet,
    ) -> Vec<(Arc<str>, PerOutcome<u64>)> {
        let totals =
            rows(ids, rules).filter_map(|CounterRow { line, name, rule, is_user_rule }| {
                let totals = per_outcome(|kind| self.shards.total(line, kind as usize));
                let name = rule.map_or_else(|| Arc::from(name), Rule::shared_name);
                (is_user_rule || totals != PerOutcome::default()).then_some((name, totals))
            });
        totals.collect()
    }
}

/// A line that is exposed.
struct CounterRow<'r> {
    line: usize,
    name: &'r str,
    /// `None` for the shared line and for operators.
    rule: Option<&'r Rule>,
    is_user_rule: bool,
}

/// Returns every line that is exposed.
fn rows<'r>(ids: &'r CounterIds, rules: &'r RuleSet) -> impl Iterator<Item = CounterRow<'r>> {
    let named = rules.all().filter_map(|(index, rule)| {
        let line = ids.number(index).filter(|line| *line < MAX_NAMED_RULES)?;
        let is_user_rule = index.0 < rules.rules().len();
        Some(CounterRow { line, name: rule.name(), rule: Some(rule), is_user_rule })
    });
    let shared = |(line, name)| CounterRow { line, name, rule: None, is_user_rule: false };
    named
        .chain([(OTHER_RULES_LINE, OTHER_RULES_LABEL), (OPERATOR_LINE, OPERATOR_LABEL)].map(shared))
}

/// Returns the line of a rule, or the shared line if it has none of its own or is not in the set.
#[inline]
fn line(ids: &CounterIds, rule: Option<RuleIndex>) -> usize {
    rule.and_then(|rule| ids.number(rule)).unwrap_or(OTHER_RULES_LINE).min(OTHER_RULES_LINE)
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Block, Quota, Request, Span};
    use tidegate_limiter::Limiter;

    use super::*;

    fn rows_text(counts: &RuleCounts, ids: &CounterIds, rules: &RuleSet) -> Vec<String> {
        let rows = counts.read(ids, rules);
        rows.map(|(rule, kind, count)| format!("{rule} {} {count}", kind.label())).collect()
    }

    #[tokio::test]
    async fn every_possible_outcome_of_a_rule_is_exposed() {
        let rules = "
rules:
  - {name: api, per: [user], limit: 1/d, on_store_failure: deny}
  - {name: trial, per: [user], limit: 1/d, mode: shadow}
  - {name: off, limit: 1/d, mode: off}
  - {name: login, per: [ip], limit: 9/d, penalty: {after: 5, within: 1m, block: 1m}}
";
        let rules = RuleSet::parse("", rules).unwrap();
        let limiter = Limiter::builder().rules(rules.clone()).build();
        let counts = RuleCounts::new();
        let ids = counts.register_rules(limiter.rules(), |_| {});
        for _ in 0..3 {
            let request = Request::new().with("user", "a").unwrap().with("ip", "::1").unwrap();
            counts.add(&ids, limiter.rules(), &limiter.check(&request).await);
        }
        let name: Arc<str> = Arc::from("login");
        for rule in [Some(name), Some(Arc::from("gone")), None] {
            let block = Block { retry_after: Span::SECOND, rule };
            counts.add(&ids, limiter.rules(), &Decision::blocked(block));
        }
        assert_eq!(
            rows_text(&counts, &ids, limiter.rules()),
            [
                "api allowed 1",
                "api denied 2",
                "api failed_closed 0",
                "trial shadow_allowed 1",
                "trial shadow_denied 2",
                "login allowed 3",
                "login denied 0",
                "login failed_open 0",
                "login blocked 1",
                "(other) blocked 1",
                "(operator) blocked 1",
            ]
        );
    }

    #[tokio::test]
    async fn rules_beyond_the_bound_are_counted_together() {
        let quota = Quota::per_day(9);
        let rule = |index| Rule::new(&format!("r{index}"), Algorithm::TokenBucket, quota).unwrap();
        let rules = RuleSet::new((0..MAX_NAMED_RULES + 5).map(rule).collect()).unwrap();
        let limiter = Limiter::builder().rules(rules).build();
        let counts = RuleCounts::new();
        let ids = counts.register_rules(limiter.rules(), |_| {});
        counts.add(&ids, limiter.rules(), &limiter.check(&Request::new()).await);
        let rows = rows_text(&counts, &ids, limiter.rules());
        assert_eq!(rows.len(), MAX_NAMED_RULES * 3 + 1);
        assert_eq!(rows.first().unwrap(), "r0 allowed 1");
        assert_eq!(rows.last().unwrap(), "(other) allowed 5");
    }
}
