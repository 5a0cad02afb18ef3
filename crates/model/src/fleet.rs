//! A fleet, its faults, and all of its possible steps.

use crate::algorithm::{Algorithm, Limit};
use crate::explore::StateSpace;
use crate::flaw::ProtocolFlaw;
use crate::state::{FleetState, HeldLease, LeaseMessage, MAX_NODES, NodeState, PendingRequest};
use crate::step::ModelStep;

/// The faults of a fleet, in addition to late and lost messages and to pauses of nodes, which are always possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultModel {
    /// Messages may arrive twice.
    pub duplicates: bool,
    /// Nodes may crash and lose their state.
    pub crashes: bool,
    /// Ticks that a node's clock misses or gains within the TTL of a lease and its margin.
    pub drift: u8,
    /// The store may lose acknowledged writes, once.
    pub loss: bool,
}

/// A small fleet with one client, and the bounds of its exploration.
#[derive(Clone, Copy, Debug)]
pub struct FleetModel {
    /// The number of nodes, up to [`MAX_NODES`].
    pub nodes: usize,
    /// The client's limit.
    pub limit: Limit,
    /// Ticks for which a lease may be used.
    pub ttl: u8,
    /// Ticks that the store waits after the TTL.
    pub margin: u8,
    /// Kinds of requests: a cost, and tokens to lease.
    pub request_kinds: &'static [(u8, u8)],
    /// Maximum number of leases of a node, up to [`MAX_HELD_LEASES`](crate::MAX_HELD_LEASES).
    pub leases: usize,
    /// Maximum number of messages in flight.
    pub max_in_flight: usize,
    /// True if the store's keys expire.
    pub expires: bool,
    /// The faults.
    pub faults: FaultModel,
    /// The violated rule, if there is one.
    pub flaw: Option<ProtocolFlaw>,
}

