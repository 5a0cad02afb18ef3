//! Bodies far larger than memory should be.

use std::io::Write;

use tidegate_testkit::Upstream;

use super::Gateway;

const GIBIBYTE: u64 = 1 << 30;

/// Most that the server may grow by, in bytes.
const GROWTH: usize = 32 << 20;

#[test]
fn a_gibibyte_goes_down_and_up_without_being_kept() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    assert_eq!(client.get("/bytes/1000000").body.len(), 1_000_000);
    let before = gateway.peak_memory();

    client.write(format!("GET /bytes/{GIBIBYTE} HTTP/1.1\r\nHost: a\r\n\r\n"));
    assert_eq!(client.head().unwrap().field("content-length"), Some(&*GIBIBYTE.to_string()));
    assert_eq!(client.pass_over(GIBIBYTE), GIBIBYTE);

    client
        .write(format!("POST /swallow HTTP/1.1\r\nHost: a\r\nContent-Length: {GIBIBYTE}\r\n\r\n"));
    let piece = vec![b'x'; 1 << 20];
    let mut socket = client.socket();
    for _ in 0..GIBIBYTE >> 20 {
        socket.write_all(&piece).unwrap();
    }
    assert_eq!(client.receive("POST").text(), GIBIBYTE.to_string());

    let grown = gateway.peak_memory() - before;
    assert!(grown < GROWTH, "it grew by {} KiB", grown >> 10);
}

#[test]
fn a_client_that_does_not_read_holds_the_upstream_back() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    assert_eq!(client.get("/bytes/1000000").body.len(), 1_000_000);
    let before = gateway.peak_memory();
    let mut idle: Vec<_> = (0..8).map(|_| gateway.connect()).collect();
    for client in &mut idle {
        client.write(format!("GET /bytes/{GIBIBYTE} HTTP/1.1\r\nHost: a\r\n\r\n"));
        assert_eq!(client.head().unwrap().status, 200);
    }
    // Others go on, for as long as it takes to see that nothing piles up.
    for _ in 0..100 {
        assert_eq!(client.get("/bytes/1000000").body.len(), 1_000_000);
    }
    let grown = gateway.peak_memory() - before;
    assert!(grown < GROWTH, "it grew by {} KiB", grown >> 10);
}
