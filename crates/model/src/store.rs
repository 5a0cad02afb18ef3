//! The store's part of the protocol: expiry, reports, the cost, a new lease.

use crate::algorithm::{Algorithm, UsageGauge};
use crate::flaw::ProtocolFlaw;
use crate::fleet::FleetModel;
use crate::state::{MAX_STORED_LEASES, StoreKeys, StoreState, StoredLease, UsageReport};

impl StoreState {
    /// Returns the tokens that are neither used nor leased.
    pub(crate) fn free(&self, fleet: &FleetModel, window_tick: u8) -> u8 {
        let limit = &fleet.limit;
        let taken = limit.weight(&self.used, window_tick) + u16::from(self.held()) * limit.parts();
        let free = limit.capacity().saturating_sub(taken) / limit.parts();
        u8::try_from(free).unwrap_or(u8::MAX)
    }

    /// Charges the unspent tokens of expired leases.
    fn expire(&mut self, fleet: &FleetModel) {
        for lease in self.leases.iter_mut().filter(|lease| lease.amount > 0 && lease.left == 0) {
            if !fleet.has(ProtocolFlaw::ExpiredNotCharged) {
                fleet.limit.spend(&mut self.used, lease.amount - lease.spent);
                fleet.limit.spend(&mut self.keys.ended, lease.amount - lease.spent);
            }
            *lease = StoredLease::default();
        }
    }

    /// Charges the newly spent tokens of a report.
    pub(crate) fn apply_report(&mut self, fleet: &FleetModel, node: u8, report: UsageReport) {
        let Some(at) = self.find(node, report.id) else { return };
        let lease = &mut self.leases[at];
        if lease.closed {
            if report.closed {
                fleet.limit.unspend(&mut self.used, lease.amount.saturating_sub(report.spent));
            }
            return;
        }
        let known = if fleet.has(ProtocolFlaw::ReportAdded) { 0 } else { lease.spent };
        let new = report.spent.saturating_sub(known).min(lease.amount - lease.spent);
        fleet.limit.spend(&mut self.used, new);
        lease.spent += new;
        if report.closed {
            if fleet.has(ProtocolFlaw::ReturnedTwice) {
                // Its tokens are free, but the lease stays stored.
                lease.closed = true;
                lease.spent = lease.amount;
            } else {
                *lease = StoredLease::default();
            }
        }
    }

    /// Decides the cost of a request. An allowed cost is admitted at this instant.
    pub(crate) fn charge(
        &mut self,
        fleet: &FleetModel,
        window_tick: u8,
        cost: u8,
        admitted: &mut UsageGauge,
    ) {
        if cost > 0 && self.free(fleet, window_tick) >= cost {
            fleet.limit.spend(&mut self.used, cost);
            fleet.limit.spend(admitted, cost);
        }
    }

    /// Returns the part of the requested tokens that could be granted.
    pub(crate) fn grantable(&self, fleet: &FleetModel, window_tick: u8, requested: u8) -> u8 {
        let full = self.leases.iter().all(|lease| lease.amount > 0);
        if full || ttl(fleet, window_tick) == 0 {
            0
        } else {
            requested.min(self.free(fleet, window_tick))
        }
    }

    /// Grants a lease to a node. The tokens must be free.
    pub(crate) fn grant(
        &mut self,
        fleet: &FleetModel,
        window_tick: u8,
        node: u8,
        id: u8,
        amount: u8,
    ) -> StoredLease {
        let ttl = ttl(fleet, window_tick);
        let margin = if fleet.has(ProtocolFlaw::NoMargin) { 0 } else { fleet.margin };
        let left = (ttl + margin).min(until_end(fleet, window_tick));
        let mut lease = StoredLease { node, id, amount, spent: 0, left, ttl, closed: false };
        if fleet.has(ProtocolFlaw::ChargedAhead) {
            fleet.limit.spend(&mut self.used, amount);
            lease.spent = amount;
        }
        if let Some(slot) = self.leases.iter_mut().find(|slot| slot.amount == 0) {
            *slot = lease;
        }
        lease
    }

