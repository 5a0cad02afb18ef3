//! A store and leasing nodes with the production code, on a network with faults determined by a seed.

use std::collections::BTreeMap;

use tidegate_core::{Algorithm, LeaseGrant, LeaseId, LeaseRequest, Limit, Quota, Span, Timestamp};
use tidegate_limiter::coordination::lease::{ClientLeases, LeaseDebit, LeaseDecision};

use super::admissions::Admission;
use super::fault_rates::FaultRates;
use super::keys::{ClientKeys, KeyTtl};
use super::rng::SimulationRng;

/// Start of the simulated time: in 2026, on no round boundary.
const START_MICROS: u64 = 1_780_000_000_123_457;
/// Length of a simulation.
const LENGTH_MICROS: u64 = 9_000_000;
const SWEEP_INTERVAL_MICROS: u64 = 250_000;

enum Event {
    /// A check, or as many checks as there are leased tokens.
    Check {
        burst: bool,
    },
    Request {
        request: LeaseRequest,
        sent: u64,
    },
    Grant {
        number: u32,
        granted: LeaseGrant,
    },
    /// A pending request times out.
    Deadline {
        number: u32,
    },
    /// An admitted request was denied by another rule.
    RollBack {
        admission: usize,
        slice: LeaseDebit,
    },
    /// A client of the store without leases takes all free tokens.
    Drain,
    Sweep,
    Crash,
    Pause,
    /// All nodes pause; then all free tokens are taken.
    FleetPause,
}

#[derive(Default)]
struct Node {
    leases: ClientLeases,
    /// Its id in leases; a new one after a crash.
    name: u64,
    numbers: u32,
    pending: Option<u32>,
    waiting: u64,
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

    /// Returns the real time of a span on its clock, rounded down.
    fn real(&self, span: u64) -> u64 {
        (span * self.rate.1 / self.rate.0).saturating_sub(2)
    }
}

/// A fleet with one client.
pub(crate) struct Fleet {
    rng: SimulationRng,
    fault_rates: FaultRates,
    pub(crate) limit: Limit,
    keys: ClientKeys,
    nodes: Vec<Node>,
    now: u64,
    queue: BTreeMap<(u64, u64), (usize, u64, Event)>,
    queued: u64,
    admitted: Vec<Option<Admission>>,
    /// Tokens that were admitted without a request to the store.
    pub(crate) from_leases: u64,
    trace: Option<Vec<String>>,
}

impl Fleet {
    /// Creates the fleet of a seed. Clocks differ by one part in `drift`; `ttl` sets the time to live of keys.
    pub(crate) fn new(seed: u64, drift: u64, ttl: KeyTtl, traced: bool) -> Self {
        let mut rng = SimulationRng::new(seed);
        let algorithms = [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow];
        let algorithm = rng.pick(&algorithms);
        let window = Span::from_micros(rng.spread(50_000, 5_000_000));
        let mut quota = Quota::per(rng.spread(1, 300), window);
        if algorithm == Algorithm::TokenBucket && rng.percent(50) {
            quota = quota.burst(rng.spread(1, 300));
        }
        let limit = Limit::new(algorithm, quota).unwrap();
        let fault_rates = FaultRates::new(&mut rng);
        let mut fleet = Self {
            keys: ClientKeys::new(&limit, ttl),
            now: START_MICROS,
            queue: BTreeMap::new(),
            queued: 0,
            admitted: Vec::new(),
            from_leases: 0,
            trace: traced.then(Vec::new),
            nodes: Vec::new(),
            rng,
            fault_rates,
            limit,
        };
        fleet.log(|fleet| format!("{:?}", fleet.limit));
        let fair = window.as_micros() / quota.amount();
        for at in 0..fleet.rng.spread(1, 4) {
            let rate = fleet.rng.pick(&[(drift, drift + 1), (1, 1), (drift + 1, drift)]);
            let cluster = fleet.rng.pick(&[1, 1, 10, 100]);
            let every = (cluster * fleet.rng.spread(fair / 4, fair * 4)).clamp(400, 1_000_000);
            fleet.nodes.push(Node { name: at + 1, rate, cluster, every, ..Node::default() });
            let at = usize::try_from(at).unwrap();
            fleet.queue(at, 0, Event::Check { burst: false });
            fleet.queue(at, SWEEP_INTERVAL_MICROS, Event::Sweep);
            for event in [Event::Crash, Event::Pause] {
                if fleet.rng.percent(5 * fleet.fault_rates.bad) {
                    let after = fleet.rng.below(LENGTH_MICROS);
                    fleet.queue(at, after, event);
                }
            }
        }
        if fleet.rng.percent(fleet.fault_rates.fleet_pauses) {
            let after = fleet.rng.below(LENGTH_MICROS / 2);
            fleet.queue(0, after, Event::FleetPause);
        }
        fleet
    }

