//! Limits, before anything is forwarded.

use tidegate_testkit::Upstream;

use super::Gateway;
use super::client::request;

const RULES: &str =
    "rules: [{name: api, match: {path: ['/head', '/swallow']}, per: [ip], limit: 2 per 10 days}]";

#[test]
fn a_denied_request_gets_a_problem_with_all_headers_and_reaches_nobody() {
    let upstream = Upstream::start();
    let gateway = Gateway::with_rules(&upstream.url(), RULES);
    let mut client = gateway.connect();
    for left in ["1", "0"] {
        let answer = client.get("/head");
        assert_eq!(answer.status, 200);
        assert_eq!(answer.field("x-ratelimit-limit"), Some("2"));
        assert_eq!(answer.field("x-ratelimit-remaining"), Some(left));
        assert!(answer.field("ratelimit").is_some() && answer.field("ratelimit-policy").is_some());
        assert_eq!(answer.field("retry-after"), None);
    }
    let denied = client.get("/head");
    denied.assert_problem(429);
    assert_eq!(denied.field("x-ratelimit-remaining"), Some("0"));
    assert!(denied.field("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    assert!(denied.field("ratelimit").is_some() && denied.field("ratelimit-policy").is_some());
    assert!(denied.field("x-ratelimit-reset").is_some());
    assert_eq!(upstream.seen("GET /head"), 2);
    // What no rule limits has no headers of ours.
    assert_eq!(client.get("/status/200").field("x-ratelimit-limit"), None);
}

#[test]
fn what_a_denied_request_brings_is_not_taken_for_another_one() {
    let upstream = Upstream::start();
    let gateway = Gateway::with_rules(&upstream.url(), RULES);
    let mut client = gateway.connect();
    for _ in 0..2 {
        assert_eq!(client.get("/head").status, 200);
    }
    let hidden = request("GET", "/bytes/1", &[], "");
    client.write(request("POST", "/swallow", &[], &hidden));
    client.write(request("GET", "/status/204", &[("Connection", "close")], ""));
    client.receive("POST").assert_problem(429);
    // The next one is answered, unless the body was the end of the connection.
    assert!(client.try_receive("GET").is_none_or(|answer| answer.status == 204));
    assert_eq!((upstream.seen("POST"), upstream.seen("GET /bytes")), (0, 0));
}

#[test]
fn limits_hold_across_connections_and_versions() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: api, per: [ip], limit: 50 per 10 days, algorithm: fixed_window}]";
    let gateway = Gateway::with_rules(&upstream.url(), rules);
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let mut client = gateway.connect();
            std::thread::spawn(move || {
                (0..20).filter(|_| client.get("/status/200").status == 200).count()
            })
        })
        .collect();
    let admitted: usize = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
    assert_eq!((admitted, upstream.seen("GET")), (50, 50));
}

#[test]
fn an_upstreams_own_rate_limit_headers_do_not_double_ours() {
    let upstream = tidegate_testkit::RawUpstream::start(|_, _| {
        tidegate_testkit::Turn::Answer(
            b"HTTP/1.1 200 OK\r\nX-RateLimit-Remaining: 77\r\nContent-Length: 0\r\n\r\n".to_vec(),
        )
    });
    let gateway = Gateway::with_rules(&upstream.url(), RULES);
    // `field` would panic at a second value.
    assert_eq!(gateway.connect().get("/head").field("x-ratelimit-remaining"), Some("1"));
}
