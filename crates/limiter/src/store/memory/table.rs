//! An open-addressing hash table with linear probing, for keys that are hashes already.
//!
//! The home slot of an entry is proportional to its key. So growth by any factor keeps the order of
//! entries, and the table need not double. Between 64 % and 80 % of the slots are in use. A removal
//! shifts later entries back, so there are no tombstones.

/// An entry of a table.
pub(crate) trait TableEntry: Sized {
    /// Returns the value of a vacant slot.
    fn vacant() -> Self;
    fn is_vacant(&self) -> bool;
    /// Returns 64 uniformly distributed bits of the key.
    fn low_half(&self) -> u64;
    /// Returns the bytes that the entry allocates outside the table.
    fn heap_bytes(&self) -> usize {
        0
    }
}

/// A hash table of entries.
#[derive(Debug)]
pub(crate) struct EntryTable<T> {
    slots: Vec<T>,
    used: usize,
    /// The sum of the entries' [`heap_bytes`](TableEntry::heap_bytes).
    heap_bytes: usize,
}

impl<T> Default for EntryTable<T> {
    fn default() -> Self {
        Self { slots: Vec::new(), used: 0, heap_bytes: 0 }
    }
}

/// The most slots in use of every five, a load factor of 80 %.
const MAX_USED_PER_FIVE: usize = 4;
const MIN_SLOTS: usize = 5;

/// Returns the home slot of a key among `slots` slots.
#[inline]
pub(crate) fn home_slot(low_half: u64, slots: usize) -> usize {
    ((u128::from(low_half) * slots as u128) >> 64) as usize
}

/// Returns the number of slots after growth: for one entry more than `entries`, and a quarter more than that.
fn slots_for(entries: usize) -> usize {
    ((entries + 1) * 5 * 5).div_ceil(MAX_USED_PER_FIVE * 4).max(MIN_SLOTS)
}

impl<T: TableEntry> EntryTable<T> {
    pub(crate) fn len(&self) -> usize {
        self.used
    }

    /// Returns the address and the number of the slots, for prefetching.
    pub(crate) fn address_and_len(&self) -> (usize, usize) {
        (self.slots.as_ptr() as usize, self.slots.len())
    }

    /// Returns the size of all slots in bytes, vacant ones included, and of the memory that entries allocate.
    pub(crate) fn bytes(&self) -> usize {
        self.slots.capacity() * size_of::<T>() + self.heap_bytes
    }

    /// Adds up the size of the slots and of the memory of each entry, for tests.
    #[cfg(test)]
    pub(crate) fn kept_bytes(&self) -> usize {
        let heap: usize = self.slots.iter().map(TableEntry::heap_bytes).sum();
        self.slots.capacity() * size_of::<T>() + heap
    }

    /// Returns the bytes by which the slots grow if another entry is added and none has expired.
    pub(crate) fn growth(&self) -> usize {
        if !self.is_at_max_load() {
            return 0;
        }
        slots_for(self.used).saturating_sub(self.slots.capacity()) * size_of::<T>()
    }

    #[inline]
    fn next(&self, index: usize) -> usize {
        let next = index + 1;
        if next == self.slots.len() { 0 } else { next }
    }

