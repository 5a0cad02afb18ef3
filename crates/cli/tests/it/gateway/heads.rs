//! What each side sees of the other's heads.

use serde_json::Value;
use tidegate_testkit::{RawUpstream, Upstream, UpstreamAction};

use super::Gateway;
use super::client::Answer;

/// The values of a field that the upstream was sent.
fn sent(answer: &Answer, name: &str) -> Vec<String> {
    let head = answer.json();
    let fields = head["headers"].as_array().unwrap().iter();
    let named = fields.filter(|field| field[0] == name);
    named.map(|field| field[1].as_str().unwrap().to_owned()).collect()
}

#[test]
fn an_upstream_sees_the_request_as_it_was_made() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let fields = [("Accept", "text/*"), ("Cookie", "a=b"), ("Cookie", "c=d"), ("X-Empty", "")];
    let answer = gateway.connect().ask("PATCH", "/head?q=1&r=%2f", &fields, "body");
    let head = answer.json();
    assert_eq!(
        (&head["method"], &head["target"]),
        (&Value::from("PATCH"), &"/head?q=1&r=%2f".into())
    );
    assert_eq!(sent(&answer, "host"), ["shop.example"]);
    assert_eq!(sent(&answer, "accept"), ["text/*"]);
    assert_eq!(sent(&answer, "cookie"), ["a=b", "c=d"]);
    assert_eq!(sent(&answer, "x-empty"), [""]);
    assert_eq!(sent(&answer, "content-length"), ["4"]);
}

#[test]
fn what_is_about_one_connection_is_passed_on_in_neither_direction() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
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
    let answer = gateway.connect().ask("GET", "/head", &fields, "");
    for (name, _) in fields.iter().filter(|(name, _)| *name != "X-Public") {
        assert_eq!(sent(&answer, &name.to_ascii_lowercase()), [""; 0], "{name}");
    }
    assert_eq!(sent(&answer, "x-public"), ["1"]);

    let upstream = RawUpstream::start(|_, _| {
        UpstreamAction::Respond(
            b"HTTP/1.1 200 OK\r\nConnection: x-private, keep-alive\r\nX-Private: 1\r\nKeep-Alive: timeout=5\r\n\
              Proxy-Authenticate: Basic\r\nUpgrade: mine\r\nX-Public: 1\r\nContent-Length: 2\r\n\r\nok"
                .to_vec(),
        )
    });
    let gateway = Gateway::before(&upstream.url());
    let answer = gateway.connect().get("/");
    for name in ["x-private", "keep-alive", "proxy-authenticate", "upgrade"] {
        assert_eq!(answer.field(name), None, "{answer:?}");
    }
    assert_eq!((answer.field("x-public"), answer.text()), (Some("1"), "ok"));
}

const LIES: [(&str, &str); 5] = [
    ("X-Forwarded-For", "6.6.6.6"),
    ("X-Forwarded-Proto", "https"),
    ("X-Forwarded-Host", "evil.example"),
    ("Forwarded", "for=6.6.6.6;proto=https"),
    ("X-Forwarded-For", "7.7.7.7"),
];

#[test]
fn who_came_and_how_is_told_whatever_the_client_says() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let answer = gateway.connect().ask("GET", "/head", &LIES, "");
    assert_eq!(sent(&answer, "x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(sent(&answer, "x-forwarded-proto"), ["http"]);
    assert_eq!(sent(&answer, "x-forwarded-host"), ["shop.example"]);
    let forwarded = sent(&answer, "forwarded");
    assert_eq!(forwarded.len(), 1);
    assert!(forwarded[0].contains("for=127.0.0.1") && forwarded[0].contains("proto=http"));
    assert!(!forwarded[0].contains("6.6.6.6"), "{forwarded:?}");
}

#[test]
fn what_a_trusted_proxy_says_of_who_came_before_is_kept() {
    let upstream = Upstream::start();
    let config = "identity: {trusted_proxies: [127.0.0.0/8]}";
    let gateway = Gateway::with_config(&upstream.url(), config);
    let answer = gateway.connect().ask("GET", "/head", &LIES, "");
    let chain = sent(&answer, "x-forwarded-for").join(", ");
    assert_eq!(chain, "6.6.6.6, 7.7.7.7, 127.0.0.1");
    assert_eq!(sent(&answer, "x-forwarded-proto"), ["https"]);
    let forwarded = sent(&answer, "forwarded").join(", ");
    assert!(forwarded.starts_with("for=6.6.6.6;proto=https, for=127.0.0.1"), "{forwarded}");
}

#[test]
fn a_request_must_say_once_whom_it_is_for() {
    let upstream = RawUpstream::start(|_, _| UpstreamAction::ok("ok"));
    let gateway = Gateway::before(&upstream.url());
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
fn a_head_that_is_too_long_is_431() {
    let upstream = Upstream::start();
    let gateway = Gateway::before(&upstream.url());
    let mut client = gateway.connect();
    let long = "x".repeat(200_000);
    // It may hang up before it has read all of this.
    let _ = client.try_write(format!("GET /head HTTP/1.1\r\nHost: a\r\nX-Long: {long}\r\n\r\n"));
    assert_eq!(client.receive("GET").status, 431);
    assert_eq!(upstream.seen("GET"), 0);
}
