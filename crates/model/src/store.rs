//! The store's side of the page: expiry, reports, the cost, a new hold.

use crate::algorithm::{Algorithm, Gauge};
use crate::flaw::Flaw;
use crate::fleet::Fleet;
use crate::state::{HOLDS, Hold, Keys, Report, Store};

impl Store {
    /// Tokens that are neither used nor held.
    pub(crate) fn free(&self, fleet: &Fleet, place: u8) -> u8 {
        let limit = &fleet.limit;
        let taken = limit.weight(&self.used, place) + u16::from(self.held()) * limit.parts();
        let free = limit.whole().saturating_sub(taken) / limit.parts();
        u8::try_from(free).unwrap_or(u8::MAX)
    }

    /// A hold whose time is over counts as spent then.
    fn expire(&mut self, fleet: &Fleet) {
        for hold in self.holds.iter_mut().filter(|hold| hold.amount > 0 && hold.left == 0) {
            if !fleet.has(Flaw::ExpiredForgotten) {
                fleet.limit.spend(&mut self.used, hold.amount - hold.spent);
                fleet.limit.spend(&mut self.keys.ended, hold.amount - hold.spent);
            }
            *hold = Hold::default();
        }
    }

    /// Charges what is new in a report.
    pub(crate) fn hear(&mut self, fleet: &Fleet, node: u8, report: Report) {
        let Some(at) = self.find(node, report.id) else { return };
        let hold = &mut self.holds[at];
        if hold.closed {
            if report.closed {
                fleet.limit.unspend(&mut self.used, hold.amount.saturating_sub(report.spent));
            }
            return;
        }
        let known = if fleet.has(Flaw::ReportAdded) { 0 } else { hold.spent };
        let new = report.spent.saturating_sub(known).min(hold.amount - hold.spent);
        fleet.limit.spend(&mut self.used, new);
        hold.spent += new;
        if report.closed {
            if fleet.has(Flaw::ReturnedTwice) {
                // Its room is free, and it is remembered.
                hold.closed = true;
                hold.spent = hold.amount;
            } else {
                *hold = Hold::default();
            }
        }
    }

    /// Decides the cost of the request that asks. What is allowed is admitted at this instant.
    pub(crate) fn charge(&mut self, fleet: &Fleet, place: u8, cost: u8, admitted: &mut Gauge) {
        if cost > 0 && self.free(fleet, place) >= cost {
            fleet.limit.spend(&mut self.used, cost);
            fleet.limit.spend(admitted, cost);
        }
    }

    /// The most that could be held, of what is wanted.
    pub(crate) fn holdable(&self, fleet: &Fleet, place: u8, want: u8) -> u8 {
        let full = self.holds.iter().all(|hold| hold.amount > 0);
        if full || life(fleet, place) == 0 { 0 } else { want.min(self.free(fleet, place)) }
    }

    /// Holds tokens for a node. They fit.
    pub(crate) fn hold(&mut self, fleet: &Fleet, place: u8, node: u8, id: u8, amount: u8) -> Hold {
        let life = life(fleet, place);
        let margin = if fleet.has(Flaw::NoMargin) { 0 } else { fleet.margin };
        let left = (life + margin).min(until_end(fleet, place));
        let mut hold = Hold { node, id, amount, spent: 0, left, life, closed: false };
        if fleet.has(Flaw::ChargedAhead) {
            fleet.limit.spend(&mut self.used, amount);
            hold.spent = amount;
        }
        if let Some(slot) = self.holds.iter_mut().find(|slot| slot.amount == 0) {
            *slot = hold;
        }
        hold
    }