    /// Returns the index of the entry that `matches_key`, probing from the home slot of `low_half`.
    #[inline]
    pub(crate) fn find(&self, low_half: u64, matches_key: impl Fn(&T) -> bool) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut index = home_slot(low_half, self.slots.len());
        loop {
            let slot = &self.slots[index];
            if matches_key(slot) {
                return Some(index);
            }
            if slot.is_vacant() {
                return None;
            }
            index = self.next(index);
        }
    }

    #[inline]
    pub(crate) fn at(&mut self, index: usize) -> &mut T {
        &mut self.slots[index]
    }

    /// Runs `work` on an entry, and accounts for the memory that the entry allocates or releases.
    pub(crate) fn update<R>(&mut self, index: usize, work: impl FnOnce(&mut T) -> R) -> R {
        let entry = &mut self.slots[index];
        self.heap_bytes -= entry.heap_bytes();
        let result = work(entry);
        self.heap_bytes += entry.heap_bytes();
        result
    }

    /// Runs `work` on every entry.
    pub(crate) fn update_all(&mut self, work: impl Fn(&mut T)) {
        for index in 0..self.slots.len() {
            if !self.slots[index].is_vacant() {
                self.update(index, &work);
            }
        }
    }

    /// Returns whether one more entry would exceed the maximum load.
    pub(crate) fn is_at_max_load(&self) -> bool {
        (self.used + 1) * 5 > self.slots.len() * MAX_USED_PER_FIVE
    }

    /// Adds an entry for a key that is not in the table. Before the table grows, expired entries are
    /// removed. Returns their number.
    pub(crate) fn insert(&mut self, entry: T, is_expired: impl Fn(&T) -> bool) -> usize {
        let before = self.used;
        if self.is_at_max_load() {
            self.rebuild(is_expired);
        }
        let dropped = before - self.used;
        self.place(entry);
        dropped
    }

    fn place(&mut self, entry: T) {
        let mut index = home_slot(entry.low_half(), self.slots.len());
        while !self.slots[index].is_vacant() {
            index = self.next(index);
        }
        self.heap_bytes += entry.heap_bytes();
        self.slots[index] = entry;
        self.used += 1;
    }

    /// Removes expired entries, and allocates slots for a quarter more entries than are left.
    fn rebuild(&mut self, is_expired: impl Fn(&T) -> bool) {
        let old = std::mem::take(&mut self.slots);
        let left = old.iter().filter(|slot| !slot.is_vacant() && !is_expired(slot)).count();
        let slots = slots_for(left);
        self.slots = Vec::with_capacity(slots);
        self.slots.resize_with(slots, T::vacant);
        (self.used, self.heap_bytes) = (0, 0);
        for entry in old.into_iter().filter(|slot| !slot.is_vacant() && !is_expired(slot)) {
            self.place(entry);
        }
    }

    /// Removes an entry, and shifts later entries back into the gap.
    pub(crate) fn remove(&mut self, index: usize) -> T {
        let removed = std::mem::replace(&mut self.slots[index], T::vacant());
        self.used -= 1;
        self.heap_bytes -= removed.heap_bytes();
        let (mut gap, mut index) = (index, self.next(index));
        while !self.slots[index].is_vacant() {
            let home = home_slot(self.slots[index].low_half(), self.slots.len());
            // An entry may move into the gap unless its home slot is after the gap.
            let stays = if gap <= index {
                gap < home && home <= index
            } else {
                gap < home || home <= index
            };
            if !stays {
                self.slots.swap(gap, index);
                gap = index;
            }
            index = self.next(index);
        }
        removed
    }

    /// Removes all expired entries, and shrinks the table if less than 40 % of it is in use. Returns the
    /// number of removed entries.
    pub(crate) fn remove_expired(&mut self, is_expired: impl Fn(&T) -> bool) -> usize {
        let (before, mut index) = (self.used, 0);
        while index < self.slots.len() {
            let slot = &self.slots[index];
            if !slot.is_vacant() && is_expired(slot) {
                // Another entry may have moved to this index, so it is checked again.
                self.remove(index);
            } else {
                index += 1;
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
    struct TestEntry {
        key: u64,
        value: u64,
    }

    impl TableEntry for TestEntry {
        fn vacant() -> Self {
            Self { key: 0, value: u64::MAX }
        }
        fn is_vacant(&self) -> bool {
            self.value == u64::MAX
        }
        fn low_half(&self) -> u64 {
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
        fn table_behaves_like_a_hash_map(steps in steps()) {
            let mut table = EntryTable::<TestEntry>::default();
            let mut map: HashMap<u64, u64> = HashMap::new();
            for step in steps {
                match step {
                    Step::Put(key, value) => {
                        match table.find(key, |slot| !slot.is_vacant() && slot.key == key) {
                            Some(index) => table.at(index).value = value,
                            None => prop_assert_eq!(table.insert(TestEntry { key, value }, |_| false), 0),
                        }
                        map.insert(key, value);
                    }
                    Step::Remove(key) => {
                        let index = table.find(key, |slot| !slot.is_vacant() && slot.key == key);
                        prop_assert_eq!(index.is_some(), map.remove(&key).is_some());
                        if let Some(index) = index {
                            prop_assert_eq!(table.remove(index).key, key);
                        }
                    }
                    Step::SweepAll(is_expired) => {
                        table.remove_expired(|slot| slot.value < is_expired);
                        map.retain(|_, value| *value >= is_expired);
                    }
                }
                prop_assert_eq!(table.len(), map.len());
                for (key, value) in &map {
                    let index = table.find(*key, |slot| !slot.is_vacant() && slot.key == *key);
                    prop_assert_eq!(index.map(|index| table.at(index).value), Some(*value));
                }
            }
        }
    }
}