    /// Processes all events, and returns the admissions in order.
    pub(crate) fn run(&mut self) -> Vec<Admission> {
        while let Some(((at, _), (node, name, event))) = self.queue.pop_first() {
            self.now = at;
            if at - START_MICROS > LENGTH_MICROS {
                break;
            }
            if let Event::Request { request, sent } = event {
                self.decide(node, name, &request, sent);
            } else if let Event::Drain = event {
                self.drain();
            } else if let Event::FleetPause = event {
                self.pause_fleet();
            } else if self.nodes[node].asleep > at {
                let later = self.nodes[node].asleep - at;
                self.queue_for(node, name, later, event);
            } else if name == self.nodes[node].name
                || matches!(event, Event::Check { .. } | Event::Sweep)
            {
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
        self.admitted.push(Some(Admission { at: self.now, cost }));
    }

    fn process(&mut self, node: usize, event: Event) {
        let at = self.nodes[node].clock(self.now);
        match event {
            Event::Check { burst: true } => while self.check(node, 1) {},
            Event::Check { burst: false } => {
                for _ in 0..self.nodes[node].cluster {
                    let costly = self.rng.percent(self.fault_rates.costly);
                    let most = 1 + self.limit.capacity() / 3;
                    let cost = if costly { self.rng.spread(1, most) } else { 1 };
                    self.check(node, cost);
                }
                let quiet = self.rng.percent(self.fault_rates.quiet);
                let most = if quiet { 3_000_000 } else { 2 * self.nodes[node].every };
                let after = self.rng.below(most);
                self.queue(node, after, Event::Check { burst: false });
            }
            Event::Grant { number, granted } if self.nodes[node].pending == Some(number) => {
                self.log(|_| format!("node {node}: grant {number}: {granted:?}"));
                self.nodes[node].pending = None;
                let id = LeaseId { node: self.nodes[node].name, number };
                self.nodes[node].leases.on_grant(id, &self.limit, &granted);
            }
            Event::Deadline { number } if self.nodes[node].pending == Some(number) => {
                self.log(|_| format!("node {node}: no reply to {number}"));
                self.nodes[node].pending = None;
                let id = LeaseId { node: self.nodes[node].name, number };
                self.nodes[node].leases.on_failure(id);
            }
            Event::Grant { .. }
            | Event::Deadline { .. }
            | Event::Request { .. }
            | Event::FleetPause
            | Event::Drain => {}
            Event::RollBack { admission, slice } => {
                let cost = self.admitted[admission].take().map_or(0, |admitted| admitted.cost);
                self.log(|_| format!("node {node}: {cost} rolled back"));
                self.nodes[node].leases.roll_back(at, &slice);
            }
            Event::Sweep => {
                let id = self.next_id(node);
                let (leases, share) = (&mut self.nodes[node].leases, self.fault_rates.share);
                let closing = match leases.is_idle(at) {
                    _ if !self.fault_rates.sweeps => None,
                    true => leases.release(at, id, share),
                    false => leases.renew(at, id, share),
                };
                if let Some(request) = closing {
                    self.send(node, request);
                }
                self.queue(node, SWEEP_INTERVAL_MICROS, Event::Sweep);
            }
            Event::Crash => {
                self.log(|_| format!("node {node}: crashes"));
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

    /// Checks a request. Returns whether it was admitted from a lease.
    fn check(&mut self, node: usize, cost: u64) -> bool {
        let at = self.nodes[node].clock(self.now);
        let taken = self.nodes[node].leases.take(at, cost);
        if let LeaseDecision::Admitted { debit: slice, .. } = taken {
            self.log(|_| format!("node {node}: admits {cost}"));
            self.from_leases += cost;
            self.admit(cost);
            if self.rng.percent(self.fault_rates.rolled_back) {
                let (after, admission) = (self.rng.spread(0, 3_000_000), self.admitted.len() - 1);
                self.queue(node, after, Event::RollBack { admission, slice });
            }
        }
        let own = &mut self.nodes[node];
        let request = match (taken, own.leases.cached_denial(at, cost)) {
            (LeaseDecision::Admitted { .. }, _) => own.leases.should_refill(at).then_some(0),
            (LeaseDecision::AskStore, Some((_, again))) => again.then_some(0),
            (LeaseDecision::AskStore, None) if own.leases.is_pending() => {
                own.waiting += cost;
                None
            }
            (LeaseDecision::AskStore, None) => Some(cost),
        };
        if let Some(cost) = request {
            let id = self.next_id(node);
            let waiting = std::mem::take(&mut self.nodes[node].waiting);
            let request =
                self.nodes[node].leases.request(at, cost, waiting, id, self.fault_rates.share);
            self.send(node, request);
        }
        taken != LeaseDecision::AskStore
    }

    fn next_id(&mut self, node: usize) -> LeaseId {
        self.nodes[node].numbers += 1;
        LeaseId { node: self.nodes[node].name, number: self.nodes[node].numbers }
    }

    fn send(&mut self, node: usize, request: LeaseRequest) {
        self.log(|_| format!("node {node}: requests {request:?}"));
        let number = request.id.number;
        self.nodes[node].pending = Some(number);
        self.queue(node, self.fault_rates.deadline, Event::Deadline { number });
        for after in self.arrival_delays() {
            self.queue(node, after, Event::Request { request: request.clone(), sent: self.now });
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

    fn pause_fleet(&mut self) {
        let length = 1_000_000 + self.rng.below(4_000_000);
        self.log(|_| format!("all nodes pause for {length}"));
        let until = self.now + length;
        self.nodes.iter_mut().for_each(|node| node.asleep = node.asleep.max(until));
        self.queue(0, length, Event::Drain);
    }

    fn drain(&mut self) {
        let (now, id) = (Timestamp::from_micros(self.now), LeaseId { node: 0, number: 0 });
        let reports = [].into_iter().collect();
        let unreported = [].into_iter().collect();
        let mut request = LeaseRequest {
            cost: 0,
            requested: 0,
            id,
            unreported,
            reports,
            ttl: Span::ZERO,
            fleet_size: 1,
        };
        let peek = self.keys.decide(now, &request);
        request.cost = peek.outcome.remaining;
        if request.cost > 0 {
            self.log(|_| format!("store: {} drained", request.cost));
            let granted = self.keys.decide(now, &request);
            assert!(granted.outcome.is_allowed(), "all free tokens can be charged");
            self.admit(request.cost);
        }
    }

    fn decide(&mut self, node: usize, name: u64, request: &LeaseRequest, sent: u64) {
        let now = Timestamp::from_micros(self.now);
        let granted = self.keys.decide(now, request);
        self.log(|_| format!("store: {request:?}: {granted:?}"));
        if request.cost > 0 && granted.outcome.is_allowed() {
            self.admit(request.cost);
        }
        // Just before the lease ends, by the clock of its node, all free tokens are requested.
        let end = sent + self.nodes[node].real(granted.ttl.as_micros());
        if end > self.now && self.rng.percent(self.fault_rates.brink) {
            let left = end - self.now;
            let early = self.rng.spread(0, left);
            self.queue(node, left - early, Event::Drain);
            self.queue(node, left, Event::Drain);
            self.queue(node, left, Event::Check { burst: true });
        }
        for after in self.arrival_delays() {
            let answer = Event::Grant { number: request.id.number, granted: granted.clone() };
            self.queue_for(node, name, after, answer);
        }
    }
}
