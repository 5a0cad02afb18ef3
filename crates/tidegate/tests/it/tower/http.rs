//! The layer in an HTTP service: status codes, headers and bodies.

use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};

use http::{Request, Response, StatusCode};
use tidegate::headers::{IetfDraft, ResetFormat};
use tidegate::tower::RateLimitLayer;
use tidegate::{EncodedSlashes, HeaderStyle, Limiter, ManualClock, PerKey, Quota};
use tower::{Layer, Service, ServiceExt};

use super::test_stores::UnavailableStore;
use super::{HelloService, TextBody, header, read_body, request_by, rules};

fn per_minute(amount: u64) -> PerKey {
    Limiter::per_key_on(Quota::per_minute(amount), ManualClock::default().clock()).unwrap()
}

fn layer_by_api_key(handle: PerKey) -> RateLimitLayer<tidegate::tower::KeyDecider> {
    RateLimitLayer::per_key(handle, |request| {
        Some(request.headers.get("x-api-key")?.to_str().ok()?.into())
    })
}

fn layer_by_rules(yaml: &str) -> RateLimitLayer {
    let clock = ManualClock::default().clock();
    RateLimitLayer::new(Limiter::builder().rules(rules(yaml)).clock(clock).build())
}

#[tokio::test]
async fn client_over_its_limit_gets_429_with_retry_after() {
    let hello = HelloService::default();
    let service =
        layer_by_rules("  - {name: api, per: [api_key], limit: 2 per minute}").layer(hello.clone());
    for left in ["1", "0"] {
        let response = service.clone().oneshot(request_by("alice")).await.unwrap();
        assert_eq!(response.status(), StatusCode::OK);
        assert_eq!(header(&response, "x-ratelimit-limit"), Some("2"));
        assert_eq!(header(&response, "x-ratelimit-remaining"), Some(left));
        assert_eq!(header(&response, "retry-after"), None);
        assert_eq!(read_body(response).await, "hello");
    }
    let response = service.oneshot(request_by("alice")).await.unwrap();
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(header(&response, "retry-after"), Some("30"));
    assert_eq!(header(&response, "x-ratelimit-remaining"), Some("0"));
    assert_eq!(header(&response, "ratelimit-policy"), Some(r#""api";q=2;w=60"#));
    assert_eq!(header(&response, "ratelimit"), Some(r#""api";r=0;t=30"#));
    assert_eq!(header(&response, "content-type"), Some("application/problem+json"));
    assert_eq!(
        read_body(response).await,
        r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Too many requests","status":429,"detail":"over the limit of \"api\", try again in 30 seconds","violated-policies":["api"]}"#
    );
}

#[tokio::test]
async fn spellings_of_a_path_share_one_limit() {
    let hello = HelloService::default();
    let rules = "  - {name: login, match: {path: /login, method: POST}, limit: 2 per minute}";
    let service = layer_by_rules(rules).layer(hello.clone());
    let status = async |method: &str, target: &str| {
        let request = Request::builder().method(method).uri(target).body(()).unwrap();
        service.clone().oneshot(request).await.unwrap().status().as_u16()
    };
    assert_eq!((status("POST", "/login").await, status("POST", "//login").await), (200, 200));
    for target in ["/login", "/./login", "/x/../login?a", "/%2e/login", "/l%6fgin"] {
        assert_eq!(status("POST", target).await, 429, "{target}");
    }
    for (method, target) in
        [("POST", "/%2Flogin"), ("POST", "/a\\login"), ("POST", "/%zz"), ("post", "/login")]
    {
        assert_eq!(status(method, target).await, 400, "{method} {target}");
    }
    assert_eq!(hello.served(), 2);
}

#[tokio::test]
async fn layer_can_keep_encoded_slashes() {
    let rules = "  - {name: files, match: {path: '/files/a%2Fb'}, limit: 1 per minute}";
    let layer = layer_by_rules(rules).encoded_slashes(EncodedSlashes::Keep);
    let service = layer.layer(HelloService::default());
    for expected in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
        let request = Request::get("/files//a%2fb").body(()).unwrap();
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), expected);
    }
}

