//! Who decides: one limit on one store, nodes that sync, or all the rules of a file.

use std::fmt::Write;
use std::net::Ipv4Addr;

use futures_util::FutureExt;
use tidegate::rule::{Mode, Synced};
use tidegate::{
    Decision, Limit, Limiter, ManualClock, MemoryStore, Outcome, Request, RequestError, Rule,
    RuleSet, Span, State, Timestamp,
};

use super::fleet::{Fleet, Telling};
use super::tally::{Said, Tally};
use super::traffic::{Arrival, Load};

/// What is put to the test.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// A limit that every request asks one store about.
    Exact(Limit),
    /// A limit that nodes keep by telling each other.
    Synced(Limit, Synced, Telling),
    /// The rules of a file, and what every request has in common.
    Rules(RuleSet, Vec<(String, String)>),
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
            Self::Rules(rules, attributes) => {
                let asking = Asking::new(rules, attributes.clone());
                let mut names = Names::default();
                let request = asking.request(0, &mut names).ok()?;
                let matching = rules.matching(&request);
                let limit = matching.first()?.limit_for(&request, Timestamp::EPOCH).limit;
                Some(Limit::clone(limit))
            }
        }
    }

    /// How much work a request is, where one that asks a store is 1.
    pub(super) fn steps(&self) -> u64 {
        match self {
            Self::Exact(_) => 1,
            Self::Synced(..) => 2,
            Self::Rules(rules, _) => 4 + 2 * rules.rules().len() as u64,
        }
    }

    /// How much work nodes have that tell each other, besides.
    pub(super) fn syncs(&self, load: &Load) -> u64 {
        let Self::Synced(_, synced, _) = self else { return 0 };
        let times = load.length.as_micros() / synced.every.span().as_micros().max(1) + 1;
        // Each tells, and each looks.
        times.saturating_mul(load.nodes).saturating_mul(load.clients).saturating_mul(4)
    }

    /// The subject on its first day, and what is to be counted of it.
    pub(super) fn open(&self, name: &str, load: &Load, start: Timestamp) -> (Gate, Vec<Tally>) {
        let one = |limit: &Limit| vec![Tally::new(name, Some(limit), load.length)];
        match self {
            Self::Exact(limit) => {
                (Gate::Exact { limit: limit.clone(), clients: Vec::new() }, one(limit))
            }
            Self::Synced(limit, synced, telling) => {
                let size = (load.nodes, load.clients);
                let fleet = Fleet::new(limit.clone(), *synced, *telling, size, start);
                (Gate::Synced(fleet), one(limit))
            }
            Self::Rules(rules, attributes) => {
                let gate = RuleGate::new(rules.clone(), attributes.clone(), start);
                let tallies = gate.tallies(name, load.length, start);
                (Gate::Rules(Box::new(gate)), tallies)
            }
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
}

/// The limiter that ships, on a store in memory and a clock that is moved by hand.
pub(super) struct RuleGate {
    limiter: Limiter<MemoryStore>,
    time: ManualClock,
    asking: Asking,
    names: Names,
    /// Which rules count clients apart.
    apart: Vec<bool>,
}

/// What requests look like.
struct Asking {
    /// What they have in common.
    common: Vec<(String, String)>,
    /// Attributes that name a client.
    naming: Vec<String>,
}

/// What a client is called.
#[derive(Default)]
struct Names {
    name: String,
    address: String,
}

/// What a request has unless it is said otherwise.
const USUAL: [(&str, &str); 3] = [("method", "GET"), ("host", "localhost"), ("path", "/")];

impl Asking {
    fn new(rules: &RuleSet, mut common: Vec<(String, String)>) -> Self {
        let given = |common: &[(String, String)], name: &str| common.iter().any(|(n, _)| n == name);
        let mut naming: Vec<String> = Vec::new();
        for name in rules.rules().iter().flat_map(Rule::per).flat_map(|chain| chain.attributes()) {
            if !given(&common, name) && !naming.iter().any(|known| known == name) {
                naming.push(name.to_owned());
            }
        }
        for (name, value) in USUAL {
            if !given(&common, name) && !naming.iter().any(|known| known == name) {
                common.push((name.to_owned(), value.to_owned()));
            }
        }
        Self { common, naming }
    }

    fn request<'n>(
        &'n self,
        client: u64,
        names: &'n mut Names,
    ) -> Result<Request<'n>, RequestError> {
        names.name.clear();
        names.address.clear();
        // Addresses of 10.0.0.0/8 and those after it.
        let number = u32::try_from(client % (1 << 30)).unwrap_or_default();
        let address = Ipv4Addr::from_bits(0x0a00_0001 + number);
        // Writing to a text does not fail.
        let _ = write!(names.name, "client-{}", client + 1);
        let _ = write!(names.address, "{address}");
        let mut request = Request::new();
        for (name, value) in &self.common {
            request.insert(name.as_str(), value.as_str())?;
        }
        for name in &self.naming {
            let value = if name == "ip" { &names.address } else { &names.name };
            request.insert(name.as_str(), value.as_str())?;
        }
        Ok(request)
    }
}

impl RuleGate {
    fn new(rules: RuleSet, common: Vec<(String, String)>, start: Timestamp) -> Self {
        let asking = Asking::new(&rules, common);
        let named = |name: &str| asking.naming.iter().any(|naming| naming == name);
        let apart = |rule: &Rule| {
            rule.per().iter().any(|chain| chain.attributes().any(named)) && rule.mode() != Mode::Off
        };
        let apart = rules.rules().iter().map(apart).collect();
        let time = ManualClock::starting_at(start);
        let limiter = Limiter::builder().rules(rules).clock(time.clock()).build();
        Self { limiter, time, asking, names: Names::default(), apart }
    }

    /// One for all rules together, and one for each.
    fn tallies(&self, name: &str, length: Span, start: Timestamp) -> Vec<Tally> {
        let mut names = Names::default();
        let request = self.asking.request(0, &mut names).unwrap_or_default();
        let rules = self.limiter.rules().rules().iter().map(|rule| {
            let limit = rule.limit_for(&request, start).limit;
            Tally::new(rule.name(), Some(limit), length)
        });
        std::iter::once(Tally::new(name, None, length)).chain(rules).collect()
    }

    fn decide(&mut self, arrival: Arrival, now: Timestamp, tallies: &mut [Tally]) -> Answer {
        self.time.advance(now.since(self.time.now()));
        let Arrival { client, at, .. } = arrival;
        let decision = match self.asking.request(client, &mut self.names) {
            Ok(request) => self.limiter.check(&request).now_or_never(),
            Err(_) => None,
        };
        // A store in memory answers at once, and attributes were looked at before.
        let decision = decision.unwrap_or_else(|| Decision::of(Default::default()));
        let admitted = decision.is_allowed();
        let all = if admitted { Said::Yes(decision.delay()) } else { Said::No };
        tallies[0].note(client, at, now, all);
        for policy in decision.policies() {
            let Some(place) = self.limiter.rules().place(&policy.rule) else { continue };
            let said = match policy.outcome.is_allowed() {
                false => Said::No,
                true if admitted || policy.shadow => Said::Yes(policy.outcome.delay()),
                true => Said::Elsewhere,
            };
            let whose = if self.apart[place] { client } else { 0 };
            tallies[place + 1].note(whose, at, now, said);
        }
        Answer { admitted, retry_after: decision.retry_after() }
    }
}
