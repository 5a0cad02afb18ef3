//! `Expect: 100-continue`, and answers that come before the body has.

use tidegate_testkit::{Upstream, wait_for};

use super::Gateway;
use super::client::request;

const WAITS: &str =
    "POST /swallow HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";

#[test]
fn who_is_allowed_is_told_to_go_on() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    client.write(WAITS);
    assert_eq!(client.head().unwrap().status, 100);
    client.write("hello");
    let answer = client.receive("POST");
    assert_eq!((answer.status, answer.text()), (200, "5"));
    assert_eq!(client.get("/status/204").status, 204);
}

#[test]
fn who_is_denied_is_never_told_to_go_on() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: api, match: {method: POST}, per: [ip], limit: 1 per 10 days}]";
    let gateway = Gateway::with_rules(&upstream.url(), rules);
    assert_eq!(gateway.connect().ask("POST", "/swallow", &[], "x").status, 200);
    let mut client = gateway.connect();
    client.write(WAITS);
    // The first answer is the last.
    assert_eq!(client.head().unwrap().status, 429);
    assert_eq!(upstream.seen("POST"), 1);
}

#[test]
fn an_answer_that_comes_early_is_seen_by_who_still_sends() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    for status in [413, 200] {
        let mut client = gateway.connect();
        let path = format!("/early/{status}");
        client.write(format!(
            "POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000\r\n\r\nbeginning"
        ));
        assert_eq!(client.receive("POST").status, status);
    }
    // Somebody who reads only when all is sent.
    let mut client = gateway.connect();
    let mut sender = client.socket();
    let sending = std::thread::spawn(move || {
        use std::io::Write;
        let body = "x".repeat(4_000_000);
        // It may be told off before the end.
        let _ = sender.write_all(request("POST", "/early/413", &[], &body).as_bytes());
    });
    let answer = client.receive("POST");
    assert_eq!(answer.status, 413);
    drop(client);
    sending.join().unwrap();
}

#[test]
fn bodies_are_passed_on_while_they_are_made() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    client.write("POST /echo HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    // Each piece comes back before the next one is sent.
    for (number, piece) in ["one", "two", "three"].into_iter().enumerate() {
        client.write(format!("{:x}\r\n{piece}\r\n", piece.len()));
        if number == 0 {
            assert_eq!(client.head().unwrap().status, 200);
        }
        let mut back = Vec::new();
        while back.len() < piece.len() {
            back.extend(client.chunk().unwrap());
        }
        assert_eq!(back, piece.as_bytes());
    }
    client.write("0\r\n\r\n");
    assert_eq!(client.chunk().unwrap(), b"");
    client.read(2);
    assert_eq!(client.get("/status/204").status, 204);
}

#[test]
fn a_body_reaches_the_upstream_before_its_end() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    client.write("POST /swallow HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\nhello");
    wait_for("half a body", || (upstream.swallowed() == 5).then_some(()));
    client.write("world");
    assert_eq!(client.receive("POST").text(), "10");
}
