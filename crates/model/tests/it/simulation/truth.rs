//! What was really admitted, and whether that was too much.

use tidegate_core::Limit;

/// Tokens that were spent at an instant of the store's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admitted {
    pub(crate) at: u64,
    pub(crate) cost: u64,
}

/// The first admission that goes beyond the bound of the limit by more than so many tokens. Admissions are in
/// order of time.
pub(crate) fn excess(limit: &Limit, beyond: u64, admitted: &[Admitted]) -> Option<Admitted> {
    let quota = limit.quota();
    let (amount, window) = (u128::from(quota.amount()), u128::from(quota.window().as_micros()));
    let whole = u128::from(limit.capacity() + beyond) * window;
    // Tokens times the window: of the bucket, or of this window and of the one before.
    let (mut level, mut before, mut last) = (0_u128, 0_u128, 0_u128);
    for one in admitted {
        let at = u128::from(one.at);
        match limit {
            // Never above the burst: that is the burst and the rate in any span.
            Limit::TokenBucket(_) => level = level.saturating_sub((at - last) * amount),
            _ => match at / window - last / window {
                0 => {}
                1 => (before, level) = (level, 0),
                _ => (before, level) = (0, 0),
            },
        }
        level += u128::from(one.cost) * window;
        last = at;
        let carried = match limit {
            Limit::SlidingWindow(_) => before / window * (window - at % window),
            _ => 0,
        };
        if level + carried > whole {
            return Some(*one);
        }
    }
    None
}
