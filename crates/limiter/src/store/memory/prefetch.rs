//! A prefetch instruction for memory that is read soon.
//!
//! The only module of this crate with `unsafe`. Each random key costs a cache miss, and the lock before it
//! keeps the processor from overlapping the misses. Prefetches of a whole batch do overlap.

/// Prefetches the cache line at `address`. Any address is allowed, and nothing is read or changed.
#[inline]
#[allow(
    unsafe_code,
    reason = "a prefetch is a hint: it never faults, reads nothing, changes nothing"
)]
pub(crate) fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: every x86-64 processor has PREFETCHT0. It has no effect that a program can observe, and
        // ignores addresses that can't be read. So a stale, dangling or null address is allowed.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address as *const i8) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefetch_accepts_any_address() {
        let here = 0u64;
        for address in [0, 1, usize::MAX, 0xdead_beef, std::ptr::addr_of!(here) as usize] {
            prefetch(address);
        }
        assert_eq!(here, 0);
    }
}
