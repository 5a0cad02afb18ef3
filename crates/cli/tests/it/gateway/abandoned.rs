//! Requests of clients that disconnect before the response: they stay in flight while the upstream works on them.

use bytes::Bytes;
use futures_util::{StreamExt, stream};
use http_body_util::StreamBody;
use hyper::Request;
use hyper::body::Frame;
use tidegate_testkit::{RawUpstream, Upstream, UpstreamAction, wait_for};

use super::GatewayServer;
use super::client::{HttpClient, request};
use super::http2::{Body, Http2Client, get};

/// Two requests in flight for each API key. The hold of one hour excludes that a slot expires during a test.
const TWO_IN_FLIGHT: &str =
    "rules: [{name: exports, per: [api_key], limit: 2 in flight, hold: 1h}]";

/// Starts a gateway with an upstream that has a capacity of four requests.
fn limited_gateway(upstream: &str, timeouts: &str) -> GatewayServer {
    let config = format!(
        "gateway: {{upstreams: [{{name: api, servers: ['{upstream}'], max_in_flight: 4}}]{timeouts}}}"
    );
    GatewayServer::launch(&[], &config, TWO_IN_FLIGHT)
}

fn send_with_key(gateway: &GatewayServer, path: &str, key: &str) -> HttpClient {
    let mut client = gateway.connect();
    client.write(request("GET", path, &[("X-API-Key", key)], ""));
    client
}

fn status_with_key(gateway: &GatewayServer, path: &str, key: &str) -> u16 {
    send_with_key(gateway, path, key).receive("GET").status
}

/// Waits until the gateway has counted this many abandoned requests.
fn wait_for_abandoned(gateway: &GatewayServer, count: usize) {
    let line =
        format!("upstream_requests_total{{upstream=\"api\",outcome=\"abandoned\"}} {count}\n");
    wait_for(&line, || {
        gateway.server.request_admin("GET", "/metrics", "").body.contains(&line).then_some(())
    });
}

#[test]
fn upstream_never_works_on_more_than_the_limit_while_clients_disconnect() {
    let upstream = RawUpstream::start(|_, _| UpstreamAction::Silence);
    let gateway = limited_gateway(&upstream.url(), "");
    let mut abandoned = 0;
    for key in ["a", "b", "c", "d"] {
        for round in 0..6 {
            let mut client = send_with_key(&gateway, "/export", key);
            // Two requests of the keys a and b are admitted. Then the upstream is full.
            if round < 2 && key < "c" {
                abandoned += 1;
                wait_for("the upstream has the request", || {
                    (upstream.received().len() == abandoned).then_some(())
                });
                drop(client);
                wait_for_abandoned(&gateway, abandoned);
            } else {
                let expected = if key < "c" { 429 } else { 503 };
                assert_eq!(client.receive("GET").status, expected, "{key} {round}");
            }
        }
    }
    assert_eq!((upstream.received().len(), upstream.ended()), (4, 0));
}

#[test]
fn slot_of_an_abandoned_request_is_released_when_the_upstream_responds() {
    let upstream = Upstream::start();
    for url in [upstream.url(), upstream.h2c_url()] {
        let gateway = limited_gateway(&url, "");
        let before = upstream.seen("GET /held");
        for number in 1..=2 {
            let client = send_with_key(&gateway, "/held", "k");
            wait_for("the upstream has the request", || {
                (upstream.seen("GET /held") == before + number).then_some(())
            });
            drop(client);
            wait_for_abandoned(&gateway, number);
        }
        assert_eq!(status_with_key(&gateway, "/bytes/1", "k"), 429, "{url}");
        upstream.release(2);
        wait_for("the slots are released", || {
            (status_with_key(&gateway, "/bytes/1", "k") == 200).then_some(())
        });
    }
}

