//! What goes wrong, and how often.

use tidegate_random::SeededRng;

/// Draws that a seed repeats.
pub(crate) struct Chance(SeededRng);

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SeededRng::new(seed))
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// Whether it happens, in so many of ten thousand cases.
    pub(crate) fn happens(&mut self, often: u64) -> bool {
        self.below(10_000) < often
    }
}

/// How often things go wrong, in so many of ten thousand steps or messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Weather {
    /// Hundredths of a percent at the most.
    pub(crate) drift: u64,
    pub(crate) lost: u64,
    pub(crate) late: u64,
    pub(crate) pauses: u64,
    pub(crate) crashes: u64,
    pub(crate) leaves: u64,
    pub(crate) joins: u64,
    pub(crate) forgets: u64,
    /// Crashes after which the node starts again at once, with its last share from disk.
    pub(crate) restarts: u64,
}

/// Nothing goes wrong.
pub(crate) const CALM: Weather = Weather {
    drift: 0,
    lost: 0,
    late: 0,
    pauses: 0,
    crashes: 0,
    leaves: 0,
    joins: 0,
    forgets: 0,
    restarts: 0,
};

impl Weather {
    pub(crate) fn of(chance: &mut Chance, drift: u64) -> Self {
        let mut one_of = |choices: [u64; 3]| choices[usize::try_from(chance.below(3)).unwrap()];
        Self {
            drift,
            lost: one_of([0, 500, 5_000]),
            late: one_of([0, 500, 3_000]),
            pauses: one_of([0, 10, 40]),
            crashes: one_of([0, 5, 20]),
            leaves: one_of([0, 5, 20]),
            joins: one_of([0, 20, 60]),
            forgets: one_of([0, 0, 15]),
            restarts: 0,
        }
    }
}
