//! Random choices that a seed repeats.

use tidegate_random::SeededRng;

/// The random choices of a simulation.
pub(crate) struct SimulationRng(SeededRng);

impl SimulationRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SeededRng::new(seed))
    }

    /// Returns a number less than `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// Returns a number from `low` to `high`, with a preference for small ones.
    pub(crate) fn spread(&mut self, low: u64, high: u64) -> u64 {
        let most = low + self.below(high - low + 1);
        low + self.below(most - low + 1)
    }

    /// Returns true in this percentage of calls.
    pub(crate) fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        let at = self.below(of.len().try_into().unwrap());
        of[usize::try_from(at).unwrap()]
    }
}
