//! Admissions: a dropped admission refunds its charges.

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

/// Returns the free queue places, the free slots, and the remaining requests of the day.
async fn remaining(limiter: &Limiter, request: &Request<'_>) -> [u64; 3] {
    let decision = limiter.peek(request).await;
    ["queue", "exports", "daily"].map(|rule| {
        let rule_outcome =
            decision.rule_outcomes().iter().find(|rule_outcome| &*rule_outcome.rule == rule);
        rule_outcome.unwrap().outcome.remaining
    })
}

async fn admit_within(
    limiter: &Limiter,
    request: &Request<'_>,
    seconds: u64,
) -> (Decision, Admission) {
    limiter
        .admit(CheckRequest { request, target: CheckTarget::AllMatching }, Span::from_secs(seconds))
        .await
}

/// Runs all tasks that are ready.
async fn run_ready_tasks() {
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn queued_request_is_counted_in_flight_and_keeps_its_slot() {
    let (time, alice) = (ManualClock::default(), request(&[("user", "alice")]));
    let limiter = limiter(&time, RULES);
    let mut admissions = Vec::new();
    for delay in 0..5 {
        let (decision, admission) = admit_within(&limiter, &alice, 9).await;
        assert_eq!((decision.delay(), admission.is_ready()), (Span::from_secs(delay), delay == 0));
        admissions.push(admission);
    }
    assert_eq!(remaining(&limiter, &alice).await, [5, 0, 95]);
    let last = tokio::spawn(admissions.pop().unwrap().wait());
    for _ in 0..4 {
        run_ready_tasks().await;
        assert!(!last.is_finished());
        time.advance(Span::SECOND);
    }
    let held = last.await.unwrap();
    assert_eq!(
        remaining(&limiter, &alice).await,
        [9, 0, 95],
        "slots are renewed while requests wait"
    );
    drop(held);
    assert_eq!(remaining(&limiter, &alice).await[1], 1);
    drop(admissions);
    assert_eq!(remaining(&limiter, &alice).await[1], 5);
}

#[tokio::test]
async fn dropped_admission_refunds_all_charges() {
    let (time, alice) = (ManualClock::default(), request(&[("user", "alice")]));
    let limiter = limiter(&time, RULES);
    let (_, served_admission) = admit_within(&limiter, &alice, 9).await;
    let served_slots = served_admission.wait().await;
    assert_eq!(remaining(&limiter, &alice).await, [9, 4, 99]);
    let (_, dropped) = admit_within(&limiter, &alice, 9).await;
    assert_eq!(remaining(&limiter, &alice).await, [8, 3, 98]);
    drop(dropped);
    assert_eq!(remaining(&limiter, &alice).await, [9, 4, 99]);
    let (_, admission) = admit_within(&limiter, &alice, 9).await;
    {
        let mut waiting = pin!(admission.wait());
        let poll = waiting.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(poll, Poll::Pending));
        assert_eq!(remaining(&limiter, &alice).await, [8, 3, 98]);
    }
    assert_eq!(remaining(&limiter, &alice).await, [9, 4, 99]);
    drop(served_slots);
    assert_eq!(remaining(&limiter, &alice).await, [9, 5, 99], "a served request stays charged");
}

#[tokio::test]
async fn only_the_last_queued_request_frees_its_place() {
    let (time, alice) = (ManualClock::default(), request(&[("user", "alice")]));
    let limiter = limiter(&time, RULES);
    let mut admissions = Vec::new();
    for _ in 0..3 {
        admissions.push(admit_within(&limiter, &alice, 9).await.1);
    }
    drop(admissions.remove(1));
    assert_eq!(remaining(&limiter, &alice).await, [7, 3, 98], "a later request is still queued");
    drop(admissions.pop());
    assert_eq!(remaining(&limiter, &alice).await, [8, 4, 99]);
}

#[tokio::test]
async fn wait_longer_than_the_maximum_is_denied_and_charges_nothing() {
    let (time, alice) = (ManualClock::default(), request(&[("user", "alice")]));
    let limiter = limiter(&time, RULES);
    let mut admissions = Vec::new();
    for _ in 0..3 {
        admissions.push(admit_within(&limiter, &alice, 2).await.1);
    }
    let before = remaining(&limiter, &alice).await;
    let (denied, admission) = admit_within(&limiter, &alice, 2).await;
    assert!(!denied.is_allowed() && admission.is_ready());
    assert_eq!(&*denied.strictest_rule().unwrap().rule, "queue");
    assert_eq!(denied.retry_after(), Some(Span::SECOND), "afterwards the wait is short enough");
    drop(admission);
    assert_eq!(remaining(&limiter, &alice).await, before);
    assert!(
        admit_within(&limiter, &alice, 3).await.0.is_allowed(),
        "a request with a longer maximum wait is admitted"
    );
    time.advance(Span::SECOND);
    assert!(admit_within(&limiter, &alice, 2).await.0.is_allowed());
}

#[tokio::test]
async fn admission_under_a_single_rule_charges_only_that_rule() {
    let (time, alice) = (ManualClock::default(), request(&[("user", "alice")]));
    let limiter = limiter(&time, RULES);
    let rule_index = limiter.rules().rule_index("exports").unwrap();
    let check = CheckRequest { request: &alice, target: CheckTarget::Rule(rule_index) };
    let (decision, admission) = limiter.admit(check, Span::ZERO).await;
    assert_eq!(decision.rule_outcomes().len(), 1);
    let held = admission.wait().await;
    assert_eq!(remaining(&limiter, &alice).await, [10, 4, 100]);
    assert_eq!(held.release().await, Ok(1));
    assert_eq!(remaining(&limiter, &alice).await, [10, 5, 100]);
}

#[tokio::test]
async fn shadow_rule_releases_its_slot_when_the_request_is_denied() {
    let time = ManualClock::default();
    let limiter = limiter(
        &time,
        "
rules:
  - {name: none, limit: 0 per day}
  - {name: shadow, limit: 5 in flight, mode: shadow}
",
    );
    let (decision, admission) = admit_within(&limiter, &request(&[]), 9).await;
    assert!(!decision.is_allowed());
    let peeked = limiter.peek(&request(&[])).await;
    assert_eq!(peeked.rule_outcomes()[1].outcome.remaining, 5);
    drop(admission);
}
