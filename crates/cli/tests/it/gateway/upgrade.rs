//! Connections that go on as something else.

use std::io::Write;
use std::net::Shutdown;

use tidegate_testkit::{RawUpstream, Upstream, UpstreamAction};

use super::Gateway;
use super::client::{Client, request};

fn upgraded(gateway: &Gateway) -> Client {
    let mut client = gateway.connect();
    let fields = [("Connection", "Upgrade"), ("Upgrade", "mine")];
    let answer = client.ask("GET", "/upgrade", &fields, "");
    assert_eq!((answer.status, answer.field("upgrade")), (101, Some("mine")), "{answer:?}");
    assert!(answer.field("connection").unwrap().eq_ignore_ascii_case("upgrade"));
    client
}

#[test]
fn bytes_pass_both_ways_after_an_upgrade() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = upgraded(&gateway);
    for message in ["one", "two", "\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        client.write(message);
        assert_eq!(client.read(message.len()), message.as_bytes());
    }
    // Much at once, while somebody reads.
    let mut socket = client.socket();
    let sending = std::thread::spawn(move || {
        let piece = vec![b'y'; 1 << 16];
        for _ in 0..160 {
            socket.write_all(&piece).unwrap();
        }
        socket.shutdown(Shutdown::Write).unwrap();
    });
    assert_eq!(client.pass_over(u64::MAX), 160 << 16);
    sending.join().unwrap();
    // None of it was a request.
    assert_eq!(upstream.seen("GET"), 1);
}

#[test]
fn an_upgrade_is_limited_like_any_request() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: api, per: [ip], limit: 1 per 10 days}]";
    let gateway = Gateway::with_rules(&upstream.url(), rules);
    let mut client = upgraded(&gateway);
    let fields = [("Connection", "Upgrade"), ("Upgrade", "mine")];
    gateway.connect().ask("GET", "/upgrade", &fields, "").assert_problem(429);
    client.write("still here");
    assert_eq!(client.read(10), b"still here");
}

#[test]
fn an_upstream_that_does_not_upgrade_answers_as_ever() {
    let upstream = RawUpstream::start(|_, _| UpstreamAction::ok("no"));
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    let fields = [("Connection", "Upgrade"), ("Upgrade", "mine")];
    client.write(request("GET", "/", &fields, "") + &request("GET", "/second", &[], ""));
    assert_eq!(client.receive("GET").text(), "no");
    // What was sent ahead is a request, if the connection goes on; and never part of the first.
    let second = client.try_receive("GET").map(|answer| answer.status);
    assert!(matches!(second, None | Some(200)), "{second:?}");
    let received = upstream.received();
    assert!(received.len() <= 2 && received[0].body.is_empty(), "{received:?}");
    assert_eq!((upstream.faults(), upstream.unfinished()), (Vec::<String>::new(), 0));
}

#[test]
fn a_way_to_http2_that_would_pass_by_the_limits_is_not_passed_on() {
    let upstream = RawUpstream::start(|_, _| UpstreamAction::ok("plain"));
    let gateway = Gateway::before(&upstream.url());
    for to in ["h2c", "H2C", "websocket, h2c", "mine, H2c"] {
        let fields = [
            ("Connection", "Upgrade, HTTP2-Settings"),
            ("Upgrade", to),
            ("HTTP2-Settings", "AAMA"),
        ];
        assert_eq!(gateway.connect().ask("GET", "/", &fields, "").text(), "plain");
    }
    for request in upstream.received() {
        assert_eq!(request.fields("upgrade"), [""; 0], "{request:?}");
        assert_eq!(request.fields("http2-settings"), [""; 0], "{request:?}");
    }
}

#[test]
fn an_upstream_cannot_upgrade_who_did_not_ask() {
    let upstream = RawUpstream::start(|_, _| {
        UpstreamAction::Respond(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: mine\r\n\r\n"
                .to_vec(),
        )
    });
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    let answer = client.get("/");
    assert_eq!(answer.status, 502, "{answer:?}");
}

#[test]
fn there_is_no_way_through_to_elsewhere() {
    let upstream = RawUpstream::answering();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    client.write("CONNECT elsewhere.example:443 HTTP/1.1\r\nHost: elsewhere.example:443\r\n\r\n");
    let answer = client.receive("CONNECT");
    assert!((400..500).contains(&answer.status), "{answer:?}");
    assert_eq!(upstream.received().len(), 0);
}
