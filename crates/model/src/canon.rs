//! The canonical form of states that behave alike.
//!
//! Parts without any further effect are removed: a grant without a pending request, a report on a lease that is not
//! stored and that no request in flight could create, a pending request with a reply that would be late. Then nodes are
//! sorted and leases renumbered.

use crate::flaw::ProtocolFlaw;
use crate::fleet::FleetModel;
use crate::state::{
    FleetState, HeldLease, LeaseMessage, MAX_NODES, NodeState, PendingRequest, StoreKeys,
    StoreState, StoredLease, UsageReport,
};

impl FleetState {
    /// Returns the canonical form of this state.
    pub(crate) fn canonical(mut self, fleet: &FleetModel) -> Self {
        self.prune(fleet);
        self.order(fleet);
        self.rename();
        for store in [Some(&mut self.store), self.replica.as_mut()].into_iter().flatten() {
            store.leases.sort_unstable_by(|one, other| other.cmp(one));
        }
        self.in_flight.sort_unstable();
        self.in_flight.dedup();
        self
    }

    fn prune(&mut self, fleet: &FleetModel) {
        let reused = fleet.has(ProtocolFlaw::IdsReused);
        if !fleet.has(ProtocolFlaw::LateGrantUsed) {
            for node in &mut self.nodes {
                if node.pending.age >= fleet.ttl {
                    node.pending = PendingRequest::default();
                }
            }
        }
        if reused {
            return;
        }
        let nodes = self.nodes;
        self.in_flight.retain(|message| match message {
            LeaseMessage::Grant { node, id, .. } => nodes[usize::from(*node)].pending.id == *id,
            LeaseMessage::Request { .. } => true,
        });
        // Leases that the store contains or may still create.
        let mut known = [0_u32; MAX_NODES];
        for store in [Some(&self.store), self.replica.as_ref()].into_iter().flatten() {
            for lease in store.leases.iter().filter(|lease| lease.amount > 0) {
                known[usize::from(lease.node)] |= 1 << lease.id;
            }
        }
        for message in &self.in_flight {
            if let LeaseMessage::Request { node, id, .. } = message {
                known[usize::from(*node)] |= 1 << *id;
            }
        }
        let is_unknown = |node: usize, id: u8| known[node] & (1 << id) == 0;
        for (at, node) in self.nodes.iter_mut().enumerate() {
            if is_unknown(at, node.closed.id) {
                node.closed = UsageReport::default();
            }
            for lease in &mut node.leases {
                if lease.amount > 0 && !lease.usable() && is_unknown(at, lease.id) {
                    *lease = HeldLease::default();
                }
            }
            node.leases.sort_unstable_by(|one, other| other.cmp(one));
        }
        for message in &mut self.in_flight {
            if let LeaseMessage::Request { node, reports, .. } = message {
                for report in reports.iter_mut() {
                    if is_unknown(usize::from(*node), report.id) {
                        *report = UsageReport::default();
                    }
                }
                reports.sort_unstable();
            }
        }
    }

    /// Sorts the nodes: their order has no effect.
    fn order(&mut self, fleet: &FleetModel) {
        let mut order: [usize; MAX_NODES] = core::array::from_fn(|at| at);
        order[..fleet.nodes].sort_by_key(|at| core::cmp::Reverse(self.nodes[*at]));
        if order.is_sorted() {
            return;
        }
        let mut new_index = [0_u8; MAX_NODES];
        for (new, old) in (0..).zip(order) {
            new_index[old] = new;
        }
        self.nodes = order.map(|old| self.nodes[old]);
        for lease in self.leases_mut() {
            lease.node = new_index[usize::from(lease.node)];
        }
        for message in &mut self.in_flight {
            let (LeaseMessage::Request { node, .. } | LeaseMessage::Grant { node, .. }) = message;
            *node = new_index[usize::from(*node)];
        }
    }

    /// Renumbers the leases of each node as 1, 2, … in the order of their requests.
    fn rename(&mut self) {
        let mut used = [0_u32; MAX_NODES];
        self.for_each_lease_id(|node, id| used[node] |= 1 << *id);
        self.for_each_lease_id(|node, id| {
            let older = used[node] & ((1 << *id) - 1) & !1;
            *id = if *id == 0 { 0 } else { 1 + u8::try_from(older.count_ones()).unwrap_or(0) };
        });
    }

