//! A fleet, its faults, and everything that can happen to it.

use crate::algorithm::{Algorithm, Limit};
use crate::explore::World;
use crate::flaw::Flaw;
use crate::state::{Asking, Lease, Message, NODES, Node, State};
use crate::step::Step;

/// What goes wrong, beside messages that are late or lost and nodes that pause, which always do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Messages come more than once.
    pub doubles: bool,
    /// Nodes lose their memory.
    pub crashes: bool,
    /// How many ticks a node's clock misses or gains within the life of a hold and its margin.
    pub drift: u8,
    /// The store loses what it acknowledged, once.
    pub loss: bool,
}

/// A small fleet, one client, and how much of it is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Fleet {
    /// How many nodes, up to [`NODES`].
    pub nodes: usize,
    /// The client's limit.
    pub limit: Limit,
    /// Ticks for which a hold may be used.
    pub life: u8,
    /// Ticks that the store waits longer.
    pub margin: u8,
    /// What nodes ask for: a cost, and tokens to hold.
    pub asks: &'static [(u8, u8)],
    /// Holds that a node uses at once, up to [`LEASES`](crate::LEASES).
    pub leases: usize,
    /// Messages in flight at once.
    pub flight: usize,
    /// Whether the store's keys expire.
    pub expires: bool,
    /// What goes wrong.
    pub faults: Faults,
    /// The rule that is not kept.
    pub flaw: Option<Flaw>,
}

impl Fleet {
    pub(crate) fn has(&self, flaw: Flaw) -> bool {
        self.flaw == Some(flaw)
    }

    /// A tick of the store's clock, and so many of each node's.
    fn tick(&self, state: &mut State, ticks: [u8; NODES]) {
        let window = self.limit.window();
        state.place = if window == 0 { 0 } else { (state.place + 1) % window };
        let rolls = window > 0 && state.place == 0;
        self.limit.tick(&mut state.admitted, rolls);
        state.store.tick(self, rolls);
        if let Some(replica) = &mut state.replica {
            replica.tick(self, rolls);
        }
        for (node, ticks) in state.nodes.iter_mut().zip(ticks) {
            node.tick(self, ticks);
            node.steady = match node.steady {
                0 if ticks != 1 => self.life + self.faults.drift - 1,
                steady => steady.saturating_sub(1),
            };
        }
    }

    /// What the clocks of the nodes may do during one tick of the store's.
    fn clocks(&self, state: &State) -> Vec<[u8; NODES]> {
        let mut all = vec![[1; NODES]];
        for at in 0..self.nodes {
            let steady = state.nodes[at].steady;
            let wrong: &[u8] = match self.faults.drift {
                0 => &[],
                _ if self.has(Flaw::ClockSleeps) => &[0],
                _ if steady == 0 || steady > self.life => &[0, 2],
                _ => &[],
            };
            for place in 0..all.len() {
                for ticks in wrong {
                    let mut clocks = all[place];
                    clocks[at] = *ticks;
                    all.push(clocks);
                }
            }
        }
        all
    }

    /// A question comes to the store, which holds `granted` of what is wanted and answers.
    fn decide(&self, state: &mut State, question: Message, granted: Option<u8>) -> u8 {
        let Message::Question { node, id, cost, want, reports } = question else { return 0 };
        let (store, place) = (&mut state.store, state.place);
        let before = store.holds;
        store.count_ended();
        for report in reports.into_iter().filter(|report| report.id > 0) {
            store.hear(self, node, report);
        }
        store.charge(self, place, cost, &mut state.admitted);
        let (amount, life, most) = match store.find(node, id).map(|at| store.holds[at]) {
            Some(hold) => (hold.amount, hold.life, 0),
            None => match (store.holdable(self, place, want), granted) {
                (most, Some(granted)) if granted > 0 => {
                    let hold = store.hold(self, place, node, id, granted);
                    (hold.amount, hold.life, most)
                }
                (most, _) => (0, 0, most),
            },
        };
        store.keep(self, place, &before);
        // Without room, the answer is lost. One that grants nothing changes nothing.
        if amount > 0 && state.flight.len() < self.flight {
            state.flight.push(Message::Answer { node, id, amount, life });
        }
        most
    }

    fn deliver(&self, state: &State, at: usize, again: bool, next: &mut Vec<(Step, State)>) {
        let message = state.flight[at];
        let mut after = state.clone();
        if !again {
            after.flight.remove(at);
        }
        match message {
            Message::Answer { node, id, amount, life } => {
                after.nodes[usize::from(node)].answered(self, id, amount, life);
                next.push((Step::Deliver { message, again, granted: 0 }, after));
            }
            Message::Question { .. } => {
                let most = self.decide(&mut after.clone(), message, None);
                // Of what fits, some or all, or nothing if nothing does.
                for granted in most.min(1)..=most {
                    let mut after = after.clone();
                    self.decide(&mut after, message, Some(granted));
                    next.push((Step::Deliver { message, again, granted }, after));
                }
            }
        }
    }

