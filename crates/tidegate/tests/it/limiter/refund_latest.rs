//! Refunds of the latest usage, without a receipt.

use tidegate::store::RuleIndex;
use tidegate::{
    Algorithm, CheckRequest, CheckTarget, Limiter, ManualClock, Quota, Request, Rule, RuleSet, Span,
};

use super::{limiter, remaining, request};

const ALGORITHMS: [Algorithm; 4] = [
    Algorithm::TokenBucket,
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
];

fn limiter_of(time: &ManualClock, algorithm: Algorithm, quota: Quota) -> Limiter {
    let rule = Rule::new("api", algorithm, quota).unwrap().with_per("user").unwrap();
    let rules = RuleSet::new(vec![rule]).unwrap();
    Limiter::builder().rules(rules).clock(time.clock()).build()
}

fn check_request<'a, 'q>(request: &'a Request<'q>) -> CheckRequest<'a, 'q> {
    CheckRequest { request, target: CheckTarget::AllMatching }
}

#[tokio::test]
async fn refunded_tokens_can_be_spent_again() {
    for algorithm in ALGORITHMS {
        let time = ManualClock::default();
        let limiter = limiter_of(&time, algorithm, Quota::per_minute(10));
        let alice = |cost| request(&[("user", "alice")]).cost(cost);
        for _ in 0..3 {
            assert!(limiter.check(&alice(3)).await.is_allowed());
        }
        assert!(!limiter.check(&alice(2)).await.is_allowed());
        let after = limiter.refund_latest(check_request(&alice(4))).await.unwrap();
        assert_eq!(
            (after.is_allowed(), remaining(&after)),
            (true, vec![("api", 5)]),
            "{algorithm}"
        );
        assert!(limiter.check(&alice(5)).await.is_allowed());
        assert!(!limiter.check(&alice(1)).await.is_allowed());
    }
}

#[tokio::test]
async fn refund_above_the_usage_fills_the_limit_and_no_more() {
    for algorithm in ALGORITHMS {
        let time = ManualClock::default();
        let limiter = limiter_of(&time, algorithm, Quota::per_minute(10));
        let alice = |cost| request(&[("user", "alice")]).cost(cost);
        assert!(limiter.check(&alice(3)).await.is_allowed());
        for cost in [7, u64::MAX, 1] {
            let after = limiter.refund_latest(check_request(&alice(cost))).await.unwrap();
            assert_eq!(remaining(&after), [("api", 10)], "{algorithm}");
        }
        assert!(limiter.check(&alice(10)).await.is_allowed());
        assert!(!limiter.check(&alice(1)).await.is_allowed(), "{algorithm}");
    }
}

#[tokio::test]
async fn refund_does_not_change_the_previous_window() {
    let time = ManualClock::default();
    let alice = |cost| request(&[("user", "alice")]).cost(cost);
    let limiter = limiter_of(&time, Algorithm::SlidingWindow, Quota::per_minute(10));
    assert!(limiter.check(&alice(10)).await.is_allowed());
    // Half of the previous window still counts. A refund applies only to the current window.
    let to_end = 60_000_000 - time.now().as_micros() % 60_000_000;
    time.advance(Span::from_micros(to_end + 30_000_000));
    let after = limiter.refund_latest(check_request(&alice(10))).await.unwrap();
    assert_eq!(remaining(&after), [("api", 5)]);
}

#[tokio::test]
async fn refund_of_a_queue_frees_only_slots_that_have_not_started() {
    let time = ManualClock::default();
    let limiter = limiter_of(&time, Algorithm::LeakyBucket { queue: 3 }, Quota::per_second(1));
    let alice = |cost| request(&[("user", "alice")]).cost(cost);
    for wait in 0..4 {
        assert_eq!(limiter.check(&alice(1)).await.delay(), Span::from_secs(wait));
    }
    assert!(!limiter.check(&alice(1)).await.is_allowed());
    let after = limiter.refund_latest(check_request(&alice(2))).await.unwrap();
    assert_eq!(after.delay(), Span::from_secs(2));
    // One slot has not started yet and is refunded; the one before it has started.
    assert_eq!(
        limiter.refund_latest(check_request(&alice(2))).await.unwrap().delay(),
        Span::from_secs(2)
    );
    assert_eq!(
        limiter.refund_latest(check_request(&alice(1))).await.unwrap().delay(),
        Span::SECOND
    );
    assert_eq!(
        limiter.refund_latest(check_request(&alice(1))).await.unwrap().delay(),
        Span::SECOND
    );
}

#[tokio::test]
async fn refund_applies_to_every_charged_rule_of_the_client_only() {
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
    let after = limiter.refund_latest(check_request(&alice)).await.unwrap();
    assert_eq!(remaining(&after), [("each", 4), ("trial", 2), ("all", 7)]);
    assert_eq!(remaining(&limiter.peek(&bob).await), [("each", 4), ("trial", 2), ("all", 7)]);
    let one = CheckRequest { request: &bob, target: CheckTarget::Rule(RuleIndex(0)) };
    assert_eq!(remaining(&limiter.refund_latest(one).await.unwrap()), [("each", 5)]);
    assert_eq!(
        remaining(&limiter.peek_rules(check_request(&bob)).await),
        [("each", 5), ("trial", 2), ("all", 7)]
    );
}

#[tokio::test]
async fn peek_of_rules_spends_nothing_and_ignores_blocks() {
    let time = ManualClock::default();
    let rules = "rules: [{name: api, per: [user], limit: 1 per minute, penalty: {after: 2, within: 1m, block: 1h}}]";
    let limiter = limiter(&time, rules);
    let alice = request(&[("user", "alice")]).cost(1);
    for _ in 0..9 {
        assert_eq!(remaining(&limiter.peek_rules(check_request(&alice)).await), [("api", 1)]);
    }
    for _ in 0..3 {
        limiter.check(&alice).await;
    }
    assert!(limiter.check(&alice).await.block().is_some());
    let peeked = limiter.peek_rules(check_request(&alice)).await;
    assert!(peeked.block().is_none() && !peeked.is_allowed());
    assert_eq!(remaining(&peeked), [("api", 0)]);
}
