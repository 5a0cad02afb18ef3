//! A store and its nodes as they ship, on a network and under a weather that a seed decides.

use std::collections::BTreeMap;

use tidegate_core::{Algorithm, LeaseGrant, LeaseId, LeaseRequest, Limit, Quota, Span, Timestamp};
use tidegate_limiter::coordination::lease::{ClientLeases, LeaseDebit, LeaseDecision};

use super::chance::Chance;
use super::keys::{ClientKeys, KeyTtl};
use super::truth::Admitted;
use super::weather::Weather;

/// Some time in 2026, on no round boundary.
const START: u64 = 1_780_000_000_123_457;
/// So long is looked at.
const LENGTH: u64 = 9_000_000;
const SWEEP: u64 = 250_000;

enum Event {
    /// A request, or as many as there are tokens.
    Check {
        burst: bool,
    },
    Question {
        ask: LeaseRequest,
        sent: u64,
    },
    Answer {
        number: u32,
        granted: LeaseGrant,
    },
    /// Nobody waits for an answer any longer.
    Deadline {
        number: u32,
    },
    /// A request that took tokens was denied elsewhere.
    PutBack {
        admission: usize,
        slice: LeaseDebit,
    },
    /// Somebody without leases takes all that is free.
    Drain,
    Sweep,
    Crash,
    Pause,
    /// No node does anything for a while, and then somebody takes all that is free.
    Lull,
}

#[derive(Default)]
struct Node {
    tab: ClientLeases,
    /// What it calls itself; another after a crash.
    name: u64,
    numbers: u32,
    asking: Option<u32>,
    waiting: u64,
    /// It does nothing before.
    asleep: u64,
    /// Its clock goes on by the first in the second.
    rate: (u64, u64),
    /// So many requests at once, each so many microseconds, about.
    cluster: u64,
    every: u64,
}

impl Node {
    fn clock(&self, now: u64) -> Timestamp {
        Timestamp::from_micros(START / 2 + self.name + (now - START) * self.rate.0 / self.rate.1)
    }

    /// How long its clock takes for a span, a little less.
    fn real(&self, span: u64) -> u64 {
        (span * self.rate.1 / self.rate.0).saturating_sub(2)
    }
}

/// A fleet with one client.
pub(crate) struct Fleet {
    chance: Chance,
    weather: Weather,
    pub(crate) limit: Limit,
    keys: ClientKeys,
    nodes: Vec<Node>,
    now: u64,
    queue: BTreeMap<(u64, u64), (usize, u64, Event)>,
    queued: u64,
    admitted: Vec<Option<Admitted>>,
    /// How many tokens were admitted without a question.
    pub(crate) from_holds: u64,
    trace: Option<Vec<String>>,
}

