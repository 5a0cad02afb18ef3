//! Concurrency slots that are held for the lifetime of a response.

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

use super::{HelloService, header, request_by, rules};

const ONE_IN_FLIGHT_RULE: &str =
    "  - {name: exports, per: [api_key], limit: 1 in flight, hold: 30s}";

fn limiter(time: &ManualClock, yaml: &str) -> Limiter {
    Limiter::builder().rules(rules(yaml)).clock(time.clock()).build()
}

/// Returns the number of free slots of the client.
async fn free_slots(limiter: &Limiter) -> u64 {
    let request = tidegate::Request::new().with("api_key", "alice").unwrap();
    limiter.peek(&request).await.strictest_rule().unwrap().outcome.remaining
}

#[tokio::test]
async fn slot_is_held_until_the_response_body_ends() {
    let (time, hello) = (ManualClock::default(), HelloService::default());
    let limiter = limiter(&time, ONE_IN_FLIGHT_RULE);
    let service = RateLimitLayer::new(limiter.clone()).layer(hello.clone());
    let first = service.clone().oneshot(request_by("alice")).await.unwrap();
    assert_eq!(first.status(), StatusCode::OK);
    let denied_response = service.clone().oneshot(request_by("alice")).await.unwrap();
    assert_eq!(denied_response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&denied_response, "retry-after"), Some("30"));
    assert_eq!(service.clone().oneshot(request_by("bob")).await.unwrap().status(), StatusCode::OK);

    let mut body = first.into_body();
    assert_eq!(free_slots(&limiter).await, 0);
    body.frame().await.unwrap().unwrap();
    assert!(body.is_end_stream(), "the body is not polled again");
    assert_eq!(free_slots(&limiter).await, 1);
    assert_eq!(service.oneshot(request_by("alice")).await.unwrap().status(), StatusCode::OK);
    assert_eq!(hello.served(), 3);
}

#[tokio::test]
async fn dropped_or_empty_response_holds_no_slot() {
    let limiter = limiter(&ManualClock::default(), ONE_IN_FLIGHT_RULE);
    let layer = RateLimitLayer::new(limiter.clone());
    drop(layer.layer(HelloService::default()).oneshot(request_by("alice")).await.unwrap());
    assert_eq!(free_slots(&limiter).await, 1);
    let empty = service_fn(|_: Request<()>| async {
        Ok::<_, ()>(Response::new(http_body_util::Empty::<Bytes>::new()))
    });
    let response = layer.layer(empty).oneshot(request_by("alice")).await.unwrap();
    assert_eq!(free_slots(&limiter).await, 1);
    drop(response);
}

