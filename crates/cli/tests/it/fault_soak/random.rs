//! Numbers that follow from a seed.

use tidegate_random::SeededRng;

/// Draws of an episode.
#[derive(Debug, Clone)]
pub(crate) struct SeededNumbers(SeededRng);

impl SeededNumbers {
    /// Numbers of one seed; streams of different numbers do not repeat each other.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(SeededRng::new(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95)))
    }

    /// A number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high - low + 1)
    }

    /// A place in a list of this length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.0.below(length as u64)).unwrap()
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    /// True in so many of a hundred cases.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.between(1, 100) <= chance
    }

    /// One of these, each as often as its weight says.
    pub(crate) fn weighted<T: Copy>(&mut self, items: &[(u64, T)]) -> T {
        let mut place = self.between(1, items.iter().map(|(weight, _)| weight).sum());
        for (weight, item) in items {
            if place <= *weight {
                return *item;
            }
            place -= weight;
        }
        unreachable!("the place is within the sum of the weights")
    }
}
