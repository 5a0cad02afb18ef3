//! Slots in flight, held for the life of a response.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body::{Body, Frame};
use http_body_util::{BodyExt, Full};
use tidegate::tower::{InFlight, KeptSlots, KeyDecider, RateLimitLayer};
use tidegate::{Algorithm, Limiter, ManualClock, MemoryStore, Quota, Span};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tower::{Layer, ServiceExt, service_fn};

use super::{Hello, by, header, rules};

const ONE: &str = "  - {name: exports, per: [api_key], limit: 1 in flight, hold: 30s}";

fn limiter(time: &ManualClock, yaml: &str) -> Limiter {
    Limiter::builder().rules(rules(yaml)).clock(time.clock()).build()
}

/// How many more exports the client may have in flight.
async fn free(limiter: &Limiter) -> u64 {
    let request = tidegate::Request::new().with("api_key", "alice").unwrap();
    limiter.peek(&request).await.strictest_rule().unwrap().outcome.remaining
}

#[tokio::test]
async fn a_slot_is_held_until_the_body_has_ended() {
    let (time, hello) = (ManualClock::default(), Hello::default());
    let limiter = limiter(&time, ONE);
    let service = RateLimitLayer::new(limiter.clone()).layer(hello.clone());
    let first = service.clone().oneshot(by("alice")).await.unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    let refused = service.clone().oneshot(by("alice")).await.unwrap();
    assert_eq!(refused.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&refused, "retry-after"), Some("30"));
    assert_eq!(service.clone().oneshot(by("bob")).await.unwrap().status(), StatusCode::OK);

    let mut body = first.into_body();
    assert_eq!(free(&limiter).await, 0);
    body.frame().await.unwrap().unwrap();
    assert!(body.is_end_stream(), "nobody polls it again");
    assert_eq!(free(&limiter).await, 1);
    assert_eq!(service.oneshot(by("alice")).await.unwrap().status(), StatusCode::OK);
    assert_eq!(hello.served(), 3);
}

#[tokio::test]
async fn a_response_that_is_dropped_or_has_no_body_holds_nothing() {
    let limiter = limiter(&ManualClock::default(), ONE);
    let layer = RateLimitLayer::new(limiter.clone());
    drop(layer.layer(Hello::default()).oneshot(by("alice")).await.unwrap());
    assert_eq!(free(&limiter).await, 1);
    let empty = service_fn(|_: Request<()>| async {
        Ok::<_, ()>(Response::new(http_body_util::Empty::<Bytes>::new()))
    });
    let kept = layer.layer(empty).oneshot(by("alice")).await.unwrap();
    assert_eq!(free(&limiter).await, 1);
    drop(kept);
}

#[tokio::test]
async fn a_service_that_is_given_up_or_fails_or_is_not_ready_holds_nothing() {
    let limiter = limiter(&ManualClock::default(), ONE);
    let layer = RateLimitLayer::new(limiter.clone());
    let stuck = service_fn(|_: Request<()>| std::future::pending::<Result<Response<String>, ()>>());
    {
        let mut response = pin!(layer.layer(stuck).oneshot(by("alice")));
        let poll = response.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
        assert_eq!(free(&limiter).await, 0);
    }
    assert_eq!(free(&limiter).await, 1);

    let fails = service_fn(|_: Request<()>| async { Err::<Response<String>, _>("failed") });
    let mut call = layer.layer(fails);
    // Kept after it is done, as a pool of futures may do.
    let mut response = pin!(tower::Service::call(&mut call, by("alice")));
    let poll = response.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(poll, Poll::Ready(Err("failed"))));
    assert_eq!(free(&limiter).await, 1);

    let busy = tower::util::BoxCloneService::new(fails);
    let mut never = layer.layer(NeverReady(busy));
    let poll = tower::Service::poll_ready(&mut never, &mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending());
    assert_eq!(free(&limiter).await, 1);
}

#[derive(Clone)]
struct NeverReady<S>(S);

impl<S: tower::Service<Request<()>>> tower::Service<Request<()>> for NeverReady<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Pending
    }

    fn call(&mut self, request: Request<()>) -> S::Future {
        self.0.call(request)
    }
}

#[tokio::test]
async fn who_changes_protocols_holds_its_slot_with_the_response_and_as_long_as_it_keeps_it() {
    let limiter = limiter(&ManualClock::default(), ONE);
    let kept: Arc<Mutex<Option<KeptSlots>>> = Arc::default();
    let keep = Arc::clone(&kept);
    let upgrade = service_fn(move |request: Request<()>| {
        let in_flight = request.extensions().get::<InFlight>().unwrap();
        *keep.lock().unwrap() = Some(in_flight.keep());
        let mut response = Response::new(http_body_util::Empty::<Bytes>::new());
        *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
        std::future::ready(Ok::<_, ()>(response))
    });
    let service = RateLimitLayer::new(limiter.clone()).layer(upgrade);
    let response = service.clone().oneshot(by("alice")).await.unwrap();
    let socket = kept.lock().unwrap().take();
    drop(socket);
    assert_eq!(free(&limiter).await, 0, "the response is still there");
    drop(response);
    assert_eq!(free(&limiter).await, 1);

    drop(service.oneshot(by("alice")).await.unwrap());
    let socket = kept.lock().unwrap().take();
    assert_eq!(free(&limiter).await, 0, "the socket is still there");
    drop(socket);
    assert_eq!(free(&limiter).await, 1);
}

