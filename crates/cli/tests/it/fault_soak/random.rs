//! Random choices that are determined by a seed.

use tidegate_random::SeededRng;

/// A random number generator with the choices that a scenario needs.
#[derive(Debug, Clone)]
pub(crate) struct SeededNumbers(SeededRng);

impl SeededNumbers {
    /// Returns the generator of one stream. Different streams of a seed have independent numbers.
    pub(crate) fn new(seed: u64, stream: u64) -> Self {
        Self(SeededRng::new(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95)))
    }

    /// Returns a number from `low` to `high`, both included.
    pub(crate) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.0.below(high - low + 1)
    }

    /// Returns an index into a list of this length.
    pub(crate) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.0.below(length as u64)).unwrap()
    }

    /// Returns one of the items, each with the same probability.
    pub(crate) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    /// Returns true with a probability of `chance` percent.
    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.between(1, 100) <= chance
    }

    /// Returns one of the items with a probability in proportion to its weight.
    pub(crate) fn weighted<T: Copy>(&mut self, items: &[(u64, T)]) -> T {
        let mut ticket = self.between(1, items.iter().map(|(weight, _)| weight).sum());
        for (weight, item) in items {
            if ticket <= *weight {
                return *item;
            }
            ticket -= weight;
        }
        unreachable!("the ticket is within the sum of the weights")
    }
}
