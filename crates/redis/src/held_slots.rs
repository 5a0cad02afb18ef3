//! Slots in flight that guards of this process hold.

use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use tidegate_limiter::store::Refund;

/// Fewer guards than this are not searched for dropped ones.
const MIN_SWEEP: usize = 64;

/// The slots of every guard in this process that has not been dropped.
#[derive(Debug, Default)]
pub(crate) struct HeldSlots(Mutex<GuardList>);

#[derive(Debug, Default)]
struct GuardList {
    slots: Vec<Weak<[Refund]>>,
    /// The number of guards after the last search for dropped ones.
    swept: usize,
}

impl HeldSlots {
    /// Adds the slots of a guard.
    pub(crate) fn add(&self, slots: &Arc<[Refund]>) {
        let mut guards = self.0.lock();
        if guards.slots.len() >= 2 * guards.swept.max(MIN_SWEEP) {
            guards.slots.retain(|slots| slots.strong_count() > 0);
            guards.swept = guards.slots.len();
        }
        guards.slots.push(Arc::downgrade(slots));
    }

    /// Returns the slots that are held now.
    pub(crate) fn all(&self) -> Vec<HeldSlot> {
        let guards = self.0.lock();
        let held = guards.slots.iter().filter_map(|guard| Some((guard.upgrade()?, guard)));
        let held = held.flat_map(|(slots, guard)| {
            let held =
                |slots: &Refund| HeldSlot { slots: slots.clone(), guard: Weak::clone(guard) };
            slots.iter().map(held).collect::<Vec<_>>()
        });
        held.collect()
    }

    /// Returns those of some slots that no guard holds any more.
    pub(crate) fn dropped(&self, held: Vec<HeldSlot>) -> Vec<Refund> {
        // Under the lock, so that `all` of another server has upgraded none of them.
        let _guards = self.0.lock();
        let dropped = held.into_iter().filter(|held| held.guard.strong_count() == 0);
        dropped.map(|held| held.slots).collect()
    }
}

/// Slots of one key, and the guard that holds them.
#[derive(Debug)]
pub(crate) struct HeldSlot {
    pub(crate) slots: Refund,
    guard: Weak<[Refund]>,
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Key, Limit, Quota, Span};

    use super::*;

    #[test]
    fn slots_of_dropped_guards_are_neither_returned_nor_kept() {
        let held = HeldSlots::default();
        let limit = Limit::new(Algorithm::Concurrency { hold: Span::MINUTE }, Quota::in_flight(1));
        let limit = Arc::new(limit.unwrap());
        let slots = |number| -> Arc<[Refund]> {
            let (key, limit) = (Key::from_u128(number), Arc::clone(&limit));
            Arc::from([Refund { key, limit, cost: 1, refund_token: None }])
        };
        let mut living: Vec<Arc<[Refund]>> = (0..10).map(slots).collect();
        living.iter().for_each(|slots| held.add(slots));
        for number in 10..10_000 {
            held.add(&slots(number));
        }
        let all = held.all();
        assert_eq!(all.len(), 10);
        living.truncate(7);
        let dropped: Vec<u128> =
            held.dropped(all).iter().map(|slots| slots.key.as_u128()).collect();
        assert_eq!(dropped, [7, 8, 9]);
        assert!(held.0.lock().slots.len() <= 2 * MIN_SWEEP);
    }
}
