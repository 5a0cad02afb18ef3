//! A naive reference: exact fractions and plain logs, no cleverness, nothing shared with the code
//! under test but the types of its interface.

use num_bigint::BigInt;
use num_rational::BigRational;
use num_traits::{One, ToPrimitive, Zero};
use tidegate_core::{Algorithm, Quota};

type Exact = BigRational;

fn exact(number: u64) -> Exact {
    Exact::from(BigInt::from(number))
}

/// The record of one charge, for refunds.
#[derive(Clone, Debug)]
pub(crate) struct Charge {
    id: u64,
    at: u64,
    cost: u64,
}

/// One client of one limit.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    algorithm: Algorithm,
    quota: Quota,
    memory: Memory,
    next_id: u64,
}

#[derive(Clone, Debug)]
enum Memory {
    /// Tokens in the bucket at an instant, and per charge when it will have refilled.
    Tokens { level: Exact, at: u64, heals: Vec<(u64, Exact)> },
    /// The start of every unit's slot, in order, with the charge it belongs to.
    Slots(Vec<(Exact, u64)>),
    /// Every admission that was not taken back.
    Log(Vec<Charge>),
}

impl Model {
    pub(crate) fn new(algorithm: Algorithm, quota: Quota) -> Self {
        let memory = match algorithm {
            Algorithm::TokenBucket => {
                let level = exact(quota.explicit_burst().unwrap_or(quota.amount()));
                Memory::Tokens { level, at: 0, heals: Vec::new() }
            }
            Algorithm::LeakyBucket { .. } => Memory::Slots(Vec::new()),
            _ => Memory::Log(Vec::new()),
        };
        Self { algorithm, quota, memory, next_id: 0 }
    }

    pub(crate) fn capacity(&self) -> u64 {
        match self.algorithm {
            Algorithm::TokenBucket => self.quota.explicit_burst().unwrap_or(self.quota.amount()),
            Algorithm::LeakyBucket { .. } if self.quota.amount() == 0 => 0,
            Algorithm::LeakyBucket { queue } => queue + 1,
            _ => self.quota.amount(),
        }
    }

    fn window(&self) -> u64 {
        self.quota.window().as_micros()
    }

    /// Microseconds per token.
    fn interval(&self) -> Exact {
        exact(self.window()) / exact(self.quota.amount())
    }

    fn level(&self, now: u64) -> Exact {
        let Memory::Tokens { level, at, .. } = &self.memory else { unreachable!() };
        if self.quota.amount() == 0 {
            return Exact::zero();
        }
        let refilled = exact(now.saturating_sub(*at)) / self.interval();
        (level + refilled).min(exact(self.capacity()))
    }

    /// Returns the start of the next unit's slot.
    fn next_slot(&self, now: u64) -> Exact {
        let Memory::Slots(slots) = &self.memory else { unreachable!() };
        match slots.last() {
            Some((last, _)) => (last + self.interval()).max(exact(now)),
            None => exact(now),
        }
    }

    fn spent_between(&self, from: u64, to: u64) -> u64 {
        let Memory::Log(log) = &self.memory else { unreachable!() };
        log.iter().filter(|charge| (from..to).contains(&charge.at)).map(|charge| charge.cost).sum()
    }

    /// Returns the amount that counts as spent at `now`, as a fraction.
    fn used(&self, now: u64) -> Exact {
        let window = self.window();
        let start = now - now % window;
        match self.algorithm {
            Algorithm::TokenBucket => exact(self.capacity()) - self.level(now),
            Algorithm::LeakyBucket { .. } if self.quota.amount() == 0 => Exact::zero(),
            Algorithm::LeakyBucket { .. } => (self.next_slot(now) - exact(now)) / self.interval(),
            Algorithm::FixedWindow => exact(self.spent_between(start, start + window)),
            Algorithm::SlidingWindow => {
                let previous = exact(self.spent_between(start.saturating_sub(window), start));
                let covered = exact(start + window - now) / exact(window);
                exact(self.spent_between(start, start + window)) + previous * covered
            }
            Algorithm::SlidingLog => {
                exact(self.spent_between((now + 1).saturating_sub(window), now + 1))
            }
            Algorithm::Concurrency { .. } => panic!("slots have a model of their own"),
        }
    }

