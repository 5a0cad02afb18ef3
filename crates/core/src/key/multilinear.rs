//! Multilinear hashing: fast, and provably without predictable collisions for an attacker without the key.
//!
//! Each 64-bit word of the input is multiplied by a secret 128-bit multiplier of its own. The upper 64 bits of the sum
//! are one half of the hash. A second, independent set of multipliers gives the other half. Two different inputs that
//! are chosen without the multipliers collide in one half with a probability of 2^-64, and in both with 2^-128 (strong
//! universality, Lemire and Kaser).
//!
//! The proof requires that hashes stay secret, as they do inside a process. In a shared store they are visible, so
//! BLAKE3 computes them there.

/// The secret multipliers of a process: a pair for each of [`MAX_WORDS`] words, one per half of the hash.
#[derive(Clone)]
pub(crate) struct Multilinear {
    /// The values at which the two sums start.
    start: MultiplierPair,
    multipliers: Box<[MultiplierPair; MAX_WORDS]>,
}

type MultiplierPair = (u128, u128);

/// The longest input, in words of 64 bits.
pub(crate) const MAX_WORDS: usize = 32;

impl Multilinear {
    /// Derives all multipliers from a secret.
    pub(crate) fn new(secret: &[u8; 32]) -> Self {
        let mut random = blake3::Hasher::new_keyed(secret).finalize_xof();
        let mut draw = || {
            let mut bytes = [0; 16];
            random.fill(&mut bytes);
            u128::from_le_bytes(bytes)
        };
        let start = (draw(), draw());
        let mut multipliers = Box::new([start; MAX_WORDS]);
        for pair in multipliers.iter_mut() {
            *pair = (draw(), draw());
        }
        Self { start, multipliers }
    }

    /// Returns the sum of an input without words.
    #[inline]
    pub(crate) fn sum(&self) -> HashSum<'_> {
        HashSum { sums: self.start, multipliers: &self.multipliers[..] }
    }
}

/// The two sums over the words so far, and the multipliers of the words to come.
pub(crate) struct HashSum<'n> {
    sums: MultiplierPair,
    multipliers: &'n [MultiplierPair],
}

impl HashSum<'_> {
    #[inline]
    fn add_word(&mut self, multiplier: &MultiplierPair, word: u64) {
        let word = u128::from(word);
        self.sums.0 = self.sums.0.wrapping_add(multiplier.0.wrapping_mul(word));
        self.sums.1 = self.sums.1.wrapping_add(multiplier.1.wrapping_mul(word));
    }

    /// Adds a header and bytes; the last word is padded with zeros. The header must not be zero and must contain the
    /// number of bytes: otherwise inputs that differ in trailing zeros or part boundaries would collide. Returns `None`
    /// if the input is longer than [`MAX_WORDS`].
    #[inline]
    pub(crate) fn add_part(&mut self, header: u64, bytes: &[u8]) -> Option<()> {
        let (whole, rest) = bytes.as_chunks::<8>();
        let words = 1 + whole.len() + usize::from(!rest.is_empty());
        let (used, unused) = self.multipliers.split_at_checked(words)?;
        self.multipliers = unused;
        let (first, used) = used.split_first()?;
        self.add_word(first, header);
        for (chunk, multiplier) in whole.iter().zip(used) {
            self.add_word(multiplier, u64::from_le_bytes(*chunk));
        }
        if !rest.is_empty() {
            let mut last = [0; 8];
            for (to, from) in last.iter_mut().zip(rest) {
                *to = *from;
            }
            self.add_word(used.last()?, u64::from_le_bytes(last));
        }
        Some(())
    }

    /// Returns the hash, one half from each sum.
    #[inline]
    pub(crate) fn finish(self) -> u128 {
        let (high, low) = (mix(self.sums.0), mix(self.sums.1));
        (u128::from(high) << 64) | u128::from(low)
    }
}

/// Returns the upper half of a sum, mixed by a bijection. Sums of similar inputs form patterns, and a hash table needs
/// an even distribution.
#[inline]
fn mix(sum: u128) -> u64 {
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
            sum.add_part(part.len() as u64 + 1, part)?;
        }
        Some(sum.finish())
    }

    #[test]
    fn similar_inputs_spread_over_both_halves() {
        let multilinear = Multilinear::new(&[3; 32]);
        let (mut whole, mut shards, mut slots) = (HashSet::new(), [0u32; 256], [0u32; 256]);
        const INPUTS: u64 = 100_000;
        for number in 0..INPUTS {
            let mut sum = multilinear.sum();
            sum.add_part(1, format!("client {number}").as_bytes()).unwrap();
            let hash = sum.finish();
            whole.insert(hash);
            shards[(hash >> 120) as usize] += 1;
            slots[((hash >> 56) & 0xff) as usize] += 1;
        }
        assert_eq!(whole.len() as u64, INPUTS);
        // 390 are expected in each; six standard deviations are 119.
        for count in shards.iter().chain(&slots) {
            assert!((271..510).contains(count), "{count} of {INPUTS} in one of 256");
        }
    }

    #[test]
    fn trailing_zeros_and_part_boundaries_change_the_hash() {
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
    fn another_secret_changes_the_hash_and_a_long_input_has_none() {
        assert_ne!(hash(1, &[b"alice"]), hash(2, &[b"alice"]));
        assert!(hash(1, &[&[7; 8 * (MAX_WORDS - 1)]]).is_some());
        assert!(hash(1, &[&[7; 8 * (MAX_WORDS - 1) + 1]]).is_none());
        assert!(hash(1, &[&[7; 8], &[7; 8 * (MAX_WORDS - 2)]]).is_none());
    }
}
