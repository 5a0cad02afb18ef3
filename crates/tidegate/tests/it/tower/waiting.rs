//! Requests that a leaky bucket tells to wait.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate::tower::{Decider, KeyDecider, RateLimitLayer, RulesDecider};
use tidegate::{Algorithm, Clock, Limiter, ManualClock, MemoryStore, Quota, Span};
use tokio::task::yield_now;
use tower::{Layer, ServiceExt};

use super::stores::Slow;
use super::{Answer, Hello, by, header, rules};

type Response = Pin<Box<dyn Future<Output = Answer>>>;

const RULE: &str =
    "  - {name: queue, per: [api_key], algorithm: leaky_bucket, limit: 1 per second, queue: 2}";

fn by_rules(clock: Clock) -> RateLimitLayer<RulesDecider> {
    RateLimitLayer::new(Limiter::builder().rules(rules(RULE)).clock(clock).build())
}

fn by_key(clock: Clock) -> RateLimitLayer<KeyDecider> {
    let store = Arc::new(MemoryStore::new(clock));
    let algorithm = Algorithm::LeakyBucket { queue: 2 };
    let handle = Limiter::per_key_in(store, algorithm, Quota::per_second(1)).unwrap();
    RateLimitLayer::per_key(handle, |request| {
        Some(request.headers.get("x-api-key")?.to_str().ok()?.into())
    })
}

/// Asks as the same client each time.
fn client<G: Decider + Clone>(
    layer: &RateLimitLayer<G>,
    hello: &Hello,
) -> impl Fn() -> Response + use<G> {
    let service = layer.layer(hello.clone());
    move || {
        let response = service.clone().oneshot(by("alice"));
        Box::pin(async move { response.await.unwrap() })
    }
}

