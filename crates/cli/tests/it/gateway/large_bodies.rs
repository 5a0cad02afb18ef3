//! Bodies that are much larger than the memory of the gateway may be.

use std::io::Write;

use tidegate_testkit::Upstream;

use super::GatewayServer;

const GIBIBYTE: u64 = 1 << 30;

/// Maximum growth of the server's memory, in bytes.
const MAX_GROWTH: usize = 32 << 20;

#[test]
fn gibibyte_bodies_pass_without_being_buffered() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    assert_eq!(client.get("/bytes/1000000").body.len(), 1_000_000);
    let before = gateway.peak_memory();

    client.write(format!("GET /bytes/{GIBIBYTE} HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(client.read_head().unwrap().field("content-length"), Some(&*GIBIBYTE.to_string()));
    assert_eq!(client.discard(GIBIBYTE), GIBIBYTE);

    client
        .write(format!("POST /swallow HTTP/1.1\r\nHost: a\r\nContent-Length: {GIBIBYTE}\r\n\r\n"));
    let piece = vec![b'x'; 1 << 20];
    let mut socket = client.socket();
    for _ in 0..GIBIBYTE >> 20 {
        socket.write_all(&piece).unwrap();
    }
    assert_eq!(client.receive("POST").text(), GIBIBYTE.to_string());

    let grown = gateway.peak_memory() - before;
    assert!(grown < MAX_GROWTH, "it grew by {} KiB", grown >> 10);
}

#[test]
fn client_that_does_not_read_applies_backpressure_to_the_upstream() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    assert_eq!(client.get("/bytes/1000000").body.len(), 1_000_000);
    let before = gateway.peak_memory();
    let mut idle: Vec<_> = (0..8).map(|_| gateway.connect()).collect();
    for client in &mut idle {
        client.write(format!("GET /bytes/{GIBIBYTE} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.read_head().unwrap().status, 200);
    }
    // Other transfers take long enough for unread data to accumulate in the gateway, if it buffered them.
    for _ in 0..100 {
        assert_eq!(client.get("/bytes/1000000").body.len(), 1_000_000);
    }
    let grown = gateway.peak_memory() - before;
    assert!(grown < MAX_GROWTH, "it grew by {} KiB", grown >> 10);
}
