//! Traces that reach each bound, and numbers at the edge of what is allowed.

use tidegate_core::{Algorithm, Limit, Quota, Span, Timestamp};

const SECOND: u64 = 1_000_000;

fn limit(algorithm: Algorithm, quota: Quota) -> Limit {
    Limit::new(algorithm, quota).unwrap()
}

/// Sends `count` requests of cost 1 at `micros`. Returns the number that were admitted.
fn burst(limit: &Limit, state: &mut tidegate_core::State, micros: u64, count: u64) -> u64 {
    let now = Timestamp::from_micros(micros);
    (0..count).filter(|_| limit.charge(state, now, 1).is_allowed()).count() as u64
}

#[test]
fn a_token_bucket_reaches_burst_plus_limit() {
    let limit = limit(Algorithm::TokenBucket, Quota::per_second(20).burst(50));
    let mut state = limit.fresh();
    let sum = burst(&limit, &mut state, 0, 100) + burst(&limit, &mut state, SECOND, 100);
    assert_eq!(sum, limit.bound().most);
    assert_eq!(limit.bound().to_string(), "at most 70 in any 1 s");
}

#[test]
fn a_fixed_window_reaches_twice_the_limit_around_a_boundary() {
    let limit = limit(Algorithm::FixedWindow, Quota::per_second(20));
    let mut state = limit.fresh();
    let sum = burst(&limit, &mut state, SECOND - 1, 100) + burst(&limit, &mut state, SECOND, 100);
    assert_eq!(sum, limit.bound().most);
    assert_eq!(
        limit.bound().to_string(),
        "at most 40 in any 1 s, 20 in each window aligned to the clock"
    );
}

#[test]
fn a_sliding_window_reaches_one_less_than_twice_the_limit() {
    let limit = limit(Algorithm::SlidingWindow, Quota::per_second(20));
    let mut state = limit.fresh();
    let sum =
        burst(&limit, &mut state, SECOND - 1, 100) + burst(&limit, &mut state, 2 * SECOND - 2, 100);
    assert_eq!(sum, limit.bound().most);
    assert_eq!(
        limit.bound().to_string(),
        "at most 39 in any 1 s, 20 in each window aligned to the clock"
    );
}

#[test]
fn a_sliding_log_reaches_the_limit_and_frees_it_after_exactly_one_window() {
    let limit = limit(Algorithm::SlidingLog, Quota::per_second(20));
    let mut state = limit.fresh();
    assert_eq!(burst(&limit, &mut state, 7, 100), limit.bound().most);
    assert_eq!(burst(&limit, &mut state, SECOND + 6, 100), 0);
    assert_eq!(burst(&limit, &mut state, SECOND + 7, 100), 20);
}

#[test]
fn a_leaky_bucket_releases_exactly_one_per_interval_when_it_is_kept_full() {
    let limit = limit(Algorithm::LeakyBucket { queue: 4 }, Quota::per_second(10));
    let mut state = limit.fresh();
    let releases: Vec<u64> = (0..50)
        .filter_map(|tick| {
            let micros = tick * SECOND / 50;
            let outcome = limit.charge(&mut state, Timestamp::from_micros(micros), 1);
            outcome.is_allowed().then(|| micros + outcome.delay().as_micros())
        })
        .collect();
    assert!(releases.windows(2).all(|pair| pair[1] - pair[0] == SECOND / 10), "{releases:?}");
    assert_eq!(releases.len(), 10 + 4);
    assert_eq!(limit.bound().to_string(), "at most 11 in any 1 s");
}

/// Spends all tokens at uneven instants for a year, and compares the sum with exact integers.
fn a_year_of(quota: Quota) {
    const YEAR: u64 = 365 * 86_400 * SECOND;
    let limit = limit(Algorithm::TokenBucket, quota);
    let mut state = limit.fresh();
    let start = 1_780_000_000_123_457;
    let (mut elapsed, mut step, mut spent) = (0u64, 1u64, 0u128);
    loop {
        let now = Timestamp::from_micros(start + elapsed);
        let left = limit.peek(&mut state, now, 0).remaining;
        assert!(left == 0 || limit.charge(&mut state, now, left).is_allowed());
        spent += u128::from(left);
        let refilled = u128::from(elapsed) * u128::from(quota.amount())
            / u128::from(quota.window().as_micros());
        assert_eq!(spent, u128::from(limit.capacity()) + refilled, "after {elapsed} us");
        if elapsed >= YEAR {
            break;
        }
        // Steps from a microsecond up, none so long that the bucket could be full and waste.
        step = step.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let fill = quota.window().as_micros() as u128 * u128::from(limit.capacity())
            / u128::from(quota.amount().max(1));
        let longest = u64::try_from(fill).unwrap().clamp(1, YEAR / 2_000);
        elapsed += 1 + (step >> 20) % longest;
    }
}

