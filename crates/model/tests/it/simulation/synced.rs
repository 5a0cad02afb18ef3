//! A store and syncing nodes with the production code, on a network determined by a seed.

use std::collections::BTreeMap;

use tidegate_core::{
    Algorithm, LeaseId, LeaseRequest, LeaseSet, Limit, Quota, Span, State, StateSnapshot, Timestamp,
};
use tidegate_limiter::coordination::sync::{
    ClientView, SyncDecision, UnsyncedDebit, exact_request,
};
use tidegate_rules::{Accuracy, MaxAhead, SyncInterval, SyncSettings};

use super::admissions::Admission;
use super::fault_rates::FaultRates;
use super::rng::SimulationRng;

/// Start of the simulated time: in 2026, on no round boundary.
const START_MICROS: u64 = 1_780_000_000_123_457;
/// Length of a simulation.
const LENGTH_MICROS: u64 = 9_000_000;
/// Clocks differ by one part in this many.
const DRIFT: u64 = 100;

enum Event {
    Check,
    Request {
        id: LeaseId,
        request: LeaseRequest,
        sent: Timestamp,
    },
    Grant {
        id: LeaseId,
        sent: Timestamp,
        snapshot: Option<StateSnapshot>,
    },
    /// A pending request times out.
    Deadline {
        id: LeaseId,
    },
    /// An admitted request was denied by another rule.
    RollBack {
        admission: usize,
        advance: UnsyncedDebit,
    },
    /// A node checks whether a sync is due.
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
    /// Its id in leases; a new one after a crash.
    name: u64,
    numbers: u32,
    /// End of its pause.
    asleep: u64,
    /// The rate of its clock, as a fraction.
    rate: (u64, u64),
    /// Requests at once, and the mean interval in microseconds.
    cluster: u64,
    every: u64,
}

impl Node {
    fn clock(&self, now: u64) -> Timestamp {
        Timestamp::from_micros(
            START_MICROS / 2 + self.name + (now - START_MICROS) * self.rate.0 / self.rate.1,
        )
    }
}

/// A fleet with one client.
pub(crate) struct Fleet {
    rng: SimulationRng,
    fault_rates: FaultRates,
    pub(crate) limit: Limit,
    synced: SyncSettings,
    state: State,
    leases: LeaseSet,
    replica: Replica,
    /// Offset of the store's clock, in microseconds.
    offset: i64,
    /// The store's time that the client's window has reached; it does not run backwards.
    reached: u64,
    /// Total of forward steps of the store's clock, in microseconds.
    skipped: u64,
    nodes: Vec<Node>,
    crashes: u64,
    /// Steps of the store's clock since the last failover.
    clock_steps: u64,
    now: u64,
    queue: BTreeMap<(u64, u64), (usize, u64, Event)>,
    queued: u64,
    admitted: Vec<Option<Admission>>,
    /// The index in `admitted` of each failover, and the allowed excess until then.
    failovers: Vec<(usize, u64)>,
    /// Tokens that were admitted without a request to the store.
    pub(crate) alone: u64,
    trace: Option<Vec<String>>,
}