impl FleetModel {
    pub(crate) fn has(&self, flaw: ProtocolFlaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// Advances the store's clock by a tick, and each node's clock by its ticks.
    fn tick(&self, state: &mut FleetState, ticks: [u8; MAX_NODES]) {
        let window = self.limit.window();
        state.window_tick = if window == 0 { 0 } else { (state.window_tick + 1) % window };
        let rolls = window > 0 && state.window_tick == 0;
        self.limit.tick(&mut state.admitted, rolls);
        state.store.tick(self, rolls);
        if let Some(replica) = &mut state.replica {
            replica.tick(self, rolls);
        }
        for (node, ticks) in state.nodes.iter_mut().zip(ticks) {
            node.tick(self, ticks);
            node.ticks_until_drift = match node.ticks_until_drift {
                0 if ticks != 1 => self.ttl + self.faults.drift - 1,
                ticks_until_drift => ticks_until_drift.saturating_sub(1),
            };
        }
    }

    /// Returns all possible ticks of the node clocks during one tick of the store's clock.
    fn clocks(&self, state: &FleetState) -> Vec<[u8; MAX_NODES]> {
        let mut all = vec![[1; MAX_NODES]];
        for at in 0..self.nodes {
            let ticks_until_drift = state.nodes[at].ticks_until_drift;
            let wrong: &[u8] = match self.faults.drift {
                0 => &[],
                _ if self.has(ProtocolFlaw::ClockStopsInSleep) => &[0],
                _ if ticks_until_drift == 0 || ticks_until_drift > self.ttl => &[0, 2],
                _ => &[],
            };
            for window_tick in 0..all.len() {
                for ticks in wrong {
                    let mut clocks = all[window_tick];
                    clocks[at] = *ticks;
                    all.push(clocks);
                }
            }
        }
        all
    }

    /// Lets the store decide a request and send its grant. Returns the maximum that it could grant.
    fn decide(&self, state: &mut FleetState, request: LeaseMessage, granted: Option<u8>) -> u8 {
        let LeaseMessage::Request { node, id, cost, requested, reports } = request else {
            return 0;
        };
        let (store, window_tick) = (&mut state.store, state.window_tick);
        let before = store.leases;
        store.count_ended();
        for report in reports.into_iter().filter(|report| report.id > 0) {
            store.apply_report(self, node, report);
        }
        store.charge(self, window_tick, cost, &mut state.admitted);
        let (amount, ttl, most) = match store.find(node, id).map(|at| store.leases[at]) {
            Some(lease) => (lease.amount, lease.ttl, 0),
            None => match (store.grantable(self, window_tick, requested), granted) {
                (most, Some(granted)) if granted > 0 => {
                    let lease = store.grant(self, window_tick, node, id, granted);
                    (lease.amount, lease.ttl, most)
                }
                (most, _) => (0, 0, most),
            },
        };
        store.set_key_ttls(self, window_tick, &before);
        // Beyond the maximum of messages the reply is lost. A reply without tokens has no effect.
        if amount > 0 && state.in_flight.len() < self.max_in_flight {
            state.in_flight.push(LeaseMessage::Grant { node, id, amount, ttl });
        }
        most
    }

    fn deliver(
        &self,
        state: &FleetState,
        at: usize,
        again: bool,
        next: &mut Vec<(ModelStep, FleetState)>,
    ) {
        let message = state.in_flight[at];
        let mut after = state.clone();
        if !again {
            after.in_flight.remove(at);
        }
        match message {
            LeaseMessage::Grant { node, id, amount, ttl } => {
                after.nodes[usize::from(node)].on_grant(self, id, amount, ttl);
                next.push((ModelStep::Deliver { message, again, granted: 0 }, after));
            }
            LeaseMessage::Request { .. } => {
                let most = self.decide(&mut after.clone(), message, None);
                // Any part of the grantable tokens, or 0 if there are none.
                for granted in most.min(1)..=most {
                    let mut after = after.clone();
                    self.decide(&mut after, message, Some(granted));
                    next.push((ModelStep::Deliver { message, again, granted }, after));
                }
            }
        }
    }

    fn node_steps(&self, state: &FleetState, node: u8, next: &mut Vec<(ModelStep, FleetState)>) {
        let at = usize::from(node);
        let own = &state.nodes[at];
        for lease in 0..self.leases {
            if own.leases[lease].usable() {
                let mut after = state.clone();
                after.nodes[at].leases[lease].spent += 1;
                self.limit.spend(&mut after.admitted, 1);
                next.push((ModelStep::Spend(node), after));
            }
        }
        if own.pending.id > 0 {
            let mut after = state.clone();
            after.nodes[at].pending = Default::default();
            next.push((ModelStep::GiveUp(node), after));
        }
        if state.in_flight.len() < self.max_in_flight {
            self.send_requests(state, node, next);
        }
        if self.faults.crashes && !own.is_blank() {
            let mut after = state.clone();
            after.nodes[at] =
                NodeState { ticks_until_drift: own.ticks_until_drift, ..NodeState::default() };
            next.push((ModelStep::Crash(node), after));
        }
    }

    fn send_requests(&self, state: &FleetState, node: u8, next: &mut Vec<(ModelStep, FleetState)>) {
        let at = usize::from(node);
        let own = &state.nodes[at];
        let closable =
            if own.leases.iter().any(HeldLease::usable) { 1_u8 << self.leases } else { 1 };
        let request_kinds = self
            .request_kinds
            .iter()
            .filter(|(_, requested)| *requested == 0 || own.pending.id == 0);
        for (&(cost, requested), close) in
            request_kinds.flat_map(|ask| (0..closable).map(move |it| (ask, it)))
        {
            let mut after = state.clone();
            // A request without a lease needs no id.
            let id = if requested > 0 { after.next_lease_id(self, node) } else { 0 };
            let reports = after.nodes[at].report(self, close);
            if requested > 0 {
                if !after.nodes[at].can_hold_another(self) {
                    continue;
                }
                after.nodes[at].pending = PendingRequest { id, age: 0 };
            }
            let request = LeaseMessage::Request { node, id, cost, requested, reports };
            after.in_flight.push(request);
            next.push((ModelStep::SendRequest(request), after));
        }
    }

    fn store_steps(&self, state: &FleetState, next: &mut Vec<(ModelStep, FleetState)>) {
        if self.faults.loss && !state.failed {
            let mut after = state.clone();
            if let Some(replica) = after.replica.take() {
                after.lost = state.store.tokens_missing_in(&replica, self);
                after.failed = true;
                after.store = replica;
                next.push((ModelStep::Fail, after));
            } else {
                after.replica = Some(state.store);
                next.push((ModelStep::Detach, after));
            }
        }
        if self.has(ProtocolFlaw::StoreClockJumps) {
            let mut after = state.clone();
            after.store.tick(self, false);
            next.push((ModelStep::ClockJump, after));
        }
    }

    /// Returns whether the whole limit can be leased and spent again after a time without requests.
    fn recovers(&self, state: &FleetState) -> bool {
        let mut state = state.clone();
        state.in_flight.clear();
        let window = u16::from(self.limit.window());
        let refill = if window == 0 { self.limit.capacity() } else { 2 * window };
        let wait = u16::from(self.ttl + self.margin) + refill;
        let mut waited = 0;
        while waited < wait || state.window_tick != 0 {
            self.tick(&mut state, [1; MAX_NODES]);
            waited += 1;
        }
        let id = state.next_lease_id(self, 0);
        let reports = state.nodes[0].report(self, 0);
        state.nodes[0].pending = PendingRequest { id, age: 0 };
        let requested = self.limit.amount;
        let request = LeaseMessage::Request { node: 0, id, cost: 0, requested, reports };
        let most = self.decide(&mut state.clone(), request, None);
        self.decide(&mut state, request, Some(most));
        let Some(&LeaseMessage::Grant { id, amount, ttl, .. }) = state.in_flight.last() else {
            return false;
        };
        state.nodes[0].on_grant(self, id, amount, ttl);
        // Leases of other nodes count as spent only until the limit refills.
        amount == self.limit.amount && state.nodes[0].leases.iter().any(HeldLease::usable)
    }
}

impl StateSpace for FleetModel {
    type State = FleetState;
    type Step = ModelStep;

