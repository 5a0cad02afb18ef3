//! Protocol upgrades (101) and CONNECT.

use std::io::Write;
use std::net::Shutdown;

use tidegate_testkit::{RawUpstream, Upstream, UpstreamAction};

use super::GatewayServer;
use super::client::{HttpClient, request};

/// Opens a connection, and upgrades it.
fn upgrade(gateway: &GatewayServer) -> HttpClient {
    let mut client = gateway.connect();
    let fields = [("Connection", "Upgrade"), ("Upgrade", "mine")];
    let response = client.send("GET", "/upgrade", &fields, "");
    assert_eq!((response.status, response.field("upgrade")), (101, Some("mine")), "{response:?}");
    assert!(response.field("connection").unwrap().eq_ignore_ascii_case("upgrade"));
    client
}

#[test]
fn bytes_pass_in_both_directions_after_an_upgrade() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = upgrade(&gateway);
    for message in ["one", "two", "\r\n\r\n", "GET / HTTP/1.1\r\n\r\n"] {
        client.write(message);
        assert_eq!(client.read(message.len()), message.as_bytes());
    }
    // 10 MiB in both directions at once.
    let mut socket = client.socket();
    let sending = std::thread::spawn(move || {
        let piece = vec![b'y'; 1 << 16];
        for _ in 0..160 {
            socket.write_all(&piece).unwrap();
        }
        socket.shutdown(Shutdown::Write).unwrap();
    });
    assert_eq!(client.discard(u64::MAX), 160 << 16);
    sending.join().unwrap();
    // The upstream has parsed none of these bytes as a request.
    assert_eq!(upstream.seen("GET"), 1);
}

#[test]
fn upgrade_is_limited_like_any_request() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: api, per: [ip], limit: 1 per 10 days}]";
    let gateway = GatewayServer::with_rules(&upstream.url(), rules);
    let mut client = upgrade(&gateway);
    let fields = [("Connection", "Upgrade"), ("Upgrade", "mine")];
    gateway.connect().send("GET", "/upgrade", &fields, "").assert_problem(429);
    client.write("still here");
    assert_eq!(client.read(10), b"still here");
}

#[test]
fn upstream_may_decline_an_upgrade() {
    let upstream = RawUpstream::start(|_, _| UpstreamAction::ok("no"));
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    let fields = [("Connection", "Upgrade"), ("Upgrade", "mine")];
    client.write(request("GET", "/", &fields, "") + &request("GET", "/second", &[], ""));
    assert_eq!(client.receive("GET").text(), "no");
    // The pipelined request is answered or dropped with the connection; it is never part of the first one.
    let second = client.try_receive("GET").map(|response| response.status);
    assert!(matches!(second, None | Some(200)), "{second:?}");
    let received = upstream.received();
    assert!(received.len() <= 2 && received[0].body.is_empty(), "{received:?}");
    assert_eq!((upstream.faults(), upstream.unfinished()), (Vec::<String>::new(), 0));
}

#[test]
fn h2c_upgrade_is_not_forwarded() {
    let upstream = RawUpstream::start(|_, _| UpstreamAction::ok("plain"));
    let gateway = GatewayServer::forward_to(&upstream.url());
    for to in ["h2c", "H2C", "websocket, h2c", "mine, H2c"] {
        let fields = [
            ("Connection", "Upgrade, HTTP2-Settings"),
            ("Upgrade", to),
            ("HTTP2-Settings", "AAMA"),
        ];
        assert_eq!(gateway.connect().send("GET", "/", &fields, "").text(), "plain");
    }
    for request in upstream.received() {
        assert_eq!(request.fields("upgrade"), [""; 0], "{request:?}");
        assert_eq!(request.fields("http2-settings"), [""; 0], "{request:?}");
    }
}

#[test]
fn unsolicited_upgrade_is_502() {
    let upstream = RawUpstream::start(|_, _| {
        UpstreamAction::Respond(
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: mine\r\n\r\n"
                .to_vec(),
        )
    });
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    let response = client.get("/");
    assert_eq!(response.status, 502, "{response:?}");
}

#[test]
fn connect_method_is_rejected() {
    let upstream = RawUpstream::always_ok();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    client.write("CONNECT elsewhere.example:443 HTTP/1.1\r\nHost: elsewhere.example:443\r\n\r\n");
    let response = client.receive("CONNECT");
    assert!((400..500).contains(&response.status), "{response:?}");
    assert_eq!(upstream.received().len(), 0);
}
