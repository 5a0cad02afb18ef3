//! Request and response headers that the gateway forwards, removes, replaces or rejects.

use serde_json::Value;
use tidegate_testkit::{RawUpstream, Upstream, UpstreamAction};

use super::GatewayServer;
use super::client::HttpResponse;

/// Returns the values of a request field as the upstream received it.
fn upstream_field(response: &HttpResponse, name: &str) -> Vec<String> {
    let head = response.json();
    let fields = head["headers"].as_array().unwrap().iter();
    let named = fields.filter(|field| field[0] == name);
    named.map(|field| field[1].as_str().unwrap().to_owned()).collect()
}

#[test]
fn method_target_and_headers_reach_the_upstream() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let fields = [("Accept", "text/*"), ("Cookie", "a=b"), ("Cookie", "c=d"), ("X-Empty", "")];
    let response = gateway.connect().send("PATCH", "/head?q=1&r=%2f", &fields, "body");
    let head = response.json();
    assert_eq!(
        (&head["method"], &head["target"]),
        (&Value::from("PATCH"), &"/head?q=1&r=%2f".into())
    );
    assert_eq!(upstream_field(&response, "host"), ["shop.example"]);
    assert_eq!(upstream_field(&response, "accept"), ["text/*"]);
    assert_eq!(upstream_field(&response, "cookie"), ["a=b; c=d"]);
    assert_eq!(upstream_field(&response, "x-empty"), [""]);
    assert_eq!(upstream_field(&response, "content-length"), ["4"]);
}

#[test]
fn hop_by_hop_headers_are_removed_in_both_directions() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let fields = [
        ("Connection", "X-Private, keep-alive"),
        ("X-Private", "1"),
        ("Keep-Alive", "timeout=5"),
        ("Proxy-Connection", "keep-alive"),
        ("Proxy-Authorization", "Basic c2VjcmV0"),
        ("TE", "gzip"),
        ("Upgrade", "mine"),
        ("X-Public", "1"),
    ];
    let response = gateway.connect().send("GET", "/head", &fields, "");
    for (name, _) in fields.iter().filter(|(name, _)| *name != "X-Public") {
        assert_eq!(upstream_field(&response, &name.to_ascii_lowercase()), [""; 0], "{name}");
    }
    assert_eq!(upstream_field(&response, "x-public"), ["1"]);

    let upstream = RawUpstream::start(|_, _| {
        UpstreamAction::Respond(
            b"HTTP/1.1 200 OK\r\nConnection: x-private, keep-alive\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n\
              Proxy-Authenticate: Basic\r\nUpgrade: mine\r\nX-Public: 1\r\nContent-Length: 2\r\n\r\nok"
                .to_vec(),
        )
    });
    let gateway = GatewayServer::forward_to(&upstream.url());
    let response = gateway.connect().get("/");
    for name in ["x-private", "keep-alive", "proxy-authenticate", "upgrade"] {
        assert_eq!(response.field(name), None, "{response:?}");
    }
    assert_eq!((response.field("x-public"), response.text()), (Some("1"), "ok"));
}

/// Forwarding headers with false values.
const SPOOFED_HEADERS: [(&str, &str); 5] = [
    ("X-Forwarded-For", "6.6.6.6"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Host", "evil.example"),
    ("Forwarded", "for=6.6.6.6;proto=https"),
    ("X-Forwarded-For", "7.7.7.7"),
];

#[test]
fn forwarded_headers_of_untrusted_clients_are_replaced() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let response = gateway.connect().send("GET", "/head", &SPOOFED_HEADERS, "");
    assert_eq!(upstream_field(&response, "x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(upstream_field(&response, "x-forwarded-proto"), ["http"]);
    assert_eq!(upstream_field(&response, "x-forwarded-host"), ["shop.example"]);
    let forwarded = upstream_field(&response, "forwarded");
    assert_eq!(forwarded.len(), 1);
    assert!(forwarded[0].contains("for=127.0.0.1") && forwarded[0].contains("proto=http"));
    assert!(!forwarded[0].contains("6.6.6.6"), "{forwarded:?}");
}

#[test]
fn forwarded_headers_of_trusted_proxies_are_extended() {
    let upstream = Upstream::start();
    let config = "identity: {trusted_proxies: [127.0.0.0/8]}";
    let gateway = GatewayServer::with_config(&upstream.url(), config);
    let response = gateway.connect().send("GET", "/head", &SPOOFED_HEADERS, "");
    let chain = upstream_field(&response, "x-forwarded-for").join(", ");
    assert_eq!(chain, "6.6.6.6, 7.7.7.7, 127.0.0.1");
    assert_eq!(upstream_field(&response, "x-forwarded-proto"), ["https"]);
    let forwarded = upstream_field(&response, "forwarded").join(", ");
    assert!(forwarded.starts_with("for=6.6.6.6;proto=https, for=127.0.0.1"), "{forwarded}");
}

#[test]
fn request_must_have_exactly_one_valid_host() {
    let upstream = RawUpstream::start(|_, _| UpstreamAction::ok("ok"));
    let gateway = GatewayServer::forward_to(&upstream.url());
    for hosts in
        ["", "Host: a\r\nHost: a\r\n", "Host: a\r\nHost: b\r\n", "Host: a/b\r\n", "Host: a, b\r\n"]
    {
        let mut client = gateway.connect();
        client.write(format!("GET / HTTP/1.1\r\n{hosts}\r\n"));
        client.receive("GET").assert_problem(400);
    }
    let mut client = gateway.connect();
    client.write("GET http://real.example/path HTTP/1.1\r\nHost: other.example\r\n\r\n");
    assert_eq!(client.receive("GET").status, 200);
    let received = upstream.received();
    assert_eq!(received.len(), 1);
    assert_eq!(received[0].line(), "GET /path HTTP/1.1");
    assert_eq!(received[0].fields("host"), ["real.example"]);
    assert_eq!(upstream.faults(), [""; 0]);
}

#[test]
fn oversized_request_head_is_431() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::forward_to(&upstream.url());
    let mut client = gateway.connect();
    let long = "x".repeat(200_000);
    // The gateway may close the connection before it has read everything.
    let _ = client.try_write(format!("GET /head HTTP/1.1\r\nHost: a\r\nX-Long: {long}\r\n\r\n"));
    assert_eq!(client.receive("GET").status, 431);
    assert_eq!(upstream.seen("GET"), 0);
}