#[test]
fn slot_of_a_reset_stream_is_held_until_the_upstream_responds() {
    let upstream = Upstream::start();
    for url in [upstream.url(), upstream.h2c_url()] {
        let gateway = limited_gateway(&url, "");
        let before = upstream.seen("GET /held");
        let streams = Http2Client::connect(gateway.address());
        let with_key = |path: &str, key: &'static str| {
            let mut request = get(path);
            request.headers_mut().insert("x-api-key", key.parse().unwrap());
            request
        };
        for (number, key) in ["a", "a", "b", "b"].into_iter().enumerate() {
            let held = streams.start(with_key("/held", key));
            wait_for("the upstream has the request", || {
                (upstream.seen("GET /held") == before + number + 1).then_some(())
            });
            held.abort();
            wait_for_abandoned(&gateway, number + 1);
        }
        assert_eq!(streams.send(with_key("/bytes/1", "a")).status, 429, "{url}");
        assert_eq!(streams.send(with_key("/bytes/1", "c")).status, 503, "{url}");
        upstream.release(4);
        wait_for("the slots are released", || {
            (streams.send(with_key("/bytes/1", "a")).status == 200).then_some(())
        });
    }
}

#[test]
fn slot_of_an_abandoned_request_is_released_after_the_response_timeout() {
    let upstream = RawUpstream::start(|_, head| match head.contains("/never") {
        true => UpstreamAction::Silence,
        false => UpstreamAction::ok("ok"),
    });
    let gateway = limited_gateway(&upstream.url(), ", timeouts: {response: 1s}");
    for number in 1..=2 {
        let client = send_with_key(&gateway, "/never", "k");
        wait_for("the upstream has the request", || {
            (upstream.received().len() == number).then_some(())
        });
        drop(client);
    }
    wait_for("the slots are released", || {
        (status_with_key(&gateway, "/", "k") == 200).then_some(())
    });
    wait_for("the upstream connections are closed", || (upstream.ended() >= 2).then_some(()));
}

#[test]
fn slot_of_an_incomplete_upload_is_held_until_the_upstream_ends_the_request() {
    let upstream = Upstream::start();
    let gateway = limited_gateway(&upstream.url(), "");
    let head = "POST /held HTTP/1.1\r\nHost: a\r\nX-API-Key: k\r\n";
    // The first client disconnects in its body. The second sends a chunk without a size, and stays connected.
    for (number, body) in [
        (1, "Content-Length: 1000000\r\n\r\npart"),
        (2, "Transfer-Encoding: chunked\r\n\r\n4\r\npart\r\n"),
    ] {
        let mut client = gateway.connect();
        client.write(format!("{head}{body}"));
        wait_for("the upstream has the head", || {
            (upstream.seen("POST /held") == number).then_some(())
        });
        if number == 2 {
            client.write("no chunk\r\n");
            client.receive("POST").assert_problem(400);
        }
    }
    wait_for("the gateway has ended both requests", || {
        // A client that disconnects in its body has abandoned the request, or its body has failed.
        let metrics = gateway.server.request_admin("GET", "/metrics", "").body;
        (counted(&metrics, "abandoned") + counted(&metrics, "failed") == 2).then_some(())
    });
    assert_eq!(status_with_key(&gateway, "/bytes/1", "k"), 429);
    upstream.release(2);
    wait_for("the slots are released", || {
        (status_with_key(&gateway, "/bytes/1", "k") == 200).then_some(())
    });
}

#[test]
fn slot_of_an_incomplete_upload_is_released_when_the_upstream_closes() {
    // This upstream closes its connection when the body ends early.
    let upstream = RawUpstream::always_ok();
    let gateway = limited_gateway(&upstream.url(), "");
    for number in 1..=4 {
        let mut client = gateway.connect();
        client.write(
            "POST / HTTP/1.1\r\nHost: a\r\nX-API-Key: k\r\nContent-Length: 1000\r\n\r\npart",
        );
        wait_for("the upstream has a part of the body", || {
            let parts = upstream.bytes();
            (parts.iter().filter(|bytes| bytes.ends_with(b"part")).count() == number).then_some(())
        });
        drop(client);
        wait_for("the upstream has closed the connection", || {
            (upstream.unfinished() == number).then_some(())
        });
        wait_for("the slot is released", || {
            let peek = r#"{"rule":"exports","client":"k","cost":0}"#;
            (gateway.server.check(peek).json()["remaining"] == 2).then_some(())
        });
    }
}

