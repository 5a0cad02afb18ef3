//! Traffic shaping: requests that a leaky bucket delays.

use std::io::{Read, Write};
use std::net::TcpStream;

use tidegate_testkit::{Upstream, wait_for};

use super::GatewayServer;

/// `fragile` releases one request every two hours, so a queued request waits longer than any test.
const RULES: &str = "
rules:
  - {name: fragile, match: {path: /bytes/**}, algorithm: leaky_bucket, limit: 12 per day, queue: 3}
  - {name: quick, match: {path: /head}, algorithm: leaky_bucket, limit: 20 per second, queue: 20}
";

fn gateway(upstream: &Upstream, max_wait: &str) -> GatewayServer {
    let config = format!(
        "gateway: {{max_wait: {max_wait}, upstreams: [{{name: api, servers: ['{}']}}]}}",
        upstream.url()
    );
    GatewayServer::launch(&[], &config, RULES)
}

/// Sends a request on a new connection, without reading the response.
fn send(gateway: &GatewayServer, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    stream
}

fn read_response(mut stream: TcpStream) -> String {
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    response
}

fn remaining(gateway: &GatewayServer) -> u64 {
    let peek = r#"{"rule":"fragile","cost":0}"#;
    gateway.server.check(peek).json()["remaining"].as_u64().unwrap()
}

#[test]
fn requests_that_fit_the_queue_are_delayed_and_none_is_denied() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, "10s");
    let pending: Vec<_> = (0..10).map(|_| send(&gateway, "/head")).collect();
    for stream in pending {
        let response = read_response(stream);
        assert!(response.starts_with("HTTP/1.1 200 "), "{response}");
    }
    assert_eq!(upstream.seen("GET /head"), 10);
}

#[test]
fn request_that_would_exceed_max_wait_is_denied_and_charges_nothing() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, "5s");
    assert!(read_response(send(&gateway, "/bytes/1")).starts_with("HTTP/1.1 200 "));
    let before = remaining(&gateway);
    let denied = read_response(send(&gateway, "/bytes/1"));
    assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
    assert!(denied.contains("\r\nretry-after: 71"), "{denied}");
    assert_eq!(remaining(&gateway), before);
    assert_eq!(upstream.seen("GET /bytes"), 1);
}

#[test]
fn client_disconnect_releases_its_queue_place() {
    let upstream = Upstream::start();
    let config = format!(
        "gateway: {{max_wait: 1h, upstreams: [{{name: api, servers: ['{}']}}]}}",
        upstream.url()
    );
    let rules = RULES.replace("12 per day", "24 per day");
    let gateway = GatewayServer::launch(&[], &config, &rules);
    assert!(read_response(send(&gateway, "/bytes/1")).starts_with("HTTP/1.1 200 "));
    assert_eq!(remaining(&gateway), 3);
    let waiting = send(&gateway, "/bytes/2");
    wait_for("the request is queued", || (remaining(&gateway) == 2).then_some(()));
    drop(waiting);
    wait_for("its queue place is released", || (remaining(&gateway) == 3).then_some(()));
    // The same holds for a client that has sent only a part of its body. The part must fit the read-ahead of the gateway
    // and the socket buffers: behind a full receive window the gateway cannot detect the disconnect.
    for (length, part) in [("1000", 12), ("100000000", 12), ("100000000", 100_000)] {
        let mut waiting = TcpStream::connect(gateway.address()).unwrap();
        let head = format!("POST /bytes/3 HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        waiting.write_all(head.as_bytes()).unwrap();
        waiting.write_all(&vec![b'x'; part]).unwrap();
        wait_for("the request is queued", || (remaining(&gateway) == 2).then_some(()));
        drop(waiting);
        wait_for("its queue place is released", || (remaining(&gateway) == 3).then_some(()));
    }
    assert_eq!(upstream.seen("GET /bytes"), 1);
    assert_eq!(upstream.seen("POST /bytes"), 0);
}
