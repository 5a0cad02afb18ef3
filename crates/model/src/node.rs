//! The node's part of the protocol: requests, use and release of leases.

use crate::flaw::ProtocolFlaw;
use crate::fleet::FleetModel;
use crate::state::{HeldLease, MAX_HELD_LEASES, NodeState, PendingRequest, UsageReport};

impl HeldLease {
    /// Returns whether a token of the lease may be spent.
    pub(crate) fn usable(&self) -> bool {
        self.left > 0 && self.spent < self.amount
    }
}

impl NodeState {
    /// Returns the usage reports of a request. It closes leases that are spent or expired, and those in the bit mask
    /// `close`.
    pub(crate) fn report(
        &mut self,
        fleet: &FleetModel,
        close: u8,
    ) -> [UsageReport; MAX_HELD_LEASES + 1] {
        let mut reports = [UsageReport::default(); MAX_HELD_LEASES + 1];
        reports[MAX_HELD_LEASES] = self.closed;
        for (at, lease) in self.leases.iter_mut().enumerate().filter(|(_, lease)| lease.amount > 0)
        {
            let closed = !lease.usable() || close & (1 << at) != 0;
            reports[at] = UsageReport { id: lease.id, spent: lease.spent, closed };
            if closed {
                self.closed = reports[at];
                if !fleet.has(ProtocolFlaw::ClosedUsedAgain) {
                    *lease = HeldLease::default();
                }
            }
        }
        reports
    }

    /// Stores a granted lease, if the grant is for the pending request and in time.
    pub(crate) fn on_grant(&mut self, fleet: &FleetModel, id: u8, amount: u8, ttl: u8) {
        if self.pending.id != id {
            return;
        }
        let left = ttl.saturating_sub(self.pending.age);
        let left = match fleet.flaw {
            Some(ProtocolFlaw::LateGrantUsed) => left.max(1),
            Some(ProtocolFlaw::TtlFromReply) if left > 0 => ttl,
            _ => left,
        };
        self.pending = PendingRequest::default();
        if amount == 0 || left == 0 {
            return;
        }
        if let Some(slot) = self.leases.iter_mut().find(|lease| lease.amount == 0) {
            *slot = HeldLease { id, amount, spent: 0, left };
        }
    }

    /// Advances the clock of the node.
    pub(crate) fn tick(&mut self, fleet: &FleetModel, ticks: u8) {
        for lease in &mut self.leases {
            lease.left = lease.left.saturating_sub(ticks);
        }
        if self.pending.id > 0 {
            self.pending.age = (self.pending.age + ticks).min(fleet.ttl);
        }
    }

    /// Returns whether the node may hold another lease.
    pub(crate) fn can_hold_another(&self, fleet: &FleetModel) -> bool {
        self.leases.iter().filter(|lease| lease.usable()).count() < fleet.leases
    }
}
