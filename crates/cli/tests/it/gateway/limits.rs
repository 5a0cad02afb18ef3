//! Limits that the gateway enforces before it forwards a request, and its quota headers.

use tidegate_testkit::Upstream;

use super::GatewayServer;
use super::client::request;

const RULES: &str =
    "rules: [{name: api, match: {path: ['/head', '/swallow']}, per: [ip], limit: 2 per 10 days}]";

#[test]
fn denied_request_is_429_with_quota_headers_and_is_not_forwarded() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::with_rules(&upstream.url(), RULES);
    let mut client = gateway.connect();
    for remaining in ["1", "0"] {
        let response = client.get("/head");
        assert_eq!(response.status, 200);
        assert_eq!(response.field("x-ratelimit-limit"), Some("2"));
        assert_eq!(response.field("x-ratelimit-remaining"), Some(remaining));
        assert!(
            response.field("ratelimit").is_some() && response.field("ratelimit-policy").is_some()
        );
        assert_eq!(response.field("retry-after"), None);
    }
    let denied = client.get("/head");
    denied.assert_problem(429);
    assert_eq!(denied.field("x-ratelimit-remaining"), Some("0"));
    assert!(denied.field("retry-after").unwrap().parse::<u64>().unwrap() > 0);
    assert!(denied.field("ratelimit").is_some() && denied.field("ratelimit-policy").is_some());
    assert!(denied.field("x-ratelimit-reset").is_some());
    assert_eq!(upstream.seen("GET /head"), 2);
    // A request without a matching rule gets no quota headers.
    assert_eq!(client.get("/status/200").field("x-ratelimit-limit"), None);
}

#[test]
fn body_of_a_denied_request_is_not_parsed_as_a_request() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::with_rules(&upstream.url(), RULES);
    let mut client = gateway.connect();
    for _ in 0..2 {
        assert_eq!(client.get("/head").status, 200);
    }
    let hidden = request("GET", "/bytes/1", &[], "");
    client.write(request("POST", "/swallow", &[], &hidden));
    client.write(request("GET", "/status/204", &[("Connection", "close")], ""));
    client.receive("POST").assert_problem(429);
    // The next request is answered, unless the gateway closed the connection instead of reading the body.
    assert!(client.try_receive("GET").is_none_or(|response| response.status == 204));
    assert_eq!((upstream.seen("POST"), upstream.seen("GET /bytes")), (0, 0));
}

#[test]
fn limit_holds_across_concurrent_connections() {
    let upstream = Upstream::start();
    let rules = "rules: [{name: api, per: [ip], limit: 50 per 10 days, algorithm: fixed_window}]";
    let gateway = GatewayServer::with_rules(&upstream.url(), rules);
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
fn quota_headers_of_the_upstream_are_kept() {
    let upstream = tidegate_testkit::RawUpstream::start(|_, _| {
        tidegate_testkit::UpstreamAction::Respond(
            b"HTTP/1.1 200 OK\r\nX-RateLimit-Remaining: 77\r\nContent-Length: 0\r\n\r\n".to_vec(),
        )
    });
    let gateway = GatewayServer::with_rules(&upstream.url(), RULES);
    let response = gateway.connect().get("/head");
    // `field` panics if the header occurs twice.
    assert_eq!(response.field("x-ratelimit-remaining"), Some("77"));
    assert_eq!(response.field("x-ratelimit-limit"), None);
}

#[test]
fn upstream_headers_setting_sends_quota_headers_to_the_upstream() {
    let upstream = Upstream::start();
    let received_headers = |config: &str| {
        let rules = "rules: [{name: api, per: [ip], limit: 5 per day}]";
        let gateway = GatewayServer::launch(&["--upstream", &upstream.url()], config, rules);
        let spoofed = [("X-RateLimit-Remaining", "1000"), ("RateLimit", "made up")];
        let head = gateway.connect().send("GET", "/head", &spoofed, "").json();
        let headers = head["headers"].as_array().unwrap().clone();
        let named = |name: &str| {
            let named = headers.iter().filter(|pair| pair[0] == name);
            named.map(|pair| pair[1].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        (named("x-ratelimit-remaining"), named("ratelimit"))
    };
    let (remaining, state) = received_headers("gateway: {upstream_headers: true}");
    assert_eq!(remaining, ["4"]);
    assert!(state[0].starts_with("\"api\";r=4;t="), "{state:?}");
    assert_eq!(state.len(), 1);
    // Without the setting, headers of the client are forwarded unchanged.
    assert_eq!(received_headers(""), (vec!["1000".to_owned()], vec!["made up".to_owned()]));
}
