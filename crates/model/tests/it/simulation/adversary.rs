//! Adversarial traffic at the edges of windows, against the bound that `validate` prints for `synced`.

use tidegate_core::{
    Algorithm, LeaseGrant, LeaseId, LeaseRequest, LeaseSet, Limit, Quota, Span, State, Timestamp,
};
use tidegate_limiter::coordination::sync::{ClientView, SyncDecision, exact_request};
use tidegate_rules::{Accuracy, MaxAhead, SyncSettings};

use super::admissions::Admission;
use super::rng::SimulationRng;

/// Start of the simulated time: in 2026, on no round boundary.
const START_MICROS: u64 = 1_780_000_000_123_457;

/// Nodes and a store without network, all on one clock.
pub(crate) struct Adversary {
    pub(crate) limit: Limit,
    synced: SyncSettings,
    state: State,
    leases: LeaseSet,
    views: Vec<ClientView>,
    questions: u32,
    now: u64,
    admitted: Vec<Admission>,
}

impl Adversary {
    pub(crate) fn new(rng: &mut SimulationRng, algorithm: Algorithm) -> Self {
        let window = Span::from_micros(rng.spread(50_000, 5_000_000));
        let amount = rng.spread(1, 300);
        let limit = Limit::new(algorithm, Quota::per(amount, window)).unwrap();
        let max_ahead = MaxAhead::Tokens(rng.spread(1, amount));
        let mut views = Vec::new();
        views.resize_with(usize::try_from(rng.spread(1, 4)).unwrap(), ClientView::default);
        Self {
            state: limit.fresh(),
            leases: LeaseSet::default(),
            synced: SyncSettings { max_ahead, ..SyncSettings::default() },
            views,
            questions: 0,
            now: START_MICROS,
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

    /// Attacks in the last instant of a window and in the first of the next one, then at random instants.
    pub(crate) fn run(mut self, rng: &mut SimulationRng) -> Vec<Admission> {
        let window = self.limit.quota().window().as_micros();
        let edge = (START_MICROS / window + 1) * window;
        let mut instants = vec![edge - 1, edge];
        let others = (0..rng.below(20)).map(|_| edge + rng.spread(1, 4 * window));
        instants.extend(others);
        instants.sort_unstable();
        for now in instants {
            self.now = now;
            self.attack();
        }
        self.admitted
    }

    /// Lets every node report and read the same state. Then one node charges all free tokens in the store, and before
    /// its reply arrives every node admits as much as its view allows.
    fn attack(&mut self) {
        for node in (0..self.views.len()).chain(0..self.views.len()) {
            self.sync(node);
        }
        let at = Timestamp::from_micros(self.now);
        let left = self.limit.peek(&mut self.state.clone(), at, 1).remaining;
        if left > 0 {
            let id = self.next_id(0);
            let granted = self.decide(&exact_request(id, self.synced.every, left));
            assert!(granted.outcome.is_allowed(), "all free tokens can be charged");
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
        let request = self.views[node].request(at, id, self.synced.every, 0);
        let granted = self.decide(&request);
        self.views[node].on_reply(at, id, &self.limit, granted.snapshot);
    }

    fn decide(&mut self, request: &LeaseRequest) -> LeaseGrant {
        self.limit.apply_lease_request(
            &mut self.state,
            &mut self.leases,
            Timestamp::from_micros(self.now),
            request,
        )
    }

    fn next_id(&mut self, node: usize) -> LeaseId {
        self.questions += 1;
        LeaseId { node: u64::try_from(node).unwrap() + 1, number: self.questions }
    }

    fn admit(&mut self, cost: u64) {
        self.admitted.push(Admission { at: self.now, cost });
    }
}
