//! Requests with a longest wait for their slot in a leaky bucket.

use proptest::prelude::*;
use tidegate_core::algorithm::ChargeTerms;
use tidegate_core::{Algorithm, Limit, Quota, Span, Timestamp};

const START: Timestamp = Timestamp::from_micros(1_780_000_000_123_457);

fn leaky(queue: u64, amount: u64, window: Span) -> Limit {
    Limit::new(Algorithm::LeakyBucket { queue }, Quota::per(amount, window)).unwrap()
}

#[test]
fn slot_is_granted_if_it_begins_within_the_max_wait() {
    let limit = leaky(9, 1, Span::SECOND);
    let hurried = limit.with_max_wait(Span::from_millis(2_500)).unwrap();
    let mut state = limit.fresh();
    for delay in [0, 1, 2] {
        let outcome = hurried.charge(&mut state, START, 1);
        assert_eq!(outcome.delay(), Span::from_secs(delay));
    }
    let denied = hurried.charge(&mut state, START, 1);
    assert_eq!((denied.remaining, denied.limit), (0, 10));
    assert_eq!(denied.retry_after(), Some(Span::from_millis(500)));
    assert_eq!(
        limit.charge(&mut state, START, 1).delay(),
        Span::from_secs(3),
        "who has time waits"
    );
}

#[test]
fn max_wait_bounds_the_start_and_not_the_duration_of_a_cost() {
    let limit = leaky(9, 1, Span::SECOND);
    let hurried = limit.with_max_wait(Span::ZERO).unwrap();
    let mut state = limit.fresh();
    assert!(hurried.charge(&mut state, START, 7).is_allowed());
    let denied = hurried.charge(&mut state, START, 1);
    assert_eq!(denied.retry_after(), Some(Span::from_secs(7)));
}

#[test]
fn max_wait_of_the_whole_queue_changes_nothing() {
    let limit = leaky(9, 1, Span::SECOND);
    assert_eq!(limit.with_max_wait(Span::from_secs(9)), None);
    assert!(limit.with_max_wait(Span::from_micros(8_999_999)).is_some());
    assert_eq!(leaky(0, 1, Span::SECOND).with_max_wait(Span::ZERO), None);
    let bucket = Limit::new(Algorithm::TokenBucket, Quota::per_second(1)).unwrap();
    assert_eq!(bucket.with_max_wait(Span::ZERO), None);
}

#[test]
fn share_of_a_limit_keeps_the_max_wait() {
    let hurried = leaky(9, 10, Span::SECOND).with_max_wait(Span::from_millis(200)).unwrap();
    let part = hurried.share(0, 2);
    assert_eq!(part, leaky(4, 5, Span::SECOND).with_max_wait(Span::from_millis(200)).unwrap());
}

#[test]
fn slots_beyond_the_max_wait_do_not_count_as_used() {
    let limit = leaky(9, 1, Span::SECOND);
    let hurried = limit.with_max_wait(Span::ZERO).unwrap();
    let window = Limit::new(Algorithm::FixedWindow, Quota::per_minute(10)).unwrap();
    let mut state = limit.fresh();
    assert!(hurried.charge(&mut state, START, 2).is_allowed());
    assert_eq!(hurried.peek(&mut state, START, 1).remaining, 0);
    let mut migrated = window.migrate(&hurried, &state, START);
    assert_eq!(window.peek(&mut migrated, START, 1).remaining, 8);
}

proptest! {
    #[test]
    fn admitted_request_waits_at_most_its_max_wait(
        queue in 1u64..12,
        amount in 1u64..40,
        window in 1_000u64..10_000_000,
        patience in 0u64..3_000_000,
        charges in prop::collection::vec((0u64..400_000, 1u64..5), 1..40),
    ) {
        let limit = leaky(queue, amount, Span::from_micros(window));
        let patience = Span::from_micros(patience);
        let Some(hurried) = limit.with_max_wait(patience) else { return Ok(()) };
        let (mut state, mut now) = (limit.fresh(), START);
        for (passed, cost) in charges {
            now = now + Span::from_micros(passed);
            let unhurried = limit.peek(&mut state, now, cost);
            let before = state.clone();
            let outcome = hurried.charge(&mut state, now, cost);
            let in_time = unhurried.is_allowed() && unhurried.delay() <= patience;
            prop_assert_eq!(outcome.is_allowed(), in_time);
            prop_assert_eq!(outcome.delay(), if in_time { unhurried.delay() } else { Span::ZERO });
            if let Some(wait) = outcome.retry_after() {
                prop_assert_eq!(&state, &before, "a denied request takes nothing");
                let (first, last) = (now + wait, now + wait - Span::MICROSECOND);
                prop_assert!(hurried.admits(&mut state, first, cost));
                prop_assert!(last == now || !hurried.admits(&mut state, last, cost));
            }
            if let Some(refund_token) = outcome.refund_token() {
                let mut given = state.clone();
                let same = limit.refund(&mut state.clone(), now, &hurried, &refund_token, cost);
                prop_assert_eq!(hurried.refund(&mut given, now, &hurried, &refund_token, cost), same);
                prop_assert_eq!(same, !outcome.delay().is_zero());
            }
            let ChargeTerms::Bucket { depth, .. } = hurried.terms(cost) else { panic!("no bucket") };
            let ChargeTerms::Bucket { depth: whole, .. } = limit.terms(cost) else { panic!("no bucket") };
            prop_assert!(depth <= whole);
        }
    }
}
