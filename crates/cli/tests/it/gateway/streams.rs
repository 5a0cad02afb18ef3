//! HTTP/2, on either side.

use std::net::SocketAddr;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::SendRequest;
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tidegate_testkit::{Upstream, wait_for};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::Gateway;

type Body = http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>;

/// One connection, for many requests at once.
pub(crate) struct Streams {
    runtime: Runtime,
    send: SendRequest<Body>,
}

/// A whole answer.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Streams {
    pub(crate) fn to(address: SocketAddr) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let send = runtime.block_on(async {
            let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
            let made = hyper::client::conn::http2::handshake(TokioExecutor::new(), stream).await;
            let (send, connection) = made.unwrap();
            tokio::spawn(connection);
            send
        });
        Self { runtime, send }
    }

    /// Sends a request without waiting for its answer.
    pub(crate) fn send(&self, request: Request<Body>) -> tokio::task::JoinHandle<Whole> {
        let mut send = self.send.clone();
        self.runtime.spawn(async move {
            send.ready().await.unwrap();
            whole(send.send_request(request).await.unwrap()).await
        })
    }

    pub(crate) fn answer(&self, answer: tokio::task::JoinHandle<Whole>) -> Whole {
        self.runtime.block_on(answer).unwrap()
    }

    pub(crate) fn ask(&self, request: Request<Body>) -> Whole {
        self.answer(self.send(request))
    }

    /// Waits until the other side has said that it takes no more requests on this connection.
    pub(crate) fn wait_until_told(&self) {
        let mut send = self.send.clone();
        let told = self.runtime.block_on(async {
            tokio::time::timeout(tidegate_testkit::WAIT_TIMEOUT, async {
                // A request is refused without being sent once that is known.
                while send.try_send_request(get("/status/204")).await.is_ok() {}
            })
            .await
        });
        told.expect("the connection is told that it ends");
    }
}

async fn whole(response: Response<Incoming>) -> Whole {
    assert_eq!(response.version(), Version::HTTP_2);
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned();
    Whole { status: parts.status.as_u16(), headers: parts.headers, body: body.to_bytes(), trailers }
}

pub(crate) fn get(path: &str) -> Request<Body> {
    Request::get(format!("http://shop.example{path}")).body(Empty::new().boxed()).unwrap()
}

fn post(path: &str, body: impl Into<Bytes>) -> Request<Body> {
    let request = Request::post(format!("http://shop.example{path}"));
    request.body(Full::new(body.into()).boxed()).unwrap()
}

/// To an upstream of each version.
fn before_each(upstream: &Upstream) -> [Gateway; 2] {
    [Gateway::before(&upstream.url()), Gateway::before(&upstream.h2c_url())]
}

#[test]
fn a_hundred_streams_are_under_way_at_once_on_one_connection() {
    let upstream = Upstream::start();
    for gateway in before_each(&upstream) {
        let seen = upstream.seen("GET /held");
        let streams = Streams::to(gateway.address());
        let held: Vec<_> = (0..100).map(|_| streams.send(get("/held"))).collect();
        wait_for("all are there", || (upstream.seen("GET /held") == seen + 100).then_some(()));
        // One that came later is answered before them.
        assert_eq!(streams.ask(get("/status/204")).status, 204);
        upstream.release(100);
        for answer in held {
            let answer = streams.answer(answer);
            assert_eq!((answer.status, &answer.body[..]), (200, &b"done"[..]));
        }
    }
}

#[test]
fn bodies_and_trailers_pass_between_the_versions() {
    let upstream = Upstream::start();
    for gateway in before_each(&upstream) {
        let streams = Streams::to(gateway.address());
        let body = "0123456789".repeat(50_000);
        assert_eq!(streams.ask(post("/echo", body.clone())).body, body);
        assert_eq!(streams.ask(get("/bytes/1000000")).body.len(), 1_000_000);
        let mut request = get("/trailers");
        request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
        let answer = streams.ask(request);
        assert_eq!(&answer.body[..], b"xxxx");
        assert_eq!(answer.trailers.unwrap()["x-sum"], "4");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-check", HeaderValue::from_static("17"));
        // Without a length: with one HTTP/1.1 has no place for trailers.
        let frames = [Ok(Frame::data(Bytes::from("body"))), Ok(Frame::trailers(trailers))];
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let request = Request::post("http://shop.example/echo")
            .header("te", "trailers")
            .header("trailer", "x-check")
            .body(body.boxed())
            .unwrap();
        let answer = streams.ask(request);
        assert_eq!(&answer.body[..], b"body");
        assert_eq!(answer.trailers.unwrap()["x-check"], "17");
        // HTTP/1.1 in, either out.
        let mut client = gateway.connect();
        assert_eq!(client.ask("POST", "/echo", &[], "hello").text(), "hello");
        let answer =
            client.ask("GET", "/trailers", &[("TE", "trailers"), ("Connection", "TE")], "");
        assert_eq!(answer.trailers, [("x-sum".to_owned(), "4".to_owned())]);
        assert_eq!(client.ask("HEAD", "/bytes/10", &[], "").field("content-length"), Some("10"));
        assert_eq!(client.get("/status/304").status, 304);
    }
}

#[test]
fn a_stream_is_limited_like_any_request() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: api, per: [ip], limit: 1 per 10 days}]";
    let gateway = Gateway::with_rules(&upstream.url(), rules);
    let streams = Streams::to(gateway.address());
    let first = streams.ask(get("/head"));
    assert_eq!(
        (first.status, &first.headers["x-ratelimit-remaining"]),
        (200, &"0".parse().unwrap())
    );
    let denied = streams.ask(get("/head"));
    assert_eq!(denied.status, 429);
    assert_eq!(denied.headers["content-type"], "application/problem+json");
    assert!(denied.headers.contains_key("retry-after"));
    // The limit is the client's, whichever version it speaks.
    gateway.connect().get("/head").assert_problem(429);
    assert_eq!(upstream.seen("GET"), 1);
}

#[test]
fn a_stream_that_is_reset_frees_the_upstream_and_leaves_the_others() {
    let upstream = tidegate_testkit::RawUpstream::start(|_, head| match head.contains("/never") {
        true => tidegate_testkit::UpstreamAction::Silence,
        false => tidegate_testkit::UpstreamAction::ok("ok"),
    });
    let gateway = Gateway::before(&upstream.url());
    let streams = Streams::to(gateway.address());
    let never = streams.send(get("/never"));
    wait_for("the request", || (upstream.received().len() == 1).then_some(()));
    never.abort();
    wait_for("the upstream is let go", || (upstream.ended() == 1).then_some(()));
    assert_eq!(streams.ask(get("/")).status, 200);
}

#[test]
fn the_upstream_gets_one_host_from_a_stream() {
    let upstream = Upstream::start();
    for gateway in before_each(&upstream) {
        let streams = Streams::to(gateway.address());
        let answer = streams.ask(get("/head?a=b"));
        let head: serde_json::Value = serde_json::from_slice(&answer.body).unwrap();
        let hosts: Vec<_> =
            head["headers"].as_array().unwrap().iter().filter(|field| field[0] == "host").collect();
        match head["version"].as_str().unwrap() {
            "HTTP/1.1" => assert_eq!(hosts, [&serde_json::json!(["host", "shop.example"])]),
            _ => assert_eq!(head["target"], "http://shop.example/head?a=b"),
        }
    }
}
