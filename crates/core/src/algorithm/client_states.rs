//! The states of one client under several limits, for a store that nodes with different rules share.
//!
//! While rules change, some nodes still enforce the old limit. If each of them converted the state to its own limit,
//! every conversion could lose usage that the other limit does not count. Therefore each limit keeps its own state
//! beside the others. If another limit was used last, a node migrates the usage of that limit, and its own state never
//! becomes less used by that. Each limit therefore admits at most its own bound, and both together admit at most the
//! sum.

use super::{Limit, State};
use crate::time::Timestamp;

/// The states of one client under several limits, the limit that was used last first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientStates {
    states: Vec<(Limit, State)>,
}

impl ClientStates {
    /// The most limits that are kept apart. The one that was not used for longest is dropped first.
    pub const MAX_LIMITS: usize = 4;

    /// Returns the states, the limit that was used last first.
    pub fn iter(&self) -> impl Iterator<Item = &(Limit, State)> {
        self.states.iter()
    }

    /// Returns the state under `limit`, which is from now on the limit that was used last.
    ///
    /// If another limit was used last, its state is [migrated](Limit::migrate). If there is an own
    /// state already, the result is at least as used as both.
    pub fn enter(&mut self, limit: &Limit, now: Timestamp) -> &mut State {
        self.drop_others(now);
        let own_place = self.states.iter().position(|(known, _)| limit.shares_state_with(known));
        let own = own_place.map(|place| self.states.remove(place).1);
        let state = match (own, self.states.first()) {
            (Some(own), _) if own_place == Some(0) => own,
            (own, Some((old, state))) => limit.migrate_and_merge(own.as_ref(), old, state, now),
            (own, None) => own.unwrap_or_else(|| limit.fresh()),
        };
        &mut self.states.insert_mut(0, (limit.clone(), state)).1
    }

    /// Returns whether another limit was used last.
    #[must_use]
    pub fn is_foreign(&self, limit: &Limit) -> bool {
        self.states.first().is_some_and(|(last, _)| !limit.shares_state_with(last))
    }

    /// Returns the limit and the state that a charge under the limit `charged` counts in.
    pub fn find(&mut self, charged: &Limit) -> Option<(&Limit, &mut State)> {
        let own = self.states.iter_mut().find(|(known, _)| known.shares_state_with(charged));
        own.map(|(limit, state)| (&*limit, state))
    }

    /// Drops the states that equal a fresh one from `now` on, and the oldest of more than
    /// [`MAX_LIMITS`](Self::MAX_LIMITS). A store does so whenever it writes.
    ///
    /// While others are left, the first stays in any case: its limit was used last, and must not migrate
    /// the others again.
    pub fn drop_expired(&mut self, now: Timestamp) {
        self.drop_others(now);
        self.states.truncate(Self::MAX_LIMITS);
        if let Some((limit, state)) = self.states.first_mut()
            && limit.expires_at(state) <= now
        {
            *state = limit.fresh();
            if self.states.len() == 1 {
                self.states.clear();
            }
        }
    }

    fn drop_others(&mut self, now: Timestamp) {
        let mut is_first = true;
        self.states.retain_mut(|(limit, state)| {
            std::mem::take(&mut is_first) || limit.expires_at(state) > now
        });
    }
}

/// States, the limit that was used last first.
impl FromIterator<(Limit, State)> for ClientStates {
    fn from_iter<I: IntoIterator<Item = (Limit, State)>>(states: I) -> Self {
        Self { states: states.into_iter().collect() }
    }
}
