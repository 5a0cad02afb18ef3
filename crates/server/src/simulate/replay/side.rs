//! One set of rules at work: the limiter that ships, on a store in memory and a clock that the log moves.

use futures_util::FutureExt;
use tidegate::rule::Chain;
use tidegate::{
    BlockList, Decision, Keyer, Limiter, ManualClock, MemoryStore, Request, Rule, RuleSet,
    Timestamp,
};
use tidegate_core::Scope;

use super::clients::{Clients, Said, Who};
use super::timeline::Timeline;

/// Under which clients that may be secrets get their hashes, so that they are the same in every run.
const IDS: [u8; 32] = [0; 32];

pub(super) struct Side {
    limiter: Limiter<MemoryStore>,
    time: ManualClock,
    ids: BlockList,
    pub(super) all: Counts,
    pub(super) rules: Vec<Ruled>,
    /// The place of the first of its series in the timeline.
    first: usize,
}

/// What became of requests.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) offered: u64,
    pub(super) admitted: u64,
    pub(super) denied: u64,
}

/// What one rule did.
pub(super) struct Ruled {
    pub(super) counts: Counts,
    /// Of what it denied: how often no other rule had more to say.
    pub(super) decided: u64,
    /// Of what it decided: how often the client was blocked by its penalty.
    pub(super) blocked: u64,
    /// Of what it decided: how often the other rules admit it.
    pub(super) alone: u64,
    pub(super) clients: Clients,
    scope: Scope,
}

/// What the timeline counts of each rule, and of all of them.
const SERIES: usize = 2;

impl Side {
    /// Rules that nobody has met yet; their series in the timeline begin at `first`.
    pub(super) fn new(rules: &RuleSet, first: usize) -> Self {
        let time = ManualClock::starting_at(Timestamp::EPOCH);
        let limiter = Limiter::builder().rules(rules.clone()).clock(time.clock()).build();
        let keyer = Keyer::Local { seed: IDS };
        let ruled = |rule: &Rule| Ruled {
            counts: Counts::default(),
            decided: 0,
            blocked: 0,
            alone: 0,
            clients: Clients::default(),
            scope: keyer.scope(rule.name(), rule.per().iter().map(Chain::as_str)),
        };
        let rules = rules.rules().iter().map(ruled).collect();
        Self { limiter, time, ids: BlockList::new(IDS), all: Counts::default(), rules, first }
    }

    /// Where the series of the next one begin.
    pub(super) fn series(&self) -> usize {
        self.first + SERIES * (self.rules.len() + 1)
    }

    /// Where the timeline has what was offered to all rules, or to one of them; what was admitted is next to it.
    pub(super) fn series_of(&self, rule: Option<usize>) -> usize {
        self.first + SERIES * rule.map_or(0, |place| place + 1)
    }

    pub(super) fn set(&self) -> &RuleSet {
        self.limiter.rules()
    }

    /// How many newcomers shared buckets because the store was full.
    pub(super) fn overflowed(&self) -> u64 {
        self.limiter.store().usage().overflowed
    }

    /// Decides a request at an instant, which is not before the last one.
    pub(super) fn decide(&self, request: &Request<'_>, now: Timestamp) -> Decision {
        let passed = now.since(self.time.now());
        if !passed.is_zero() {
            self.time.advance(passed);
        }
        // A store in memory answers at once.
        let decision = self.limiter.check(request).now_or_never();
        decision.unwrap_or_else(|| Decision::of(Default::default()))
    }

    /// Counts what was decided; `other` is whether other rules admit it, if there are some.
    pub(super) fn note(
        &mut self,
        request: &Request<'_>,
        decision: &Decision,
        other: Option<bool>,
        (at, piece): (Timestamp, usize),
        timeline: &mut Timeline,
    ) {
        let allowed = decision.is_allowed();
        self.all.note(allowed, !allowed);
        let first = self.first;
        let mut count = |series: usize, admitted: bool| {
            timeline.add(series, piece);
            if admitted {
                timeline.add(series + 1, piece);
            }
        };
        count(first, allowed);
        let alone = !allowed && other == Some(true);
        let set = self.limiter.rules();
        let decisive = decision.decisive().filter(|_| !allowed).map(|policy| &policy.rule);
        let mut rule_said = |place: usize, denied: bool, admitted: bool, decided: bool| {
            let (rule, ruled) = (&set.rules()[place], &mut self.rules[place]);
            ruled.counts.note(admitted, denied);
            ruled.decided += u64::from(decided);
            ruled.alone += u64::from(decided && alone);
            count(first + SERIES * (place + 1), admitted);
            // Half of a key is plenty to tell clients apart.
            let key = ruled.scope.key(rule.parts(request)).as_u128() as u64;
            let said = Said { denied, alone: decided && alone, at };
            ruled.clients.note(key, said, || Who::of(rule, request, &self.ids));
        };
        if let Some(block) = decision.block() {
            let place = block.rule.as_ref().and_then(|rule| set.place(rule));
            if let Some(place) = place {
                rule_said(place, true, false, true);
                self.rules[place].blocked += 1;
            }
            return;
        }
        for policy in decision.policies() {
            let Some(place) = set.place(&policy.rule) else { continue };
            let fits = policy.outcome.is_allowed();
            let decided = decisive.is_some_and(|rule| *rule == policy.rule);
            rule_said(place, !fits, fits && (allowed || policy.shadow), decided);
        }
    }

    /// Gives back the memory of what no longer counts.
    pub(super) fn sweep(&self) {
        self.limiter.store().sweep(1);
        self.limiter.sweep_blocks(64);
    }
}

impl Counts {
    fn note(&mut self, admitted: bool, denied: bool) {
        self.offered += 1;
        self.admitted += u64::from(admitted);
        self.denied += u64::from(denied);
    }
}
