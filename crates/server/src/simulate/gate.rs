//! Who decides: one limit on one store, nodes that sync as the textbook has it, rules on one node or on a fleet.

use tidegate::rule::Synced;
use tidegate::{Limit, Outcome, RuleSet, Span, State, Timestamp};

use super::asking::{Asking, Names};
use super::fleet::{Fleet, Telling};
use super::rule_gate::{Lines, RuleGate};
use super::tally::{Said, Tally};
use super::traffic::{Arrival, Load};
use super::weather::Weather;

/// What is put to the test.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// A limit that every request asks one store about.
    Exact(Limit),
    /// A limit that nodes keep by telling each other.
    Synced(Limit, Synced, Telling),
    /// The rules of a file on one node, and what every request has in common.
    Rules(RuleSet, Vec<(String, String)>),
    /// The same on nodes as they ship, each rule kept as its accuracy says.
    Fleet(RuleSet, Vec<(String, String)>, Weather),
    /// One limit on such nodes: the only rule of a set.
    Kept(RuleSet, Weather),
}

/// A subject at work.
pub(super) enum Gate {
    Exact { limit: Limit, clients: Vec<State> },
    Synced(Fleet),
    Rules(Box<RuleGate>),
}

/// What a client was told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub(super) admitted: bool,
    pub(super) retry_after: Option<Span>,
}

impl From<&Outcome> for Answer {
    fn from(outcome: &Outcome) -> Self {
        Self { admitted: outcome.is_allowed(), retry_after: outcome.retry_after() }
    }
}

impl Subject {
    /// The limit that a client meets first.
    pub(crate) fn limit(&self) -> Option<Limit> {
        match self {
            Self::Exact(limit) | Self::Synced(limit, ..) => Some(limit.clone()),
            Self::Rules(rules, common) | Self::Fleet(rules, common, _) => {
                let asking = Asking::new(rules, common.clone());
                let mut names = Names::default();
                let request = asking.request(0, &mut names).ok()?;
                let matching = rules.matching(&request);
                let limit = matching.first()?.limit_for(&request, Timestamp::EPOCH).limit;
                Some(Limit::clone(limit))
            }
            Self::Kept(rules, _) => Some(Limit::clone(rules.rules().first()?.limit())),
        }
    }

    /// How much work a request is, where one that asks a store is 1.
    pub(super) fn steps(&self) -> u64 {
        match self {
            Self::Exact(_) => 1,
            Self::Synced(..) => 2,
            Self::Rules(rules, _) => 4 + 2 * rules.rules().len() as u64,
            Self::Fleet(rules, ..) | Self::Kept(rules, _) => 8 + 4 * rules.rules().len() as u64,
        }
    }

    /// How much work nodes have besides, when nobody asks.
    pub(super) fn besides(&self, load: &Load) -> u64 {
        let (every, clients) = match self {
            Self::Exact(_) | Self::Rules(..) => return 0,
            // Each tells, and each looks.
            Self::Synced(_, synced, _) => (synced.every.span(), 4 * load.clients),
            Self::Fleet(..) | Self::Kept(..) => (Span::from_millis(100), 8 + load.clients),
        };
        let times = load.length.as_micros() / every.as_micros().max(1) + 1;
        times.saturating_mul(load.nodes).saturating_mul(clients)
    }

    /// The subject on its first day, and what is to be counted of it.
    pub(super) fn open(&self, name: &str, load: &Load, start: Timestamp) -> (Gate, Vec<Tally>) {
        let one = |limit: &Limit| vec![Tally::new(name, Some(limit), load.length)];
        let of = |gate: RuleGate| {
            let tallies = gate.tallies(name, load, start);
            (Gate::Rules(Box::new(gate)), tallies)
        };
        match self {
            Self::Exact(limit) => {
                (Gate::Exact { limit: limit.clone(), clients: Vec::new() }, one(limit))
            }
            Self::Synced(limit, synced, telling) => {
                let size = (load.nodes, load.clients);
                let fleet = Fleet::new(limit.clone(), *synced, *telling, size, start);
                (Gate::Synced(fleet), one(limit))
            }
            Self::Rules(rules, common) => of(RuleGate::alone(rules.clone(), common.clone(), start)),
            Self::Fleet(rules, common, weather) => {
                let (rules, common, size) = (rules.clone(), common.clone(), (load.nodes, *weather));
                of(RuleGate::fleet(rules, common, size, start, Lines::Each))
            }
            Self::Kept(rules, weather) => {
                let (rules, size) = (rules.clone(), (load.nodes, *weather));
                of(RuleGate::fleet(rules, Vec::new(), size, start, Lines::One))
            }
        }
    }

    /// When its store is away.
    pub(super) fn weather(&self) -> Weather {
        match self {
            Self::Fleet(_, _, weather) | Self::Kept(_, weather) => *weather,
            Self::Exact(_) | Self::Synced(..) | Self::Rules(..) => Weather::default(),
        }
    }
}

impl Gate {
    /// Decides a request, and has it counted.
    pub(super) fn decide(
        &mut self,
        arrival: Arrival,
        now: Timestamp,
        tallies: &mut [Tally],
    ) -> Answer {
        let outcome = match self {
            Self::Rules(gate) => return gate.decide(arrival, now, tallies),
            Self::Synced(fleet) => fleet.charge(arrival.node, arrival.client, now),
            Self::Exact { limit, clients } => {
                let place = usize::try_from(arrival.client).unwrap_or(usize::MAX);
                if clients.len() <= place {
                    clients.resize_with(place + 1, || limit.fresh());
                }
                limit.charge(&mut clients[place], now, 1)
            }
        };
        let said = if outcome.is_allowed() { Said::Yes(outcome.delay()) } else { Said::No };
        tallies[0].note(arrival.client, arrival.at, now, said);
        Answer::from(&outcome)
    }

    /// What is counted elsewhere than in what requests are told.
    pub(super) fn settle(&self, tallies: &mut [Tally]) {
        if let Self::Rules(gate) = self {
            gate.settle(tallies);
        }
    }
}