fn poll(response: &mut Response) -> Poll<Answer> {
    response.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn status(response: &mut Response) -> Option<u16> {
    match poll(response) {
        Poll::Ready(response) => Some(response.status().as_u16()),
        Poll::Pending => None,
    }
}

fn each_waits_for_its_slot<G: Decider + Clone>(layer: impl Fn(Clock) -> RateLimitLayer<G>) {
    let (time, hello) = (ManualClock::default(), Hello::default());
    let ask = client(&layer(time.clock()), &hello);
    let (mut first, mut second, mut third, mut fourth) = (ask(), ask(), ask(), ask());
    assert_eq!(status(&mut first), Some(200));
    assert_eq!(status(&mut second), None);
    assert_eq!(status(&mut third), None);
    assert_eq!(status(&mut fourth), Some(429));
    assert_eq!(hello.served(), 1);

    time.advance(Span::from_micros(999_999));
    assert_eq!(status(&mut second), None);
    time.advance(Span::from_micros(1));
    assert_eq!(status(&mut second), Some(200));
    assert_eq!(status(&mut third), None);
    time.advance(Span::SECOND);
    assert_eq!(status(&mut third), Some(200));
    assert_eq!(hello.served(), 3);
}

#[test]
fn a_request_is_held_until_its_slot() {
    each_waits_for_its_slot(by_rules);
    each_waits_for_its_slot(by_key);
}

fn who_leaves_gives_its_slot_to_the_next<G: Decider + Clone>(
    layer: impl Fn(Clock) -> RateLimitLayer<G>,
) {
    let (time, hello) = (ManualClock::default(), Hello::default());
    let ask = client(&layer(time.clock()), &hello);
    let (mut first, mut second, mut third) = (ask(), ask(), ask());
    assert_eq!(status(&mut first), Some(200));
    assert_eq!(status(&mut second), None);
    assert_eq!(status(&mut third), None);
    drop(third);
    let (mut next, mut late) = (ask(), ask());
    assert_eq!(status(&mut next), None);
    assert_eq!(status(&mut late), Some(429));

    time.advance(Span::from_secs(2));
    assert_eq!(status(&mut second), Some(200));
    assert_eq!(status(&mut next), Some(200));
    assert_eq!(hello.served(), 3);
}

#[test]
fn a_waiter_that_leaves_gives_its_slot_back() {
    who_leaves_gives_its_slot_to_the_next(by_rules);
    who_leaves_gives_its_slot_to_the_next(by_key);
}

fn who_would_wait_too_long_is_refused<G: Decider + Clone>(
    layer: impl Fn(Clock) -> RateLimitLayer<G>,
) {
    let (time, hello) = (ManualClock::default(), Hello::default());
    let ask = client(&layer(time.clock()).max_wait(Span::from_millis(1_500)), &hello);
    let (mut first, mut second, mut next) = (ask(), ask(), ask());
    assert_eq!(status(&mut first), Some(200));
    assert_eq!(status(&mut second), None);
    for _ in 0..9 {
        let Poll::Ready(refused) = poll(&mut ask()) else { panic!("a second too late") };
        assert_eq!(refused.status(), 429);
        assert_eq!(header(&refused, "retry-after"), Some("1"), "half of one, rounded up");
        assert_eq!(header(&refused, "x-ratelimit-remaining"), Some("0"));
    }
    time.advance(Span::from_millis(500));
    assert_eq!(status(&mut next), None);
    time.advance(Span::from_millis(500));
    assert_eq!((status(&mut second), status(&mut next)), (Some(200), None));
    time.advance(Span::SECOND);
    assert_eq!(status(&mut next), Some(200), "nobody who was refused is before it");
}

#[test]
fn a_wait_beyond_the_longest_is_refused_and_takes_no_place() {
    who_would_wait_too_long_is_refused(by_rules);
    who_would_wait_too_long_is_refused(by_key);
}

#[test]
fn nobody_waits_longer_than_half_a_minute_unless_the_layer_says_so() {
    let (time, hello) = (ManualClock::default(), Hello::default());
    let rules =
        || rules("  - {name: queue, algorithm: leaky_bucket, limit: 1 per 20 seconds, queue: 9}");
    let limiter = Limiter::builder().rules(rules()).clock(time.clock()).build();
    let ask = client(&RateLimitLayer::new(limiter.clone()), &hello);
    let (mut first, mut second) = (ask(), ask());
    assert_eq!((status(&mut first), status(&mut second)), (Some(200), None));
    assert_eq!(status(&mut ask()), Some(429));
    let patient = client(&RateLimitLayer::new(limiter).max_wait(Span::MINUTE), &hello);
    let mut third = patient();
    assert_eq!(status(&mut third), None);
}

#[test]
fn a_request_that_was_served_gives_nothing_back() {
    let (time, hello) = (ManualClock::default(), Hello::default());
    let daily = "\n  - {name: daily, algorithm: fixed_window, limit: 2 per day}";
    let rules = rules(&format!("{RULE}{daily}"));
    let limiter = Limiter::builder().rules(rules).clock(time.clock()).build();
    let ask = client(&RateLimitLayer::new(limiter), &hello);
    let (mut first, mut second) = (ask(), ask());
    assert_eq!(status(&mut first), Some(200));
    assert_eq!(status(&mut second), None);
    time.advance(Span::SECOND);
    assert_eq!(status(&mut second), Some(200));
    drop(second);
    time.advance(Span::MINUTE);
    assert_eq!(status(&mut ask()), Some(429));
}

#[test]
fn a_request_that_is_never_polled_spends_nothing() {
    let (time, hello) = (ManualClock::default(), Hello::default());
    let ask = client(&by_key(time.clock()), &hello);
    for _ in 0..9 {
        drop(ask());
    }
    assert_eq!(status(&mut ask()), Some(200));
}

/// As [`status`], for a store that answers at the second poll.
fn status_at_last(response: &mut Response) -> Option<u16> {
    assert_eq!(status(response), None);
    status(response)
}

#[tokio::test]
async fn a_store_that_takes_its_time_is_waited_for_and_given_back_to() {
    let (time, hello) = (ManualClock::default(), Hello::default());
    let store = Arc::new(Slow::new(time.clock()));
    let limiter = Limiter::builder().rules(rules(RULE)).clock(time.clock());
    let limiter = limiter.store(Arc::clone(&store)).build();
    let ask = client(&RateLimitLayer::new(limiter), &hello);
    let (mut second, mut third, mut next) = (ask(), ask(), ask());
    assert_eq!(status_at_last(&mut ask()), Some(200));
    assert_eq!(status_at_last(&mut second), None);
    assert_eq!(status_at_last(&mut third), None);
    assert_eq!(status_at_last(&mut ask()), Some(429));

    drop(third);
    // The refund is a task on this thread: it is done after as many turns as it takes polls.
    for _ in 0..3 {
        yield_now().await;
    }
    assert_eq!(store.refunds(), 1);
    assert_eq!(status_at_last(&mut next), None);
    time.advance(Span::from_secs(2));
    assert_eq!(status(&mut second), Some(200));
    assert_eq!(status(&mut next), Some(200));
    assert_eq!(hello.served(), 3);
}
