//! Requests that wait in the queue of a leaky bucket.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tidegate::tower::{Decider, KeyDecider, RateLimitLayer, RulesDecider};
use tidegate::{Algorithm, Clock, Limiter, ManualClock, MemoryStore, Quota, Span};
use tokio::task::yield_now;
use tower::{Layer, ServiceExt};

use super::test_stores::SlowStore;
use super::{HelloService, LimitedResponse, header, request_by, rules};

type PendingResponse = Pin<Box<dyn Future<Output = LimitedResponse>>>;

const QUEUE_RULE: &str =
    "  - {name: queue, per: [api_key], algorithm: leaky_bucket, limit: 1 per second, queue: 2}";

fn layer_by_rules(clock: Clock) -> RateLimitLayer<RulesDecider> {
    RateLimitLayer::new(Limiter::builder().rules(rules(QUEUE_RULE)).clock(clock).build())
}

fn layer_by_key(clock: Clock) -> RateLimitLayer<KeyDecider> {
    let store = Arc::new(MemoryStore::new(clock));
    let algorithm = Algorithm::LeakyBucket { queue: 2 };
    let handle = Limiter::per_key_in(store, algorithm, Quota::per_second(1)).unwrap();
    RateLimitLayer::per_key(handle, |request| {
        Some(request.headers.get("x-api-key")?.to_str().ok()?.into())
    })
}

/// Returns a function that sends a request of the same client.
fn client_of<G: Decider + Clone>(
    layer: &RateLimitLayer<G>,
    hello: &HelloService,
) -> impl Fn() -> PendingResponse + use<G> {
    let service = layer.layer(hello.clone());
    move || {
        let response = service.clone().oneshot(request_by("alice"));
        Box::pin(async move { response.await.unwrap() })
    }
}

fn poll(response: &mut PendingResponse) -> Poll<LimitedResponse> {
    response.as_mut().poll(&mut Context::from_waker(Waker::noop()))
}

fn status(response: &mut PendingResponse) -> Option<u16> {
    match poll(response) {
        Poll::Ready(response) => Some(response.status().as_u16()),
        Poll::Pending => None,
    }
}