impl Fleet {
    pub(crate) fn new(seed: u64, traced: bool) -> Self {
        let mut rng = SimulationRng::new(seed);
        let algorithms = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow];
        let algorithm = rng.pick(&algorithms);
        let window = Span::from_micros(rng.spread(50_000, 5_000_000));
        let mut quota = Quota::per(rng.spread(1, 300), window);
        if algorithm == Algorithm::TokenBucket && rng.percent(50) {
            quota = quota.burst(rng.spread(1, 300));
        }
        let limit = Limit::new(algorithm, quota).unwrap();
        let most = MaxAhead::Tokens(rng.spread(1, 100));
        let max_ahead = rng.pick(&[MaxAhead::Tenth, MaxAhead::Tokens(1), most]);
        let every = Span::from_millis(rng.pick(&[10, 50, 200, 1_000]));
        let synced = SyncSettings { every: SyncInterval::new(every).unwrap(), max_ahead };
        let fault_rates = FaultRates::new(&mut rng);
        let mut fleet = Self {
            state: limit.fresh(),
            leases: LeaseSet::default(),
            replica: Replica { state: limit.fresh(), leases: LeaseSet::default() },
            offset: 0,
            reached: START_MICROS,
            skipped: 0,
            crashes: 0,
            clock_steps: 0,
            failovers: Vec::new(),
            now: START_MICROS,
            queue: BTreeMap::new(),
            queued: 0,
            admitted: Vec::new(),
            alone: 0,
            trace: traced.then(Vec::new),
            nodes: Vec::new(),
            rng,
            fault_rates,
            limit,
            synced,
        };
        fleet.log(|fleet| format!("{:?} {:?}", fleet.limit, fleet.synced));
        let fair = window.as_micros() / quota.amount();
        for at in 0..fleet.rng.spread(1, 4) {
            let rate = fleet.rng.pick(&[(DRIFT, DRIFT + 1), (1, 1), (DRIFT + 1, DRIFT)]);
            let cluster = fleet.rng.pick(&[1, 1, 10, 100]);
            let every = (cluster * fleet.rng.spread(fair / 4, fair * 4)).clamp(400, 1_000_000);
            fleet.nodes.push(Node { name: at + 1, rate, cluster, every, ..Node::default() });
            let at = usize::try_from(at).unwrap();
            fleet.queue(at, 0, Event::Check);
            fleet.queue(at, 0, Event::Look);
            for event in [Event::Crash, Event::Pause] {
                if fleet.rng.percent(5 * fleet.fault_rates.bad) {
                    let after = fleet.rng.below(LENGTH_MICROS);
                    fleet.queue(at, after, event);
                }
            }
        }
        for event in [Event::ClockStep, Event::ClockStep, Event::Failover] {
            if fleet.rng.percent(fleet.fault_rates.clock_steps) {
                let after = fleet.rng.below(LENGTH_MICROS);
                fleet.queue(0, after, event);
            }
        }
        fleet
    }

    /// Returns the excess that all nodes together may admit in a window or bucket: `max_ahead` each, and once more
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

    /// Returns the number of nodes that have had a log of their own, for a bound that is printed with N open.
    pub(crate) fn nodes(&self) -> u64 {
        u64::try_from(self.nodes.len()).unwrap() + self.crashes
    }

    /// Returns whether the store's clock was never set, and no data were lost.
    pub(crate) fn has_steady_store(&self) -> bool {
        self.clock_steps == 0 && self.failovers.is_empty()
    }

    /// Returns the admissions between failovers, each with the allowed excess. A store that lost writes may start
    /// from zero.
    pub(crate) fn periods<'a>(&self, admitted: &'a [Admission]) -> Vec<(&'a [Admission], u64)> {
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

    /// Reads the client's state at the store's time, as any request does.
    fn touch(&mut self) {
        let clock = self.store_clock();
        self.reached = self.reached.max(clock);
        self.limit.peek(&mut self.state, Timestamp::from_micros(clock), 1);
    }

    fn step_clock(&mut self) {
        let by = self.rng.spread(1_000, 10_000_000);
        let forward = self.rng.percent(40);
        self.touch();
        self.set_clock(by, forward);
        self.clock_steps += 1;
        self.touch();
        self.log(|fleet| format!("store: clock is off by {}", fleet.offset));
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
        let (by, forward) = (self.rng.spread(0, 5_000_000), self.rng.percent(50));
        self.set_clock(by, forward);
        self.reached = self.store_clock();
        // Nodes that have not synced since then continue in their last known window.
        self.clock_steps = 1;
        self.touch();
        self.log(|fleet| format!("store: a replica takes over, off by {}", fleet.offset));
    }

    /// Processes all events, and returns the admissions in order.
    pub(crate) fn run(&mut self) -> Vec<Admission> {
        while let Some(((at, _), (node, name, event))) = self.queue.pop_first() {
            self.now = at;
            if at - START_MICROS > LENGTH_MICROS {
                break;
            }
            if let Event::Request { id, request, sent } = event {
                self.decide(node, name, id, &request, sent);
            } else if let Event::ClockStep = event {
                self.step_clock();
            } else if let Event::Failover = event {
                self.fail_over();
            } else if self.nodes[node].asleep > at {
                let later = self.nodes[node].asleep - at;
                self.queue_for(node, name, later, event);
            } else if name == self.nodes[node].name || matches!(event, Event::Check | Event::Look) {
                self.process(node, event);
            }
        }
        self.admitted.iter().flatten().copied().collect()
    }

    /// Returns the trace, if it was enabled.
    pub(crate) fn trace(&self) -> &[String] {
        self.trace.as_deref().unwrap_or_default()
    }

    fn log(&mut self, what: impl Fn(&Self) -> String) {
        if self.trace.is_some() {
            let line = format!("{:>9}  {}", self.now - START_MICROS, what(self));
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
        self.admitted.push(Some(Admission { at, cost }));
    }

    fn process(&mut self, node: usize, event: Event) {
        let at = self.nodes[node].clock(self.now);
        let (limit, every) = (&self.limit, self.synced.every);
        match event {
            Event::Check => {
                for _ in 0..self.nodes[node].cluster {
                    let costly = self.rng.percent(self.fault_rates.costly);
                    let most = 1 + self.limit.capacity() / 3;
                    let cost = if costly { self.rng.spread(1, most) } else { 1 };
                    self.check(node, cost.min(self.limit.capacity()));
                }
                let quiet = self.rng.percent(self.fault_rates.quiet);
                let most = if quiet { 3_000_000 } else { 2 * self.nodes[node].every };
                let after = self.rng.below(most);
                self.queue(node, after, Event::Check);
            }
            Event::Grant { id, sent, snapshot } => {
                let view = &mut self.nodes[node].view;
                match view.pending() == Some(id) {
                    true => view.on_reply(at, id, limit, snapshot),
                    false => view.on_snapshot(sent, at, limit, snapshot),
                }
                self.log(|fleet| {
                    format!("node {node}: hears {id:?}: {:?}", fleet.nodes[node].view)
                });
            }
            Event::Deadline { id } => self.nodes[node].view.on_failure(id),
            Event::Request { .. } | Event::ClockStep | Event::Failover => {}
            Event::RollBack { admission, advance } => {
                let cost = self.admitted[admission].take().map_or(0, |admitted| admitted.cost);
                self.nodes[node].view.roll_back(at, limit, &advance);
                self.log(|_| format!("node {node}: {cost} rolled back"));
            }
            Event::Look => {
                if self.nodes[node].view.is_due(at, every) {
                    let id = self.next_id(node);
                    let request = self.nodes[node].view.request(at, id, every, 0);
                    self.send(node, id, request);
                }
                self.queue(node, every.span().as_micros() / 4, Event::Look);
            }
            Event::Crash => {
                self.log(|_| format!("node {node}: crashes"));
                self.crashes += 1;
                let Node { name, rate, cluster, every, .. } = self.nodes[node];
                self.nodes[node] =
                    Node { name: name + 1_000, rate, cluster, every, ..Node::default() };
            }
            Event::Pause => {
                self.log(|_| format!("node {node}: pauses"));
                self.nodes[node].asleep = self.now + self.rng.spread(1_000, 4_000_000);
            }
        }
    }

    fn check(&mut self, node: usize, cost: u64) {
        let (at, every) = (self.nodes[node].clock(self.now), self.synced.every);
        match self.nodes[node].view.take(at, &self.limit, self.synced, cost) {
            SyncDecision::Admitted(_, advance) => {
                self.log(|_| format!("node {node}: admits {cost}"));
                self.alone += cost;
                self.admit(cost);
                if self.rng.percent(self.fault_rates.rolled_back) {
                    let (after, admission) =
                        (self.rng.spread(0, 1_000_000), self.admitted.len() - 1);
                    self.queue(node, after, Event::RollBack { admission, advance });
                }
            }
            SyncDecision::Denied(_) => {}
            SyncDecision::AskStore => {
                let id = self.next_id(node);
                if !self.nodes[node].view.is_pending() {
                    let request = self.nodes[node].view.request(at, id, every, cost);
                    self.send(node, id, request);
                } else if self.rng.percent(20) {
                    self.send(node, id, exact_request(id, every, cost));
                }
            }
        }
    }

    fn next_id(&mut self, node: usize) -> LeaseId {
        self.nodes[node].numbers += 1;
        LeaseId { node: self.nodes[node].name, number: self.nodes[node].numbers }
    }

    fn send(&mut self, node: usize, id: LeaseId, request: LeaseRequest) {
        self.log(|_| format!("node {node}: asks {id:?} {request:?}"));
        self.queue(node, self.fault_rates.deadline, Event::Deadline { id });
        let sent = self.nodes[node].clock(self.now);
        for after in self.arrival_delays() {
            self.queue(node, after, Event::Request { id, request: request.clone(), sent });
        }
    }

    /// Returns the delay of each arrival of a message that is sent now: none if it is lost.
    fn arrival_delays(&mut self) -> Vec<u64> {
        let times = match self.rng.below(100) {
            roll if roll < self.fault_rates.bad => 0,
            roll if roll < 2 * self.fault_rates.bad => 2,
            _ => 1,
        };
        let slow = self.rng.percent(self.fault_rates.bad);
        let most = if slow { 4_000_000 } else { self.fault_rates.delay };
        (0..times).map(|_| self.rng.below(most)).collect()
    }

    fn decide(
        &mut self,
        node: usize,
        name: u64,
        id: LeaseId,
        request: &LeaseRequest,
        sent: Timestamp,
    ) {
        // A write reaches the replica some time later.
        if self.rng.percent(30) {
            self.replica = Replica { state: self.state.clone(), leases: self.leases.clone() };
        }
        let now = Timestamp::from_micros(self.store_clock());
        let granted =
            self.limit.apply_lease_request(&mut self.state, &mut self.leases, now, request);
        self.log(|_| format!("store: {id:?} {request:?}: {granted:?}"));
        if request.cost > 0 && granted.outcome.is_allowed() {
            self.admit(request.cost);
        }
        for after in self.arrival_delays() {
            let snapshot = granted.snapshot.clone();
            self.queue_for(node, name, after, Event::Grant { id, sent, snapshot });
        }
    }
}