    pub(crate) fn admits(&self, now: u64, cost: u64) -> bool {
        let cost = cost.max(1);
        cost <= self.capacity() && self.used(now) + exact(cost) <= exact(self.capacity())
    }

    pub(crate) fn remaining(&self, now: u64) -> u64 {
        let left = exact(self.capacity()) - self.used(now);
        left.max(Exact::zero()).floor().to_integer().to_u64().unwrap()
    }

    /// The delay that a shaper would answer, exactly.
    pub(crate) fn slot(&self, now: u64) -> Exact {
        match self.algorithm {
            Algorithm::LeakyBucket { .. } => self.next_slot(now),
            _ => exact(now),
        }
    }

    /// Spends `cost` if it fits. Returns the id of the charge.
    pub(crate) fn charge(&mut self, now: u64, cost: u64) -> Option<u64> {
        if cost == 0 || !self.admits(now, cost) {
            return None;
        }
        let id = self.next_id;
        self.next_id += 1;
        let (slot, interval) = match self.algorithm {
            Algorithm::LeakyBucket { .. } => (self.next_slot(now), self.interval()),
            _ => (Exact::zero(), Exact::one()),
        };
        let level = match self.algorithm {
            Algorithm::TokenBucket => self.level(now) - exact(cost),
            _ => Exact::zero(),
        };
        let full_at = match self.algorithm {
            Algorithm::TokenBucket => {
                exact(now) + (exact(self.capacity()) - &level) * self.interval()
            }
            _ => Exact::zero(),
        };
        match &mut self.memory {
            Memory::Tokens { level: own, at, heals } => {
                (*own, *at) = (level, now);
                heals.push((id, full_at));
            }
            Memory::Slots(slots) => {
                for unit in 0..cost {
                    slots.push((&slot + exact(unit) * &interval, id));
                }
            }
            Memory::Log(log) => log.push(Charge { id, at: now, cost }),
        }
        Some(id)
    }

    /// Refunds charge `id` of `cost` by the rules of the algorithm.
    pub(crate) fn refund(&mut self, now: u64, id: u64, cost: u64) {
        let capacity = exact(self.capacity());
        if let Algorithm::TokenBucket = self.algorithm {
            let (level, interval) = (self.level(now), self.interval());
            let Memory::Tokens { level: own, at, heals } = &mut self.memory else { unreachable!() };
            let Some(place) = heals.iter().position(|(known, _)| *known == id) else { return };
            let (_, full_at) = heals.remove(place);
            // What the bucket still lacks of this charge: at most what refills until it is healed.
            let unhealed =
                ((&full_at - exact(now)) / &interval).max(Exact::zero()).min(exact(cost));
            let given = unhealed.min(&capacity - &level);
            (*own, *at) = (level + &given, now);
            // Later charges heal earlier by as much. If there were any, earlier ones are taken to.
            let line = exact(now) + (&capacity - &*own + &given) * &interval;
            if full_at != line {
                for (_, full_at) in heals {
                    *full_at -= &given * &interval;
                }
            }
            return;
        }
        match &mut self.memory {
            Memory::Slots(slots) => {
                let mine = slots.iter().filter(|(_, owner)| *owner == id).count();
                let first = slots.iter().find(|(_, owner)| *owner == id);
                let waits = first.is_some_and(|(start, _)| *start > exact(now));
                let is_last = slots.last().is_some_and(|(_, owner)| *owner == id);
                if waits && is_last {
                    slots.truncate(slots.len() - mine);
                }
            }
            Memory::Log(log) => log.retain(|charge| charge.id != id),
            Memory::Tokens { .. } => unreachable!(),
        }
    }

