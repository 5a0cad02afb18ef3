//! Chance that a seed repeats, on every machine.

use std::f64::consts::LN_2;

/// A stream of numbers that its seed decides.
#[derive(Clone, Debug)]
pub(crate) struct Chance {
    state: u64,
}

impl Chance {
    pub(crate) fn new(seed: u64) -> Self {
        Self { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) }
    }

    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.state ^ (self.state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 up to 1, which is never reached.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Less than `end`, which is not 0.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// How long until the next of those who come by chance, so many microseconds apart on average.
    pub(crate) fn gap(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.unit()).ln()
    }
}

/// A population of which the busiest comes twice as often as the second, three times as often as the
/// third, and so on.
#[derive(Clone, Debug)]
pub(crate) struct Zipf {
    clients: f64,
    /// The logarithm of one more than all of them.
    top: f64,
}

impl Zipf {
    pub(crate) fn new(clients: u64) -> Self {
        let clients = clients.max(1) as f64;
        Self { clients, top: clients.ln_1p() }
    }

    /// Who comes: 0 is the busiest.
    pub(crate) fn client(&self, chance: &mut Chance) -> u64 {
        loop {
            // Places drawn like this come by ln(1 + 1/place): so many too many of the later ones
            // that some are turned away.
            let place = (chance.unit() * self.top).exp().floor().clamp(1.0, self.clients);
            let kept = LN_2 / (place * place.recip().ln_1p());
            if chance.unit() < kept {
                return place as u64 - 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_busiest_client_comes_twice_as_often_as_the_second() {
        let (mut chance, zipf) = (Chance::new(7), Zipf::new(1_000));
        let mut counts = vec![0_u32; 1_000];
        for _ in 0..200_000 {
            counts[usize::try_from(zipf.client(&mut chance)).unwrap()] += 1;
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
            let mut chance = Chance::new(seed);
            (0..8).map(|_| chance.below(1_000_000)).collect::<Vec<_>>()
        };
        assert_eq!(drawn(3), drawn(3));
        assert_ne!(drawn(3), drawn(4));
    }
}
