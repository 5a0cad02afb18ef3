//! What a histogram says of the usual and the unusual.

/// The time that so many in a hundred took at most, in the unit of `bounds`; nothing if nothing was counted.
///
/// `counts` has one more than `bounds`, for what lies above. Within a bucket, times are taken to be spread
/// evenly; of what lies above all bounds only the last of them is known, which is then the answer.
pub(crate) fn quantile(bounds: &[u64], counts: &[u64], percent: u64) -> Option<u64> {
    let all: u64 = counts.iter().sum();
    if all == 0 {
        return None;
    }
    // Which of them it is, in the order of their times and from 1.
    let place = all.saturating_mul(percent.min(100)).div_ceil(100).max(1);
    let (mut before, mut lower) = (0, 0);
    for (count, upper) in counts.iter().zip(bounds) {
        if before + count >= place {
            let within = (upper - lower).saturating_mul(place - before).div_ceil(*count);
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
    fn nothing_is_said_of_nothing() {
        assert_eq!(quantile(&BOUNDS, &[0; 4], 50), None);
    }

    #[test]
    fn times_are_spread_evenly_within_their_bucket() {
        let counts = [0, 90, 10, 0];
        assert_eq!(quantile(&BOUNDS, &counts, 50), Some(60));
        assert_eq!(quantile(&BOUNDS, &counts, 90), Some(100));
        assert_eq!(quantile(&BOUNDS, &counts, 99), Some(100 + 810));
        assert_eq!(quantile(&BOUNDS, &counts, 100), Some(1_000));
    }

    #[test]
    fn one_is_the_usual_and_the_unusual() {
        for percent in [0, 50, 99, 100] {
            assert_eq!(quantile(&BOUNDS, &[1, 0, 0, 0], percent), Some(10));
        }
    }

    #[test]
    fn above_all_bounds_the_last_is_all_that_is_known() {
        assert_eq!(quantile(&BOUNDS, &[0, 0, 0, 5], 50), Some(1_000));
        assert_eq!(quantile(&BOUNDS, &[99, 0, 0, 1], 99), Some(10));
        assert_eq!(quantile(&BOUNDS, &[98, 0, 0, 2], 99), Some(1_000));
    }
}