    fn first(&self) -> FleetState {
        FleetState::default()
    }

    fn steps(&self, state: &FleetState, next: &mut Vec<(ModelStep, FleetState)>) {
        for clocks in self.clocks(state) {
            let mut after = state.clone();
            self.tick(&mut after, clocks);
            next.push((ModelStep::Tick(clocks), after));
        }
        for node in (0..).take(self.nodes) {
            self.node_steps(state, node, next);
        }
        for at in 0..state.in_flight.len() {
            self.deliver(state, at, false, next);
            if self.faults.duplicates {
                self.deliver(state, at, true, next);
            }
            let mut after = state.clone();
            let message = after.in_flight.remove(at);
            next.push((ModelStep::Lose(message), after));
        }
        self.store_steps(state, next);
        for (_, state) in next.iter_mut() {
            *state = core::mem::take(state).canonical(self);
        }
    }

    fn write(&self, state: &FleetState, out: &mut Vec<u8>) {
        state.write(self, out);
    }

    fn violation(&self, state: &FleetState) -> Option<&'static str> {
        let limit = &self.limit;
        let lost = if self.has(ProtocolFlaw::LossNotTolerated) { 0 } else { state.lost };
        if limit.weight(&state.admitted, state.window_tick) > limit.capacity() + lost {
            return Some("admitted never exceeds the bound");
        }
        if self.flaw.is_some() {
            return None;
        }
        let held = u16::from(state.store.held()) * limit.parts();
        if limit.weight(&state.store.used, state.window_tick) + held > limit.capacity() {
            return Some("used and leased tokens in the store never exceed the limit");
        }
        (!self.recovers(state)).then_some("expired tokens become available again")
    }

    fn reaches_goal(&self, state: &FleetState) -> bool {
        // The whole limit was admitted at once.
        let used = state.admitted.current;
        match self.limit.algorithm {
            Algorithm::TokenBucket { .. } => u16::from(used) >= self.limit.capacity(),
            _ => used >= self.limit.amount,
        }
    }
}