/// Sends a part of a body on HTTP/1.1 and on HTTP/2, and abandons both requests.
fn abandon_two_uploads(gateway: &GatewayServer, upstream: &Upstream) {
    let before = upstream.seen("POST /held");
    let mut client = gateway.connect();
    client.write(
        "POST /held HTTP/1.1\r\nHost: a\r\nX-API-Key: k\r\nContent-Length: 1000\r\n\r\npart",
    );
    let streams = Http2Client::connect(gateway.address());
    let part = stream::iter([Ok(Frame::data(Bytes::from_static(b"part")))]);
    let body = Body::new(StreamBody::new(part.chain(stream::pending())));
    let request = Request::post("http://shop.example/held").header("x-api-key", "k");
    let started = streams.start(request.body(body).unwrap());
    wait_for("the upstream has both heads", || {
        (upstream.seen("POST /held") == before + 2).then_some(())
    });
    drop(client);
    started.abort();
    wait_for("the gateway has ended both requests", || {
        let metrics = gateway.server.request_admin("GET", "/metrics", "").body;
        (counted(&metrics, "abandoned") + counted(&metrics, "failed") == 2).then_some(())
    });
}

/// Returns the number of requests with this outcome.
fn counted(metrics: &str, outcome: &str) -> u64 {
    let name = format!("upstream_requests_total{{upstream=\"api\",outcome=\"{outcome}\"}} ");
    let (_, count) = metrics.split_once(&name).unwrap();
    count.lines().next().unwrap().parse().unwrap()
}

#[test]
fn slot_of_an_incomplete_upload_to_http2_is_held_until_the_response_timeout() {
    let upstream = Upstream::start();
    let gateway = limited_gateway(&upstream.h2c_url(), "");
    abandon_two_uploads(&gateway, &upstream);
    assert_eq!(status_with_key(&gateway, "/bytes/1", "k"), 429);

    let gateway = limited_gateway(&upstream.h2c_url(), ", timeouts: {response: 2s}");
    abandon_two_uploads(&gateway, &upstream);
    wait_for("the slots are released", || {
        (status_with_key(&gateway, "/bytes/1", "k") == 200).then_some(())
    });
}

#[test]
fn slot_of_an_incomplete_upload_to_http2_is_released_when_the_upstream_closes() {
    let upstream = Upstream::start();
    let gateway = limited_gateway(&upstream.h2c_url(), "");
    abandon_two_uploads(&gateway, &upstream);
    assert_eq!(status_with_key(&gateway, "/bytes/1", "k"), 429);
    drop(upstream);
    wait_for("the slots are released", || {
        let peek = r#"{"rule":"exports","client":"k","cost":0}"#;
        (gateway.server.check(peek).json()["remaining"] == 2).then_some(())
    });
}

#[test]
fn http2_connection_that_abandons_100_requests_gets_goaway() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let streams = Http2Client::connect(gateway.address());
    let closed = "tidegate_connections_abandoning_total{listener=\"gateway\"}";
    let metrics = || gateway.server.request_admin("GET", "/metrics", "").body;
    for number in 1..=100 {
        assert!(metrics().contains(&format!("{closed} 0\n")), "{number}");
        let held = streams.start(get("/held"));
        wait_for("the upstream has the request", || {
            (upstream.seen("GET /held") == number).then_some(())
        });
        held.abort();
    }
    streams.wait_for_goaway();
    assert!(metrics().contains(&format!("{closed} 1\n")));
    assert_eq!(Http2Client::connect(gateway.address()).send(get("/status/204")).status, 204);
}
