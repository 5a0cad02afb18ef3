//! A simulated fleet and its store. Shares and admitted traffic are checked after each step.

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_core::{Key, Limit, Span, State, Timestamp};

use super::faults::{FaultPlan, FaultRng};
use crate::coordination::membership::{HeartbeatReply, Membership, MembershipView, ShareStatus};
use crate::coordination::split::SplitLimits;
use crate::store::{Charge, ChargeMode, Share};

const HEARTBEAT_TIMEOUT: Span = Span::from_secs(4);
const HEARTBEAT_INTERVAL_MICROS: u64 = 1_000_000;
/// The start of the simulation, on no boundary of a window.
const START_MICROS: u64 = 1_780_000_000_123_457;
const DURATION_MICROS: u64 = 40_000_000;
/// The mean duration of a step.
const STEP_MICROS: u64 = 20_000;
const CLIENTS: u128 = 3;
const MAX_NODES: usize = 6;

struct SimulatedNode {
    id: u64,
    /// The speed of its clock; 10,000 is exact.
    clock_rate: u64,
    membership: Membership,
    split: SplitLimits,
    next_heartbeat: u64,
    paused_until: u64,
}

enum Message {
    Heartbeat { from: u64, sent: Timestamp },
    Leave { from: u64 },
    Reply { to: u64, sent: Timestamp, share: Share, since: u64 },
}

/// A node in the store's list.
struct Registration {
    /// The store drops the node at this time, unless another heartbeat arrives.
    until: u64,
    /// The store has listed the node without a gap since this time.
    since: u64,
}

pub(crate) struct SimulatedFleet {
    rng: FaultRng,
    faults: FaultPlan,
    now: u64,
    nodes: Vec<SimulatedNode>,
    started_nodes: u64,
    /// Messages under way, with the time of their arrival.
    messages: Vec<(u64, Message)>,
    /// The store's list of nodes.
    registered: BTreeMap<u64, Registration>,
    limit: Arc<Limit>,
    /// The upper bound: one limit that every node would charge for each request.
    oracle: Limit,
    /// The oracle's state of each client.
    oracle_states: Vec<State>,
    pub(crate) admitted: u64,
}

impl SimulatedFleet {
    /// Starts three nodes.
    pub(crate) fn new(seed: u64, faults: FaultPlan, limit: Limit, oracle: Limit) -> Self {
        let oracle_states = (0..CLIENTS).map(|_| oracle.fresh()).collect();
        let mut fleet = Self {
            rng: FaultRng::new(seed),
            faults,
            now: 0,
            nodes: Vec::new(),
            started_nodes: 0,
            messages: Vec::new(),
            registered: BTreeMap::new(),
            limit: Arc::new(limit),
            oracle,
            oracle_states,
            admitted: 0,
        };
        (0..3).for_each(|_| fleet.start_node(None));
        fleet
    }

    /// Starts a node, with its share from before a restart if there was one.
    fn start_node(&mut self, stored: Option<Share>) {
        let drift = self.faults.clock_drift;
        let clock_rate = 10_000 - drift + self.rng.below(2 * drift + 1);
        // Shares follow the order of ids, which differs from the order of starts.
        self.started_nodes += 1;
        let id = self.started_nodes.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (mut membership, split) = (Membership::new(HEARTBEAT_TIMEOUT), SplitLimits::new());
        if let Some(stored) = stored {
            membership = membership.with_last_share(stored);
        }
        let next_heartbeat = self.now;
        self.nodes.push(SimulatedNode {
            id,
            clock_rate,
            membership,
            split,
            next_heartbeat,
            paused_until: 0,
        });
    }

    fn clock(&self, node: &SimulatedNode) -> Timestamp {
        Timestamp::from_micros(START_MICROS + self.now * node.clock_rate / 10_000)
    }

    fn send(&mut self, message: Message) {
        if self.rng.happens(self.faults.lost) {
            return;
        }
        let delayed = self.rng.happens(self.faults.delayed);
        let delay = self.rng.below(if delayed { 6_000_000 } else { 30_000 });
        self.messages.push((self.now + delay, message));
    }

    fn step(&mut self) {
        self.now += 1 + self.rng.below(2 * STEP_MICROS);
        self.inject_faults();
        self.send_heartbeats();
        self.deliver();
        self.check_shares();
        self.send_traffic();
    }

    fn inject_faults(&mut self) {
        if self.rng.happens(self.faults.joins) && self.nodes.len() < MAX_NODES {
            self.start_node(None);
        }
        if self.rng.happens(self.faults.store_resets) {
            self.registered.clear();
        }
        for index in (0..self.nodes.len()).rev() {
            if self.rng.happens(self.faults.pauses) {
                self.nodes[index].paused_until = self.now + self.rng.below(12_000_000);
            }
            if self.rng.happens(self.faults.crashes) {
                self.nodes.remove(index);
            } else if self.rng.happens(self.faults.leaves) {
                let mut leaver = self.nodes.remove(index);
                leaver.membership.leave();
                self.send(Message::Leave { from: leaver.id });
            } else if self.rng.happens(self.faults.restarts) {
                let crashed = self.nodes.remove(index);
                self.start_node(Some(crashed.membership.last_share()));
            }
        }
    }

    fn send_heartbeats(&mut self) {
        for index in 0..self.nodes.len() {
            let node = &self.nodes[index];
            if node.paused_until > self.now || node.next_heartbeat > self.now {
                continue;
            }
            let heartbeat = Message::Heartbeat { from: node.id, sent: self.clock(node) };
            self.nodes[index].next_heartbeat = self.now + HEARTBEAT_INTERVAL_MICROS;
            self.send(heartbeat);
        }
    }

