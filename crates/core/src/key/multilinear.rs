//! Multilinear hashing: fast, and provably hard to aim at without the key.
//!
//! Each 64-bit word of the input is multiplied by a random 128-bit number of its own; the upper half of
//! the sum is the hash. For any two different inputs, chosen in any way without knowing the numbers, the
//! two sums agree in those 64 bits with a probability of 2^-64, and two independent sums with 2^-128
//! (strong universality, Lemire and Kaser). Nobody gets to see a hash, so nobody learns anything
//! about the numbers. Where hashes are seen, in a shared store, BLAKE3 makes them instead.

/// A random pair of numbers for each of the first [`WORDS`] words.
#[derive(Clone)]
pub(crate) struct Multilinear {
    start: Pair,
    numbers: Box<[Pair; WORDS]>,
}

type Pair = (u128, u128);

/// The longest input in words.
pub(crate) const WORDS: usize = 32;

impl Multilinear {
    /// Draws all numbers from a secret.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        let mut random = blake3::Hasher::new_keyed(secret).finalize_xof();
        let mut draw = || {
            let mut bytes = [0; 16];
            random.fill(&mut bytes);
            u128::from_le_bytes(bytes)
        };
        let start = (draw(), draw());
        let mut numbers = Box::new([start; WORDS]);
        for pair in numbers.iter_mut() {
            *pair = (draw(), draw());
        }
        Self { start, numbers }
    }

    /// A sum with nothing in it yet.
    #[inline]
    pub(crate) fn sum(&self) -> Sum<'_> {
        Sum { sums: self.start, numbers: &self.numbers[..] }
    }
}

/// The hash of the words so far.
pub(crate) struct Sum<'n> {
    sums: Pair,
    numbers: &'n [Pair],
}

impl Sum<'_> {
    #[inline]
    fn add(&mut self, number: &Pair, word: u64) {
        let word = u128::from(word);
        self.sums.0 = self.sums.0.wrapping_add(number.0.wrapping_mul(word));
        self.sums.1 = self.sums.1.wrapping_add(number.1.wrapping_mul(word));
    }

    /// Adds a header, which is not zero and tells how long the bytes are, and the bytes, the last word
    /// of them filled up with zeros. `None` when the input is longer than there are numbers.
    #[inline]
    pub(crate) fn part(&mut self, header: u64, bytes: &[u8]) -> Option<()> {
        let (whole, rest) = bytes.as_chunks::<8>();
        let words = 1 + whole.len() + usize::from(!rest.is_empty());
        let (mine, left) = self.numbers.split_at_checked(words)?;
        self.numbers = left;
        let (first, mine) = mine.split_first()?;
        self.add(first, header);
        for (chunk, number) in whole.iter().zip(mine) {
            self.add(number, u64::from_le_bytes(*chunk));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            for (to, from) in last.iter_mut().zip(rest) {
                *to = *from;
            }
            self.add(mine.last()?, u64::from_le_bytes(last));
        }
        Some(())
    }

    #[inline]
    pub(crate) fn finish(self) -> u128 {
        let (one, other) = (scatter(self.sums.0), scatter(self.sums.1));
        (u128::from(one) << 64) | u128::from(other)
    }
}

/// The upper half, its bits mixed one-to-one: sums of similar inputs lie in patterns, and a table
/// wants them scattered.
#[inline]
fn scatter(sum: u128) -> u64 {
    let mut bits = u64::try_from(sum >> 64).unwrap_or(0);
    bits ^= bits >> 32;
    bits = bits.wrapping_mul(0xd6e8_feb8_6659_fd93);
    bits ^= bits >> 32;
    bits
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn hash(secret: u8, parts: &[&[u8]]) -> Option<u128> {
        let multilinear = Multilinear::new(&[secret; 32]);
        let mut sum = multilinear.sum();
        for part in parts {
            sum.part(part.len() as u64 + 1, part)?;
        }
        Some(sum.finish())
    }

    #[test]
    fn similar_inputs_spread_over_both_halves() {
        let multilinear = Multilinear::new(&[3; 32]);
        let (mut whole, mut shards, mut places) = (HashSet::new(), [0u32; 256], [0u32; 256]);
        const INPUTS: u64 = 100_000;
        for number in 0..INPUTS {
            let mut sum = multilinear.sum();
            sum.part(1, format!("client {number}").as_bytes()).unwrap();
            let hash = sum.finish();
            whole.insert(hash);
            shards[(hash >> 120) as usize] += 1;
            places[((hash >> 56) & 0xff) as usize] += 1;
        }
        assert_eq!(whole.len() as u64, INPUTS);
        // 390 are expected in each; six standard deviations are 119.
        for count in shards.iter().chain(&places) {
            assert!((271..510).contains(count), "{count} of {INPUTS} in one of 256");
        }
    }

    #[test]
    fn zeros_at_the_end_and_parts_put_together_differently_count() {
        let inputs: [&[&[u8]]; 9] = [
            &[],
            &[b""],
            &[b"", b""],
            &[b"\0"],
            &[b"\0\0\0\0\0\0\0\0"],
            &[b"a"],
            &[b"a\0"],
            &[b"a", b""],
            &[b"", b"a"],
        ];
        let hashes: HashSet<Option<u128>> = inputs.iter().map(|input| hash(1, input)).collect();
        assert_eq!(hashes.len(), inputs.len());
    }

    #[test]
    fn another_secret_hashes_otherwise_and_a_long_input_not_at_all() {
        assert_ne!(hash(1, &[b"alice"]), hash(2, &[b"alice"]));
        assert!(hash(1, &[&[7; 8 * (WORDS - 1)]]).is_some());
        assert!(hash(1, &[&[7; 8 * (WORDS - 1) + 1]]).is_none());
        assert!(hash(1, &[&[7; 8], &[7; 8 * (WORDS - 2)]]).is_none());
    }
}