    fn node_steps(&self, state: &State, node: u8, next: &mut Vec<(Step, State)>) {
        let at = usize::from(node);
        let own = &state.nodes[at];
        for lease in 0..self.leases {
            if own.leases[lease].usable() {
                let mut after = state.clone();
                after.nodes[at].leases[lease].spent += 1;
                self.limit.spend(&mut after.admitted, 1);
                next.push((Step::Spend(node), after));
            }
        }
        if own.asking.id > 0 {
            let mut after = state.clone();
            after.nodes[at].asking = Default::default();
            next.push((Step::GiveUp(node), after));
        }
        if state.flight.len() < self.flight {
            self.questions(state, node, next);
        }
        if self.faults.crashes && !own.is_blank() {
            let mut after = state.clone();
            after.nodes[at] = Node { steady: own.steady, ..Node::default() };
            next.push((Step::Crash(node), after));
        }
    }

    fn questions(&self, state: &State, node: u8, next: &mut Vec<(Step, State)>) {
        let at = usize::from(node);
        let own = &state.nodes[at];
        let closable = if own.leases.iter().any(Lease::usable) { 1_u8 << self.leases } else { 1 };
        let asks = self.asks.iter().filter(|(_, want)| *want == 0 || own.asking.id == 0);
        for (&(cost, want), close) in asks.flat_map(|ask| (0..closable).map(move |it| (ask, it))) {
            let mut after = state.clone();
            // Without a hold to wait for, nothing needs a name.
            let id = if want > 0 { after.fresh(self, node) } else { 0 };
            let reports = after.nodes[at].report(self, close);
            if want > 0 {
                if !after.nodes[at].has_place(self) {
                    continue;
                }
                after.nodes[at].asking = Asking { id, age: 0 };
            }
            let question = Message::Question { node, id, cost, want, reports };
            after.flight.push(question);
            next.push((Step::Ask(question), after));
        }
    }

    fn store_steps(&self, state: &State, next: &mut Vec<(Step, State)>) {
        if self.faults.loss && !state.failed {
            let mut after = state.clone();
            if let Some(replica) = after.replica.take() {
                after.lost = state.store.beyond(&replica, self);
                after.failed = true;
                after.store = replica;
                next.push((Step::Fail, after));
            } else {
                after.replica = Some(state.store);
                next.push((Step::Detach, after));
            }
        }
        if self.has(Flaw::StoreLeaps) {
            let mut after = state.clone();
            after.store.tick(self, false);
            next.push((Step::Leap, after));
        }
    }

    /// Whether a fleet that is left alone for a while can take tokens and spend them.
    fn recovers(&self, state: &State) -> bool {
        let mut state = state.clone();
        state.flight.clear();
        let window = u16::from(self.limit.window());
        let refill = if window == 0 { self.limit.whole() } else { 2 * window };
        let wait = u16::from(self.life + self.margin) + refill;
        let mut waited = 0;
        while waited < wait || state.place != 0 {
            self.tick(&mut state, [1; NODES]);
            waited += 1;
        }
        let id = state.fresh(self, 0);
        let reports = state.nodes[0].report(self, 0);
        state.nodes[0].asking = Asking { id, age: 0 };
        let want = self.limit.amount;
        let question = Message::Question { node: 0, id, cost: 0, want, reports };
        let most = self.decide(&mut state.clone(), question, None);
        self.decide(&mut state, question, Some(most));
        let Some(&Message::Answer { id, amount, life, .. }) = state.flight.last() else {
            return false;
        };
        state.nodes[0].answered(self, id, amount, life);
        // What others held counted as spent, but only until the limit refilled.
        amount == self.limit.amount && state.nodes[0].leases.iter().any(Lease::usable)
    }
}

impl World for Fleet {
    type State = State;
    type Step = Step;

    fn first(&self) -> State {
        State::default()
    }

    fn steps(&self, state: &State, next: &mut Vec<(Step, State)>) {
        for clocks in self.clocks(state) {
            let mut after = state.clone();
            self.tick(&mut after, clocks);
            next.push((Step::Tick(clocks), after));
        }
        for node in (0..).take(self.nodes) {
            self.node_steps(state, node, next);
        }
        for at in 0..state.flight.len() {
            self.deliver(state, at, false, next);
            if self.faults.doubles {
                self.deliver(state, at, true, next);
            }
            let mut after = state.clone();
            let message = after.flight.remove(at);
            next.push((Step::Lose(message), after));
        }
        self.store_steps(state, next);
        for (_, state) in next.iter_mut() {
            *state = core::mem::take(state).canonical(self);
        }
    }

    fn write(&self, state: &State, out: &mut Vec<u8>) {
        state.write(self, out);
    }

    fn broken(&self, state: &State) -> Option<&'static str> {
        let limit = &self.limit;
        let lost = if self.has(Flaw::LossNotAllowedFor) { 0 } else { state.lost };
        if limit.weight(&state.admitted, state.place) > limit.whole() + lost {
            return Some("admitted never exceeds the bound");
        }
        if self.flaw.is_some() {
            return None;
        }
        let held = u16::from(state.store.held()) * limit.parts();
        if limit.weight(&state.store.used, state.place) + held > limit.whole() {
            return Some("the store keeps used and held within the limit");
        }
        (!self.recovers(state)).then_some("what expired can be had again")
    }

    fn wanted(&self, state: &State) -> bool {
        // All of it was admitted at once.
        let used = state.admitted.current;
        match self.limit.algorithm {
            Algorithm::TokenBucket { .. } => u16::from(used) >= self.limit.whole(),
            _ => used >= self.limit.amount,
        }
    }
}
