//! Draws that a seed repeats.

use tidegate_random::SeededRng;

/// Draws of a simulation.
pub(crate) struct Chance(SeededRng);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SeededRng::new(seed))
    }

    /// Less than `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// From `low` to `high`, small ones as likely as large ones.
    pub(crate) fn spread(&mut self, low: u64, high: u64) -> u64 {
        let most = low + self.below(high - low + 1);
        low + self.below(most - low + 1)
    }

    /// Whether it happens, in so many of a hundred cases.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let at = self.below(of.len().try_into().unwrap());
        of[usize::try_from(at).unwrap()]
    }
}
