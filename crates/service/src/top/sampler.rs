//! Sampling of checks at high rates.

use tidegate_core::{Span, Timestamp};

/// Checks of one second that are all counted.
const UNSAMPLED_PER_SECOND: u32 = 1_000;
/// Ratio at which further checks are sampled: one in this many is counted, with this weight.
const SAMPLE_RATIO: u64 = 8;

/// Picks checks at random, so that a client can't avoid being counted by its timing.
#[derive(Debug)]
pub(crate) struct CheckSampler {
    second: u64,
    counted_in_full: u32,
    random: u64,
}

impl CheckSampler {
    pub(crate) fn new(seed: u64) -> Self {
        Self { second: 0, counted_in_full: 0, random: seed | 1 }
    }

    /// Returns the weight of a check at `at`; `None` if it is not counted.
    pub(crate) fn weight(&mut self, at: Timestamp) -> Option<u64> {
        let second = at.as_micros() / Span::SECOND.as_micros();
        if second != self.second {
            (self.second, self.counted_in_full) = (second, 0);
        }
        if self.counted_in_full < UNSAMPLED_PER_SECOND {
            self.counted_in_full += 1;
            return Some(1);
        }
        // Marsaglia's xorshift is predictable from its output, which clients never see.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32).is_multiple_of(SAMPLE_RATIO).then_some(SAMPLE_RATIO)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_above_the_bound_are_sampled_with_their_weight() {
        let mut sampler = CheckSampler::new(12_345);
        let at = Timestamp::from_secs(7);
        let quiet: Option<u64> = (0..UNSAMPLED_PER_SECOND).map(|_| sampler.weight(at)).sum();
        assert_eq!(quiet, Some(u64::from(UNSAMPLED_PER_SECOND)));
        let picked: Vec<u64> = (0..800_000).filter_map(|_| sampler.weight(at)).collect();
        assert!(picked.len() < 110_000, "{}", picked.len());
        let counted: u64 = picked.iter().sum();
        assert!((760_000..840_000).contains(&counted), "{counted}");
        assert_eq!(sampler.weight(at + Span::SECOND), Some(1));
    }
}
