//! Asks the processor to fetch memory that will be needed soon.
//!
//! The one corner of this crate with `unsafe`. Random keys cost a cache miss each, and a lock taken
//! in between keeps the processor from overlapping them; asking ahead for a whole batch does not.

/// Hints that the line at `address` is about to be read. Does nothing else, whatever the address.
#[inline]
#[allow(
    unsafe_code,
    reason = "a prefetch is a hint: it never faults, reads nothing, changes nothing"
)]
pub(crate) fn prefetch(address: usize) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: PREFETCHT0 is part of every x86-64 processor, dereferences nothing as far as the
        // program can tell, and is defined to ignore addresses that can't be read. So a stale,
        // dangling or null address is as good as any other.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address as *const i8) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_will_do() {
        let here = 0u64;
        for address in [0, 1, usize::MAX, 0xdead_beef, std::ptr::addr_of!(here) as usize] {
            prefetch(address);
        }
        assert_eq!(here, 0);
    }
}
