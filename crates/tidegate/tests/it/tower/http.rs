//! Requests and responses over plain HTTP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use tidegate::tower::RateLimitLayer;
use tidegate::{HeaderStyle, IetfDraft, Limiter, ManualClock, PerKey, Quota, ResetFormat};
use tower::{Layer, Service, ServiceExt};

use super::stores::Down;
use super::{Hello, Text, by, header, rules, text};

fn per_minute(amount: u64) -> PerKey {
    Limiter::per_key_on(Quota::per_minute(amount), ManualClock::default().clock()).unwrap()
}

fn by_api_key(handle: PerKey) -> RateLimitLayer<tidegate::tower::KeyDecider> {
    RateLimitLayer::per_key(handle, |request| {
        Some(request.headers.get("x-api-key")?.to_str().ok()?.into())
    })
}

fn by_rules(yaml: &str) -> RateLimitLayer {
    let clock = ManualClock::default().clock();
    RateLimitLayer::new(Limiter::builder().rules(rules(yaml)).clock(clock).build())
}

#[tokio::test]
async fn a_client_over_its_limit_learns_so_and_when_to_come_back() {
    let hello = Hello::default();
    let service =
        by_rules("  - {name: api, per: [api_key], limit: 2 per minute}").layer(hello.clone());
    for left in ["1", "0"] {
        let response = service.clone().oneshot(by("alice")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(header(&response, "x-ratelimit-limit"), Some("2"));
        assert_eq!(header(&response, "x-ratelimit-remaining"), Some(left));
        assert_eq!(header(&response, "retry-after"), None);
        assert_eq!(text(response).await, "hello");
    }
    let response = service.oneshot(by("alice")).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&response, "retry-after"), Some("30"));
    assert_eq!(header(&response, "x-ratelimit-remaining"), Some("0"));
    assert_eq!(header(&response, "ratelimit-policy"), Some(r#""api";q=2;w=60"#));
    assert_eq!(header(&response, "ratelimit"), Some(r#""api";r=0;t=30"#));
    assert_eq!(header(&response, "content-type"), Some("application/problem+json"));
    assert_eq!(
        text(response).await,
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests","status":429,"detail":"over the limit of \"api\", try again in 30 seconds","violated-policies":["api"]}"#
    );
}

#[tokio::test]
async fn a_denied_request_never_reaches_the_service() {
    let hello = Hello::default();
    let service = by_api_key(per_minute(1)).layer(hello.clone());
    for _ in 0..3 {
        service.clone().oneshot(by("alice")).await.unwrap();
    }
    assert_eq!(hello.served(), 1);
}

#[tokio::test]
async fn two_clients_have_two_buckets() {
    let layers = by_rules("  - {name: api, per: [api_key], limit: 1 per minute}");
    let (rules, keys) =
        (layers.layer(Hello::default()), by_api_key(per_minute(1)).layer(Hello::default()));
    for key in ["alice", "bob"] {
        assert_eq!(rules.clone().oneshot(by(key)).await.unwrap().status(), 200);
        assert_eq!(rules.clone().oneshot(by(key)).await.unwrap().status(), 429);
        assert_eq!(keys.clone().oneshot(by(key)).await.unwrap().status(), 200);
        assert_eq!(keys.clone().oneshot(by(key)).await.unwrap().status(), 429);
    }
}

#[tokio::test]
async fn requests_without_a_key_share_one_bucket() {
    let service = by_api_key(per_minute(1)).layer(Hello::default());
    let anonymous = Request::get("/").body(()).unwrap();
    assert_eq!(service.clone().oneshot(anonymous).await.unwrap().status(), 200);
    assert_eq!(service.clone().oneshot(by("")).await.unwrap().status(), 429);
    assert_eq!(service.oneshot(by("alice")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn a_handle_outside_of_the_layer_spends_from_the_same_buckets() {
    let handle = per_minute(2);
    let service = by_api_key(handle.clone()).layer(Hello::default());
    service.oneshot(by("alice")).await.unwrap();
    assert_eq!(handle.check("alice").remaining, 0);
}

#[tokio::test]
async fn the_address_is_the_sockets_whatever_a_header_claims() {
    let service =
        by_rules("  - {name: api, per: [ip], limit: 1 per minute}").layer(Hello::default());
    let from = |peer: &str, claim: &str| {
        let request = Request::get("/").header("x-forwarded-for", claim);
        request.extension(peer.parse::<SocketAddr>().unwrap()).body(()).unwrap()
    };
    let ask = |peer, claim| service.clone().oneshot(from(peer, claim));
    assert_eq!(ask("192.0.2.1:5000", "10.0.0.1").await.unwrap().status(), 200);
    assert_eq!(ask("192.0.2.1:5001", "10.0.0.2").await.unwrap().status(), 429);
    assert_eq!(ask("[::ffff:192.0.2.1]:5000", "10.0.0.3").await.unwrap().status(), 429);
    assert_eq!(ask("192.0.2.2:5000", "10.0.0.1").await.unwrap().status(), 200);
    assert_eq!(ask("[2001:db8::1]:5000", "10.0.0.1").await.unwrap().status(), 200);
    assert_eq!(ask("[2001:db8::2]:5000", "10.0.0.1").await.unwrap().status(), 429);
}

#[tokio::test]
async fn an_attribute_of_the_callers_is_read_where_the_caller_says() {
    #[derive(Clone)]
    struct User(&'static str);
    let layer = by_rules("  - {name: api, per: [user], limit: 1 per minute}");
    let layer = layer.attribute("user", |request| Some(request.extensions.get::<User>()?.0.into()));
    let service = layer.layer(Hello::default());
    let of = |user| Request::get("/").extension(User(user)).body(()).unwrap();
    assert_eq!(service.clone().oneshot(of("alice")).await.unwrap().status(), 200);
    assert_eq!(service.clone().oneshot(of("bob")).await.unwrap().status(), 200);
    assert_eq!(service.clone().oneshot(of("alice")).await.unwrap().status(), 429);
}

#[tokio::test]
async fn what_is_too_long_to_look_at_is_refused_and_not_let_past() {
    let hello = Hello::default();
    let service = by_rules(
        "  - {name: key, per: [api_key], limit: 9 per minute}\n  \
         - {name: path, match: {path: '/v1/**'}, per: [query.user], limit: 9 per minute}",
    )
    .layer(hello.clone());
    let long = "x".repeat(9000);

    let response = service.clone().oneshot(by(&long)).await.unwrap();
    assert_eq!(response.status(), 431);
    assert_eq!(header(&response, "content-type"), Some("application/problem+json"));
    assert_eq!(
        text(response).await,
        r#"{"type":"about:blank","title":"Request Header Fields Too Large","status":431,"detail":"attribute \"api_key\" must be at most 8192 bytes long, found 9000"}"#
    );

    for uri in [format!("/v1/{long}"), format!("/v1?user={long}")] {
        let response = service.clone().oneshot(Request::get(uri).body(()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 414);
    }

    let keys = by_api_key(per_minute(9)).layer(hello.clone());
    assert_eq!(keys.oneshot(by(&long)).await.unwrap().status(), 431);
    assert_eq!(hello.served(), 0);
}

#[tokio::test]
async fn an_error_of_the_service_passes_through() {
    let failing = tower::service_fn(|_: Request<()>| async { Err::<Response<Text>, _>("broken") });
    let service = by_api_key(per_minute(1)).layer(failing);
    assert_eq!(service.oneshot(by("alice")).await.unwrap_err(), "broken");
}

#[tokio::test]
async fn a_rule_that_denies_without_its_store_is_503_and_one_that_allows_is_not() {
    let layer = |answer: &str| {
        let yaml = format!("  - {{name: api, limit: 9 per minute, on_store_failure: {answer}}}");
        let limiter = Limiter::builder().rules(rules(&yaml)).store(Arc::new(Down)).build();
        RateLimitLayer::new(limiter).layer(Hello::default())
    };
    let response = layer("deny").oneshot(by("alice")).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(&response, "retry-after"), Some("1"));
    assert_eq!(header(&response, "content-type"), Some("application/problem+json"));

    let response = layer("allow").oneshot(by("alice")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn headers_come_in_the_style_asked_for() {
    let style = HeaderStyle { reset: ResetFormat::Epoch, ietf: IetfDraft::Six };
    let service = by_api_key(per_minute(60)).headers(style).layer(Hello::default());
    let response = service.oneshot(by("alice")).await.unwrap();
    // The manual clock starts at 1767225600; one of sixty is back after a second.
    assert_eq!(header(&response, "x-ratelimit-reset"), Some("1767225601"));
    assert_eq!(header(&response, "ratelimit-reset"), Some("1"));
    assert_eq!(header(&response, "ratelimit-policy"), None);
}

#[tokio::test]
async fn headers_can_be_kept_to_denials() {
    let service = by_api_key(per_minute(1)).headers_on_denial_only().layer(Hello::default());
    let response = service.clone().oneshot(by("alice")).await.unwrap();
    assert_eq!(header(&response, "x-ratelimit-limit"), None);
    let response = service.oneshot(by("alice")).await.unwrap();
    assert_eq!(header(&response, "x-ratelimit-limit"), Some("1"));
}

#[tokio::test]
async fn the_limit_closest_to_the_service_is_the_one_reported() {
    let (wide, narrow) = (by_api_key(per_minute(100)), by_api_key(per_minute(1)));
    let service = wide.layer(narrow.layer(Hello::default()));
    service.clone().oneshot(by("alice")).await.unwrap();
    let response = service.oneshot(by("alice")).await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["x-ratelimit-limit"], "1");
    assert_eq!(response.headers()["ratelimit"], r#""default";r=0;t=60"#);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn admits_exactly_the_limit_under_contention() {
    let hello = Hello::default();
    let service = by_rules("  - {name: api, per: [api_key], limit: 100 per minute}");
    let service = service.layer(hello.clone());
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..10 {
                    let response = service.clone().oneshot(by("alice")).await.unwrap();
                    admitted += usize::from(response.status() == StatusCode::OK);
                }
                admitted
            })
        })
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await.unwrap();
    }
    assert_eq!((admitted, hello.served()), (100, 100));
}

/// A service that must be polled ready before each call, and whose clones start anew.
struct Strict {
    ready: bool,
}

impl Clone for Strict {
    fn clone(&self) -> Self {
        Self { ready: false }
    }
}

impl Service<Request<()>> for Strict {
    type Response = Response<Text>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<Text>, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        std::future::ready(Ok(Response::new(Text::default())))
    }
}

#[tokio::test]
async fn the_service_that_was_ready_is_the_one_called() {
    let mut service = by_api_key(per_minute(9)).layer(Strict { ready: false });
    for _ in 0..3 {
        service.ready().await.unwrap().call(by("alice")).await.unwrap();
    }
}
