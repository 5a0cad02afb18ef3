//! The limiter that ships decides by all the rules of a set, on one node or on several.

use futures_util::FutureExt;
use tidegate::rule::{Mode, OnStoreFailure};
use tidegate::{
    Decision, FailureCounts, Limiter, ManualClock, Request, Rule, RuleSet, Span, Timestamp,
};

use super::asking::{Asking, Names};
use super::gate::Answer;
use super::nodes::Nodes;
use super::tally::{Said, Tally};
use super::traffic::{Arrival, Load};
use super::weather::Weather;

/// Rules at work, and what is counted of them.
pub(super) struct RuleGate {
    rules: RuleSet,
    deciding: Deciding,
    asking: Asking,
    names: Names,
    /// Which rules count clients apart.
    apart: Vec<bool>,
    /// What is counted: all of it in the first line, and each rule in one of its own if there are more.
    lines: Lines,
}

/// Who decides.
enum Deciding {
    /// One node, on a store in memory that answers whatever happens.
    Alone(Limiter, ManualClock),
    Fleet(Nodes),
}

/// What has a line of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lines {
    /// The one rule that there is.
    One,
    /// All rules together, and each.
    Each,
}

impl RuleGate {
    /// Rules on one node.
    pub(super) fn alone(rules: RuleSet, common: Vec<(String, String)>, start: Timestamp) -> Self {
        let time = ManualClock::starting_at(start);
        let limiter = Limiter::builder().rules(rules.clone()).clock(time.clock()).build();
        Self::new(rules, common, Deciding::Alone(limiter, time), Lines::Each)
    }

    /// Rules on so many nodes, each kept as its accuracy says.
    pub(super) fn fleet(
        rules: RuleSet,
        common: Vec<(String, String)>,
        (nodes, weather): (u64, Weather),
        start: Timestamp,
        lines: Lines,
    ) -> Self {
        let fleet = Deciding::Fleet(Nodes::new(&rules, nodes, weather, start));
        Self::new(rules, common, fleet, lines)
    }

    fn new(
        rules: RuleSet,
        common: Vec<(String, String)>,
        deciding: Deciding,
        lines: Lines,
    ) -> Self {
        let asking = Asking::new(&rules, common);
        let apart = |rule: &Rule| {
            let named = |name: &str| asking.names(name);
            rule.per().iter().any(|chain| chain.attributes().any(named)) && rule.mode() != Mode::Off
        };
        let apart = rules.rules().iter().map(apart).collect();
        Self { rules, deciding, asking, names: Names::default(), apart, lines }
    }

    /// What is to be counted.
    pub(super) fn tallies(&self, name: &str, load: &Load, start: Timestamp) -> Vec<Tally> {
        let mut names = Names::default();
        let request = self.asking.request(0, &mut names).unwrap_or_default();
        let each = self.rules.rules().iter().map(|rule| {
            let name = if self.lines == Lines::One { name } else { rule.name() };
            Tally::new(name, Some(rule.limit_for(&request, start).limit), load.length)
        });
        let all = (self.lines == Lines::Each).then(|| Tally::new(name, None, load.length));
        all.into_iter().chain(each).collect()
    }

    pub(super) fn decide(
        &mut self,
        arrival: Arrival,
        now: Timestamp,
        tallies: &mut [Tally],
    ) -> Answer {
        let Arrival { client, at, node } = arrival;
        let decision = match self.asking.request(client, &mut self.names) {
            Ok(request) => self.deciding.check(node, &request, now),
            Err(_) => None,
        };
        // Stores here answer at once, and attributes were looked at before.
        let decision = decision.unwrap_or_else(|| Decision::of(Default::default()));
        let (first, own) = match self.lines {
            Lines::One => (None, 0),
            Lines::Each => (tallies.first_mut(), 1),
        };
        let admitted = decision.is_allowed();
        if let Some(all) = first {
            all.note(client, at, now, said(admitted, decision.delay()));
        }
        for policy in decision.policies() {
            let said = match policy.outcome.is_allowed() {
                false => Said::No,
                true if admitted || policy.shadow => Said::Yes(policy.outcome.delay()),
                true => Said::Elsewhere,
            };
            self.note(&policy.rule, own, (client, at, now), said, tallies);
        }
        for name in decision.undecided() {
            let rule = self.rules.rule(name);
            let said = match rule.map(Rule::on_store_failure) {
                Some(OnStoreFailure::Deny) => Said::No,
                _ if admitted => Said::Yes(Span::ZERO),
                _ => Said::Elsewhere,
            };
            self.note(name, own, (client, at, now), said, tallies);
        }
        Answer { admitted, retry_after: decision.retry_after() }
    }

    fn note(
        &self,
        rule: &str,
        own: usize,
        (client, at, now): (u64, Span, Timestamp),
        said: Said,
        tallies: &mut [Tally],
    ) {
        let Some(place) = self.rules.place(rule) else { return };
        let whose = if self.apart[place] { client } else { 0 };
        tallies[place + own].note(whose, at, now, said);
    }

    /// Tells each line how often its rule answered without the store.
    pub(super) fn settle(&self, tallies: &mut [Tally]) {
        let Deciding::Fleet(nodes) = &self.deciding else { return };
        let own = usize::from(self.lines == Lines::Each);
        for (tally, FailureCounts { open, closed, local }) in
            tallies.iter_mut().skip(own).zip(nodes.failures())
        {
            tally.failed(open, closed, local);
        }
    }
}

impl Deciding {
    fn check(&mut self, node: u64, request: &Request<'_>, now: Timestamp) -> Option<Decision> {
        match self {
            Self::Alone(limiter, time) => {
                time.advance(now.since(time.now()));
                limiter.check(request).now_or_never()
            }
            Self::Fleet(nodes) => nodes.check(node, request, now),
        }
    }
}

fn said(admitted: bool, delay: Span) -> Said {
    if admitted { Said::Yes(delay) } else { Said::No }
}
