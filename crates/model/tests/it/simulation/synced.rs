//! A store and nodes that sync, as they ship, on a network that a seed decides.

use std::collections::BTreeMap;

use tidegate_core::{
    Algorithm, LeaseId, LeaseRequest, LeaseSet, Limit, Quota, Span, State, StateSnapshot, Timestamp,
};
use tidegate_limiter::coordination::sync::{
    ClientView, SyncDecision, UnsyncedDebit, exact_request,
};
use tidegate_rules::{Accuracy, MaxAhead, SyncInterval, SyncSettings};

use super::chance::Chance;
use super::truth::Admitted;
use super::weather::Weather;

/// Some time in 2026, on no round boundary.
const START: u64 = 1_780_000_000_123_457;
/// So long is looked at.
const LENGTH: u64 = 9_000_000;
/// By one part in so many clocks run apart.
const DRIFT: u64 = 100;

enum Event {
    Check,
    Question {
        id: LeaseId,
        ask: LeaseRequest,
        sent: Timestamp,
    },
    Answer {
        id: LeaseId,
        sent: Timestamp,
        snapshot: Option<StateSnapshot>,
    },
    /// Nobody waits for an answer any longer.
    Deadline {
        id: LeaseId,
    },
    /// A request that was admitted was denied elsewhere.
    PutBack {
        admission: usize,
        advance: UnsyncedDebit,
    },
    /// Somebody looks whether a sync is due.
    Look,
    Crash,
    Pause,
    /// The store's clock is set.
    ClockStep,
    /// A replica without the latest writes takes over, with a clock of its own.
    Failover,
}

/// The store's data at an instant, as a replica has them.
#[derive(Clone)]
struct Replica {
    state: State,
    leases: LeaseSet,
}

#[derive(Default)]
struct Node {
    view: ClientView,
    /// What it calls itself; another after a crash.
    name: u64,
    numbers: u32,
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
}

/// A fleet with one client.
pub(crate) struct Fleet {
    chance: Chance,
    weather: Weather,
    pub(crate) limit: Limit,
    synced: SyncSettings,
    state: State,
    leases: LeaseSet,
    replica: Replica,
    /// By how many microseconds the store's clock is off.
    offset: i64,
    /// The store's time that the client's window has reached; it does not run backwards.
    reached: u64,
    /// By how many microseconds the store's clock was set forward in all.
    skipped: u64,
    nodes: Vec<Node>,
    crashes: u64,
    /// Steps of the store's clock since the last failover.
    clock_steps: u64,
    now: u64,
    queue: BTreeMap<(u64, u64), (usize, u64, Event)>,
    queued: u64,
    admitted: Vec<Option<Admitted>>,
    /// Where in `admitted` a failover happened, and what was allowed beyond the bound until then.
    failovers: Vec<(usize, u64)>,
    /// How many tokens were admitted without a question.
    pub(crate) alone: u64,
    trace: Option<Vec<String>>,
}

