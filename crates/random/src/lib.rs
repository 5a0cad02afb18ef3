//! Random numbers for simulations and tests: the same seed gives the same numbers on every machine.

use std::f64::consts::LN_2;

/// The SplitMix64 generator.
#[derive(Clone, Debug)]
pub struct SeededRng {
    state: u64,
}

impl SeededRng {
    /// Creates the generator of a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 to less than 1.
    pub fn unit(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a number less than `end`.
    ///
    /// # Panics
    /// `end` is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end
    }

    /// Returns the time until the next of independent arrivals with this mean interval.
    pub fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// A population in which the busiest member occurs twice as often as the second, three times as often as the third, and so on.
#[derive(Clone, Debug)]
pub struct ZipfDistribution {
    members: f64,
    /// The logarithm of the number of members plus one.
    top: f64,
}

impl ZipfDistribution {
    /// Creates a population of this many members, at least one.
    #[must_use]
    pub fn new(members: u64) -> Self {
        let members = members.max(1) as f64;
        Self { members, top: members.ln_1p() }
    }

    /// Draws a member; 0 is the busiest.
    pub fn sample(&self, rng: &mut SeededRng) -> u64 {
        loop {
            // A rank drawn like this has the probability ln(1 + 1/rank), which is too high for later ranks: some draws
            // are rejected.
            let rank = (rng.unit() * self.top).exp().floor().clamp(1.0, self.members);
            let accepted = LN_2 / (rank * rank.recip().ln_1p());
            if rng.unit() < accepted {
                return rank as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_client_comes_twice_as_often_as_the_second() {
        let (mut rng, zipf) = (SeededRng::new(7), ZipfDistribution::new(1_000));
        let mut counts = vec![0_u32; 1_000];
        for _ in 0..200_000 {
            counts[usize::try_from(zipf.sample(&mut rng)).unwrap()] += 1;
        }
        // The harmonic number of 1,000 is 7.4855.
        for place in [1_u32, 2, 3, 10] {
            let (found, wanted) =
                (f64::from(counts[place as usize - 1]), 200_000.0 / 7.4855 / f64::from(place));
            assert!((found / wanted - 1.0).abs() < 0.05, "{place}: {found} of {wanted}");
        }
        assert!(counts.iter().all(|count| *count > 0));
    }

    #[test]
    fn a_seed_repeats_itself_and_another_does_not() {
        let drawn = |seed| {
            let mut rng = SeededRng::new(seed);
            (0..8).map(|_| rng.below(1_000_000)).collect::<Vec<_>>()
        };
        assert_eq!(drawn(3), drawn(3));
        assert_ne!(drawn(3), drawn(4));
    }
}