    /// Delivers the messages that are due. A paused node receives its replies when it continues.
    fn deliver(&mut self) {
        let due: Vec<Message> = self
            .messages
            .extract_if(.., |(at, message)| {
                let paused = |id: u64| {
                    let node = self.nodes.iter().find(|node| node.id == id);
                    node.is_some_and(|node| node.paused_until > self.now)
                };
                let waits = matches!(message, Message::Reply { to, .. } if paused(*to));
                *at <= self.now && !waits
            })
            .map(|(_, message)| message)
            .collect();
        for message in due {
            match message {
                Message::Heartbeat { from, sent } => self.register(from, sent),
                Message::Leave { from } => {
                    self.registered.remove(&from);
                }
                Message::Reply { to, sent, share, since } => {
                    let Some(index) = self.nodes.iter().position(|node| node.id == to) else {
                        continue;
                    };
                    let received = self.clock(&self.nodes[index]);
                    let reply = HeartbeatReply { sent, received, share, since };
                    self.nodes[index].membership.on_heartbeat(reply);
                }
            }
        }
    }

    /// Handles a heartbeat as the heartbeat script of the Redis store does.
    fn register(&mut self, id: u64, sent: Timestamp) {
        self.registered.retain(|_, registration| registration.until > self.now);
        let until = self.now + HEARTBEAT_TIMEOUT.as_micros();
        let new = Registration { until, since: self.now };
        let registration = self.registered.entry(id).or_insert(new);
        registration.until = until;
        let since = registration.since;
        let index = self.registered.keys().position(|registered| *registered == id).unwrap();
        let (index, of) = (index.try_into().unwrap(), self.registered.len().try_into().unwrap());
        self.send(Message::Reply { to: id, sent, share: Share { index, of }, since });
    }

    fn running(&self) -> impl Iterator<Item = &SimulatedNode> {
        self.nodes.iter().filter(|node| node.paused_until <= self.now)
    }

    /// Returns the part of the limit of each node with an active share.
    pub(crate) fn active_parts(&self) -> Vec<Limit> {
        // Paused nodes count: such a node may continue at any moment, in the middle of a check.
        let parts = self.nodes.iter().filter_map(|node| {
            match node.membership.share_status(self.clock(node)) {
                ShareStatus::Active([.., term]) => {
                    Some(self.limit.share(term.share.index, term.share.of))
                }
                _ => None,
            }
        });
        parts.collect()
    }

    fn check_shares(&self) {
        let parts = self.active_parts();
        let capacity: u64 = parts.iter().map(Limit::capacity).sum();
        let amount: u64 = parts.iter().map(|part| part.quota().amount()).sum();
        let (max_capacity, max_amount) = (self.limit.capacity(), self.limit.quota().amount());
        assert!(capacity <= max_capacity && amount <= max_amount, "{parts:?} at {}", self.now);
    }

    /// Returns whether no node would use more than its share if the store failed now.
    pub(crate) fn all_know_the_fleet_size(&self) -> bool {
        let size = u64::try_from(self.nodes.len()).unwrap();
        self.nodes.iter().all(|node| node.membership.last_share().of >= size)
    }

    /// Charges up to three requests at random nodes. The oracle must admit what a node admits.
    fn send_traffic(&mut self) {
        let ids: Vec<u64> = self.running().map(|node| node.id).collect();
        for _ in 0..3.min(ids.len()) {
            let id = ids[usize::try_from(self.rng.below(ids.len() as u64)).unwrap()];
            let client = u128::from(self.rng.below(CLIENTS as u64));
            // 30 % of the requests take all that is left.
            let wanted = if self.rng.happens(3_000) { u64::MAX } else { 1 + self.rng.below(4) };
            let node = self.nodes.iter().find(|node| node.id == id).unwrap();
            let view = MembershipView {
                at: self.clock(node),
                membership: Arc::new(node.membership.clone()),
            };
            let key = Key::from_u128(client);
            let charge = |cost| Charge {
                key,
                overflow_key: key,
                limit: &self.limit,
                cost,
                independent: false,
            };
            let Ok((peek, _)) = node.split.charge(Some(&view), &charge(0), ChargeMode::Peek) else {
                continue;
            };
            let cost = wanted.min(peek.remaining);
            if cost == 0 {
                continue;
            }
            let (outcome, _) =
                node.split.charge(Some(&view), &charge(cost), ChargeMode::Spend).unwrap();
            assert!(outcome.is_allowed(), "{cost} of {peek:?}: {outcome:?}");
            let now = Timestamp::from_micros(START_MICROS + self.now);
            let state = &mut self.oracle_states[usize::try_from(client).unwrap()];
            let expected = self.oracle.charge(state, now, cost);
            assert!(expected.is_allowed(), "{cost} too many at {}: {expected:?}", self.now);
            self.admitted += cost;
        }
    }

    pub(crate) fn run(mut self) -> Self {
        while self.now < DURATION_MICROS {
            self.step();
        }
        self
    }

    /// Runs a fleet that no node leaves. Once all nodes know its size, none may fall back to the share of a
    /// smaller fleet.
    pub(crate) fn run_with_outages_at_any_time(mut self) {
        while !self.all_know_the_fleet_size() {
            self.step();
        }
        while self.now < DURATION_MICROS {
            self.step();
            let shares: Vec<Share> =
                self.nodes.iter().map(|node| node.membership.last_share()).collect();
            assert!(self.all_know_the_fleet_size(), "{shares:?} at {}", self.now);
        }
    }
}
