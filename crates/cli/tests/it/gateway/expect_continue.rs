//! `Expect: 100-continue`, early responses, and streaming of bodies.

use tidegate_testkit::{Upstream, wait_for};

use super::GatewayServer;
use super::client::request;

/// The head of a request that waits for 100 before it sends its body.
const EXPECT_HEAD: &str =
    "POST /swallow HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";

#[test]
fn allowed_request_gets_100_continue() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    client.write(EXPECT_HEAD);
    assert_eq!(client.read_head().unwrap().status, 100);
    client.write("hello");
    let response = client.receive("POST");
    assert_eq!((response.status, response.text()), (200, "5"));
    assert_eq!(client.get("/status/204").status, 204);
}

#[test]
fn denied_request_gets_no_100_continue() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: api, match: {method: POST}, per: [ip], limit: 1 per 10 days}]";
    let gateway = GatewayServer::with_rules(&upstream.url(), rules);
    assert_eq!(gateway.connect().send("POST", "/swallow", &[], "x").status, 200);
    let mut client = gateway.connect();
    client.write(EXPECT_HEAD);
    // The first response is the final one.
    assert_eq!(client.read_head().unwrap().status, 429);
    assert_eq!(upstream.seen("POST"), 1);
}

#[test]
fn early_response_reaches_a_client_that_is_still_sending() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    for status in [413, 200] {
        let mut client = gateway.connect();
        let path = format!("/early/{status}");
        client.write(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\nbeginning"
        ));
        assert_eq!(client.receive("POST").status, status);
    }
    // A client that sends a large body while it reads the response.
    let mut client = gateway.connect();
    let mut sender = client.socket();
    let sending = std::thread::spawn(move || {
        use std::io::Write;
        let body = "x".repeat(4_000_000);
        // The gateway may close the connection before the whole body is sent.
        let _ = sender.write_all(request("POST", "/early/413", &[], &body).as_bytes());
    });
    let response = client.receive("POST");
    assert_eq!(response.status, 413);
    drop(client);
    sending.join().unwrap();
}

#[test]
fn request_and_response_bodies_are_streamed() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    client.write("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    // Each chunk is echoed before the next one is sent.
    for (number, piece) in ["one", "two", "three"].into_iter().enumerate() {
        client.write(format!("{:x}\r\n{piece}\r\n", piece.len()));
        if number == 0 {
            assert_eq!(client.read_head().unwrap().status, 200);
        }
        let mut echoed = Vec::new();
        while echoed.len() < piece.len() {
            echoed.extend(client.read_chunk().unwrap());
        }
        assert_eq!(echoed, piece.as_bytes());
    }
    client.write("0\r\n\r\n");
    assert_eq!(client.read_chunk().unwrap(), b"");
    client.read(2);
    assert_eq!(client.get("/status/204").status, 204);
}

#[test]
fn partial_request_body_reaches_the_upstream() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    client.write("POST /swallow HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    wait_for("the upstream has half of the body", || (upstream.swallowed() == 5).then_some(()));
    client.write("world");
    assert_eq!(client.receive("POST").text(), "10");
}
