//! The most frequent keys, counted in a fixed number of rows.
//!
//! This is the Space-Saving algorithm: a key without a row replaces the key with the smallest count, and continues from
//! that count. So no count is too small. The smallest count is at most the total divided by the number of rows, and every
//! key with more than that has a row.

/// Rows of one sketch. For so few rows a linear search is faster than an ordered structure.
pub(crate) const ROWS: usize = 128;

/// Counts of the most frequent keys, with an item for each.
#[derive(Debug)]
pub(crate) struct Sketch<T> {
    keys: Vec<u64>,
    counts: Vec<u64>,
    /// The part of each count that may belong to other keys.
    errors: Vec<u64>,
    items: Vec<T>,
}

/// One row. The key occurred at most `count` and at least `count - error` times.
#[derive(Debug)]
pub(crate) struct SketchRow<'s, T> {
    pub(crate) key: u64,
    pub(crate) count: u64,
    pub(crate) error: u64,
    pub(crate) item: &'s T,
}

impl<T> Default for Sketch<T> {
    fn default() -> Self {
        Self { keys: Vec::new(), counts: Vec::new(), errors: Vec::new(), items: Vec::new() }
    }
}

impl<T> Sketch<T> {
    /// Counts a key. `item` is called if the key has no row; if it returns `None`, the key is not counted.
    pub(crate) fn add(&mut self, key: u64, weight: u64, item: impl FnOnce() -> Option<T>) {
        if let Some(row) = self.keys.iter().position(|known| *known == key) {
            self.counts[row] = self.counts[row].saturating_add(weight);
            return;
        }
        let Some(item) = item() else { return };
        if self.keys.len() < ROWS {
            self.keys.push(key);
            self.counts.push(weight);
            self.errors.push(0);
            self.items.push(item);
            return;
        }
        let smallest = self.counts.iter().copied().min().unwrap_or(0);
        if let Some(row) = self.counts.iter().position(|count| *count == smallest) {
            self.keys[row] = key;
            self.counts[row] = smallest.saturating_add(weight);
            self.errors[row] = smallest;
            self.items[row] = item;
        }
    }

    /// Returns every row, in no particular order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = SketchRow<'_, T>> {
        let numbers = self.keys.iter().zip(&self.counts).zip(&self.errors);
        numbers.zip(&self.items).map(|(((key, count), error), item)| SketchRow {
            key: *key,
            count: *count,
            error: *error,
            item,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    /// Returns streams with few frequent and many rare keys, in any order.
    fn streams() -> impl Strategy<Value = Vec<(u64, u64)>> {
        let heavy = (0..20_u64, 1..4_u64);
        let light = (20..5_000_u64, Just(1_u64));
        let any = prop_oneof![2 => heavy, 3 => light];
        proptest::collection::vec(any, 0..4_000)
    }

    proptest! {
        #[test]
        fn count_is_an_upper_bound_within_its_error(stream in streams()) {
            let mut exact: HashMap<u64, u64> = HashMap::new();
            let mut sketch = Sketch::default();
            for (key, weight) in &stream {
                *exact.entry(*key).or_default() += weight;
                sketch.add(*key, *weight, || Some(*key));
            }
            let total: u64 = exact.values().sum();
            let rows: HashMap<u64, (u64, u64)> =
                sketch.rows().map(|row| (row.key, (row.count, row.error))).collect();
            prop_assert!(rows.len() <= ROWS);
            for (key, (count, error)) in &rows {
                let truth = exact[key];
                prop_assert!(*count >= truth && count - error <= truth, "{key}: {count} {error} {truth}");
                prop_assert!(*error <= total / ROWS as u64);
            }
            for (key, truth) in &exact {
                prop_assert!(*truth <= total / ROWS as u64 || rows.contains_key(key), "{key}");
            }
            prop_assert!(sketch.rows().all(|row| row.key == *row.item));
        }
    }
}