fn expect_requests_wait_for_their_slots<G: Decider + Clone>(
    layer: impl Fn(Clock) -> RateLimitLayer<G>,
) {
    let (time, hello) = (ManualClock::default(), HelloService::default());
    let send = client_of(&layer(time.clock()), &hello);
    let (mut first, mut second, mut third, mut fourth) = (send(), send(), send(), send());
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
fn request_waits_until_its_slot() {
    expect_requests_wait_for_their_slots(layer_by_rules);
    expect_requests_wait_for_their_slots(layer_by_key);
}

fn expect_cancelled_waiter_frees_its_slot<G: Decider + Clone>(
    layer: impl Fn(Clock) -> RateLimitLayer<G>,
) {
    let (time, hello) = (ManualClock::default(), HelloService::default());
    let send = client_of(&layer(time.clock()), &hello);
    let (mut first, mut second, mut third) = (send(), send(), send());
    assert_eq!(status(&mut first), Some(200));
    assert_eq!(status(&mut second), None);
    assert_eq!(status(&mut third), None);
    drop(third);
    let (mut next, mut late) = (send(), send());
    assert_eq!(status(&mut next), None);
    assert_eq!(status(&mut late), Some(429));

    time.advance(Span::from_secs(2));
    assert_eq!(status(&mut second), Some(200));
    assert_eq!(status(&mut next), Some(200));
    assert_eq!(hello.served(), 3);
}

#[test]
fn cancelled_waiter_frees_its_slot() {
    expect_cancelled_waiter_frees_its_slot(layer_by_rules);
    expect_cancelled_waiter_frees_its_slot(layer_by_key);
}

fn expect_denial_above_max_wait<G: Decider + Clone>(layer: impl Fn(Clock) -> RateLimitLayer<G>) {
    let (time, hello) = (ManualClock::default(), HelloService::default());
    let send = client_of(&layer(time.clock()).max_wait(Span::from_millis(1_500)), &hello);
    let (mut first, mut second, mut next) = (send(), send(), send());
    assert_eq!(status(&mut first), Some(200));
    assert_eq!(status(&mut second), None);
    for _ in 0..9 {
        let Poll::Ready(denied_response) = poll(&mut send()) else {
            panic!("the request is queued")
        };
        assert_eq!(denied_response.status(), 429);
        assert_eq!(header(&denied_response, "retry-after"), Some("1"), "half a second, rounded up");
        assert_eq!(header(&denied_response, "x-ratelimit-remaining"), Some("0"));
    }
    time.advance(Span::from_millis(500));
    assert_eq!(status(&mut next), None);
    time.advance(Span::from_millis(500));
    assert_eq!((status(&mut second), status(&mut next)), (Some(200), None));
    time.advance(Span::SECOND);
    assert_eq!(status(&mut next), Some(200), "denied requests hold no place in the queue");
}

#[test]
fn wait_longer_than_max_wait_is_denied_without_a_queue_place() {
    expect_denial_above_max_wait(layer_by_rules);
    expect_denial_above_max_wait(layer_by_key);
}

#[test]
fn default_max_wait_is_thirty_seconds() {
    let (time, hello) = (ManualClock::default(), HelloService::default());
    let rules =
        || rules("  - {name: queue, algorithm: leaky_bucket, limit: 1 per 20 seconds, queue: 9}");
    let limiter = Limiter::builder().rules(rules()).clock(time.clock()).build();
    let send = client_of(&RateLimitLayer::new(limiter.clone()), &hello);
    let (mut first, mut second) = (send(), send());
    assert_eq!((status(&mut first), status(&mut second)), (Some(200), None));
    assert_eq!(status(&mut send()), Some(429));
    let send_with_long_wait =
        client_of(&RateLimitLayer::new(limiter).max_wait(Span::MINUTE), &hello);
    let mut third = send_with_long_wait();
    assert_eq!(status(&mut third), None);
}

#[test]
fn served_request_is_not_refunded() {
    let (time, hello) = (ManualClock::default(), HelloService::default());
    let daily = "\n  - {name: daily, algorithm: fixed_window, limit: 2 per day}";
    let rules = rules(&format!("{QUEUE_RULE}{daily}"));
    let limiter = Limiter::builder().rules(rules).clock(time.clock()).build();
    let send = client_of(&RateLimitLayer::new(limiter), &hello);
    let (mut first, mut second) = (send(), send());
    assert_eq!(status(&mut first), Some(200));
    assert_eq!(status(&mut second), None);
    time.advance(Span::SECOND);
    assert_eq!(status(&mut second), Some(200));
    drop(second);
    time.advance(Span::MINUTE);
    assert_eq!(status(&mut send()), Some(429));
}

#[test]
fn request_that_is_never_polled_spends_nothing() {
    let (time, hello) = (ManualClock::default(), HelloService::default());
    let send = client_of(&layer_by_key(time.clock()), &hello);
    for _ in 0..9 {
        drop(send());
    }
    assert_eq!(status(&mut send()), Some(200));
}

/// Polls twice, for a store that replies at the second poll. Otherwise like [`status`].
fn status_at_second_poll(response: &mut PendingResponse) -> Option<u16> {
    assert_eq!(status(response), None);
    status(response)
}

#[tokio::test]
async fn slow_store_is_awaited_and_refunded() {
    let (time, hello) = (ManualClock::default(), HelloService::default());
    let store = Arc::new(SlowStore::new(time.clock()));
    let limiter = Limiter::builder().rules(rules(QUEUE_RULE)).clock(time.clock());
    let limiter = limiter.store(Arc::clone(&store)).build();
    let send = client_of(&RateLimitLayer::new(limiter), &hello);
    let (mut second, mut third, mut next) = (send(), send(), send());
    assert_eq!(status_at_second_poll(&mut send()), Some(200));
    assert_eq!(status_at_second_poll(&mut second), None);
    assert_eq!(status_at_second_poll(&mut third), None);
    assert_eq!(status_at_second_poll(&mut send()), Some(429));

    drop(third);
    // The refund is a task on this thread that needs three polls.
    for _ in 0..3 {
        yield_now().await;
    }
    assert_eq!(store.refunds(), 1);
    assert_eq!(status_at_second_poll(&mut next), None);
    time.advance(Span::from_secs(2));
    assert_eq!(status(&mut second), Some(200));
    assert_eq!(status(&mut next), Some(200));
    assert_eq!(hello.served(), 3);
}
