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
fn an_upstream_that_says_how_the_client_stands_is_not_contradicted() {
    let upstream = tidegate_testkit::RawUpstream::start(|_, _| {
        tidegate_testkit::UpstreamAction::Respond(
            b"HTTP/1.1 200 OK\r\nX-RateLimit-Remaining: 77\r\nContent-Length: 0\r\n\r\n".to_vec(),
        )
    });
    let gateway = Gateway::with_rules(&upstream.url(), RULES);
    let answer = gateway.connect().get("/head");
    // `field` would panic at a second value.
    assert_eq!(answer.field("x-ratelimit-remaining"), Some("77"));
    assert_eq!(answer.field("x-ratelimit-limit"), None);
}

#[test]
fn an_upstream_is_told_how_the_client_stands_if_it_wants_to_know() {
    let upstream = Upstream::start();
    let told = |config: &str| {
        let rules = "rules: [{name: api, per: [ip], limit: 5 per day}]";
        let gateway = Gateway::launch(&["--upstream", &upstream.url()], config, rules);
        let made_up = [("X-RateLimit-Remaining", "1000"), ("RateLimit", "made up")];
        let head = gateway.connect().ask("GET", "/head", &made_up, "").json();
        let headers = head["headers"].as_array().unwrap().clone();
        let named = |name: &str| {
            let named = headers.iter().filter(|pair| pair[0] == name);
            named.map(|pair| pair[1].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        (named("x-ratelimit-remaining"), named("ratelimit"))
    };
    let (remaining, state) = told("gateway: {upstream_headers: true}");
    assert_eq!(remaining, ["4"]);
    assert!(state[0].starts_with("\"api\";r=4;t="), "{state:?}");
    assert_eq!(state.len(), 1);
    // Else it is not ours to judge what they mean.
    assert_eq!(told(""), (vec!["1000".to_owned()], vec!["made up".to_owned()]));
}
