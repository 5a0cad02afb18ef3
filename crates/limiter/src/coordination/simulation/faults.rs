//! Faults of a simulated fleet, and their rates.

use tidegate_random::SeededRng;

/// The number of draws that the rates of [`FaultPlan`] refer to.
const RATE_BASE: u64 = 10_000;

/// Random decisions. The same seed gives the same decisions.
pub(crate) struct FaultRng(SeededRng);

impl FaultRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(SeededRng::new(seed))
    }

    /// Returns a number less than `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end)
    }

    /// Returns `true` in `rate` of 10,000 calls.
    pub(crate) fn happens(&mut self, rate: u64) -> bool {
        self.below(RATE_BASE) < rate
    }
}

/// Rates of faults, in 1/10,000 of messages (`lost`, `delayed`) or of simulation steps (the others).
#[derive(Clone, Copy, Debug)]
pub(crate) struct FaultPlan {
    /// The largest error of a node's clock, in 1/10,000 of the time that passes.
    pub(crate) clock_drift: u64,
    pub(crate) lost: u64,
    pub(crate) delayed: u64,
    pub(crate) pauses: u64,
    pub(crate) crashes: u64,
    pub(crate) leaves: u64,
    pub(crate) joins: u64,
    /// The store loses its list of nodes.
    pub(crate) store_resets: u64,
    /// Crashes after which the node restarts at once, with its last share from disk.
    pub(crate) restarts: u64,
}

impl FaultPlan {
    /// A plan without faults.
    pub(crate) const NONE: Self = Self {
        clock_drift: 0,
        lost: 0,
        delayed: 0,
        pauses: 0,
        crashes: 0,
        leaves: 0,
        joins: 0,
        store_resets: 0,
        restarts: 0,
    };

    /// Draws each rate from none, low and high.
    pub(crate) fn random(rng: &mut FaultRng, clock_drift: u64) -> Self {
        let mut one_of = |choices: [u64; 3]| choices[usize::try_from(rng.below(3)).unwrap()];
        Self {
            clock_drift,
            lost: one_of([0, 500, 5_000]),
            delayed: one_of([0, 500, 3_000]),
            pauses: one_of([0, 10, 40]),
            crashes: one_of([0, 5, 20]),
            leaves: one_of([0, 5, 20]),
            joins: one_of([0, 20, 60]),
            store_resets: one_of([0, 0, 15]),
            restarts: 0,
        }
    }
}
