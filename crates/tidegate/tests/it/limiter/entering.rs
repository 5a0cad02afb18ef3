//! Requests that are let in, and give back what they took if they leave.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tidegate::{
    Admission, CheckRequest, CheckTarget, Decision, Limiter, ManualClock, Request, Span,
};

use super::{limiter, request};

const RULES: &str = "
rules:
  - {name: queue, algorithm: leaky_bucket, limit: 1 per second, queue: 9}
  - {name: exports, per: [user], limit: 5 in flight, hold: 3s}
  - {name: daily, per: [user], algorithm: fixed_window, limit: 100 per day}
";

/// How many more fit the queue, may be in flight, and may come today.
async fn left(limiter: &Limiter, request: &Request<'_>) -> [u64; 3] {
    let decision = limiter.peek(request).await;
    ["queue", "exports", "daily"].map(|rule| {
        let policy = decision.rule_outcomes().iter().find(|policy| &*policy.rule == rule);
        policy.unwrap().outcome.remaining
    })
}

async fn enter(limiter: &Limiter, request: &Request<'_>, seconds: u64) -> (Decision, Admission) {
    limiter
        .admit(CheckRequest { request, target: CheckTarget::AllMatching }, Span::from_secs(seconds))
        .await
}

/// Lets whatever was woken run.
async fn settle() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn who_waits_in_a_queue_is_in_flight_already_and_keeps_its_slot() {
    let (time, alice) = (ManualClock::default(), request(&[("user", "alice")]));
    let limiter = limiter(&time, RULES);
    let mut turns = Vec::new();
    for delay in 0..5 {
        let (decision, turn) = enter(&limiter, &alice, 9).await;
        assert_eq!((decision.delay(), turn.is_ready()), (Span::from_secs(delay), delay == 0));
        turns.push(turn);
    }
    assert_eq!(left(&limiter, &alice).await, [5, 0, 95]);
    let last = tokio::spawn(turns.pop().unwrap().wait());
    for _ in 0..4 {
        settle().await;
        assert!(!last.is_finished());
        time.advance(Span::SECOND);
    }
    let held = last.await.unwrap();
    assert_eq!(left(&limiter, &alice).await, [9, 0, 95], "renewed while they waited");
    drop(held);
    assert_eq!(left(&limiter, &alice).await[1], 1);
    drop(turns);
    assert_eq!(left(&limiter, &alice).await[1], 5);
}

#[tokio::test]
async fn a_turn_that_is_given_up_is_as_if_nobody_had_come() {
    let (time, alice) = (ManualClock::default(), request(&[("user", "alice")]));
    let limiter = limiter(&time, RULES);
    let (_, served) = enter(&limiter, &alice, 9).await;
    let served = served.wait().await;
    assert_eq!(left(&limiter, &alice).await, [9, 4, 99]);
    let (_, dropped) = enter(&limiter, &alice, 9).await;
    assert_eq!(left(&limiter, &alice).await, [8, 3, 98]);
    drop(dropped);
    assert_eq!(left(&limiter, &alice).await, [9, 4, 99]);
    let (_, turn) = enter(&limiter, &alice, 9).await;
    {
        let mut waiting = pin!(turn.wait());
        let poll = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(poll, Poll::Pending));
        assert_eq!(left(&limiter, &alice).await, [8, 3, 98]);
    }
    assert_eq!(left(&limiter, &alice).await, [9, 4, 99]);
    drop(served);
    assert_eq!(left(&limiter, &alice).await, [9, 5, 99], "who was served stays charged");
}

#[tokio::test]
async fn only_the_last_in_a_queue_gives_its_place_back() {
    let (time, alice) = (ManualClock::default(), request(&[("user", "alice")]));
    let limiter = limiter(&time, RULES);
    let mut turns = Vec::new();
    for _ in 0..3 {
        turns.push(enter(&limiter, &alice, 9).await.1);
    }
    drop(turns.remove(1));
    assert_eq!(left(&limiter, &alice).await, [7, 3, 98], "one is behind it");
    drop(turns.pop());
    assert_eq!(left(&limiter, &alice).await, [8, 4, 99]);
}

#[tokio::test]
async fn a_wait_beyond_the_longest_is_denied_and_takes_nothing() {
    let (time, alice) = (ManualClock::default(), request(&[("user", "alice")]));
    let limiter = limiter(&time, RULES);
    let mut turns = Vec::new();
    for _ in 0..3 {
        turns.push(enter(&limiter, &alice, 2).await.1);
    }
    let before = left(&limiter, &alice).await;
    let (denied, turn) = enter(&limiter, &alice, 2).await;
    assert!(!denied.is_allowed() && turn.is_ready());
    assert_eq!(&*denied.strictest_rule().unwrap().rule, "queue");
    assert_eq!(denied.retry_after(), Some(Span::SECOND), "then the wait is short enough");
    drop(turn);
    assert_eq!(left(&limiter, &alice).await, before);
    assert!(enter(&limiter, &alice, 3).await.0.is_allowed(), "who has more time waits");
    time.advance(Span::SECOND);
    assert!(enter(&limiter, &alice, 2).await.0.is_allowed());
}

#[tokio::test]
async fn one_rule_is_entered_alone() {
    let (time, alice) = (ManualClock::default(), request(&[("user", "alice")]));
    let limiter = limiter(&time, RULES);
    let place = limiter.rules().rule_index("exports").unwrap();
    let claim = CheckRequest { request: &alice, target: CheckTarget::Rule(place) };
    let (decision, turn) = limiter.admit(claim, Span::ZERO).await;
    assert_eq!(decision.rule_outcomes().len(), 1);
    let held = turn.wait().await;
    assert_eq!(left(&limiter, &alice).await, [10, 4, 100]);
    assert_eq!(held.release().await, Ok(1));
    assert_eq!(left(&limiter, &alice).await, [10, 5, 100]);
}

#[tokio::test]
async fn what_only_counts_holds_no_slot_of_a_request_that_is_denied() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "
rules:
  - {name: none, limit: 0 per day}
  - {name: shadow, limit: 5 in flight, mode: shadow}
",
    );
    let (decision, turn) = enter(&limiter, &request(&[]), 9).await;
    assert!(!decision.is_allowed());
    let seen = limiter.peek(&request(&[])).await;
    assert_eq!(seen.rule_outcomes()[1].outcome.remaining, 5);
    drop(turn);
}
