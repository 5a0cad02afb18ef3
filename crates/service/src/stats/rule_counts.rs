//! What each rule answered, counted by rule.

use std::sync::Arc;

use parking_lot::Mutex;
use tidegate_api::PerOutcome;
use tidegate_core::{Decision, RuleIndex, RuleOutcome};
use tidegate_rules::{Mode, OnStoreFailure, Rule, RuleSet};

use super::counter_ids::{CounterIds, CounterRegistry};
use super::sample::per_outcome;
use super::shards::{PER_LINE, Shards};

/// Most rules with a line of their own; those behind them are counted together. Each line is kept by
/// every Prometheus that looks, so their number is bounded.
pub(crate) const NAMED: usize = 1_000;
/// What the others are called. No rule can be.
pub(crate) const OTHER: &str = "(other)";
/// What stands for the rule when an operator blocked the client.
pub(crate) const OPERATOR: &str = "(operator)";

/// What a rule said to a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answer {
    Allowed,
    Denied,
    /// A rule that only counts would have allowed it.
    ShadowAllowed,
    ShadowDenied,
    /// The store failed, and the rule allows then.
    FailedOpen,
    FailedClosed,
    /// The client is blocked by the rule's penalty.
    Blocked,
}

impl Answer {
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

    fn of(outcome: &RuleOutcome) -> Self {
        match (outcome.shadow, outcome.outcome.is_allowed()) {
            (false, true) => Self::Allowed,
            (false, false) => Self::Denied,
            (true, true) => Self::ShadowAllowed,
            (true, false) => Self::ShadowDenied,
        }
    }

    /// Whether a rule ever says so: only that is told while it is zero.
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

const _: () = assert!(Answer::ALL.len() <= PER_LINE);

/// Counts answers by rule.
#[derive(Debug)]
pub(crate) struct RuleCounts {
    register: Mutex<CounterRegistry>,
    /// A line for each named rule, one for the others, and one for operators.
    shards: Shards,
}

const OTHERS: usize = NAMED;
const OPERATORS: usize = NAMED + 1;

impl RuleCounts {
    pub(crate) fn new() -> Self {
        Self { register: Mutex::default(), shards: Shards::new(NAMED + 2) }
    }

    /// The lines of rules that come into force. `anew` is told those that had been another rule's.
    pub(crate) fn register_rules(
        &self,
        rules: &RuleSet,
        mut anew: impl FnMut(usize),
    ) -> CounterIds {
        self.register.lock().enlist(rules, |number| {
            if number < NAMED {
                self.shards.clear(number);
            }
            anew(number);
        })
    }

    /// Counts what every rule said.
    #[inline]
    pub(crate) fn add(&self, lines: &CounterIds, rules: &RuleSet, decision: &Decision) {
        for outcome in decision.rule_outcomes() {
            self.count(line(lines, Some(outcome.rule_index)), Answer::of(outcome));
        }
        for undecided in decision.undecided() {
            self.add_undecided(lines, rules, undecided.rule_index);
        }
        if let Some(block) = decision.block() {
            let of_penalty = |name: &Arc<str>| line(lines, rules.rule_index(name));
            // The list may name a rule that another node has, or in a text of its own.
            let line = block.rule.as_ref().map_or(OPERATORS, of_penalty);
            self.count(line, Answer::Blocked);
        }
    }

    #[cold]
    fn add_undecided(&self, lines: &CounterIds, rules: &RuleSet, rule_index: RuleIndex) {
        let closed = rules
            .get(rule_index)
            .is_some_and(|rule| rule.on_store_failure() == OnStoreFailure::Deny);
        let answer = if closed { Answer::FailedClosed } else { Answer::FailedOpen };
        self.count(line(lines, Some(rule_index)), answer);
    }

    #[inline]
    fn count(&self, line: usize, answer: Answer) {
        self.shards.add(line, answer as usize, 1);
    }

