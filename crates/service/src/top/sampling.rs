//! Which checks are counted when there are more than need to be.

use tidegate_core::{Span, Timestamp};

/// Checks of one second that all count.
const EVERY: u32 = 1_000;
/// Of the checks beyond, about one in so many counts, for as many.
const SAMPLE: u64 = 8;

/// Picks checks at random, so that no rhythm of the traffic can hide a client.
#[derive(Debug)]
pub(crate) struct Sampling {
    second: u64,
    seen: u32,
    random: u64,
}

impl Sampling {
    pub(crate) fn starting(seed: u64) -> Self {
        Self { second: 0, seen: 0, random: seed | 1 }
    }

    /// For how many the check at `at` counts; `None` when it is passed over.
    pub(crate) fn weight(&mut self, at: Timestamp) -> Option<u64> {
        let second = at.as_micros() / Span::SECOND.as_micros();
        if second != self.second {
            (self.second, self.seen) = (second, 0);
        }
        if self.seen < EVERY {
            self.seen += 1;
            return Some(1);
        }
        // Marsaglia's xorshift: nobody outside sees what it picks.
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 32).is_multiple_of(SAMPLE).then_some(SAMPLE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quiet_second_is_counted_in_full_and_a_busy_one_nearly() {
        let mut sampling = Sampling::starting(12_345);
        let at = Timestamp::from_secs(7);
        let quiet: Option<u64> = (0..EVERY).map(|_| sampling.weight(at)).sum();
        assert_eq!(quiet, Some(u64::from(EVERY)));
        let picked: Vec<u64> = (0..800_000).filter_map(|_| sampling.weight(at)).collect();
        assert!(picked.len() < 110_000, "{}", picked.len());
        let counted: u64 = picked.iter().sum();
        assert!((760_000..840_000).contains(&counted), "{counted}");
        assert_eq!(sampling.weight(at + Span::SECOND), Some(1));
    }
}
