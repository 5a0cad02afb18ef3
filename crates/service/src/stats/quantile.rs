//! Quantiles of a histogram.

/// Returns the quantile in the unit of `bounds`; `None` if nothing was counted.
///
/// `counts` has one more entry than `bounds`, for the bucket above them. Values are interpolated linearly inside a
/// bucket. A quantile above all bounds is reported as the last bound.
pub(crate) fn quantile(bounds: &[u64], counts: &[u64], percent: u64) -> Option<u64> {
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return None;
    }
    // The rank of the wanted value in ascending order, from 1.
    let rank = all.saturating_mul(percent.min(100)).div_ceil(100).max(1);
    let (mut before, mut lower) = (0, 0);
    for (count, upper) in counts.iter().zip(bounds) {
        if before + count >= rank {
            let within = (upper - lower).saturating_mul(rank - before).div_ceil(*count);
            return Some(lower + within);
        }
        (before, lower) = (before + count, *upper);
    }
    bounds.last().copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: [u64; 3] = [10, 100, 1_000];

    #[test]
    fn empty_histogram_has_no_quantile() {
        assert_eq!(quantile(&BOUNDS, &[0; 4], 50), None);
    }

    #[test]
    fn values_are_interpolated_inside_a_bucket() {
        let counts = [0, 90, 10, 0];
        assert_eq!(quantile(&BOUNDS, &counts, 50), Some(60));
        assert_eq!(quantile(&BOUNDS, &counts, 90), Some(100));
        assert_eq!(quantile(&BOUNDS, &counts, 99), Some(100 + 810));
        assert_eq!(quantile(&BOUNDS, &counts, 100), Some(1_000));
    }

    #[test]
    fn single_value_is_every_quantile() {
        for percent in [0, 50, 99, 100] {
            assert_eq!(quantile(&BOUNDS, &[1, 0, 0, 0], percent), Some(10));
        }
    }

    #[test]
    fn quantile_above_all_bounds_is_the_last_bound() {
        assert_eq!(quantile(&BOUNDS, &[0, 0, 0, 5], 50), Some(1_000));
        assert_eq!(quantile(&BOUNDS, &[99, 0, 0, 1], 99), Some(10));
        assert_eq!(quantile(&BOUNDS, &[98, 0, 0, 2], 99), Some(1_000));
    }
}