    /// One tick later. A window takes its holds along.
    pub(crate) fn tick(&mut self, fleet: &Fleet, rolls: bool) {
        if rolls {
            if matches!(fleet.limit.algorithm, Algorithm::SlidingWindow { .. }) {
                let held = self.held();
                fleet.limit.spend(&mut self.used, held);
                fleet.limit.spend(&mut self.keys.ended, held);
            }
            self.holds = Default::default();
        }
        fleet.limit.tick(&mut self.used, rolls);
        fleet.limit.tick(&mut self.keys.state, rolls);
        fleet.limit.tick(&mut self.keys.ended, rolls);
        for hold in &mut self.holds {
            hold.left = hold.left.saturating_sub(1);
        }
        self.expire(fleet);
        self.expire_keys(fleet);
    }

    /// Loses what a key said whose time to live is over.
    fn expire_keys(&mut self, fleet: &Fleet) {
        if !fleet.expires {
            self.keys = Keys::default();
            return;
        }
        let Keys { state_left, holds_left, .. } = &mut self.keys;
        let over = |left: &mut u8| core::mem::replace(left, left.saturating_sub(1)) == 1;
        let [state_over, holds_over] = [over(state_left), over(holds_left)];
        if state_over {
            (self.used, self.keys.state) = (self.keys.ended, Gauge::default());
        }
        if holds_over {
            (self.used, self.keys.ended) = (self.keys.state, Gauge::default());
            self.holds = Default::default();
        }
    }

    /// Counts leases that have ended: a question arrives.
    pub(crate) fn count_ended(&mut self) {
        (self.keys.state, self.keys.ended) = (self.used, Gauge::default());
    }

    /// Sets the time to live of both keys, after a question. `before`: the leases before it.
    pub(crate) fn keep(&mut self, fleet: &Fleet, place: u8, before: &[Hold; HOLDS]) {
        if !fleet.expires {
            return;
        }
        self.keys.state = self.used;
        let state = fleet.limit.ticks_left(&self.used, place);
        let ends = self.holds.iter().map(|hold| hold.left).max().unwrap_or(0);
        let settled = state.max(ends) + fleet.limit.counts_for(self.held());
        let [mut state_left, mut holds_left] = match self.held() {
            0 => [state, ends],
            _ => [settled; 2],
        };
        if fleet.has(Flaw::StateKeyEndsAlone) {
            state_left = state;
        }
        if fleet.has(Flaw::LeaseKeyEndsWithLease) {
            holds_left = ends;
        }
        if fleet.has(Flaw::LeaseKeyNotRenewed) && self.holds == *before {
            holds_left = self.keys.holds_left;
        }
        (self.keys.state_left, self.keys.holds_left) = (state_left, holds_left);
    }

    /// Parts of tokens that this store knew of and `older` does not.
    pub(crate) fn beyond(&self, older: &Self, fleet: &Fleet) -> u16 {
        let per_count = match fleet.limit.algorithm {
            Algorithm::TokenBucket { .. } => 1,
            Algorithm::FixedWindow { .. } | Algorithm::SlidingWindow { .. } => fleet.limit.parts(),
        };
        let count = self.used.current.saturating_sub(older.used.current)
            + self.used.previous.saturating_sub(older.used.previous);
        let held = self.holds.iter().filter(|hold| hold.amount > 0).map(|hold| {
            let kept = older.find(hold.node, hold.id).map(|at| older.holds[at]);
            let kept = kept.map_or(0, |kept| kept.amount - kept.spent);
            (hold.amount - hold.spent).saturating_sub(kept)
        });
        u16::from(count) * per_count + u16::from(held.sum::<u8>()) * fleet.limit.parts()
    }
}

fn until_end(fleet: &Fleet, place: u8) -> u8 {
    match fleet.limit.window() {
        0 => u8::MAX,
        window => window - place,
    }
}

/// How long a hold that is asked for now may be used: it ends a margin before its window does.
fn life(fleet: &Fleet, place: u8) -> u8 {
    let margin = if fleet.has(Flaw::WindowToItsEnd) { 0 } else { fleet.margin };
    fleet.life.min(until_end(fleet, place).saturating_sub(margin))
}
