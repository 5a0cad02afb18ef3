//! Keys of 16 bytes, and their distributions.

/// The key of one client.
pub type Key = [u8; 16];

/// A seeded generator of uniform bits, so that runs are repeatable.
#[derive(Debug)]
pub struct SeededBits(u64);

impl SeededBits {
    /// Returns the generator of this seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns 64 uniform bits.
    pub fn next_bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a uniform number from 0 to 1.
    pub fn next_part(&mut self) -> f64 {
        self.next_bits() as f64 / u64::MAX as f64
    }
}

/// Returns the key with this number: 16 hexadecimal digits of its hash.
#[must_use]
pub fn key(number: u64) -> Key {
    let mut text = [0; 16];
    let spread = SeededBits::new(number).next_bits();
    for (index, byte) in text.iter_mut().enumerate() {
        *byte = b"0123456789abcdef"[((spread >> (60 - 4 * index)) & 15) as usize];
    }
    text
}

/// Draws `count` of the keys, each with the same probability.
#[must_use]
pub fn uniform(keys: u64, count: usize, seed: u64) -> Vec<Key> {
    let mut bits = SeededBits::new(seed);
    (0..count).map(|_| key(bits.next_bits() % keys)).collect()
}

/// Draws keys by a Zipf distribution: key number n has a frequency proportional to 1 / n.
#[must_use]
pub fn zipf(keys: u64, count: usize, seed: u64) -> Vec<Key> {
    let mut sum = 0.0;
    let cumulated: Vec<f64> = (1..=keys)
        .map(|rank| {
            sum += 1.0 / rank as f64;
            sum
        })
        .collect();
    let mut bits = SeededBits::new(seed);
    (0..count)
        .map(|_| {
            let drawn = bits.next_part() * sum;
            key(cumulated.partition_point(|reached| *reached < drawn) as u64)
        })
        .collect()
}