#[tokio::test]
async fn denied_request_never_reaches_the_service() {
    let hello = HelloService::default();
    let service = layer_by_api_key(per_minute(1)).layer(hello.clone());
    for _ in 0..3 {
        service.clone().oneshot(request_by("alice")).await.unwrap();
    }
    assert_eq!(hello.served(), 1);
}

#[tokio::test]
async fn each_client_has_its_own_bucket() {
    let layers = layer_by_rules("  - {name: api, per: [api_key], limit: 1 per minute}");
    let (rules, keys) = (
        layers.layer(HelloService::default()),
        layer_by_api_key(per_minute(1)).layer(HelloService::default()),
    );
    for key in ["alice", "bob"] {
        assert_eq!(rules.clone().oneshot(request_by(key)).await.unwrap().status(), 200);
        assert_eq!(rules.clone().oneshot(request_by(key)).await.unwrap().status(), 429);
        assert_eq!(keys.clone().oneshot(request_by(key)).await.unwrap().status(), 200);
        assert_eq!(keys.clone().oneshot(request_by(key)).await.unwrap().status(), 429);
    }
}

#[tokio::test]
async fn requests_without_a_key_share_one_bucket() {
    let service = layer_by_api_key(per_minute(1)).layer(HelloService::default());
    let anonymous = Request::get("/").body(()).unwrap();
    assert_eq!(service.clone().oneshot(anonymous).await.unwrap().status(), 200);
    assert_eq!(service.clone().oneshot(request_by("")).await.unwrap().status(), 429);
    assert_eq!(service.oneshot(request_by("alice")).await.unwrap().status(), 200);
}

#[tokio::test]
async fn handle_outside_the_layer_spends_from_the_same_buckets() {
    let handle = per_minute(2);
    let service = layer_by_api_key(handle.clone()).layer(HelloService::default());
    service.oneshot(request_by("alice")).await.unwrap();
    assert_eq!(handle.check("alice").remaining, 0);
}

#[tokio::test]
async fn client_address_is_that_of_the_socket_despite_forwarded_headers() {
    let service = layer_by_rules("  - {name: api, per: [ip], limit: 1 per minute}")
        .layer(HelloService::default());
    let from = |peer: &str, claim: &str| {
        let request = Request::get("/").header("x-forwarded-for", claim);
        request.extension(peer.parse::<SocketAddr>().unwrap()).body(()).unwrap()
    };
    let send = |peer, claim| service.clone().oneshot(from(peer, claim));
    assert_eq!(send("192.0.2.1:5000", "10.0.0.1").await.unwrap().status(), 200);
    assert_eq!(send("192.0.2.1:5001", "10.0.0.2").await.unwrap().status(), 429);
    assert_eq!(send("[::ffff:192.0.2.1]:5000", "10.0.0.3").await.unwrap().status(), 429);
    assert_eq!(send("192.0.2.2:5000", "10.0.0.1").await.unwrap().status(), 200);
    assert_eq!(send("[2001:db8::1]:5000", "10.0.0.1").await.unwrap().status(), 200);
    assert_eq!(send("[2001:db8::2]:5000", "10.0.0.1").await.unwrap().status(), 429);
}

