//! HTTP/2 between client and gateway, and between gateway and upstream.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper::header::HeaderValue;
use hyper::{HeaderMap, Request, Response, Version};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tidegate_testkit::{Upstream, wait_for};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

use super::GatewayServer;

pub(crate) type Body = http_body_util::combinators::BoxBody<Bytes, std::convert::Infallible>;

/// One HTTP/2 connection that carries many requests at once.
pub(crate) struct Http2Client {
    runtime: Runtime,
    send: SendRequest<Body>,
}

/// A response that was read to its end.
#[derive(Debug)]
pub(crate) struct Http2Response {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
    pub(crate) trailers: Option<HeaderMap>,
}

impl Http2Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        Self::connect_by(address, Builder::new(TokioExecutor::new()))
    }

    /// Connects a client that sends a ping at this interval.
    pub(crate) fn connect_with_pings(address: SocketAddr, interval: Duration) -> Self {
        let mut builder = Builder::new(TokioExecutor::new());
        builder.timer(TokioTimer::new()).keep_alive_interval(interval);
        builder.keep_alive_while_idle(true);
        Self::connect_by(address, builder)
    }

    fn connect_by(address: SocketAddr, builder: Builder<TokioExecutor>) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let send = runtime.block_on(async {
            let stream = TokioIo::new(TcpStream::connect(address).await.unwrap());
            let (send, connection) = builder.handshake(stream).await.unwrap();
            tokio::spawn(connection);
            send
        });
        Self { runtime, send }
    }

    /// Sends a request without waiting for its response.
    pub(crate) fn start(&self, request: Request<Body>) -> tokio::task::JoinHandle<Http2Response> {
        let mut send = self.send.clone();
        self.runtime.spawn(async move {
            send.ready().await.unwrap();
            read_response(send.send_request(request).await.unwrap()).await
        })
    }

    /// Sends a request, and returns its response with a body that is not read.
    pub(crate) fn response(&self, request: Request<Body>) -> Response<Incoming> {
        let mut send = self.send.clone();
        self.runtime.block_on(async move {
            send.ready().await.unwrap();
            send.send_request(request).await.unwrap()
        })
    }

    /// Waits for the response of a started request.
    pub(crate) fn receive(
        &self,
        response: tokio::task::JoinHandle<Http2Response>,
    ) -> Http2Response {
        self.runtime.block_on(response).unwrap()
    }

    /// Sends a request, and waits for its response.
    pub(crate) fn send(&self, request: Request<Body>) -> Http2Response {
        self.receive(self.start(request))
    }

    /// Waits until the server has sent GOAWAY on this connection.
    pub(crate) fn wait_for_goaway(&self) {
        let mut send = self.send.clone();
        let received = self.runtime.block_on(async {
            tokio::time::timeout(tidegate_testkit::WAIT_TIMEOUT, async {
                // After GOAWAY the client rejects a request without sending it.
                while send.try_send_request(get("/status/204")).await.is_ok() {}
            })
            .await
        });
        received.expect("the server sends GOAWAY");
    }
}

async fn read_response(response: Response<Incoming>) -> Http2Response {
    assert_eq!(response.version(), Version::HTTP_2);
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap();
    let trailers = body.trailers().cloned();
    Http2Response {
        status: parts.status.as_u16(),
        headers: parts.headers,
        body: body.to_bytes(),
        trailers,
    }
}

pub(crate) fn get(path: &str) -> Request<Body> {
    Request::get(format!("http://shop.example{path}")).body(Empty::new().boxed()).unwrap()
}

fn post(path: &str, body: impl Into<Bytes>) -> Request<Body> {
    let request = Request::post(format!("http://shop.example{path}"));
    request.body(Full::new(body.into()).boxed()).unwrap()
}

/// Starts a gateway with an HTTP/1.1 upstream, and one with an HTTP/2 upstream.
fn gateways_for_both_versions(upstream: &Upstream) -> [GatewayServer; 2] {
    [GatewayServer::forward_to(&upstream.url()), GatewayServer::forward_to(&upstream.h2c_url())]
}

#[test]
fn one_connection_carries_100_concurrent_streams() {
    let upstream = Upstream::start();
    for gateway in gateways_for_both_versions(&upstream) {
        let seen = upstream.seen("GET /held");
        let streams = Http2Client::connect(gateway.address());
        let held: Vec<_> = (0..100).map(|_| streams.start(get("/held"))).collect();
        wait_for("the upstream has all requests", || {
            (upstream.seen("GET /held") == seen + 100).then_some(())
        });
        // A later request is answered before them.
        assert_eq!(streams.send(get("/status/204")).status, 204);
        upstream.release(100);
        for response in held {
            let response = streams.receive(response);
            assert_eq!((response.status, &response.body[..]), (200, &b"done"[..]));
        }
    }
}

