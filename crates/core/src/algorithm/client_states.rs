//! The states of one client under several limits, for a store that nodes with different rules share.
//!
//! While rules change, some nodes still enforce the old limit. If each of them converted the state to
//! its own limit, every conversion could lose what the other limit does not count. So each limit keeps
//! its own state beside the others. A node whose limit was not the last one used carries over what
//! counts under that one, and its own state never becomes less used by that. Admitted by each limit is
//! therefore at most its own bound, and by both the sum.

use super::fixed_window::Count;
use super::sliding_log::Log;
use super::sliding_window::Counts;
use super::token_bucket::Level;
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
    /// If another limit was used last, its state is [adopted](Limit::adopt). If there is an own
    /// state already, the result is at least as used as both.
    pub fn enter(&mut self, limit: &Limit, now: Timestamp) -> &mut State {
        self.drop_others(now);
        let own_place = self.states.iter().position(|(known, _)| limit.shares_state_with(known));
        let own = own_place.map(|place| self.states.remove(place).1);
        let state = match (own, self.states.first()) {
            (Some(own), _) if own_place == Some(0) => own,
            (own, Some((old, state))) => limit.adopt_beside(own.as_ref(), old, state, now),
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
    /// While others are left, the first stays in any case: its limit was used last, and must not adopt
    /// the others again.
    pub fn drop_expired(&mut self, now: Timestamp) {
        self.drop_others(now);
        self.states.truncate(Self::MAX_LIMITS);
        if let Some((limit, state)) = self.states.first_mut()
            && limit.whole_at(state) <= now
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
            std::mem::take(&mut is_first) || limit.whole_at(state) > now
        });
    }
}

/// States, the limit that was used last first.
impl FromIterator<(Limit, State)> for ClientStates {
    fn from_iter<I: IntoIterator<Item = (Limit, State)>>(states: I) -> Self {
        Self { states: states.into_iter().collect() }
    }
}

impl Limit {
    /// Returns the state of a client of the limit `old`, [adopted](Self::adopt) by this one, for a
    /// client that may have a state under this limit already: at least as used as that.
    #[must_use]
    pub fn adopt_beside(
        &self,
        own: Option<&State>,
        old: &Self,
        state: &State,
        now: Timestamp,
    ) -> State {
        let mut adopted = self.adopt(old, state, now);
        let Some(own) = own else { return adopted };
        let mut own = own.clone();
        // Both are brought to the present window.
        self.admits(&mut own, now, 1);
        self.admits(&mut adopted, now, 1);
        match (own, adopted) {
            (State::Tokens(own), State::Tokens(adopted)) => Level {
                due: own.due.max(adopted.due),
                returned: own.returned.max(adopted.returned),
            }
            .into(),
            (State::Queue(own), State::Queue(adopted)) => own.max(adopted).into(),
            (State::Fixed(own), State::Fixed(adopted)) => {
                Count { end: own.end.max(adopted.end), spent: own.spent.max(adopted.spent) }.into()
            }
            (State::Sliding(own), State::Sliding(adopted)) => Counts {
                end: own.end.max(adopted.end),
                current: own.current.max(adopted.current),
                previous: own.previous.max(adopted.previous),
            }
            .into(),
            (State::Log(own), State::Log(adopted)) => match old {
                Self::SlidingLog(_) => own.union(&adopted).into(),
                // One entry at this moment has all that was used, the own entries included.
                _ => own.raised_to(adopted.spent(), now).into(),
            },
            // Slots in flight are one state under every limit.
            (own, _) => own,
        }
    }
}

impl Log {
    /// Returns what was spent at each instant in either log, an instant of both once.
    fn union(&self, other: &Self) -> Self {
        let mut entries: Vec<(Timestamp, u64)> = self.entries().chain(other.entries()).collect();
        // Of two entries of one instant the larger comes first and stays.
        entries.sort_unstable_by_key(|(instant, cost)| (*instant, u64::MAX - cost));
        entries.dedup_by_key(|(instant, _)| *instant);
        Self::new(entries)
    }

    /// Returns this log with as much spent at `now` as is missing to `spent` in all.
    fn raised_to(&self, spent: u64, now: Timestamp) -> Self {
        let missing = spent.saturating_sub(self.spent());
        let mut entries: Vec<(Timestamp, u64)> = self.entries().collect();
        match entries.last_mut() {
            Some((last, cost)) if *last >= now => *cost += missing,
            _ => entries.push((now, missing)),
        }
        Self::new(entries)
    }
}