#[tokio::test]
async fn who_only_looks_at_its_slot_holds_nothing() {
    let limiter = limiter(&ManualClock::default(), ONE);
    let seen: Arc<Mutex<Option<InFlight>>> = Arc::default();
    let see = Arc::clone(&seen);
    let service = service_fn(move |request: Request<()>| {
        *see.lock().unwrap() = request.extensions().get::<InFlight>().cloned();
        std::future::ready(Ok::<_, ()>(Response::new(Full::from("hello"))))
    });
    drop(RateLimitLayer::new(limiter.clone()).layer(service).oneshot(by("alice")).await.unwrap());
    let late = seen.lock().unwrap().as_ref().unwrap().keep();
    assert_eq!(free(&limiter).await, 1, "what is over stays so");
    drop(late);
}

#[tokio::test]
async fn a_request_without_slots_carries_nothing() {
    let service = service_fn(|request: Request<()>| async move {
        assert!(request.extensions().get::<InFlight>().is_none());
        Ok::<_, ()>(Response::new(Full::<Bytes>::from("hello")))
    });
    let limiter = limiter(&ManualClock::default(), "  - {name: api, limit: 9 per minute}");
    RateLimitLayer::new(limiter).layer(service).oneshot(by("alice")).await.unwrap();
}

#[tokio::test]
async fn a_limit_for_each_key_counts_what_is_in_flight_as_well() {
    let store = Arc::new(MemoryStore::new(ManualClock::default().clock()));
    let algorithm = Algorithm::Concurrency { hold: Span::MINUTE };
    let handle = Limiter::per_key_in(store, algorithm, Quota::in_flight(1)).unwrap();
    let layer: RateLimitLayer<KeyDecider> = RateLimitLayer::per_key(handle.clone(), |request| {
        Some(request.headers.get("x-api-key")?.to_str().ok()?.into())
    });
    let service = layer.layer(Hello::default());
    let first = service.clone().oneshot(by("alice")).await.unwrap();
    assert_eq!(service.oneshot(by("alice")).await.unwrap().status(), 429);
    assert_eq!(handle.peek("alice").remaining, 0);
    drop(first);
    assert_eq!(handle.peek("alice").remaining, 1);
}

/// A body that says one word and never ends.
struct Unending {
    said: bool,
}

impl Body for Unending {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match std::mem::replace(&mut self.said, true) {
            false => Poll::Ready(Some(Ok(Frame::data(Bytes::from("word"))))),
            true => Poll::Pending,
        }
    }
}

#[tokio::test]
async fn a_client_of_a_real_server_has_its_slot_until_it_has_read_all_or_hangs_up() {
    use axum::Router;
    use axum::routing::get;

    let limiter = Limiter::builder().rules(rules(ONE)).build();
    let unending = || async { axum::body::Body::new(Unending { said: false }) };
    let app = Router::new()
        .route("/short", get(|| async { "hello" }))
        .route("/none", get(|| async { StatusCode::NO_CONTENT }))
        .route("/unending", get(unending))
        .layer(RateLimitLayer::new(limiter.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let ask = async |client: &mut TcpStream, path: &str, until: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nx-api-key: alice\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let mut buffer = [0; 1024];
        while !answer.contains(until) {
            let read = client.read(&mut buffer).await.unwrap();
            assert!(read > 0, "{answer}");
            answer.push_str(str::from_utf8(&buffer[..read]).unwrap());
        }
        answer
    };
    let mut client = TcpStream::connect(address).await.unwrap();
    for (path, end) in [("/short", "hello"), ("/none", "\r\n\r\n"), ("/unending", "word")] {
        let answer = ask(&mut client, path, end).await;
        assert!(answer.starts_with("HTTP/1.1 20"), "{answer}");
    }
    let mut other = TcpStream::connect(address).await.unwrap();
    let refused = ask(&mut other, "/short", "}").await;
    assert!(refused.starts_with("HTTP/1.1 429 "), "{refused}");
    drop(client);
    while free(&limiter).await == 0 {
        tokio::task::yield_now().await;
    }
    assert!(ask(&mut other, "/short", "hello").await.starts_with("HTTP/1.1 200 OK"));
    server.abort();
}
