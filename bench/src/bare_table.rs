//! The bare table: the least work of a limiter in memory with keys that are not cached.
//!
//! An open-addressed table of fingerprints and times, with a fixed number of slots. It has no lock, no removal, no other
//! algorithm and no protection against chosen keys. Its distance to a limiter is the cost of these.
#![allow(unsafe_code, reason = "a prefetch is an intrinsic")]

use std::time::{Duration, Instant};

use crate::keys::Key;

/// Keys of which the memory is prefetched together.
const PREFETCH_BATCH: usize = 16;

#[derive(Clone, Copy, Default)]
struct TableSlot {
    fingerprint: u128,
    /// Time in nanoseconds at which the bucket is full again. 0 marks a slot that is not used.
    full_at: u64,
}

/// Token buckets with one limit, for one thread.
pub struct BareTable {
    slots: Box<[TableSlot]>,
    /// Time in which one token refills, and the whole bucket.
    token_nanos: u64,
    bucket_nanos: u64,
    start: Instant,
}

impl std::fmt::Debug for BareTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BareTable").field("slots", &self.slots.len()).finish_non_exhaustive()
    }
}

impl BareTable {
    /// Makes a table for `keys` keys, of which at most three quarters are used.
    #[allow(clippy::disallowed_methods, reason = "a measurement reads the machine's own clock")]
    #[must_use]
    pub fn new(keys: usize, amount: u32, window: Duration) -> Self {
        let slots = (keys * 4 / 3 + 1).next_power_of_two();
        let bucket_nanos = window.as_nanos() as u64;
        Self {
            slots: vec![TableSlot::default(); slots].into_boxed_slice(),
            token_nanos: bucket_nanos / u64::from(amount),
            bucket_nanos,
            start: Instant::now(),
        }
    }

    /// Checks each key once. Reads the clock once per batch. Returns the number of admissions.
    pub fn check_all(&mut self, keys: &[Key], batch: usize) -> usize {
        let mut admitted = 0;
        for batch in keys.chunks(batch) {
            let now = self.start.elapsed().as_nanos() as u64 + 1;
            for keys in batch.chunks(PREFETCH_BATCH) {
                let mut prints = [0; PREFETCH_BATCH];
                for (print, key) in prints.iter_mut().zip(keys) {
                    *print = fingerprint(key);
                    self.prefetch(*print);
                }
                let prints = prints.iter().take(keys.len());
                admitted += prints.filter(|print| self.admit(**print, now)).count();
            }
        }
        admitted
    }

    fn admit(&mut self, fingerprint: u128, now: u64) -> bool {
        let mask = self.slots.len() - 1;
        let mut index = self.home(fingerprint);
        loop {
            let slot = &mut self.slots[index];
            if slot.full_at == 0 || slot.fingerprint == fingerprint {
                let full_at = slot.full_at.max(now) + self.token_nanos;
                let is_admitted = full_at <= now + self.bucket_nanos;
                if is_admitted {
                    *slot = TableSlot { fingerprint, full_at };
                }
                return is_admitted;
            }
            index = (index + 1) & mask;
        }
    }

    fn home(&self, fingerprint: u128) -> usize {
        fingerprint as usize & (self.slots.len() - 1)
    }

    #[inline]
    fn prefetch(&self, fingerprint: u128) {
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            let slot = &raw const self.slots[self.home(fingerprint)];
            // SAFETY: every x86-64 processor has PREFETCHT0, and it has no effect that a program can observe.
            unsafe { _mm_prefetch::<_MM_HINT_T0>(slot.cast()) };
        }
        #[cfg(not(target_arch = "x86_64"))]
        let _ = fingerprint;
    }
}

/// Returns 128 mixed bits of a key.
fn fingerprint(key: &Key) -> u128 {
    const FACTOR: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
    let product = u128::from_le_bytes(*key).wrapping_mul(FACTOR);
    (product ^ (product >> 64)).wrapping_mul(FACTOR).rotate_right(64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::key;

    #[test]
    fn each_key_is_admitted_up_to_its_limit() {
        let mut table = BareTable::new(1_000, 10, Duration::from_secs(3_600));
        let keys: Vec<Key> = (0..15_000).map(|number| key(number % 1_000)).collect();
        assert_eq!(table.check_all(&keys, 256), 10_000);
    }
}
