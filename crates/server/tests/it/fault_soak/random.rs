//! Numbers that follow from a seed.

/// The SplitMix64 generator: the same seed gives the same numbers on every machine.
#[derive(Debug, Clone)]
pub(super) struct SeededNumbers(u64);

impl SeededNumbers {
    /// Numbers of one seed; streams of different numbers do not repeat each other.
    pub(super) fn new(seed: u64, stream: u64) -> Self {
        let mut mixed = Self(seed ^ stream.wrapping_mul(0xd134_2543_de82_ef95));
        mixed.next();
        mixed
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number from `low` to `high`, both included.
    pub(super) fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.next() % (high - low + 1)
    }

    /// A place in a list of this length.
    pub(super) fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.next() % length as u64).unwrap()
    }

    /// One of these.
    pub(super) fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.index(items.len())]
    }

    /// True in so many of a hundred cases.
    pub(super) fn percent(&mut self, chance: u64) -> bool {
        self.between(1, 100) <= chance
    }

    /// One of these, each as often as its weight says.
    pub(super) fn weighted<T: Copy>(&mut self, items: &[(u64, T)]) -> T {
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
