//! The node's side of the page: asking, using, closing.

use crate::flaw::Flaw;
use crate::fleet::Fleet;
use crate::state::{Asking, LEASES, Lease, Node, Report};

impl Lease {
    /// Whether a token of it may be spent.
    pub(crate) fn usable(&self) -> bool {
        self.left > 0 && self.spent < self.amount
    }
}

impl Node {
    /// What a question says of holds. Closed is what is used up or over, and whatever `close` says.
    pub(crate) fn report(&mut self, fleet: &Fleet, close: u8) -> [Report; LEASES + 1] {
        let mut reports = [Report::default(); LEASES + 1];
        reports[LEASES] = self.closed;
        for (at, lease) in self.leases.iter_mut().enumerate().filter(|(_, lease)| lease.amount > 0)
        {
            let closed = !lease.usable() || close & (1 << at) != 0;
            reports[at] = Report { id: lease.id, spent: lease.spent, closed };
            if closed {
                self.closed = reports[at];
                if !fleet.has(Flaw::ClosedUsedAgain) {
                    *lease = Lease::default();
                }
            }
        }
        reports
    }

    /// Takes an answer, if it is the one that is waited for and in time.
    pub(crate) fn answered(&mut self, fleet: &Fleet, id: u8, amount: u8, life: u8) {
        if self.asking.id != id {
            return;
        }
        let left = life.saturating_sub(self.asking.age);
        let left = match fleet.flaw {
            Some(Flaw::LateAnswerUsed) => left.max(1),
            Some(Flaw::LifeFromAnswer) if left > 0 => life,
            _ => left,
        };
        self.asking = Asking::default();
        if amount == 0 || left == 0 {
            return;
        }
        if let Some(slot) = self.leases.iter_mut().find(|lease| lease.amount == 0) {
            *slot = Lease { id, amount, spent: 0, left };
        }
    }

    /// Its clock goes on by so many ticks.
    pub(crate) fn tick(&mut self, fleet: &Fleet, ticks: u8) {
        for lease in &mut self.leases {
            lease.left = lease.left.saturating_sub(ticks);
        }
        if self.asking.id > 0 {
            self.asking.age = (self.asking.age + ticks).min(fleet.life);
        }
    }

    /// Whether one more hold could be used beside those that are.
    pub(crate) fn has_place(&self, fleet: &Fleet) -> bool {
        self.leases.iter().filter(|lease| lease.usable()).count() < fleet.leases
    }
}