    /// Refunds up to `cost` of the latest charges.
    pub(crate) fn refund_latest(&mut self, now: u64, cost: u64) {
        let (mut cost, window) = (cost.min(self.capacity()), self.window());
        if cost == 0 {
            return;
        }
        let level = match self.algorithm {
            Algorithm::TokenBucket => (self.level(now) + exact(cost)).min(exact(self.capacity())),
            _ => Exact::zero(),
        };
        match &mut self.memory {
            Memory::Tokens { level: own, at, .. } => (*own, *at) = (level, now),
            Memory::Slots(slots) => {
                let interval = exact(window) / exact(self.quota.amount());
                let Some((last, _)) = slots.last() else { return };
                let first = last + &interval - exact(cost) * &interval;
                if first > exact(now) {
                    slots.retain(|(start, _)| *start < first);
                    // Of slots from before a change of limit only the end is known.
                    slots.push((first - interval, u64::MAX));
                }
            }
            Memory::Log(log) => {
                let since = match self.algorithm {
                    Algorithm::SlidingLog => (now + 1).saturating_sub(window),
                    _ => now - now % window,
                };
                for charge in log.iter_mut().rev().filter(|charge| charge.at >= since) {
                    let taken = cost.min(charge.cost);
                    (charge.cost, cost) = (charge.cost - taken, cost - taken);
                }
            }
        }
    }

    /// The same client under other numbers from `now` on; whether earlier charges can be refunded.
    pub(crate) fn change(&mut self, now: u64, algorithm: Algorithm, quota: Quota) -> bool {
        let old = self.clone();
        let (same_window, same_numbers) = (
            old.quota.window() == quota.window(),
            old.quota == quota && old.algorithm == algorithm,
        );
        let mut new = Self::new(algorithm, quota);
        new.next_id = old.next_id;
        let same_kind =
            std::mem::discriminant(&algorithm) == std::mem::discriminant(&old.algorithm);
        if same_numbers {
            return true;
        }
        if !same_kind {
            let used = old.capacity() - old.remaining(now);
            let used = used.min(new.capacity());
            new.charge(now, used);
            *self = new;
            return false;
        }
        let refundable = match algorithm {
            Algorithm::TokenBucket => {
                if old.capacity() > 0 && new.capacity() > 0 {
                    // The same fraction used, rounded up to the grain that this limit counts in.
                    let fraction = old.used(now) / exact(old.capacity());
                    let grain = new.interval().denom().clone();
                    let time = fraction * exact(new.capacity()) * new.interval();
                    let time = Exact::new((time * &grain).ceil().to_integer(), grain);
                    let level = exact(new.capacity()) - time / new.interval();
                    new.memory = Memory::Tokens { level, at: now, heals: Vec::new() };
                }
                false
            }
            Algorithm::LeakyBucket { .. } => {
                if old.quota.amount() > 0 && new.quota.amount() > 0 {
                    let grain = new.interval().denom().clone();
                    let end = old.next_slot(now);
                    let end = Exact::new((end * &grain).ceil().to_integer(), grain);
                    if end > exact(now) {
                        new.memory = Memory::Slots(vec![(end - new.interval(), u64::MAX)]);
                    }
                }
                false
            }
            Algorithm::SlidingLog => {
                let Memory::Log(mut log) = old.memory.clone() else { unreachable!() };
                log.retain(|charge| charge.at + old.window() > now);
                new.memory = Memory::Log(log);
                same_window
            }
            Algorithm::FixedWindow | Algorithm::SlidingWindow if same_window => {
                new.memory = old.memory.clone();
                true
            }
            Algorithm::FixedWindow => {
                let start = now - now % old.window();
                let spent = old.spent_between(start, start + old.window());
                new.memory = Memory::Log(vec![Charge { id: u64::MAX, at: now, cost: spent }]);
                false
            }
            Algorithm::SlidingWindow => {
                let used = old.used(now).ceil().to_integer().to_u64().unwrap();
                new.memory = Memory::Log(vec![Charge { id: u64::MAX, at: now, cost: used }]);
                false
            }
            Algorithm::Concurrency { .. } => panic!("slots have a model of their own"),
        };
        *self = new;
        refundable
    }
}
