//! Traffic that goes for the bound that `validate` prints for `synced`, at the edges of windows.

use tidegate_core::{
    Algorithm, LeaseGrant, LeaseId, LeaseRequest, LeaseSet, Limit, Quota, Span, State, Timestamp,
};
use tidegate_limiter::coordination::sync::{ClientView, SyncDecision, exact_request};
use tidegate_rules::{Accuracy, MaxAhead, SyncSettings};

use super::chance::Chance;
use super::truth::Admitted;

/// Some time in 2026, on no round boundary.
const START: u64 = 1_780_000_000_123_457;

/// Nodes and a store without network, all on one clock.
pub(crate) struct Adversary {
    pub(crate) limit: Limit,
    synced: SyncSettings,
    state: State,
    leases: LeaseSet,
    views: Vec<ClientView>,
    questions: u32,
    now: u64,
    admitted: Vec<Admitted>,
}

impl Adversary {
    pub(crate) fn new(chance: &mut Chance, algorithm: Algorithm) -> Self {
        let window = Span::from_micros(chance.spread(50_000, 5_000_000));
        let amount = chance.spread(1, 300);
        let limit = Limit::new(algorithm, Quota::per(amount, window)).unwrap();
        let max_ahead = MaxAhead::Tokens(chance.spread(1, amount));
        let mut views = Vec::new();
        views.resize_with(usize::try_from(chance.spread(1, 4)).unwrap(), ClientView::default);
        Self {
            state: limit.fresh(),
            leases: LeaseSet::default(),
            synced: SyncSettings { max_ahead, ..SyncSettings::default() },
            views,
            questions: 0,
            now: START,
            admitted: Vec::new(),
            limit,
        }
    }

    pub(crate) fn accuracy(&self) -> Accuracy {
        Accuracy::Synced(self.synced)
    }

    pub(crate) fn nodes(&self) -> u64 {
        u64::try_from(self.views.len()).unwrap()
    }

    /// Attacks in the last instant of a window and in the first of the next one, then wherever chance has it.
    pub(crate) fn run(mut self, chance: &mut Chance) -> Vec<Admitted> {
        let window = self.limit.quota().window().as_micros();
        let edge = (START / window + 1) * window;
        let mut instants = vec![edge - 1, edge];
        let others = (0..chance.below(20)).map(|_| edge + chance.spread(1, 4 * window));
        instants.extend(others);
        instants.sort_unstable();
        for now in instants {
            self.now = now;
            self.attack();
        }
        self.admitted
    }

    /// Every node reports and sees the same state. Then one charges all that is left in the store, and before its
    /// answer arrives every node admits what it can on what it saw.
    fn attack(&mut self) {
        for node in (0..self.views.len()).chain(0..self.views.len()) {
            self.sync(node);
        }
        let at = Timestamp::from_micros(self.now);
        let left = self.limit.peek(&mut self.state.clone(), at, 1).remaining;
        if left > 0 {
            let id = self.next_id(0);
            let granted = self.decide(&exact_request(id, self.synced.every, left));
            assert!(granted.outcome.is_allowed(), "what remains can be charged");
            self.admit(left);
        }
        for node in 0..self.views.len() {
            while let SyncDecision::Admitted(..) =
                self.views[node].take(at, &self.limit, self.synced, 1)
            {
                self.admit(1);
            }
        }
    }

    fn sync(&mut self, node: usize) {
        let (at, id) = (Timestamp::from_micros(self.now), self.next_id(node));
        let ask = self.views[node].request(at, id, self.synced.every, 0);
        let granted = self.decide(&ask);
        self.views[node].on_reply(at, id, &self.limit, granted.snapshot);
    }

    fn decide(&mut self, ask: &LeaseRequest) -> LeaseGrant {
        self.limit.apply_lease_request(
            &mut self.state,
            &mut self.leases,
            Timestamp::from_micros(self.now),
            ask,
        )
    }

    fn next_id(&mut self, node: usize) -> LeaseId {
        self.questions += 1;
        LeaseId { node: u64::try_from(node).unwrap() + 1, number: self.questions }
    }

    fn admit(&mut self, cost: u64) {
        self.admitted.push(Admitted { at: self.now, cost });
    }
}
