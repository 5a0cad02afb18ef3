//! Real admissions, and checks of their bounds.

use tidegate_core::Limit;
use tidegate_rules::Accuracy;

/// Tokens that were spent at an instant of the store's time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Admission {
    pub(crate) at: u64,
    pub(crate) cost: u64,
}

/// Returns the first admission that exceeds the bound of the limit by more than `beyond` tokens. Admissions are in
/// order of time.
pub(crate) fn excess(limit: &Limit, beyond: u64, admitted: &[Admission]) -> Option<Admission> {
    let quota = limit.quota();
    let (amount, window) = (u128::from(quota.amount()), u128::from(quota.window().as_micros()));
    let whole = u128::from(limit.capacity() + beyond) * window;
    // Tokens times the window: of the bucket, or of this window and of the one before.
    let (mut level, mut before, mut last) = (0_u128, 0_u128, 0_u128);
    for one in admitted {
        let at = u128::from(one.at);
        match limit {
            // A level below the burst means at most the burst and the rate in any span.
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

/// Returns the maximum of tokens in any span as long as the window, and in any window aligned to the clock. Admissions are in
/// order of time.
pub(crate) fn peaks(window: u64, admitted: &[Admission]) -> (u64, u64) {
    let (mut any, mut aligned, mut start, mut sum) = (0, 0, 0, 0);
    let (mut current, mut in_current) = (0, 0);
    for one in admitted {
        sum += one.cost;
        while admitted[start].at + window <= one.at {
            sum -= admitted[start].cost;
            start += 1;
        }
        if one.at / window != current {
            (current, in_current) = (one.at / window, 0);
        }
        in_current += one.cost;
        any = any.max(sum);
        aligned = aligned.max(in_current);
    }
    (any, aligned)
}

/// Returns the bound that `validate` prints for N nodes: over any span as long as the window, and in each window aligned to the
/// clock.
pub(crate) fn printed(accuracy: Accuracy, limit: &Limit, nodes: u64) -> (u64, Option<u64>) {
    let number_after = |text: &str, mark: &str| -> Option<u64> {
        let (_, rest) = text.split_once(mark)?;
        rest.split(' ').next()?.parse().ok()
    };
    let (own, fleet) = (limit.bound().to_string(), accuracy.bound(limit).unwrap().to_string());
    let most = number_after(&own, "at most ").unwrap();
    let beyond = number_after(&fleet, "up to N x ").unwrap();
    let aligned = number_after(&own, ", ").map(|aligned| {
        let beyond = number_after(&fleet, ", N x ").unwrap();
        aligned + nodes * beyond
    });
    (most + nodes * beyond, aligned)
}