    fn leases_mut(&mut self) -> impl Iterator<Item = &mut StoredLease> {
        let replica = self.replica.as_mut().map(|store| store.leases.iter_mut());
        let leases = self.store.leases.iter_mut().chain(replica.into_iter().flatten());
        leases.filter(|lease| lease.amount > 0)
    }

    /// Calls `name` with every id of a lease in the state, and with its node.
    fn for_each_lease_id(&mut self, mut name: impl FnMut(usize, &mut u8)) {
        for (at, node) in self.nodes.iter_mut().enumerate() {
            name(at, &mut node.pending.id);
            name(at, &mut node.closed.id);
            node.leases.iter_mut().for_each(|lease| name(at, &mut lease.id));
        }
        for lease in self.leases_mut() {
            name(usize::from(lease.node), &mut lease.id);
        }
        for message in &mut self.in_flight {
            match message {
                LeaseMessage::Request { node, id, reports, .. } => {
                    name(usize::from(*node), id);
                    reports.iter_mut().for_each(|report| name(usize::from(*node), &mut report.id));
                }
                LeaseMessage::Grant { node, id, .. } => name(usize::from(*node), id),
            }
        }
    }

    /// Returns the id of a node's next lease.
    pub(crate) fn next_lease_id(&mut self, fleet: &FleetModel, node: u8) -> u8 {
        if fleet.has(ProtocolFlaw::IdsReused) {
            let NodeState { pending, leases, closed, .. } = self.nodes[usize::from(node)];
            let own = [pending.id, closed.id, leases[0].id, leases[1].id];
            return (1..).find(|id| !own.contains(id)).unwrap_or(1);
        }
        let mut last = 0;
        self.for_each_lease_id(|at, id| {
            if at == usize::from(node) {
                last = last.max(*id);
            }
        });
        last + 1
    }
}

impl FleetState {
    /// Writes bytes that are equal for equal states only.
    pub(crate) fn write(&self, fleet: &FleetModel, out: &mut Vec<u8>) {
        out.extend([self.window_tick, u8::from(self.failed), self.admitted.current]);
        out.push(self.admitted.previous);
        out.extend(self.lost.to_le_bytes());
        self.store.write(fleet, out);
        out.push(u8::from(self.replica.is_some()));
        if let Some(replica) = &self.replica {
            replica.write(fleet, out);
        }
        self.nodes[..fleet.nodes].iter().for_each(|node| node.write(out));
        for message in &self.in_flight {
            match message {
                LeaseMessage::Request { node, id, cost, requested, reports } => {
                    out.extend([1, *node, *id, *cost, *requested]);
                    reports.iter().for_each(|report| report.write(out));
                }
                LeaseMessage::Grant { node, id, amount, ttl } => {
                    out.extend([2, *node, *id, *amount, *ttl]);
                }
            }
        }
    }
}

impl StoreState {
    fn write(&self, fleet: &FleetModel, out: &mut Vec<u8>) {
        out.extend([self.used.current, self.used.previous]);
        if fleet.expires {
            let StoreKeys { state, ended, state_left, leases_left } = self.keys;
            out.extend([state.current, state.previous, ended.current, ended.previous]);
            out.extend([state_left, leases_left]);
        }
        for lease in self.leases.iter().filter(|lease| lease.amount > 0) {
            let StoredLease { node, id, amount, spent, left, ttl, closed } = *lease;
            out.extend([1 + node, id, amount, spent, left, ttl, u8::from(closed)]);
        }
        out.push(0);
    }
}

impl NodeState {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend([self.ticks_until_drift, self.pending.id, self.pending.age]);
        self.closed.write(out);
        for HeldLease { id, amount, spent, left } in
            self.leases.into_iter().filter(|it| it.amount > 0)
        {
            out.extend([1 + id, amount, spent, left]);
        }
        out.push(0);
    }
}

impl UsageReport {
    fn write(self, out: &mut Vec<u8>) {
        out.push(self.id);
        if self.id > 0 {
            out.extend([self.spent, u8::from(self.closed)]);
        }
    }
}
