//! One form for all states that differ in nothing that matters.
//!
//! Taken out is what can have no effect any more, for ever: an answer that nobody waits for, a report
//! on a hold that is gone and that no question in flight could bring back, a question whose answer would
//! come late. Then nodes are put in order and holds named anew.

use crate::flaw::Flaw;
use crate::fleet::Fleet;
use crate::state::{Asking, Hold, Keys, Lease, Message, NODES, Node, Report, State, Store};

impl State {
    /// This state in the form that all its equals have.
    pub(crate) fn canonical(mut self, fleet: &Fleet) -> Self {
        self.prune(fleet);
        self.order(fleet);
        self.rename();
        for store in [Some(&mut self.store), self.replica.as_mut()].into_iter().flatten() {
            store.holds.sort_unstable_by(|one, other| other.cmp(one));
        }
        self.flight.sort_unstable();
        self.flight.dedup();
        self
    }

    fn prune(&mut self, fleet: &Fleet) {
        let reused = fleet.has(Flaw::NamesUsedAgain);
        if !fleet.has(Flaw::LateAnswerUsed) {
            for node in &mut self.nodes {
                if node.asking.age >= fleet.life {
                    node.asking = Asking::default();
                }
            }
        }
        if reused {
            return;
        }
        let nodes = self.nodes;
        self.flight.retain(|message| match message {
            Message::Answer { node, id, .. } => nodes[usize::from(*node)].asking.id == *id,
            Message::Question { .. } => true,
        });
        // What the store knows, or may come to know.
        let mut known = [0_u32; NODES];
        for store in [Some(&self.store), self.replica.as_ref()].into_iter().flatten() {
            for hold in store.holds.iter().filter(|hold| hold.amount > 0) {
                known[usize::from(hold.node)] |= 1 << hold.id;
            }
        }
        for message in &self.flight {
            if let Message::Question { node, id, .. } = message {
                known[usize::from(*node)] |= 1 << *id;
            }
        }
        let moot = |node: usize, id: u8| known[node] & (1 << id) == 0;
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if moot(at, node.closed.id) {
                node.closed = Report::default();
            }
            for lease in &mut node.leases {
                if lease.amount > 0 && !lease.usable() && moot(at, lease.id) {
                    *lease = Lease::default();
                }
            }
            node.leases.sort_unstable_by(|one, other| other.cmp(one));
        }
        for message in &mut self.flight {
            if let Message::Question { node, reports, .. } = message {
                for report in reports.iter_mut() {
                    if moot(usize::from(*node), report.id) {
                        *report = Report::default();
                    }
                }
                reports.sort_unstable();
            }
        }
    }

    /// Nodes are alike: which of them is the first does not matter.
    fn order(&mut self, fleet: &Fleet) {
        let mut order: [usize; NODES] = core::array::from_fn(|at| at);
        order[..fleet.nodes].sort_by_key(|at| core::cmp::Reverse(self.nodes[*at]));
        if order.is_sorted() {
            return;
        }
        let mut place = [0_u8; NODES];
        for (new, old) in (0..).zip(order) {
            place[old] = new;
        }
        self.nodes = order.map(|old| self.nodes[old]);
        for hold in self.holds_mut() {
            hold.node = place[usize::from(hold.node)];
        }
        for message in &mut self.flight {
            let (Message::Question { node, .. } | Message::Answer { node, .. }) = message;
            *node = place[usize::from(*node)];
        }
    }

    /// Holds are named 1, 2, … per node, in the order in which they were asked for.
    fn rename(&mut self) {
        let mut used = [0_u32; NODES];
        self.each_name(|node, id| used[node] |= 1 << *id);
        self.each_name(|node, id| {
            let older = used[node] & ((1 << *id) - 1) & !1;
            *id = if *id == 0 { 0 } else { 1 + u8::try_from(older.count_ones()).unwrap_or(0) };
        });
    }

    fn holds_mut(&mut self) -> impl Iterator<Item = &mut Hold> {
        let replica = self.replica.as_mut().map(|store| store.holds.iter_mut());
        let holds = self.store.holds.iter_mut().chain(replica.into_iter().flatten());
        holds.filter(|hold| hold.amount > 0)
    }

    /// Every place where a hold is named, with the node that it is of.
    fn each_name(&mut self, mut name: impl FnMut(usize, &mut u8)) {
        for (at, node) in self.nodes.iter_mut().enumerate() {
            name(at, &mut node.asking.id);
            name(at, &mut node.closed.id);
            node.leases.iter_mut().for_each(|lease| name(at, &mut lease.id));
        }
        for hold in self.holds_mut() {
            name(usize::from(hold.node), &mut hold.id);
        }
        for message in &mut self.flight {
            match message {
                Message::Question { node, id, reports, .. } => {
                    name(usize::from(*node), id);
                    reports.iter_mut().for_each(|report| name(usize::from(*node), &mut report.id));
                }
                Message::Answer { node, id, .. } => name(usize::from(*node), id),
            }
        }
    }

    /// The name that a node's next hold gets.
    pub(crate) fn fresh(&mut self, fleet: &Fleet, node: u8) -> u8 {
        if fleet.has(Flaw::NamesUsedAgain) {
            let Node { asking, leases, closed, .. } = self.nodes[usize::from(node)];
            let own = [asking.id, closed.id, leases[0].id, leases[1].id];
            return (1..).find(|id| !own.contains(id)).unwrap_or(1);
        }
        let mut last = 0;
        self.each_name(|at, id| {
            if at == usize::from(node) {
                last = last.max(*id);
            }
        });
        last + 1
    }
}

impl State {
    /// Bytes that equal states share, and no others have.
    pub(crate) fn write(&self, fleet: &Fleet, out: &mut Vec<u8>) {
        out.extend([self.place, u8::from(self.failed), self.admitted.current]);
        out.push(self.admitted.previous);
        out.extend(self.lost.to_le_bytes());
        self.store.write(fleet, out);
        out.push(u8::from(self.replica.is_some()));
        if let Some(replica) = &self.replica {
            replica.write(fleet, out);
        }
        self.nodes[..fleet.nodes].iter().for_each(|node| node.write(out));
        for message in &self.flight {
            match message {
                Message::Question { node, id, cost, want, reports } => {
                    out.extend([1, *node, *id, *cost, *want]);
                    reports.iter().for_each(|report| report.write(out));
                }
                Message::Answer { node, id, amount, life } => {
                    out.extend([2, *node, *id, *amount, *life]);
                }
            }
        }
    }
}

impl Store {
    fn write(&self, fleet: &Fleet, out: &mut Vec<u8>) {
        out.extend([self.used.current, self.used.previous]);
        if fleet.expires {
            let Keys { state, ended, state_left, holds_left } = self.keys;
            out.extend([state.current, state.previous, ended.current, ended.previous]);
            out.extend([state_left, holds_left]);
        }
        for hold in self.holds.iter().filter(|hold| hold.amount > 0) {
            let Hold { node, id, amount, spent, left, life, closed } = *hold;
            out.extend([1 + node, id, amount, spent, left, life, u8::from(closed)]);
        }
        out.push(0);
    }
}

impl Node {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend([self.steady, self.asking.id, self.asking.age]);
        self.closed.write(out);
        for Lease { id, amount, spent, left } in self.leases.into_iter().filter(|it| it.amount > 0)
        {
            out.extend([1 + id, amount, spent, left]);
        }
        out.push(0);
    }
}

impl Report {
    fn write(self, out: &mut Vec<u8>) {
        out.push(self.id);
        if self.id > 0 {
            out.extend([self.spent, u8::from(self.closed)]);
        }
    }
}