    /// Advances by one tick. Leases end with their window.
    pub(crate) fn tick(&mut self, fleet: &FleetModel, rolls: bool) {
        if rolls {
            if matches!(fleet.limit.algorithm, Algorithm::SlidingWindow { .. }) {
                let held = self.held();
                fleet.limit.spend(&mut self.used, held);
                fleet.limit.spend(&mut self.keys.ended, held);
            }
            self.leases = Default::default();
        }
        fleet.limit.tick(&mut self.used, rolls);
        fleet.limit.tick(&mut self.keys.state, rolls);
        fleet.limit.tick(&mut self.keys.ended, rolls);
        for lease in &mut self.leases {
            lease.left = lease.left.saturating_sub(1);
        }
        self.expire(fleet);
        self.expire_keys(fleet);
    }

    /// Removes the content of expired keys.
    fn expire_keys(&mut self, fleet: &FleetModel) {
        if !fleet.expires {
            self.keys = StoreKeys::default();
            return;
        }
        let StoreKeys { state_left, leases_left, .. } = &mut self.keys;
        let over = |left: &mut u8| core::mem::replace(left, left.saturating_sub(1)) == 1;
        let [state_over, leases_over] = [over(state_left), over(leases_left)];
        if state_over {
            (self.used, self.keys.state) = (self.keys.ended, UsageGauge::default());
        }
        if leases_over {
            (self.used, self.keys.ended) = (self.keys.state, UsageGauge::default());
            self.leases = Default::default();
        }
    }

    /// Charges ended leases to the state key, when a request arrives.
    pub(crate) fn count_ended(&mut self) {
        (self.keys.state, self.keys.ended) = (self.used, UsageGauge::default());
    }

    /// Sets the time to live of both keys after a request; `before` are the leases before it.
    pub(crate) fn set_key_ttls(
        &mut self,
        fleet: &FleetModel,
        window_tick: u8,
        before: &[StoredLease; MAX_STORED_LEASES],
    ) {
        if !fleet.expires {
            return;
        }
        self.keys.state = self.used;
        let state = fleet.limit.ticks_left(&self.used, window_tick);
        let ends = self.leases.iter().map(|lease| lease.left).max().unwrap_or(0);
        let settled = state.max(ends) + fleet.limit.counts_for(self.held());
        let [mut state_left, mut leases_left] = match self.held() {
            0 => [state, ends],
            _ => [settled; 2],
        };
        if fleet.has(ProtocolFlaw::StateKeyEndsAlone) {
            state_left = state;
        }
        if fleet.has(ProtocolFlaw::LeaseKeyEndsWithLease) {
            leases_left = ends;
        }
        if fleet.has(ProtocolFlaw::LeaseKeyNotRenewed) && self.leases == *before {
            leases_left = self.keys.leases_left;
        }
        (self.keys.state_left, self.keys.leases_left) = (state_left, leases_left);
    }

    /// Returns the parts of tokens that this store contains and `older` does not.
    pub(crate) fn tokens_missing_in(&self, older: &Self, fleet: &FleetModel) -> u16 {
        let per_count = match fleet.limit.algorithm {
            Algorithm::TokenBucket { .. } => 1,
            Algorithm::FixedWindow { .. } | Algorithm::SlidingWindow { .. } => fleet.limit.parts(),
        };
        let count = self.used.current.saturating_sub(older.used.current)
            + self.used.previous.saturating_sub(older.used.previous);
        let held = self.leases.iter().filter(|lease| lease.amount > 0).map(|lease| {
            let kept = older.find(lease.node, lease.id).map(|at| older.leases[at]);
            let kept = kept.map_or(0, |kept| kept.amount - kept.spent);
            (lease.amount - lease.spent).saturating_sub(kept)
        });
        u16::from(count) * per_count + u16::from(held.sum::<u8>()) * fleet.limit.parts()
    }
}

fn until_end(fleet: &FleetModel, window_tick: u8) -> u8 {
    match fleet.limit.window() {
        0 => u8::MAX,
        window => window - window_tick,
    }
}

/// Returns the TTL of a lease that is granted now: it ends a margin before its window.
fn ttl(fleet: &FleetModel, window_tick: u8) -> u8 {
    let margin = if fleet.has(ProtocolFlaw::WindowToItsEnd) { 0 } else { fleet.margin };
    fleet.ttl.min(until_end(fleet, window_tick).saturating_sub(margin))
}
