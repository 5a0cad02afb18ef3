//! An open-addressing table for entries whose keys are already evenly spread.
//!
//! Entries stand near their home, which is in proportion to the key: growing by any factor keeps
//! their order, so it need not double. Between 64 % and 80 % of the slots are in use, and there are
//! no slots that only say "deleted".

/// What a table holds.
pub(crate) trait Slot: Sized {
    /// A slot that holds nothing.
    fn vacant() -> Self;
    fn is_vacant(&self) -> bool;
    /// 64 evenly spread bits of the key.
    fn spread(&self) -> u64;
}

#[derive(Debug)]
pub(crate) struct Table<T> {
    slots: Vec<T>,
    used: usize,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), used: 0 }
    }
}

/// Of five slots at most four are in use.
const SLOTS_PER_FIVE: usize = 4;
const SMALLEST: usize = 5;

/// The place for a key among `slots` slots.
#[inline]
pub(crate) fn home(spread: u64, slots: usize) -> usize {
    ((u128::from(spread) * slots as u128) >> 64) as usize
}

impl<T: Slot> Table<T> {
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Where the slots are and how many, for prefetching.
    pub(crate) fn span(&self) -> (usize, usize) {
        (self.slots.as_ptr() as usize, self.slots.len())
    }

    /// Bytes taken by the slots, vacant ones included.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<T>()
    }

    #[inline]
    fn next(&self, place: usize) -> usize {
        let next = place + 1;
        if next == self.slots.len() { 0 } else { next }
    }

    /// The place of the entry for which `is_it` holds among those of this spread.
    #[inline]
    pub(crate) fn find(&self, spread: u64, is_it: impl Fn(&T) -> bool) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut place = home(spread, self.slots.len());
        loop {
            let slot = &self.slots[place];
            if is_it(slot) {
                return Some(place);
            }
            if slot.is_vacant() {
                return None;
            }
            place = self.next(place);
        }
    }

    #[inline]
    pub(crate) fn at(&mut self, place: usize) -> &mut T {
        &mut self.slots[place]
    }

    /// Whether one more entry needs more slots.
    pub(crate) fn is_crowded(&self) -> bool {
        (self.used + 1) * 5 > self.slots.len() * SLOTS_PER_FIVE
    }

    /// Adds an entry that is not in the table yet. Entries that are `over` make room first; how many
    /// did.
    pub(crate) fn insert(&mut self, entry: T, over: impl Fn(&T) -> bool) -> usize {
        let before = self.used;
        if self.is_crowded() {
            self.rebuild(over);
        }
        let dropped = before - self.used;
        self.put(entry);
        dropped
    }

    fn put(&mut self, entry: T) {
        let mut place = home(entry.spread(), self.slots.len());
        while !self.slots[place].is_vacant() {
            place = self.next(place);
        }
        self.slots[place] = entry;
        self.used += 1;
    }

    /// Drops what is over, and makes room for a quarter more than is left.
    fn rebuild(&mut self, over: impl Fn(&T) -> bool) {
        let old = std::mem::take(&mut self.slots);
        let left = old.iter().filter(|slot| !slot.is_vacant() && !over(slot)).count();
        let slots = ((left + 1) * 5 * 5).div_ceil(SLOTS_PER_FIVE * 4).max(SMALLEST);
        self.slots = Vec::with_capacity(slots);
        self.slots.resize_with(slots, T::vacant);
        self.used = 0;
        for entry in old.into_iter().filter(|slot| !slot.is_vacant() && !over(slot)) {
            self.put(entry);
        }
    }

    /// Takes an entry out; entries behind it close the gap.
    pub(crate) fn remove(&mut self, place: usize) -> T {
        let removed = std::mem::replace(&mut self.slots[place], T::vacant());
        self.used -= 1;
        let (mut gap, mut place) = (place, self.next(place));
        while !self.slots[place].is_vacant() {
            let home = home(self.slots[place].spread(), self.slots.len());
            // An entry may move into the gap unless its home lies behind it.
            let stays = if gap <= place {
                gap < home && home <= place
            } else {
                gap < home || home <= place
            };
            if !stays {
                self.slots.swap(gap, place);
                gap = place;
            }
            place = self.next(place);
        }
        removed
    }

    /// Drops all that is over, and gives memory back when little of it is in use. How many entries
    /// were dropped.
    pub(crate) fn sweep_all(&mut self, over: impl Fn(&T) -> bool) -> usize {
        let (before, mut place) = (self.used, 0);
        while place < self.slots.len() {
            let slot = &self.slots[place];
            if !slot.is_vacant() && over(slot) {
                // Another entry may have moved here, so the place is looked at again.
                self.remove(place);
            } else {
                place += 1;
            }
        }
        let dropped = before - self.used;
        if self.used == 0 {
            *self = Self::default();
        } else if self.used * 5 < self.slots.len() * 2 {
            self.rebuild(|_| false);
        }
        dropped
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Copy, Debug)]
    struct Entry {
        key: u64,
        value: u64,
    }

    impl Slot for Entry {
        fn vacant() -> Self {
            Self { key: 0, value: u64::MAX }
        }
        fn is_vacant(&self) -> bool {
            self.value == u64::MAX
        }
        fn spread(&self) -> u64 {
            self.key
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        Put(u64, u64),
        Remove(u64),
        SweepAll(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        // Few keys, clustered at both ends of the table so that probing wraps around.
        let key = prop_oneof![0u64..30, (u64::MAX - 30)..=u64::MAX, any::<u64>()];
        let step = prop_oneof![
            6 => (key.clone(), 0u64..100).prop_map(|(key, value)| Step::Put(key, value)),
            3 => key.prop_map(Step::Remove),
            1 => (0u64..50).prop_map(Step::SweepAll),
        ];
        proptest::collection::vec(step, 1..200)
    }

    proptest! {
        #[test]
        fn a_table_holds_what_a_map_would(steps in steps()) {
            let mut table = Table::<Entry>::default();
            let mut map: HashMap<u64, u64> = HashMap::new();
            for step in steps {
                match step {
                    Step::Put(key, value) => {
                        match table.find(key, |slot| !slot.is_vacant() && slot.key == key) {
                            Some(place) => table.at(place).value = value,
                            None => prop_assert_eq!(table.insert(Entry { key, value }, |_| false), 0),
                        }
                        map.insert(key, value);
                    }
                    Step::Remove(key) => {
                        let place = table.find(key, |slot| !slot.is_vacant() && slot.key == key);
                        prop_assert_eq!(place.is_some(), map.remove(&key).is_some());
                        if let Some(place) = place {
                            prop_assert_eq!(table.remove(place).key, key);
                        }
                    }
                    Step::SweepAll(over) => {
                        table.sweep_all(|slot| slot.value < over);
                        map.retain(|_, value| *value >= over);
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                for (key, value) in &map {
                    let place = table.find(*key, |slot| !slot.is_vacant() && slot.key == *key);
                    prop_assert_eq!(place.map(|place| table.at(place).value), Some(*value));
                }
            }
        }
    }
}