    /// The counts of every rule: its name, an answer, and how often it was given.
    pub(crate) fn read<'r>(
        &'r self,
        lines: &'r CounterIds,
        rules: &'r RuleSet,
    ) -> impl Iterator<Item = (&'r str, Answer, u64)> {
        rows(lines, rules).flat_map(move |Row { line, name, rule, .. }| {
            let rows = Answer::ALL
                .into_iter()
                .map(move |answer| (name, answer, self.shards.total(line, answer as usize)));
            rows.filter(move |(_, answer, count)| {
                *count > 0 || rule.is_some_and(|rule| answer.is_possible(rule))
            })
        })
    }

    /// What every rule has said so far: those with a line of their own, and, once they have said
    /// anything, the others together and operators.
    pub(crate) fn said(
        &self,
        lines: &CounterIds,
        rules: &RuleSet,
    ) -> Vec<(Arc<str>, PerOutcome<u64>)> {
        let said = rows(lines, rules).filter_map(|Row { line, name, rule, is_user_rule }| {
            let said = per_outcome(|answer| self.shards.total(line, answer as usize));
            let name = rule.map_or_else(|| Arc::from(name), Rule::shared_name);
            (is_user_rule || said != PerOutcome::default()).then_some((name, said))
        });
        said.collect()
    }
}

/// A line that is exposed.
struct Row<'r> {
    line: usize,
    name: &'r str,
    /// `None` for the others and for operators.
    rule: Option<&'r Rule>,
    is_user_rule: bool,
}

/// Returns every line that is exposed.
fn rows<'r>(lines: &'r CounterIds, rules: &'r RuleSet) -> impl Iterator<Item = Row<'r>> {
    let named = rules.all().filter_map(|(index, rule)| {
        let line = lines.number(index).filter(|line| *line < NAMED)?;
        let is_user_rule = index.0 < rules.rules().len();
        Some(Row { line, name: rule.name(), rule: Some(rule), is_user_rule })
    });
    let shared = |(line, name)| Row { line, name, rule: None, is_user_rule: false };
    named.chain([(OTHERS, OTHER), (OPERATORS, OPERATOR)].map(shared))
}

/// Returns the line of a rule; that of the others if it has none of its own, or is not in the set.
#[inline]
fn line(lines: &CounterIds, rule: Option<RuleIndex>) -> usize {
    rule.and_then(|rule| lines.number(rule)).unwrap_or(OTHERS).min(OTHERS)
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Block, Quota, Request, Span};
    use tidegate_limiter::Limiter;

    use super::*;

    fn told(counts: &RuleCounts, lines: &CounterIds, rules: &RuleSet) -> Vec<String> {
        let rows = counts.read(lines, rules);
        rows.map(|(rule, answer, count)| format!("{rule} {} {count}", answer.label())).collect()
    }

    #[tokio::test]
    async fn a_rule_is_told_with_every_answer_that_it_may_give() {
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
        let lines = counts.register_rules(limiter.rules(), |_| {});
        for _ in 0..3 {
            let request = Request::new().with("user", "a").unwrap().with("ip", "::1").unwrap();
            counts.add(&lines, limiter.rules(), &limiter.check(&request).await);
        }
        let name: Arc<str> = Arc::from("login");
        for rule in [Some(name), Some(Arc::from("gone")), None] {
            let block = Block { retry_after: Span::SECOND, rule };
            counts.add(&lines, limiter.rules(), &Decision::blocked(block));
        }
        assert_eq!(
            told(&counts, &lines, limiter.rules()),
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
        let rules = RuleSet::new((0..NAMED + 5).map(rule).collect()).unwrap();
        let limiter = Limiter::builder().rules(rules).build();
        let counts = RuleCounts::new();
        let lines = counts.register_rules(limiter.rules(), |_| {});
        counts.add(&lines, limiter.rules(), &limiter.check(&Request::new()).await);
        let told = told(&counts, &lines, limiter.rules());
        assert_eq!(told.len(), NAMED * 3 + 1);
        assert_eq!(told.first().unwrap(), "r0 allowed 1");
        assert_eq!(told.last().unwrap(), "(other) allowed 5");
    }
}