#[test]
fn bodies_and_trailers_pass_between_http_versions() {
    let upstream = Upstream::start();
    for gateway in gateways_for_both_versions(&upstream) {
        let streams = Http2Client::connect(gateway.address());
        let body = "0123456789".repeat(50_000);
        assert_eq!(streams.send(post("/echo", body.clone())).body, body);
        assert_eq!(streams.send(get("/bytes/1000000")).body.len(), 1_000_000);
        let mut request = get("/trailers");
        request.headers_mut().insert("te", HeaderValue::from_static("trailers"));
        let response = streams.send(request);
        assert_eq!(&response.body[..], b"xxxx");
        assert_eq!(response.trailers.unwrap()["x-sum"], "4");
        let mut trailers = HeaderMap::new();
        trailers.insert("x-check", HeaderValue::from_static("17"));
        // The body has no length, because HTTP/1.1 sends trailers only after a chunked body.
        let frames = [Ok(Frame::data(Bytes::from("body"))), Ok(Frame::trailers(trailers))];
        let body = StreamBody::new(futures_util::stream::iter(frames));
        let request = Request::post("http://shop.example/echo")
            .header("te", "trailers")
            .header("trailer", "x-check")
            .body(body.boxed())
            .unwrap();
        let response = streams.send(request);
        assert_eq!(&response.body[..], b"body");
        assert_eq!(response.trailers.unwrap()["x-check"], "17");
        // An HTTP/1.1 client with an upstream of either version.
        let mut client = gateway.connect();
        assert_eq!(client.send("POST", "/echo", &[], "hello").text(), "hello");
        let response =
            client.send("GET", "/trailers", &[("TE", "trailers"), ("Connection", "TE")], "");
        assert_eq!(response.trailers, [("x-sum".to_owned(), "4".to_owned())]);
        assert_eq!(client.send("HEAD", "/bytes/10", &[], "").field("content-length"), Some("10"));
        assert_eq!(client.get("/status/304").status, 304);
    }
}

#[test]
fn http2_stream_is_limited_like_any_request() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: api, per: [ip], limit: 1 per 10 days}]";
    let gateway = GatewayServer::with_rules(&upstream.url(), rules);
    let streams = Http2Client::connect(gateway.address());
    let first = streams.send(get("/head"));
    assert_eq!(
        (first.status, &first.headers["x-ratelimit-remaining"]),
        (200, &"0".parse().unwrap())
    );
    let denied = streams.send(get("/head"));
    assert_eq!(denied.status, 429);
    assert_eq!(denied.headers["content-type"], "application/problem+json");
    assert!(denied.headers.contains_key("retry-after"));
    // Both HTTP versions share the bucket of the client.
    gateway.connect().get("/head").assert_problem(429);
    assert_eq!(upstream.seen("GET"), 1);
}

#[test]
fn stream_reset_closes_the_upstream_connection_and_keeps_other_streams() {
    let upstream = tidegate_testkit::RawUpstream::start(|_, head| match head.contains("/never") {
        true => tidegate_testkit::UpstreamAction::Silence,
        false => tidegate_testkit::UpstreamAction::ok("ok"),
    });
    let gateway = GatewayServer::forward_to(&upstream.url());
    let streams = Http2Client::connect(gateway.address());
    let never = streams.start(get("/never"));
    wait_for("the upstream has the request", || (upstream.received().len() == 1).then_some(()));
    never.abort();
    wait_for("the upstream connection is closed", || (upstream.ended() == 1).then_some(()));
    assert_eq!(streams.send(get("/")).status, 200);
}

#[test]
fn authority_of_a_stream_becomes_the_only_host() {
    let upstream = Upstream::start();
    for gateway in gateways_for_both_versions(&upstream) {
        let streams = Http2Client::connect(gateway.address());
        let response = streams.send(get("/head?a=b"));
        let head: serde_json::Value = serde_json::from_slice(&response.body).unwrap();
        let hosts: Vec<_> =
            head["headers"].as_array().unwrap().iter().filter(|field| field[0] == "host").collect();
        match head["version"].as_str().unwrap() {
            "HTTP/1.1" => assert_eq!(hosts, [&serde_json::json!(["host", "shop.example"])]),
            _ => assert_eq!(head["target"], "http://shop.example/head?a=b"),
        }
    }
}
