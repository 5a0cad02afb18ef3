//! The two keys of a client in a store, and their expiry.

use tidegate_core::{LeaseGrant, LeaseRequest, LeaseSet, Limit, State, Timestamp};

/// The time to live of the keys of a client with leased tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeyTtl {
    /// Both until the client is settled: the minimum that is correct.
    Settled,
    /// Flawed: the key of the leases until the last lease ends.
    LeaseEnd,
    /// Flawed: the time to live of a key is set only when that key changes.
    Unrenewed,
}

/// One client in a store with expiring keys.
pub(crate) struct ClientKeys {
    limit: Limit,
    ttl: KeyTtl,
    state: (State, Timestamp),
    leases: (LeaseSet, Timestamp),
}

impl ClientKeys {
    pub(crate) fn new(limit: &Limit, ttl: KeyTtl) -> Self {
        let (state, leases) = (limit.fresh(), LeaseSet::default());
        let (state, leases) = ((state, Timestamp::EPOCH), (leases, Timestamp::EPOCH));
        Self { limit: limit.clone(), ttl, state, leases }
    }

    /// Decides a request from the keys that have not expired.
    pub(crate) fn decide(&mut self, now: Timestamp, request: &LeaseRequest) -> LeaseGrant {
        if self.state.1 <= now {
            self.state.0 = self.limit.fresh();
        }
        if self.leases.1 <= now {
            self.leases.0 = LeaseSet::default();
        }
        let before = (self.state.0.clone(), self.leases.0.clone());
        let granted =
            self.limit.apply_lease_request(&mut self.state.0, &mut self.leases.0, now, request);
        self.keep(before.0 != self.state.0, before.1 != self.leases.0);
        granted
    }

    /// Sets the time to live of each key, after some of them changed.
    fn keep(&mut self, state_changed: bool, holds_changed: bool) {
        let whole = self.limit.expires_at(&mut self.state.0.clone());
        let last = self.leases.0.iter().map(|lease| lease.until).max().unwrap_or(Timestamp::EPOCH);
        let leased = self.leases.0.iter().any(|lease| !lease.is_mark());
        let settled = self.limit.settled_at(&self.state.0, &self.leases.0);
        let (state, leases) = match self.ttl {
            _ if !leased => (whole, last),
            KeyTtl::Settled | KeyTtl::Unrenewed => (settled, settled),
            KeyTtl::LeaseEnd => (settled, last),
        };
        let renews = self.ttl != KeyTtl::Unrenewed;
        if renews || state_changed {
            self.state.1 = state;
        }
        if renews || holds_changed {
            self.leases.1 = leases;
        }
    }
}
