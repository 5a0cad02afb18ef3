//! What a caller of the HTTP listener is promised.

use serde_json::{Value, json};

use crate::kit::Server;

/// Limits so slow that no test is long enough to see a refill.
const RULES: &str = "
rules:
  - name: api
    match: {path: '/v1/**'}
    per: [user]
    limit: 5 per 10 days
  - name: pair
    match: {path: /pair}
    per: [user | api_key, path]
    limit: 2 per 10 days
  - name: anyone
    match: {path: /login}
    limit: 3 per 10 days
    algorithm: fixed_window
  - name: trial
    match: {path: /trial}
    limit: 1 per 10 days
    mode: shadow
  - name: paced
    match: {path: /paced}
    limit: 1 per 10 days
    algorithm: leaky_bucket
    queue: 1
";

fn members(json: &Value) -> Vec<&str> {
    json.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn the_429_carries_its_headers() {
    let server = Server::with_rules(RULES);
    for left in (0..5).rev() {
        let response = server.check(r#"{"rule":"api","client":"alice"}"#);
        assert_eq!(response.status, 200);
        assert_eq!(response.header("content-type"), Some("application/json"));
        assert_eq!(response.header("x-ratelimit-remaining"), Some(&*left.to_string()));
        assert_eq!(response.header("retry-after"), None);
        let json = response.json();
        assert_eq!(json["allowed"], true);
        assert_eq!(json["limit"], 5);
        assert_eq!(json["remaining"], left);
        assert_eq!(json["retryAfter"], 0);
        assert_eq!(json["rule"], "api");
        assert!(json["resetTime"].as_u64().unwrap() > 1_700_000_000);
    }
    let response = server.check(r#"{"rule":"api","client":"alice"}"#);
    assert_eq!(response.status, 429);
    assert_eq!(response.header("content-type"), Some("application/problem+json"));
    assert_eq!(response.header("x-ratelimit-limit"), Some("5"));
    assert_eq!(response.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(response.header("ratelimit-policy"), Some(r#""api";q=5;w=864000"#));
    let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
    assert!((172_000..=172_800).contains(&wait), "{wait}");
    let state = format!(r#""api";r=0;t={wait}"#);
    assert_eq!(response.header("ratelimit"), Some(&*state));
    let json = response.json();
    assert_eq!(json["status"], 429);
    assert_eq!(json["title"], "Too many requests");
    assert_eq!(json["violated-policies"], json!(["api"]));
    assert_eq!(json["allowed"], false);
    assert_eq!(json["limit"], 5);
    assert_eq!(json["remaining"], 0);
    assert_eq!(json["retryAfter"], wait);
    assert_eq!(json["rule"], "api");
    assert!(json["resetTime"].is_u64());
}

#[test]
fn two_clients_have_two_buckets() {
    let server = Server::with_rules(RULES);
    let spend = |client| {
        let body = json!({"rule": "api", "client": client, "cost": 5}).to_string();
        server.check(&body).status
    };
    assert_eq!((spend("alice"), spend("alice")), (200, 429));
    assert_eq!((spend("bob"), spend("bob")), (200, 429));
}

#[test]
fn a_client_by_name_meets_the_same_bucket_as_one_by_attribute() {
    let server = Server::with_rules(RULES);
    let left = |body: &str| server.check(body).json()["remaining"].clone();
    let by_attribute = r#"{"attributes":{"user":"alice","path":"/v1/orders"}}"#;
    assert_eq!(left(r#"{"rule":"api","client":"alice"}"#), 4);
    assert_eq!(left(by_attribute), 3);
    assert_eq!(left(r#"{"rule":"api","client":{"user":"alice"}}"#), 2);
    assert_eq!(left(r#"{"rule":"api","attributes":{"user":"alice"}}"#), 1);
    assert_eq!(left(by_attribute), 0);
    // Without the attribute: one bucket for all such requests, however they say so.
    assert_eq!(left(r#"{"attributes":{"path":"/v1/orders"}}"#), 4);
    assert_eq!(left(r#"{"rule":"api","attributes":{"path":"/v1/orders"}}"#), 3);
    assert_eq!(left(r#"{"rule":"api","client":""}"#), 2);
}

#[test]
fn a_client_of_several_parts_is_an_object_and_may_name_any_alternative() {
    let server = Server::with_rules(RULES);
    let left = |body: &str| server.check(body).json()["remaining"].clone();
    assert_eq!(left(r#"{"rule":"pair","client":{"user":"a","path":"/pair"}}"#), 1);
    assert_eq!(left(r#"{"attributes":{"user":"a","path":"/pair"}}"#), 0);
    assert_eq!(left(r#"{"rule":"pair","client":{"api_key":"a","path":"/pair"}}"#), 1);
    assert_eq!(left(r#"{"attributes":{"api_key":"a","path":"/pair"}}"#), 0);
    assert_eq!(left(r#"{"rule":"pair","client":{"user":"a","path":"/other"}}"#), 1);
}

#[test]
fn a_rule_with_one_bucket_for_all_needs_no_client() {
    let server = Server::with_rules(RULES);
    let left = |body: &str| server.check(body).json()["remaining"].clone();
    assert_eq!(left(r#"{"rule":"anyone"}"#), 2);
    assert_eq!(left(r#"{"rule":"anyone","client":"alice"}"#), 1);
    assert_eq!(left(r#"{"attributes":{"path":"/login"}}"#), 0);
}

#[test]
fn what_no_rule_limits_is_allowed_without_limit_fields() {
    let server = Server::with_rules(RULES);
    for body in [
        r#"{"attributes":{}}"#,
        r#"{"attributes":{"path":"/elsewhere"},"cost":1000000}"#,
        // A shadow rule denies nobody and tells nobody.
        r#"{"rule":"trial"}"#,
        r#"{"rule":"trial"}"#,
    ] {
        let response = server.check(body);
        assert_eq!((response.status, &*response.body), (200, r#"{"allowed":true}"#), "{body}");
        assert_eq!(response.header("x-ratelimit-limit"), None);
        assert_eq!(response.header("ratelimit"), None);
    }
}

#[test]
fn a_cost_of_zero_looks_and_one_that_never_fits_has_no_retry_after() {
    let server = Server::with_rules(RULES);
    for _ in 0..10 {
        let json = server.check(r#"{"rule":"api","client":"alice","cost":0}"#).json();
        assert_eq!((&json["allowed"], &json["remaining"]), (&json!(true), &json!(5)));
    }
    for cost in [6, u64::MAX] {
        let body = json!({"rule": "api", "client": "alice", "cost": cost}).to_string();
        let response = server.check(&body);
        assert_eq!(response.status, 429);
        assert_eq!(response.header("retry-after"), None);
        let json = response.json();
        assert_eq!((&json["retryAfter"], &json["remaining"]), (&Value::Null, &json!(5)));
        assert!(members(&json).contains(&"retryAfter"));
    }
}

#[test]
fn whoever_has_to_wait_for_its_turn_is_told_how_long() {
    let server = Server::with_rules(RULES);
    let check = || server.check(r#"{"rule":"paced"}"#);
    assert_eq!(check().json().get("delayMillis"), None);
    let waiting = check();
    assert_eq!(waiting.status, 200);
    let delay = waiting.json()["delayMillis"].as_u64().unwrap();
    assert!((863_900_000..=864_000_000).contains(&delay), "{delay}");
    assert_eq!(check().status, 429);
}

#[test]
fn items_of_a_batch_are_independent() {
    let server = Server::with_rules(RULES);
    let body = json!({"checks": [
        {"rule": "api", "client": "alice", "cost": 4},
        {"rule": "api", "client": "alice", "cost": 4},
        {"rule": "api", "client": "alice", "cost": -1},
        {"rule": "nobody", "client": "alice"},
        {"rule": "api"},
        {"rule": "api", "client": "alice", "price": 1},
        17,
        {"attributes": {"path": "/elsewhere"}},
        {"rule": "api", "client": "alice"},
    ]});
    let response = server.ask("POST", "/v1/check/batch", &body.to_string());
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    let json = response.json();
    let decisions = json["decisions"].as_array().unwrap();
    let shown: Vec<String> = decisions
        .iter()
        .map(|item| match item.get("error") {
            Some(error) => {
                let text = |name: &str| error[name].as_str().unwrap().to_owned();
                format!("{}: found {}, wanted {}", text("where"), text("found"), text("wanted"))
            }
            None => format!("{} {}", item["allowed"], item["remaining"]),
        })
        .collect();
    assert_eq!(
        shown,
        [
            "true 1",
            "false 1",
            "checks[2].cost: found -1, wanted a whole number from 0 to 18446744073709551615",
            r#"checks[3].rule: found "nobody", wanted one of api, pair, anyone, trial, paced"#,
            r#"checks[4].client: found nothing, wanted the value of user, by which rule "api" counts"#,
            "checks[5].price: found an unknown field, wanted rule, client, attributes or cost",
            "checks[6]: found 17, wanted an object of rule, client, attributes or cost",
            "true null",
            "true 0",
        ]
    );
    let empty = server.ask("POST", "/v1/check/batch", r#"{"checks":[]}"#);
    assert_eq!((empty.status, &*empty.body), (200, r#"{"decisions":[]}"#));
}

#[test]
fn probes_are_answered() {
    let server = Server::with_rules(RULES);
    for path in ["/healthz", "/readyz"] {
        let response = server.ask("GET", path, "");
        assert_eq!((response.status, &*response.body), (200, "ok\n"));
        let response = server.ask("HEAD", path, "");
        assert_eq!((response.status, response.header("content-length")), (200, Some("3")));
    }
}

#[test]
fn the_style_of_the_headers_is_the_configurations() {
    let server = Server::with_config(
        "
listen: {http: 127.0.0.1:0}
headers: {reset: epoch, ietf: 6}
rules:
  inline:
    - name: api
      per: [user]
      limit: 5 per day
",
    );
    let response = server.check(r#"{"rule":"api","client":"alice"}"#);
    let reset = response.json()["resetTime"].to_string();
    assert_eq!(response.header("x-ratelimit-reset"), Some(&*reset));
    assert_eq!(response.header("ratelimit-remaining"), Some("4"));
    assert_eq!(response.header("ratelimit"), None);
}

#[test]
fn requests_share_a_connection_one_after_another_and_sent_ahead() {
    let server = Server::with_rules(RULES);
    let mut connection = server.connect();
    let body = r#"{"rule":"api","client":"alice"}"#;
    connection.send("POST", "/v1/check", body);
    assert_eq!(connection.receive(false).json()["remaining"], 4);
    for _ in 0..3 {
        connection.send("POST", "/v1/check", body);
    }
    for left in [3, 2, 1] {
        assert_eq!(connection.receive(false).json()["remaining"], left);
    }
}

#[test]
fn concurrent_clients_never_exceed_the_limit() {
    let server = Server::with_rules(
        "rules: [{name: api, per: [user], limit: 100 per 10 days, algorithm: fixed_window}]",
    );
    let callers: Vec<_> = (0..8)
        .map(|caller| {
            let mut connection = server.connect();
            std::thread::spawn(move || {
                let by_name = r#"{"rule":"api","client":"alice"}"#;
                let by_attribute = r#"{"attributes":{"user":"alice"}}"#;
                let body = if caller % 2 == 0 { by_name } else { by_attribute };
                let mut admitted = 0;
                for _ in 0..50 {
                    connection.send("POST", "/v1/check", body);
                    match connection.receive(false).status {
                        200 => admitted += 1,
                        status => assert_eq!(status, 429),
                    }
                }
                admitted
            })
        })
        .collect();
    let admitted: u32 = callers.into_iter().map(|caller| caller.join().unwrap()).sum();
    assert_eq!(admitted, 100);
}