impl Fleet {
    pub(crate) fn new(seed: u64, traced: bool) -> Self {
        let mut chance = Chance::new(seed);
        let algorithms = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow];
        let algorithm = chance.pick(&algorithms);
        let window = Span::from_micros(chance.spread(50_000, 5_000_000));
        let mut quota = Quota::per(chance.spread(1, 300), window);
        if algorithm == Algorithm::TokenBucket && chance.percent(50) {
            quota = quota.burst(chance.spread(1, 300));
        }
        let limit = Limit::new(algorithm, quota).unwrap();
        let most = MaxAhead::Tokens(chance.spread(1, 100));
        let max_ahead = chance.pick(&[MaxAhead::Tenth, MaxAhead::Tokens(1), most]);
        let every = Span::from_millis(chance.pick(&[10, 50, 200, 1_000]));
        let synced = SyncSettings { every: SyncInterval::new(every).unwrap(), max_ahead };
        let weather = Weather::new(&mut chance);
        let mut fleet = Self {
            state: limit.fresh(),
            leases: LeaseSet::default(),
            replica: Replica { state: limit.fresh(), leases: LeaseSet::default() },
            offset: 0,
            reached: START,
            skipped: 0,
            crashes: 0,
            clock_steps: 0,
            failovers: Vec::new(),
            now: START,
            queue: BTreeMap::new(),
            queued: 0,
            admitted: Vec::new(),
            alone: 0,
            trace: traced.then(Vec::new),
            nodes: Vec::new(),
            chance,
            weather,
            limit,
            synced,
        };
        fleet.note(|fleet| format!("{:?} {:?}", fleet.limit, fleet.synced));
        let fair = window.as_micros() / quota.amount();
        for at in 0..fleet.chance.spread(1, 4) {
            let rate = fleet.chance.pick(&[(DRIFT, DRIFT + 1), (1, 1), (DRIFT + 1, DRIFT)]);
            let cluster = fleet.chance.pick(&[1, 1, 10, 100]);
            let every = (cluster * fleet.chance.spread(fair / 4, fair * 4)).clamp(400, 1_000_000);
            fleet.nodes.push(Node { name: at + 1, rate, cluster, every, ..Node::default() });
            let at = usize::try_from(at).unwrap();
            fleet.queue(at, 0, Event::Check);
            fleet.queue(at, 0, Event::Look);
            for event in [Event::Crash, Event::Pause] {
                if fleet.chance.percent(5 * fleet.weather.bad) {
                    let after = fleet.chance.below(LENGTH);
                    fleet.queue(at, after, event);
                }
            }
        }
        for event in [Event::ClockStep, Event::ClockStep, Event::Failover] {
            if fleet.chance.percent(fleet.weather.clock_steps) {
                let after = fleet.chance.below(LENGTH);
                fleet.queue(0, after, event);
            }
        }
        fleet
    }

    /// By how much all nodes together may exceed the limit in a window or bucket: `max_ahead` each, and once more
    /// for one that crashed, because its log is lost.
    ///
    /// A step of the store's clock costs that once more where it changes how long a window lasts: nodes that have not
    /// synced since go on in the window that they know after a step forward, and begin the next one too early after a
    /// step back. A bucket counts all of it.
    fn beyond(&self) -> u64 {
        let nodes = u64::try_from(self.nodes.len()).unwrap() + self.crashes;
        let windows = if let Limit::TokenBucket(_) = self.limit { 1 } else { 1 + self.clock_steps };
        nodes * windows * self.synced.max_ahead.of(&self.limit)
    }

    pub(crate) fn accuracy(&self) -> Accuracy {
        Accuracy::Synced(self.synced)
    }

    /// The number of nodes that have had a log of their own, for a bound that is printed with N open.
    pub(crate) fn nodes(&self) -> u64 {
        u64::try_from(self.nodes.len()).unwrap() + self.crashes
    }

    /// Whether the store's clock was never set, and no data were lost.
    pub(crate) fn has_steady_store(&self) -> bool {
        self.clock_steps == 0 && self.failovers.is_empty()
    }

    /// What was admitted between two failovers each, and how much beyond the bound is allowed in it. A store that
    /// lost writes counts anew at the worst.
    pub(crate) fn periods<'a>(&self, admitted: &'a [Admitted]) -> Vec<(&'a [Admitted], u64)> {
        let (mut periods, mut rest, mut from) = (Vec::new(), admitted, 0);
        for (until, beyond) in &self.failovers {
            let gone = self.admitted[from..*until].iter().flatten().count();
            let (period, later) = rest.split_at(gone);
            periods.push((period, *beyond));
            (rest, from) = (later, *until);
        }
        periods.push((rest, self.beyond()));
        periods
    }

    fn store_clock(&self) -> u64 {
        self.now.saturating_add_signed(self.offset)
    }

    /// Reads the client's state at the store's time, as any question does.
    fn touch(&mut self) {
        let clock = self.store_clock();
        self.reached = self.reached.max(clock);
        self.limit.peek(&mut self.state, Timestamp::from_micros(clock), 1);
    }

    fn step_clock(&mut self) {
        let by = self.chance.spread(1_000, 10_000_000);
        let forward = self.chance.percent(40);
        self.touch();
        self.set_clock(by, forward);
        self.clock_steps += 1;
        self.touch();
        self.note(|fleet| format!("store: clock is off by {}", fleet.offset));
    }

    fn set_clock(&mut self, by: u64, forward: bool) {
        self.offset += if forward { by.cast_signed() } else { -by.cast_signed() };
        self.skipped += if forward { by } else { 0 };
    }

    fn fail_over(&mut self) {
        let beyond = self.beyond();
        self.failovers.push((self.admitted.len(), beyond));
        let Replica { state, leases } = self.replica.clone();
        (self.state, self.leases) = (state, leases);
        let (by, forward) = (self.chance.spread(0, 5_000_000), self.chance.percent(50));
        self.set_clock(by, forward);
        self.reached = self.store_clock();
        // Nodes that have not synced since go on in the window that they know.
        self.clock_steps = 1;
        self.touch();
        self.note(|fleet| format!("store: a replica takes over, off by {}", fleet.offset));
    }

    /// Lets everything happen, and returns what was admitted, in order.
    pub(crate) fn run(&mut self) -> Vec<Admitted> {
        while let Some(((at, _), (node, name, event))) = self.queue.pop_first() {
            self.now = at;
            if at - START > LENGTH {
                break;
            }
            if let Event::Question { id, ask, sent } = event {
                self.decide(node, name, id, &ask, sent);
            } else if let Event::ClockStep = event {
                self.step_clock();
            } else if let Event::Failover = event {
                self.fail_over();
            } else if self.nodes[node].asleep > at {
                let later = self.nodes[node].asleep - at;
                self.queue_for(node, name, later, event);
            } else if name == self.nodes[node].name || matches!(event, Event::Check | Event::Look) {
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
        self.reached = self.reached.max(self.store_clock());
        let at = match self.limit {
            // A bucket refills as time passes, and by as much as its clock is set forward.
            Limit::TokenBucket(_) => self.now + self.skipped,
            _ => self.reached,
        };
        self.admitted.push(Some(Admitted { at, cost }));
    }

    fn happen(&mut self, node: usize, event: Event) {
        let at = self.nodes[node].clock(self.now);
        let (limit, every) = (&self.limit, self.synced.every);
        match event {
            Event::Check => {
                for _ in 0..self.nodes[node].cluster {
                    let costly = self.chance.percent(self.weather.costly);
                    let most = 1 + self.limit.capacity() / 3;
                    let cost = if costly { self.chance.spread(1, most) } else { 1 };
                    self.check(node, cost.min(self.limit.capacity()));
                }
                let quiet = self.chance.percent(self.weather.quiet);
                let most = if quiet { 3_000_000 } else { 2 * self.nodes[node].every };
                let after = self.chance.below(most);
                self.queue(node, after, Event::Check);
            }
            Event::Answer { id, sent, snapshot } => {
                let view = &mut self.nodes[node].view;
                match view.pending() == Some(id) {
                    true => view.on_reply(at, id, limit, snapshot),
                    false => view.learn(sent, at, limit, snapshot),
                }
                self.note(|fleet| {
                    format!("node {node}: hears {id:?}: {:?}", fleet.nodes[node].view)
                });
            }
            Event::Deadline { id } => self.nodes[node].view.on_failure(id),
            Event::Question { .. } | Event::ClockStep | Event::Failover => {}
            Event::PutBack { admission, advance } => {
                let cost = self.admitted[admission].take().map_or(0, |admitted| admitted.cost);
                self.nodes[node].view.roll_back(at, limit, &advance);
                self.note(|_| format!("node {node}: {cost} put back"));
            }
            Event::Look => {
                if self.nodes[node].view.is_due(at, every) {
                    let id = self.next_id(node);
                    let ask = self.nodes[node].view.request(at, id, every, 0);
                    self.send(node, id, ask);
                }
                self.queue(node, every.span().as_micros() / 4, Event::Look);
            }
            Event::Crash => {
                self.note(|_| format!("node {node}: crashes"));
                self.crashes += 1;
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

    fn check(&mut self, node: usize, cost: u64) {
        let (at, every) = (self.nodes[node].clock(self.now), self.synced.every);
        match self.nodes[node].view.take(at, &self.limit, self.synced, cost) {
            SyncDecision::Admitted(_, advance) => {
                self.note(|_| format!("node {node}: admits {cost}"));
                self.alone += cost;
                self.admit(cost);
                if self.chance.percent(self.weather.put_back) {
                    let (after, admission) =
                        (self.chance.spread(0, 1_000_000), self.admitted.len() - 1);
                    self.queue(node, after, Event::PutBack { admission, advance });
                }
            }
            SyncDecision::Denied(_) => {}
            SyncDecision::AskStore => {
                let id = self.next_id(node);
                if !self.nodes[node].view.is_pending() {
                    let ask = self.nodes[node].view.request(at, id, every, cost);
                    self.send(node, id, ask);
                } else if self.chance.percent(20) {
                    self.send(node, id, exact_request(id, every, cost));
                }
            }
        }
    }

    fn next_id(&mut self, node: usize) -> LeaseId {
        self.nodes[node].numbers += 1;
        LeaseId { node: self.nodes[node].name, number: self.nodes[node].numbers }
    }

    fn send(&mut self, node: usize, id: LeaseId, ask: LeaseRequest) {
        self.note(|_| format!("node {node}: asks {id:?} {ask:?}"));
        self.queue(node, self.weather.deadline, Event::Deadline { id });
        let sent = self.nodes[node].clock(self.now);
        for after in self.ways() {
            self.queue(node, after, Event::Question { id, ask: ask.clone(), sent });
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

    fn decide(&mut self, node: usize, name: u64, id: LeaseId, ask: &LeaseRequest, sent: Timestamp) {
        // What is written now reaches the replica some time later.
        if self.chance.percent(30) {
            self.replica = Replica { state: self.state.clone(), leases: self.leases.clone() };
        }
        let now = Timestamp::from_micros(self.store_clock());
        let granted = self.limit.apply_lease_request(&mut self.state, &mut self.leases, now, ask);
        self.note(|_| format!("store: {id:?} {ask:?}: {granted:?}"));
        if ask.cost > 0 && granted.outcome.is_allowed() {
            self.admit(ask.cost);
        }
        for after in self.ways() {
            let snapshot = granted.snapshot.clone();
            self.queue_for(node, name, after, Event::Answer { id, sent, snapshot });
        }
    }
}