#[tokio::test]
async fn custom_attribute_is_read_by_the_given_function() {
    #[derive(Clone)]
    struct User(&'static str);
    let layer = layer_by_rules("  - {name: api, per: [user], limit: 1 per minute}");
    let layer = layer.attribute("user", |request| Some(request.extensions.get::<User>()?.0.into()));
    let service = layer.layer(HelloService::default());
    let request_of = |user| Request::get("/").extension(User(user)).body(()).unwrap();
    assert_eq!(service.clone().oneshot(request_of("alice")).await.unwrap().status(), 200);
    assert_eq!(service.clone().oneshot(request_of("bob")).await.unwrap().status(), 200);
    assert_eq!(service.clone().oneshot(request_of("alice")).await.unwrap().status(), 429);
}

#[tokio::test]
async fn attribute_above_the_maximum_length_is_rejected() {
    let hello = HelloService::default();
    let service = layer_by_rules(
        "  - {name: key, per: [api_key], limit: 9 per minute}\n  \
         - {name: path, match: {path: '/v1/**'}, per: [query.user], limit: 9 per minute}",
    )
    .layer(hello.clone());
    let long = "x".repeat(9000);

    let response = service.clone().oneshot(request_by(&long)).await.unwrap();
    assert_eq!(response.status(), 431);
    assert_eq!(header(&response, "content-type"), Some("application/problem+json"));
    assert_eq!(
        read_body(response).await,
        r#"{"type":"about:blank","title":"Request Header Fields Too Large","status":431,"detail":"attribute \"api_key\" must be at most 8192 bytes long, found 9000"}"#
    );

    for uri in [format!("/v1/{long}"), format!("/v1?user={long}")] {
        let response = service.clone().oneshot(Request::get(uri).body(()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 414);
    }

    let keys = layer_by_api_key(per_minute(9)).layer(hello.clone());
    assert_eq!(keys.oneshot(request_by(&long)).await.unwrap().status(), 431);
    assert_eq!(hello.served(), 0);
}

#[tokio::test]
async fn service_error_passes_through() {
    let failing =
        tower::service_fn(|_: Request<()>| async { Err::<Response<TextBody>, _>("broken") });
    let service = layer_by_api_key(per_minute(1)).layer(failing);
    assert_eq!(service.oneshot(request_by("alice")).await.unwrap_err(), "broken");
}

#[tokio::test]
async fn store_failure_is_503_for_a_denying_rule_and_200_for_an_allowing_rule() {
    let layer = |answer: &str| {
        let yaml = format!("  - {{name: api, limit: 9 per minute, on_store_failure: {answer}}}");
        let limiter =
            Limiter::builder().rules(rules(&yaml)).store(Arc::new(UnavailableStore)).build();
        RateLimitLayer::new(limiter).layer(HelloService::default())
    };
    let response = layer("deny").oneshot(request_by("alice")).await.unwrap();
    assert_eq!(response.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(header(&response, "retry-after"), Some("1"));
    assert_eq!(header(&response, "content-type"), Some("application/problem+json"));

    let response = layer("allow").oneshot(request_by("alice")).await.unwrap();
    assert_eq!(response.status(), StatusCode::OK);
}

#[tokio::test]
async fn headers_follow_the_configured_style() {
    let style = HeaderStyle { reset: ResetFormat::Epoch, ietf: IetfDraft::Six };
    let service = layer_by_api_key(per_minute(60)).headers(style).layer(HelloService::default());
    let response = service.oneshot(request_by("alice")).await.unwrap();
    // The manual clock starts at 1767225600. One of sixty tokens refills after a second.
    assert_eq!(header(&response, "x-ratelimit-reset"), Some("1767225601"));
    assert_eq!(header(&response, "ratelimit-reset"), Some("1"));
    assert_eq!(header(&response, "ratelimit-policy"), None);
}

#[tokio::test]
async fn headers_can_be_limited_to_denials() {
    let service =
        layer_by_api_key(per_minute(1)).headers_on_denial_only().layer(HelloService::default());
    let response = service.clone().oneshot(request_by("alice")).await.unwrap();
    assert_eq!(header(&response, "x-ratelimit-limit"), None);
    let response = service.oneshot(request_by("alice")).await.unwrap();
    assert_eq!(header(&response, "x-ratelimit-limit"), Some("1"));
}

#[tokio::test]
async fn headers_report_the_limit_of_the_innermost_layer() {
    let (wide, narrow) = (layer_by_api_key(per_minute(100)), layer_by_api_key(per_minute(1)));
    let service = wide.layer(narrow.layer(HelloService::default()));
    service.clone().oneshot(request_by("alice")).await.unwrap();
    let response = service.oneshot(request_by("alice")).await.unwrap();
    assert_eq!(response.status(), 429);
    assert_eq!(response.headers()["x-ratelimit-limit"], "1");
    assert_eq!(response.headers()["ratelimit"], r#""default";r=0;t=60"#);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_requests_admit_exactly_the_limit() {
    let hello = HelloService::default();
    let service = layer_by_rules("  - {name: api, per: [api_key], limit: 100 per minute}");
    let service = service.layer(hello.clone());
    let tasks: Vec<_> = (0..64)
        .map(|_| {
            let service = service.clone();
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..10 {
                    let response = service.clone().oneshot(request_by("alice")).await.unwrap();
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

/// A service that must be polled ready before each call. Clones start as not ready.
struct ReadyCheckingService {
    ready: bool,
}

impl Clone for ReadyCheckingService {
    fn clone(&self) -> Self {
        Self { ready: false }
    }
}

impl Service<Request<()>> for ReadyCheckingService {
    type Response = Response<TextBody>;
    type Error = std::convert::Infallible;
    type Future = std::future::Ready<Result<Response<TextBody>, Self::Error>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.ready = true;
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<()>) -> Self::Future {
        assert!(std::mem::take(&mut self.ready), "called without being ready");
        std::future::ready(Ok(Response::new(TextBody::default())))
    }
}

#[tokio::test]
async fn layer_calls_the_service_that_was_polled_ready() {
    let mut service = layer_by_api_key(per_minute(9)).layer(ReadyCheckingService { ready: false });
    for _ in 0..3 {
        service.ready().await.unwrap().call(request_by("alice")).await.unwrap();
    }
}

/// Serves an axum application with a limit of one request per address, and returns its address.
async fn serve_axum(layer: RateLimitLayer, with_connect_info: bool) -> SocketAddr {
    use axum::routing::get;

    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let app = axum::Router::new().route("/", get(async || "hello")).layer(layer);
    tokio::spawn(async move {
        match with_connect_info {
            true => {
                let app = app.into_make_service_with_connect_info::<SocketAddr>();
                axum::serve(listener, app).await
            }
            false => axum::serve(listener, app).await,
        }
    });
    address
}

/// Sends a request from this address, and returns the status of the response.
async fn status_from(client: [u8; 4], server: SocketAddr) -> String {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((client, 0))).unwrap();
    let mut stream = socket.connect(server).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await.unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).await.unwrap();
    response[9..12].to_owned()
}

const ONE_PER_ADDRESS: &str = "  - {name: api, per: [ip], limit: 1 per minute}";

#[tokio::test]
async fn axum_clients_do_not_share_a_bucket_by_address() {
    let layer = layer_by_rules(ONE_PER_ADDRESS).ip(|request| {
        Some(request.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()?.ip())
    });
    let server = serve_axum(layer.clone(), true).await;
    for (client, status) in [(1, "200"), (1, "429"), (2, "200"), (2, "429")] {
        assert_eq!(status_from([127, 0, 0, client], server).await, status, "{client}");
    }
}

#[tokio::test]
async fn axum_server_without_addresses_rejects_requests_under_a_rule_by_address() {
    let layer = layer_by_rules(ONE_PER_ADDRESS);
    let with_source = layer.clone().ip(|request| {
        Some(request.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>()?.ip())
    });
    // The first has no source of addresses, the second has one that the server does not fill.
    for (layer, with_connect_info) in [(layer, true), (with_source, false)] {
        let server = serve_axum(layer, with_connect_info).await;
        for client in [1, 1, 2] {
            assert_eq!(status_from([127, 0, 0, client], server).await, "500");
        }
    }
    let layer = layer_by_rules("  - {name: api, per: [api_key], limit: 1 per minute}");
    assert_eq!(status_from([127, 0, 0, 1], serve_axum(layer, false).await).await, "200");
}

#[tokio::test]
async fn server_without_addresses_can_set_the_attribute_to_none() {
    let layer = layer_by_rules(ONE_PER_ADDRESS).attribute("ip", |_| None);
    let service = layer.layer(HelloService::default());
    for status in [200, 429] {
        let request = Request::get("/").body(()).unwrap();
        assert_eq!(service.clone().oneshot(request).await.unwrap().status(), status);
    }
}
