//! Nodes that sync, as they ship, on one store and without a network between them.
//!
//! What a node knows of a client is its [`View`], what the store knows is decided by [`Limit::ask`]. All nodes
//! sync at the same instants. As they ship, a sync is one question of each: who asks first does not hear
//! what the others tell after it, before its next sync ([`Telling::InTurn`]). The textbook has everybody know
//! of all after each sync, so there all tell, and then all look ([`Telling::Together`]).

use std::collections::HashMap;

use tidegate::fleet::sync::{Taken, View};
use tidegate::rule::Synced;
use tidegate::{HoldId, Holds, Limit, Outcome, Span, State, Timestamp};

/// How nodes sync that do so at the same instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Telling {
    /// All tell, and then all hear what was told.
    Together,
    /// Each tells and hears in one question, one after the other.
    InTurn,
}

/// A fleet with one limit for each client.
#[derive(Debug)]
pub(super) struct Fleet {
    limit: Limit,
    synced: Synced,
    telling: Telling,
    nodes: Vec<HashMap<u64, View>>,
    store: HashMap<u64, (State, Holds)>,
    next_sync: Timestamp,
    /// How many questions were asked.
    numbers: u32,
}

impl Fleet {
    /// So many nodes, all of which have just looked at so many clients.
    pub(super) fn new(
        limit: Limit,
        synced: Synced,
        telling: Telling,
        (nodes, clients): (u64, u64),
        start: Timestamp,
    ) -> Self {
        let views = || (0..clients).map(|client| (client, View::default())).collect();
        let store = (0..clients).map(|client| (client, (limit.fresh(), Holds::default())));
        Self {
            store: store.collect(),
            nodes: (0..nodes).map(|_| views()).collect(),
            next_sync: start,
            numbers: 0,
            limit,
            synced,
            telling,
        }
    }

    /// Decides a request of a client at a node. Time does not run backwards.
    pub(super) fn charge(&mut self, node: u64, client: u64, now: Timestamp) -> Outcome {
        while self.next_sync <= now {
            self.sync(self.next_sync);
            self.next_sync = self.next_sync + self.synced.every.span();
        }
        if self.limit.capacity() == 0 {
            return self.limit.peek(&mut self.limit.fresh(), now, 1);
        }
        let place = usize::try_from(node).unwrap_or(usize::MAX);
        let view = self.nodes[place].entry(client).or_default();
        match view.take(now, &self.limit, self.synced, 1) {
            Taken::Yes(outcome, _) | Taken::No(outcome) => outcome,
            Taken::Unknown => self.ask(place, client, now, 1),
        }
    }

    /// Asks the store about a client, and tells it what the node has admitted.
    fn ask(&mut self, place: usize, client: u64, now: Timestamp, cost: u64) -> Outcome {
        self.numbers = self.numbers.wrapping_add(1);
        let id = HoldId { node: place as u64 + 1, number: self.numbers };
        let view = self.nodes[place].entry(client).or_default();
        let question = view.ask(now, id, self.synced.every, cost);
        let fresh = || (self.limit.fresh(), Holds::default());
        let (state, holds) = self.store.entry(client).or_insert_with(fresh);
        let granted = self.limit.ask(state, holds, now, &question);
        view.answered(now, id, &self.limit, granted.standing);
        granted.outcome
    }

    /// A first round tells, and a second hears what all told.
    fn sync(&mut self, now: Timestamp) {
        let rounds = match self.telling {
            Telling::Together => 2,
            Telling::InTurn => 1,
        };
        for _ in 0..rounds {
            for place in 0..self.nodes.len() {
                let clients: Vec<u64> = self.nodes[place].keys().copied().collect();
                for client in clients {
                    self.ask(place, client, now, 0);
                }
            }
        }
    }
}

/// What the textbook expects nodes to admit in one window that tell each other so late: each of them
/// goes on alone for that long.
pub(crate) fn textbook(limit: &Limit, nodes: u64, lag: Span) -> u64 {
    let (amount, window) = (limit.quota().amount(), limit.quota().window());
    let (lag, window) = (lag.min(window).as_micros(), window.as_micros().max(1));
    let alone = u128::from(nodes.saturating_sub(1)) * u128::from(lag);
    let admitted = u128::from(amount) * (u128::from(window) + alone) / u128::from(window);
    u64::try_from(admitted).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use tidegate::rule::{Every, MaxAhead};
    use tidegate::{Algorithm, Quota};

    use super::super::traffic::start;
    use super::*;

    fn limit() -> Limit {
        Limit::new(Algorithm::FixedWindow, Quota::per_second(60)).unwrap()
    }

    #[test]
    fn the_textbook_says_60_108_and_180() {
        let lags = [0, 400, 1_000, 5_000].map(Span::from_millis);
        assert_eq!(lags.map(|lag| textbook(&limit(), 3, lag)), [60, 108, 180, 180]);
    }

    #[test]
    fn with_max_ahead_nodes_exceed_the_limit_by_that_each_at_the_most() {
        let every = Every::new(Span::from_millis(500)).unwrap();
        let synced = Synced { every, max_ahead: MaxAhead::Tokens(5) };
        let begin = start(Span::SECOND);
        for telling in [Telling::Together, Telling::InTurn] {
            let mut fleet = Fleet::new(limit(), synced, telling, (3, 1), begin);
            let mut admitted = 0;
            for tick in 0..900_u64 {
                let at = begin + Span::from_micros(tick * 1_000);
                admitted += u64::from(fleet.charge(tick % 3, 0, at).is_allowed());
            }
            assert!((60..=75).contains(&admitted), "{telling:?}: {admitted}");
        }
    }
}
