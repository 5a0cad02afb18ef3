//! Giving back without a receipt.

use tidegate::{
    Algorithm, CheckRequest, CheckTarget, Limiter, ManualClock, Quota, Request, Rule, RuleIndex,
    RuleSet, Span,
};

use super::{left, limiter, request};

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::TokenBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
];

fn of(time: &ManualClock, algorithm: Algorithm, quota: Quota) -> Limiter {
    let rule = Rule::new("api", algorithm, quota).unwrap().with_per("user").unwrap();
    let rules = RuleSet::new(vec![rule]).unwrap();
    Limiter::builder().rules(rules).clock(time.clock()).build()
}

fn claim<'a, 'q>(request: &'a Request<'q>) -> CheckRequest<'a, 'q> {
    CheckRequest { request, target: CheckTarget::AllMatching }
}

#[tokio::test]
async fn what_is_given_back_can_be_spent_again() {
    for algorithm in ALGORITHMS {
        let time = ManualClock::default();
        let limiter = of(&time, algorithm, Quota::per_minute(10));
        let alice = |cost| request(&[("user", "alice")]).cost(cost);
        for _ in 0..3 {
            assert!(limiter.check(&alice(3)).await.is_allowed());
        }
        assert!(!limiter.check(&alice(2)).await.is_allowed());
        let after = limiter.refund_latest(claim(&alice(4))).await.unwrap();
        assert_eq!((after.is_allowed(), left(&after)), (true, vec![("api", 5)]), "{algorithm}");
        assert!(limiter.check(&alice(5)).await.is_allowed());
        assert!(!limiter.check(&alice(1)).await.is_allowed());
    }
}

#[tokio::test]
async fn more_than_was_spent_makes_a_limit_full_and_no_more() {
    for algorithm in ALGORITHMS {
        let time = ManualClock::default();
        let limiter = of(&time, algorithm, Quota::per_minute(10));
        let alice = |cost| request(&[("user", "alice")]).cost(cost);
        assert!(limiter.check(&alice(3)).await.is_allowed());
        for cost in [7, u64::MAX, 1] {
            let after = limiter.refund_latest(claim(&alice(cost))).await.unwrap();
            assert_eq!(left(&after), [("api", 10)], "{algorithm}");
        }
        assert!(limiter.check(&alice(10)).await.is_allowed());
        assert!(!limiter.check(&alice(1)).await.is_allowed(), "{algorithm}");
    }
}

#[tokio::test]
async fn a_window_that_is_over_is_not_touched() {
    let time = ManualClock::default();
    let alice = |cost| request(&[("user", "alice")]).cost(cost);
    let limiter = of(&time, Algorithm::SlidingWindow, Quota::per_minute(10));
    assert!(limiter.check(&alice(10)).await.is_allowed());
    // Half of the window before still counts, and is not this window's to give back.
    let to_end = 60_000_000 - time.now().as_micros() % 60_000_000;
    time.advance(Span::from_micros(to_end + 30_000_000));
    let after = limiter.refund_latest(claim(&alice(10))).await.unwrap();
    assert_eq!(left(&after), [("api", 5)]);
}

#[tokio::test]
async fn of_a_queue_only_slots_that_have_not_begun_come_back() {
    let time = ManualClock::default();
    let limiter = of(&time, Algorithm::LeakyBucket { queue: 3 }, Quota::per_second(1));
    let alice = |cost| request(&[("user", "alice")]).cost(cost);
    for wait in 0..4 {
        assert_eq!(limiter.check(&alice(1)).await.delay(), Span::from_secs(wait));
    }
    assert!(!limiter.check(&alice(1)).await.is_allowed());
    let after = limiter.refund_latest(claim(&alice(2))).await.unwrap();
    assert_eq!(after.delay(), Span::from_secs(2));
    // The slot after that waits, the one before it was released.
    assert_eq!(limiter.refund_latest(claim(&alice(2))).await.unwrap().delay(), Span::from_secs(2));
    assert_eq!(limiter.refund_latest(claim(&alice(1))).await.unwrap().delay(), Span::SECOND);
    assert_eq!(limiter.refund_latest(claim(&alice(1))).await.unwrap().delay(), Span::SECOND);
}

#[tokio::test]
async fn every_rule_that_was_charged_gets_it_back_and_nobody_else() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "
rules:
  - {name: each, per: [user], limit: 5 per minute}
  - {name: trial, per: [user], limit: 3 per minute, mode: shadow}
  - {name: all, limit: 9 per minute}
  - {name: other, match: {path: /other}, limit: 9 per minute}
",
    );
    let (alice, bob) = (request(&[("user", "alice")]), request(&[("user", "bob")]));
    for user in [&alice, &alice, &bob] {
        assert!(limiter.check(user).await.is_allowed());
    }
    let after = limiter.refund_latest(claim(&alice)).await.unwrap();
    assert_eq!(left(&after), [("each", 4), ("trial", 2), ("all", 7)]);
    assert_eq!(left(&limiter.peek(&bob).await), [("each", 4), ("trial", 2), ("all", 7)]);
    let one = CheckRequest { request: &bob, target: CheckTarget::Rule(RuleIndex(0)) };
    assert_eq!(left(&limiter.refund_latest(one).await.unwrap()), [("each", 5)]);
    assert_eq!(
        left(&limiter.peek_rules(claim(&bob)).await),
        [("each", 5), ("trial", 2), ("all", 7)]
    );
}

#[tokio::test]
async fn a_look_spends_nothing_and_sees_past_a_block() {
    let time = ManualClock::default();
    let rules = "rules: [{name: api, per: [user], limit: 1 per minute, penalty: {after: 2, within: 1m, block: 1h}}]";
    let limiter = limiter(&time, rules);
    let alice = request(&[("user", "alice")]).cost(1);
    for _ in 0..9 {
        assert_eq!(left(&limiter.peek_rules(claim(&alice)).await), [("api", 1)]);
    }
    for _ in 0..3 {
        limiter.check(&alice).await;
    }
    assert!(limiter.check(&alice).await.block().is_some());
    let looked = limiter.peek_rules(claim(&alice)).await;
    assert!(looked.block().is_none() && !looked.is_allowed());
    assert_eq!(left(&looked), [("api", 0)]);
}
