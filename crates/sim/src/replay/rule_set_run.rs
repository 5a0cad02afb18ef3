//! One set of rules in a replay: the production limiter on a store in memory, with the log's time.

use futures_util::FutureExt;
use tidegate_core::{Decision, Keyer, Request, RuleIndex, Scope, Timestamp};
use tidegate_limiter::{BlockList, Limiter, ManualClock, MemoryStore};
use tidegate_rules::{AttributeChain, Rule, RuleSet};

use crate::replay::clients::{RuleClient, RuleClients, RuleVerdict};
use crate::replay::timeline::TimelineCounter;

/// The key for hashes of client names, fixed so that they are the same in every run.
const CLIENT_ID_KEY: [u8; 32] = [0; 32];

pub(crate) struct RuleSetRun {
    limiter: Limiter<MemoryStore>,
    time: ManualClock,
    ids: BlockList,
    pub(crate) all: RequestCounts,
    pub(crate) rules: Vec<RuleRun>,
    /// The first of its series in the timeline.
    first: usize,
}

/// Counts of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RequestCounts {
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
}

/// The counts of one rule.
pub(crate) struct RuleRun {
    pub(crate) counts: RequestCounts,
    /// Denials that no stricter rule decided.
    pub(crate) decided: u64,
    /// The part of `decided` that its penalty blocked.
    pub(crate) blocked: u64,
    /// The part of `decided` that the other set of rules admits.
    pub(crate) changed: u64,
    pub(crate) clients: RuleClients,
    scope: Scope,
}

/// Series of the timeline for each rule, and for all rules together.
const SERIES_PER_RULE: usize = 2;

impl RuleSetRun {
    /// Creates a run without requests; its series in the timeline begin at `first`.
    pub(crate) fn new(rules: &RuleSet, first: usize) -> Self {
        let time = ManualClock::starting_at(Timestamp::EPOCH);
        let limiter = Limiter::builder().rules(rules.clone()).clock(time.clock()).build();
        let keyer = Keyer::Local { seed: CLIENT_ID_KEY };
        let run = |rule: &Rule| RuleRun {
            counts: RequestCounts::default(),
            decided: 0,
            blocked: 0,
            changed: 0,
            clients: RuleClients::default(),
            scope: keyer.scope(rule.name(), rule.per().iter().map(AttributeChain::as_str)),
        };
        let rules = rules.rules().iter().map(run).collect();
        Self {
            limiter,
            time,
            ids: BlockList::new(CLIENT_ID_KEY),
            all: RequestCounts::default(),
            rules,
            first,
        }
    }

    /// Returns the first series after those of this run.
    pub(crate) fn series(&self) -> usize {
        self.first + SERIES_PER_RULE * (self.rules.len() + 1)
    }

    /// Returns the series of requests to all rules, or to one of them; that of admissions follows it.
    pub(crate) fn series_of(&self, rule: Option<usize>) -> usize {
        self.first + SERIES_PER_RULE * rule.map_or(0, |index| index + 1)
    }

    pub(crate) fn set(&self) -> &RuleSet {
        self.limiter.rules()
    }

    /// Returns the number of charges to shared buckets, because the store was full.
    pub(crate) fn overflowed(&self) -> u64 {
        self.limiter.store().usage().overflowed
    }

    /// Decides a request at an instant, which is not before the last one.
    pub(crate) fn decide(&self, request: &Request<'_>, now: Timestamp) -> Decision {
        let passed = now.since(self.time.now());
        if !passed.is_zero() {
            self.time.advance(passed);
        }
        // A store in memory replies at once.
        let decision = self.limiter.check(request).now_or_never();
        decision.unwrap_or_else(|| Decision::of(Default::default()))
    }

    /// Counts a decision; `other` is true if the other set of rules admits the request, `None` without another set.
    pub(crate) fn record(
        &mut self,
        request: &Request<'_>,
        decision: &Decision,
        other: Option<bool>,
        (at, piece): (Timestamp, usize),
        timeline: &mut TimelineCounter,
    ) {
        let allowed = decision.is_allowed();
        self.all.record(allowed, !allowed);
        let first = self.first;
        let mut count = |series: usize, admitted: bool| {
            timeline.add(series, piece);
            if admitted {
                timeline.add(series + 1, piece);
            }
        };
        count(first, allowed);
        let changed = !allowed && other == Some(true);
        let set = self.limiter.rules();
        let strictest = decision.strictest_rule().filter(|_| !allowed).map(|rule| rule.rule_index);
        let mut record_rule = |index: RuleIndex, denied: bool, admitted: bool, decided: bool| {
            let (rule, run) = (&set.rules()[index.0], &mut self.rules[index.0]);
            run.counts.record(admitted, denied);
            run.decided += u64::from(decided);
            run.changed += u64::from(decided && changed);
            count(first + SERIES_PER_RULE * (index.0 + 1), admitted);
            // Half of a key identifies a client.
            let key = run.scope.key(rule.parts(request)).as_u128() as u64;
            let verdict = RuleVerdict { denied, changed: decided && changed, at };
            run.clients.record(key, verdict, || RuleClient::of(rule, request, &self.ids));
        };
        if let Some(block) = decision.block() {
            let index = block.rule.as_ref().and_then(|rule| set.rule_index(rule));
            if let Some(index) = index {
                record_rule(index, true, false, true);
                self.rules[index.0].blocked += 1;
            }
            return;
        }
        for rule in decision.rule_outcomes() {
            let fits = rule.outcome.is_allowed();
            let decided = strictest == Some(rule.rule_index);
            record_rule(rule.rule_index, !fits, fits && (allowed || rule.shadow), decided);
        }
    }

    /// Frees expired state.
    pub(crate) fn sweep(&self) {
        self.limiter.store().sweep(1);
        self.limiter.sweep_blocks(64);
    }
}

impl RequestCounts {
    fn record(&mut self, admitted: bool, denied: bool) {
        self.offered += 1;
        self.admitted += u64::from(admitted);
        self.denied += u64::from(denied);
    }
}