#[test]
fn a_year_of_charges_neither_gains_nor_loses_a_token() {
    let month = Span::from_secs(30 * 86_400);
    a_year_of(Quota::per(1_000_000_000_000, month));
    a_year_of(Quota::per(999_999_999_989, month));
    a_year_of(Quota::per(7, month));
    a_year_of(Quota::per_second(10_000_000).burst(10_000_000 * 86_400 * 30));
    a_year_of(Quota::per_second(9_999_991).burst(9_999_991 * 86_400 * 30));
    a_year_of(Quota::per(3, Span::SECOND).burst(100_000_000));
}

#[test]
fn the_largest_numbers_neither_overflow_nor_round() {
    let most = Quota::MAX_AMOUNT;
    for window in [Quota::MIN_WINDOW, Span::SECOND, Quota::MAX_WINDOW] {
        for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow, Algorithm::SlidingWindow]
        {
            let limit = limit(algorithm, Quota::per(most, window));
            let mut state = limit.fresh();
            let now = Timestamp::from_micros(1_780_000_000_123_457);
            assert_eq!(
                limit.charge(&mut state, now, most - 1).remaining,
                1,
                "{algorithm} {window}"
            );
            assert!(!limit.charge(&mut state, now, 2).is_allowed());
            assert!(limit.charge(&mut state, now, 1).is_allowed());
            assert!(!limit.charge(&mut state, now, 1).is_allowed());
            assert_eq!(limit.charge(&mut state, now, u64::MAX).retry_after(), None);
        }
    }
}

#[test]
fn a_limit_of_zero_denies_for_good() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket { queue: 3 },
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ] {
        let limit = limit(algorithm, Quota::per_second(0));
        for cost in [0, 1, u64::MAX] {
            let outcome = limit.charge(&mut limit.fresh(), Timestamp::from_secs(1), cost);
            assert!(!outcome.is_allowed(), "{algorithm}");
            assert_eq!((outcome.limit, outcome.remaining, outcome.retry_after()), (0, 0, None));
        }
    }
}

#[test]
fn a_detour_through_a_limit_of_zero_is_no_free_burst() {
    for algorithm in [
        Algorithm::TokenBucket,
        Algorithm::LeakyBucket { queue: 9 },
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
    ] {
        let (open, shut) =
            (limit(algorithm, Quota::per_minute(10)), limit(algorithm, Quota::per_minute(0)));
        let mut state = open.fresh();
        let now = Timestamp::from_secs(30);
        assert_eq!(burst(&open, &mut state, now.as_micros(), 100), 10, "{algorithm}");
        let state = shut.migrate(&open, &state, now);
        let mut state = open.migrate(&shut, &state, now);
        assert_eq!(burst(&open, &mut state, now.as_micros(), 100), 0, "{algorithm}");
    }
}

#[test]
fn parameters_of_another_algorithm_are_rejected() {
    let refused = |algorithm, quota| Limit::new(algorithm, quota).unwrap_err().to_string();
    let burst = Quota::per_second(10).burst(20);
    assert_eq!(
        refused(Algorithm::FixedWindow, burst),
        "burst needs algorithm token_bucket, found fixed_window"
    );
    assert_eq!(
        refused(Algorithm::LeakyBucket { queue: 1 }, burst),
        "burst needs algorithm token_bucket, found leaky_bucket"
    );
    assert_eq!(
        refused(Algorithm::SlidingLog, Quota::per_second(10_001)),
        "sliding_log remembers each request, so its amount must be at most 10000, found 10001 \
         (sliding_window has no such bound)"
    );
    assert_eq!(
        refused(Algorithm::LeakyBucket { queue: u64::MAX }, Quota::per_second(1)),
        "queue must be less than 4503599627370496, found 18446744073709551615"
    );
}