#[tokio::test]
async fn cancelled_failed_or_unready_call_holds_no_slot() {
    let limiter = limiter(&ManualClock::default(), ONE_IN_FLIGHT_RULE);
    let layer = RateLimitLayer::new(limiter.clone());
    let stuck = service_fn(|_: Request<()>| std::future::pending::<Result<Response<String>, ()>>());
    {
        let mut response = pin!(layer.layer(stuck).oneshot(request_by("alice")));
        let poll = response.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(poll.is_pending());
        assert_eq!(free_slots(&limiter).await, 0);
    }
    assert_eq!(free_slots(&limiter).await, 1);

    let fails = service_fn(|_: Request<()>| async { Err::<Response<String>, _>("failed") });
    let mut call = layer.layer(fails);
    // The future is kept after its completion, as a pool of futures may do.
    let mut response = pin!(tower::Service::call(&mut call, request_by("alice")));
    let poll = response.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    assert!(matches!(poll, Poll::Ready(Err("failed"))));
    assert_eq!(free_slots(&limiter).await, 1);

    let busy = tower::util::BoxCloneService::new(fails);
    let mut never = layer.layer(NeverReady(busy));
    let poll = tower::Service::poll_ready(&mut never, &mut Context::from_waker(Waker::noop()));
    assert!(poll.is_pending());
    assert_eq!(free_slots(&limiter).await, 1);
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
async fn upgraded_connection_holds_its_slot_until_response_and_keep_handle_are_dropped() {
    let limiter = limiter(&ManualClock::default(), ONE_IN_FLIGHT_RULE);
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
    let response = service.clone().oneshot(request_by("alice")).await.unwrap();
    let socket = kept.lock().unwrap().take();
    drop(socket);
    assert_eq!(free_slots(&limiter).await, 0, "the response still exists");
    drop(response);
    assert_eq!(free_slots(&limiter).await, 1);

    drop(service.oneshot(request_by("alice")).await.unwrap());
    let socket = kept.lock().unwrap().take();
    assert_eq!(free_slots(&limiter).await, 0, "the socket still exists");
    drop(socket);
    assert_eq!(free_slots(&limiter).await, 1);
}

#[tokio::test]
async fn reading_the_in_flight_extension_holds_no_slot() {
    let limiter = limiter(&ManualClock::default(), ONE_IN_FLIGHT_RULE);
    let seen: Arc<Mutex<Option<InFlight>>> = Arc::default();
    let see = Arc::clone(&seen);
    let service = service_fn(move |request: Request<()>| {
        *see.lock().unwrap() = request.extensions().get::<InFlight>().cloned();
        std::future::ready(Ok::<_, ()>(Response::new(Full::from("hello"))))
    });
    drop(
        RateLimitLayer::new(limiter.clone())
            .layer(service)
            .oneshot(request_by("alice"))
            .await
            .unwrap(),
    );
    let late = seen.lock().unwrap().as_ref().unwrap().keep();
    assert_eq!(free_slots(&limiter).await, 1, "a finished request acquires no slot");
    drop(late);
}

#[tokio::test]
async fn request_without_a_concurrency_rule_has_no_in_flight_extension() {
    let service = service_fn(|request: Request<()>| async move {
        assert!(request.extensions().get::<InFlight>().is_none());
        Ok::<_, ()>(Response::new(Full::<Bytes>::from("hello")))
    });
    let limiter = limiter(&ManualClock::default(), "  - {name: api, limit: 9 per minute}");
    RateLimitLayer::new(limiter).layer(service).oneshot(request_by("alice")).await.unwrap();
}

#[tokio::test]
async fn per_key_layer_enforces_a_concurrency_limit() {
    let store = Arc::new(MemoryStore::new(ManualClock::default().clock()));
    let algorithm = Algorithm::Concurrency { hold: Span::MINUTE };
    let handle = Limiter::per_key_in(store, algorithm, Quota::in_flight(1)).unwrap();
    let layer: RateLimitLayer<KeyDecider> = RateLimitLayer::per_key(handle.clone(), |request| {
        Some(request.headers.get("x-api-key")?.to_str().ok()?.into())
    });
    let service = layer.layer(HelloService::default());
    let first = service.clone().oneshot(request_by("alice")).await.unwrap();
    assert_eq!(service.oneshot(request_by("alice")).await.unwrap().status(), 429);
    assert_eq!(handle.peek("alice").remaining, 0);
    drop(first);
    assert_eq!(handle.peek("alice").remaining, 1);
}

/// A body that sends one frame and never ends.
struct UnendingBody {
    sent: bool,
}

impl Body for UnendingBody {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match std::mem::replace(&mut self.sent, true) {
            false => Poll::Ready(Some(Ok(Frame::data(Bytes::from("frame"))))),
            true => Poll::Pending,
        }
    }
}

#[tokio::test]
async fn axum_server_holds_the_slot_until_the_response_is_read_or_the_client_disconnects() {
    use axum::Router;
    use axum::routing::get;

    let limiter = Limiter::builder().rules(rules(ONE_IN_FLIGHT_RULE)).build();
    let unending = || async { axum::body::Body::new(UnendingBody { sent: false }) };
    let app = Router::new()
        .route("/short", get(|| async { "hello" }))
        .route("/none", get(|| async { StatusCode::NO_CONTENT }))
        .route("/unending", get(unending))
        .layer(RateLimitLayer::new(limiter.clone()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let server = tokio::spawn(async move { axum::serve(listener, app).await });
    let send = async |client: &mut TcpStream, path: &str, until: &str| {
        let request = format!("GET {path} HTTP/1.1\r\nhost: test\r\nx-api-key: alice\r\n\r\n");
        client.write_all(request.as_bytes()).await.unwrap();
        let mut response_text = String::new();
        let mut buffer = [0; 1024];
        while !response_text.contains(until) {
            let read = client.read(&mut buffer).await.unwrap();
            assert!(read > 0, "{response_text}");
            response_text.push_str(str::from_utf8(&buffer[..read]).unwrap());
        }
        response_text
    };
    let mut client = TcpStream::connect(address).await.unwrap();
    for (path, end) in [("/short", "hello"), ("/none", "\r\n\r\n"), ("/unending", "frame")] {
        let response_text = send(&mut client, path, end).await;
        assert!(response_text.starts_with("HTTP/1.1 20"), "{response_text}");
    }
    let mut other = TcpStream::connect(address).await.unwrap();
    let denied_response = send(&mut other, "/short", "}").await;
    assert!(denied_response.starts_with("HTTP/1.1 429 "), "{denied_response}");
    drop(client);
    while free_slots(&limiter).await == 0 {
        tokio::task::yield_now().await;
    }
    assert!(send(&mut other, "/short", "hello").await.starts_with("HTTP/1.1 200 OK"));
    server.abort();
}
