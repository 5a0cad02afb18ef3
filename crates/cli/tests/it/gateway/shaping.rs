//! Requests that wait for their turn.

use std::io::{Read, Write};
use std::net::TcpStream;

use tidegate_testkit::{Upstream, wait_for};

use super::Gateway;

/// A turn every two hours: whoever waits, waits for longer than any test.
const RULES: &str = "
rules:
  - {name: fragile, match: {path: /bytes/**}, algorithm: leaky_bucket, limit: 12 per day, queue: 3}
  - {name: quick, match: {path: /head}, algorithm: leaky_bucket, limit: 20 per second, queue: 20}
";

fn gateway(upstream: &Upstream, max_wait: &str) -> Gateway {
    let config = format!(
        "gateway: {{max_wait: {max_wait}, upstreams: [{{name: api, servers: ['{}']}}]}}",
        upstream.url()
    );
    Gateway::launch(&[], &config, RULES)
}

fn ask(gateway: &Gateway, path: &str) -> TcpStream {
    let mut stream = TcpStream::connect(gateway.address()).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").unwrap();
    stream
}

fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn remaining(gateway: &Gateway) -> u64 {
    let look = r#"{"rule":"fragile","cost":0}"#;
    gateway.server.check(look).json()["remaining"].as_u64().unwrap()
}

#[test]
fn requests_pass_one_after_another_and_none_is_denied_that_fits_in_the_queue() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, "10s");
    let asked: Vec<_> = (0..10).map(|_| ask(&gateway, "/head")).collect();
    for stream in asked {
        let answer = answer(stream);
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    }
    assert_eq!(upstream.seen("GET /head"), 10);
}

#[test]
fn who_would_wait_too_long_is_denied_and_takes_no_place() {
    let upstream = Upstream::start();
    let gateway = gateway(&upstream, "5s");
    assert!(answer(ask(&gateway, "/bytes/1")).starts_with("HTTP/1.1 200 "));
    let before = remaining(&gateway);
    let denied = answer(ask(&gateway, "/bytes/1"));
    assert!(denied.starts_with("HTTP/1.1 429 "), "{denied}");
    assert!(denied.contains("\r\nretry-after: 71"), "{denied}");
    assert_eq!(remaining(&gateway), before);
    assert_eq!(upstream.seen("GET /bytes"), 1);
}

#[test]
fn who_hangs_up_stops_waiting() {
    let upstream = Upstream::start();
    let config = format!(
        "gateway: {{max_wait: 1h, upstreams: [{{name: api, servers: ['{}']}}]}}",
        upstream.url()
    );
    let rules = RULES.replace("12 per day", "24 per day");
    let gateway = Gateway::launch(&[], &config, &rules);
    assert!(answer(ask(&gateway, "/bytes/1")).starts_with("HTTP/1.1 200 "));
    assert_eq!(remaining(&gateway), 3);
    let waiting = ask(&gateway, "/bytes/2");
    wait_for("it waits", || (remaining(&gateway) == 2).then_some(()));
    drop(waiting);
    wait_for("its place is free again", || (remaining(&gateway) == 3).then_some(()));
    // So does one that had not sent all of its body. More than the gateway reads ahead and the kernel buffers would hide
    // its end behind a full window.
    for (length, part) in [("1000", 12), ("100000000", 12), ("100000000", 100_000)] {
        let mut waiting = TcpStream::connect(gateway.address()).unwrap();
        let head = format!("POST /bytes/3 HTTP/1.1\r\nhost: a\r\ncontent-length: {length}\r\n\r\n");
        waiting.write_all(head.as_bytes()).unwrap();
        waiting.write_all(&vec![b'x'; part]).unwrap();
        wait_for("it waits", || (remaining(&gateway) == 2).then_some(()));
        drop(waiting);
        wait_for("its place is free again", || (remaining(&gateway) == 3).then_some(()));
    }
    assert_eq!(upstream.seen("GET /bytes"), 1);
    assert_eq!(upstream.seen("POST /bytes"), 0);
}