impl Fleet {
    /// The fleet of a seed. Clocks run apart by one part in `drift`; the store's keys live for `ttl`.
    pub(crate) fn new(seed: u64, drift: u64, ttl: KeyTtl, traced: bool) -> Self {
        let mut chance = Chance::new(seed);
        let algorithms = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow];
        let algorithm = chance.pick(&algorithms);
        let window = Span::from_micros(chance.spread(50_000, 5_000_000));
        let mut quota = Quota::per(chance.spread(1, 300), window);
        if algorithm == Algorithm::TokenBucket && chance.percent(50) {
            quota = quota.burst(chance.spread(1, 300));
        }
        let limit = Limit::new(algorithm, quota).unwrap();
        let weather = Weather::new(&mut chance);
        let mut fleet = Self {
            keys: ClientKeys::new(&limit, ttl),
            now: START,
            queue: BTreeMap::new(),
            queued: 0,
            admitted: Vec::new(),
            from_holds: 0,
            trace: traced.then(Vec::new),
            nodes: Vec::new(),
            chance,
            weather,
            limit,
        };
        fleet.note(|fleet| format!("{:?}", fleet.limit));
        let fair = window.as_micros() / quota.amount();
        for at in 0..fleet.chance.spread(1, 4) {
            let rate = fleet.chance.pick(&[(drift, drift + 1), (1, 1), (drift + 1, drift)]);
            let cluster = fleet.chance.pick(&[1, 1, 10, 100]);
            let every = (cluster * fleet.chance.spread(fair / 4, fair * 4)).clamp(400, 1_000_000);
            fleet.nodes.push(Node { name: at + 1, rate, cluster, every, ..Node::default() });
            let at = usize::try_from(at).unwrap();
            fleet.queue(at, 0, Event::Check { burst: false });
            fleet.queue(at, SWEEP, Event::Sweep);
            for event in [Event::Crash, Event::Pause] {
                if fleet.chance.percent(5 * fleet.weather.bad) {
                    let after = fleet.chance.below(LENGTH);
                    fleet.queue(at, after, event);
                }
            }
        }
        if fleet.chance.percent(fleet.weather.lulls) {
            let after = fleet.chance.below(LENGTH / 2);
            fleet.queue(0, after, Event::Lull);
        }
        fleet
    }

    /// Lets everything happen, and returns what was admitted, in order.
    pub(crate) fn run(&mut self) -> Vec<Admitted> {
        while let Some(((at, _), (node, name, event))) = self.queue.pop_first() {
            self.now = at;
            if at - START > LENGTH {
                break;
            }
            if let Event::Question { ask, sent } = event {
                self.decide(node, name, &ask, sent);
            } else if let Event::Drain = event {
                self.drain();
            } else if let Event::Lull = event {
                self.lull();
            } else if self.nodes[node].asleep > at {
                let later = self.nodes[node].asleep - at;
                self.queue_for(node, name, later, event);
            } else if name == self.nodes[node].name
                || matches!(event, Event::Check { .. } | Event::Sweep)
            {
                self.happen(node, event);
            }
        }
        self.admitted.iter().flatten().copied().collect()
    }

    /// What happened, if that was asked for.
    pub(crate) fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or_default()
    }

    fn note(&mut self, what: impl Fn(&Self) -> String) {
        if self.trace.is_some() {
            let line = format!("{:>9}  {}", self.now - START, what(self));
            self.trace.iter_mut().for_each(|trace| trace.push(line.clone()));
        }
    }

    fn queue(&mut self, node: usize, after: u64, event: Event) {
        self.queue_for(node, self.nodes[node].name, after, event);
    }

    fn queue_for(&mut self, node: usize, name: u64, after: u64, event: Event) {
        self.queued += 1;
        self.queue.insert((self.now + after, self.queued), (node, name, event));
    }

    fn admit(&mut self, cost: u64) {
        self.admitted.push(Some(Admitted { at: self.now, cost }));
    }

    fn happen(&mut self, node: usize, event: Event) {
        let at = self.nodes[node].clock(self.now);
        match event {
            Event::Check { burst: true } => while self.check(node, 1) {},
            Event::Check { burst: false } => {
                for _ in 0..self.nodes[node].cluster {
                    let costly = self.chance.percent(self.weather.costly);
                    let most = 1 + self.limit.capacity() / 3;
                    let cost = if costly { self.chance.spread(1, most) } else { 1 };
                    self.check(node, cost);
                }
                let quiet = self.chance.percent(self.weather.quiet);
                let most = if quiet { 3_000_000 } else { 2 * self.nodes[node].every };
                let after = self.chance.below(most);
                self.queue(node, after, Event::Check { burst: false });
            }
            Event::Answer { number, granted } if self.nodes[node].asking == Some(number) => {
                self.note(|_| format!("node {node}: answer {number}: {granted:?}"));
                self.nodes[node].asking = None;
                let id = LeaseId { node: self.nodes[node].name, number };
                self.nodes[node].tab.on_grant(id, &self.limit, &granted);
            }
            Event::Deadline { number } if self.nodes[node].asking == Some(number) => {
                self.note(|_| format!("node {node}: no answer {number}"));
                self.nodes[node].asking = None;
                let id = LeaseId { node: self.nodes[node].name, number };
                self.nodes[node].tab.on_failure(id);
            }
            Event::Answer { .. }
            | Event::Deadline { .. }
            | Event::Question { .. }
            | Event::Lull
            | Event::Drain => {}
            Event::PutBack { admission, slice } => {
                let cost = self.admitted[admission].take().map_or(0, |admitted| admitted.cost);
                self.note(|_| format!("node {node}: {cost} put back"));
                self.nodes[node].tab.roll_back(at, &slice);
            }
            Event::Sweep => {
                let id = self.next_id(node);
                let (tab, share) = (&mut self.nodes[node].tab, self.weather.share);
                let closing = match tab.is_idle(at) {
                    _ if !self.weather.sweeps => None,
                    true => tab.release(at, id, share),
                    false => tab.renew(at, id, share),
                };
                if let Some(ask) = closing {
                    self.send(node, ask);
                }
                self.queue(node, SWEEP, Event::Sweep);
            }
            Event::Crash => {
                self.note(|_| format!("node {node}: crashes"));
                let Node { name, rate, cluster, every, .. } = self.nodes[node];
                self.nodes[node] =
                    Node { name: name + 1_000, rate, cluster, every, ..Node::default() };
            }
            Event::Pause => {
                self.note(|_| format!("node {node}: pauses"));
                self.nodes[node].asleep = self.now + self.chance.spread(1_000, 4_000_000);
            }
        }
    }

    /// A request. Whether it was admitted from what is held.
    fn check(&mut self, node: usize, cost: u64) -> bool {
        let at = self.nodes[node].clock(self.now);
        let taken = self.nodes[node].tab.take(at, cost);
        if let LeaseDecision::Admitted { debit: slice, .. } = taken {
            self.note(|_| format!("node {node}: admits {cost}"));
            self.from_holds += cost;
            self.admit(cost);
            if self.chance.percent(self.weather.put_back) {
                let (after, admission) =
                    (self.chance.spread(0, 3_000_000), self.admitted.len() - 1);
                self.queue(node, after, Event::PutBack { admission, slice });
            }
        }
        let own = &mut self.nodes[node];
        let ask = match (taken, own.tab.cached_denial(at, cost)) {
            (LeaseDecision::Admitted { .. }, _) => own.tab.should_refill(at).then_some(0),
            (LeaseDecision::AskStore, Some((_, again))) => again.then_some(0),
            (LeaseDecision::AskStore, None) if own.tab.is_pending() => {
                own.waiting += cost;
                None
            }
            (LeaseDecision::AskStore, None) => Some(cost),
        };
        if let Some(cost) = ask {
            let id = self.next_id(node);
            let waiting = std::mem::take(&mut self.nodes[node].waiting);
            let ask = self.nodes[node].tab.request(at, cost, waiting, id, self.weather.share);
            self.send(node, ask);
        }
        taken != LeaseDecision::AskStore
    }

    fn next_id(&mut self, node: usize) -> LeaseId {
        self.nodes[node].numbers += 1;
        LeaseId { node: self.nodes[node].name, number: self.nodes[node].numbers }
    }

    fn send(&mut self, node: usize, ask: LeaseRequest) {
        self.note(|_| format!("node {node}: asks {ask:?}"));
        let number = ask.id.number;
        self.nodes[node].asking = Some(number);
        self.queue(node, self.weather.deadline, Event::Deadline { number });
        for after in self.ways() {
            self.queue(node, after, Event::Question { ask: ask.clone(), sent: self.now });
        }
    }

    /// When a message that is sent now arrives, each time that it does.
    fn ways(&mut self) -> Vec<u64> {
        let times = match self.chance.below(100) {
            roll if roll < self.weather.bad => 0,
            roll if roll < 2 * self.weather.bad => 2,
            _ => 1,
        };
        let slow = self.chance.percent(self.weather.bad);
        let most = if slow { 4_000_000 } else { self.weather.delay };
        (0..times).map(|_| self.chance.below(most)).collect()
    }

    fn lull(&mut self) {
        let length = 1_000_000 + self.chance.below(4_000_000);
        self.note(|_| format!("all nodes pause for {length}"));
        let until = self.now + length;
        self.nodes.iter_mut().for_each(|node| node.asleep = node.asleep.max(until));
        self.queue(0, length, Event::Drain);
    }

    fn drain(&mut self) {
        let (now, id) = (Timestamp::from_micros(self.now), LeaseId { node: 0, number: 0 });
        let reports = [].into_iter().collect();
        let unreported = [].into_iter().collect();
        let mut ask = LeaseRequest {
            cost: 0,
            requested: 0,
            id,
            unreported,
            reports,
            ttl: Span::ZERO,
            fleet_size: 1,
        };
        let look = self.keys.ask(now, &ask);
        ask.cost = look.outcome.remaining;
        if ask.cost > 0 {
            self.note(|_| format!("store: {} drained", ask.cost));
            let granted = self.keys.ask(now, &ask);
            assert!(granted.outcome.is_allowed(), "what remains can be had");
            self.admit(ask.cost);
        }
    }

    fn decide(&mut self, node: usize, name: u64, ask: &LeaseRequest, sent: u64) {
        let now = Timestamp::from_micros(self.now);
        let granted = self.keys.ask(now, ask);
        self.note(|_| format!("store: {ask:?}: {granted:?}"));
        if ask.cost > 0 && granted.outcome.is_allowed() {
            self.admit(ask.cost);
        }
        // When it is about to end, by the clock of its node, everybody wants all that there is.
        let end = sent + self.nodes[node].real(granted.ttl.as_micros());
        if end > self.now && self.chance.percent(self.weather.brink) {
            let left = end - self.now;
            let early = self.chance.spread(0, left);
            self.queue(node, left - early, Event::Drain);
            self.queue(node, left, Event::Drain);
            self.queue(node, left, Event::Check { burst: true });
        }
        for after in self.ways() {
            let answer = Event::Answer { number: ask.id.number, granted: granted.clone() };
            self.queue_for(node, name, after, answer);
        }
    }
}
