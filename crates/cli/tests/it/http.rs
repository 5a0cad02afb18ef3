//! `/v1/check` on the HTTP listener: decisions, headers, costs and batches.

use serde_json::{Value, json};

use crate::kit::Server;

/// Limits per 10 days: no token refills during a test.
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

fn field_names(json: &Value) -> Vec<&str> {
    json.as_object().unwrap().keys().map(String::as_str).collect()
}

#[test]
fn allowed_and_denied_checks_carry_rate_limit_headers_and_fields() {
    let server = Server::with_rules(RULES);
    for remaining in (0..5).rev() {
        let response = server.check(r#"{"rule":"api","client":"alice"}"#);
        assert_eq!(response.status, 200);
        assert_eq!(response.header("content-type"), Some("application/json"));
        assert_eq!(response.header("x-ratelimit-remaining"), Some(&*remaining.to_string()));
        assert_eq!(response.header("retry-after"), None);
        let json = response.json();
        assert_eq!(json["allowed"], true);
        assert_eq!(json["limit"], 5);
        assert_eq!(json["remaining"], remaining);
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
fn each_client_has_its_own_bucket() {
    let server = Server::with_rules(RULES);
    let spend = |client| {
        let body = json!({"rule": "api", "client": client, "cost": 5}).to_string();
        server.check(&body).status
    };
    assert_eq!((spend("alice"), spend("alice")), (200, 429));
    assert_eq!((spend("bob"), spend("bob")), (200, 429));
}

#[test]
fn client_field_and_attributes_select_the_same_bucket() {
    let server = Server::with_rules(RULES);
    let remaining = |body: &str| server.check(body).json()["remaining"].clone();
    let by_attribute = r#"{"attributes":{"user":"alice","path":"/v1/orders"}}"#;
    assert_eq!(remaining(r#"{"rule":"api","client":"alice"}"#), 4);
    assert_eq!(remaining(by_attribute), 3);
    assert_eq!(remaining(r#"{"rule":"api","client":{"user":"alice"}}"#), 2);
    assert_eq!(remaining(r#"{"rule":"api","attributes":{"user":"alice"}}"#), 1);
    assert_eq!(remaining(by_attribute), 0);
    // All requests without the attribute share one bucket, in every form of the body.
    assert_eq!(remaining(r#"{"attributes":{"path":"/v1/orders"}}"#), 4);
    assert_eq!(remaining(r#"{"rule":"api","attributes":{"path":"/v1/orders"}}"#), 3);
    assert_eq!(remaining(r#"{"rule":"api","client":""}"#), 2);
}

#[test]
fn rule_by_two_attributes_takes_a_client_object_with_any_alternative() {
    let server = Server::with_rules(RULES);
    let remaining = |body: &str| server.check(body).json()["remaining"].clone();
    assert_eq!(remaining(r#"{"rule":"pair","client":{"user":"a","path":"/pair"}}"#), 1);
    assert_eq!(remaining(r#"{"attributes":{"user":"a","path":"/pair"}}"#), 0);
    assert_eq!(remaining(r#"{"rule":"pair","client":{"api_key":"a","path":"/pair"}}"#), 1);
    assert_eq!(remaining(r#"{"attributes":{"api_key":"a","path":"/pair"}}"#), 0);
    assert_eq!(remaining(r#"{"rule":"pair","client":{"user":"a","path":"/other"}}"#), 1);
}

#[test]
fn rule_without_per_needs_no_client() {
    let server = Server::with_rules(RULES);
    let remaining = |body: &str| server.check(body).json()["remaining"].clone();
    assert_eq!(remaining(r#"{"rule":"anyone"}"#), 2);
    assert_eq!(remaining(r#"{"rule":"anyone","client":"alice"}"#), 1);
    assert_eq!(remaining(r#"{"attributes":{"path":"/login"}}"#), 0);
}

#[test]
fn request_without_an_enforced_rule_is_allowed_without_limit_fields() {
    let server = Server::with_rules(RULES);
    for body in [
        r#"{"attributes":{}}"#,
        r#"{"attributes":{"path":"/elsewhere"},"cost":1000000}"#,
        // A shadow rule neither denies nor adds limit fields.
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
fn zero_cost_only_peeks_and_a_cost_above_the_limit_has_no_retry_after() {
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
        assert!(field_names(&json).contains(&"retryAfter"));
    }
}

#[test]
fn queued_request_gets_its_delay_in_milliseconds() {
    let server = Server::with_rules(RULES);
    let check = || server.check(r#"{"rule":"paced"}"#);
    assert_eq!(check().json().get("delayMillis"), None);
    let delayed = check();
    assert_eq!(delayed.status, 200);
    let delay = delayed.json()["delayMillis"].as_u64().unwrap();
    assert!((863_900_000..=864_000_000).contains(&delay), "{delay}");
    assert_eq!(check().status, 429);
}

#[test]
fn checks_of_a_batch_are_decided_independently() {
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
    let response = server.request("POST", "/v1/check/batch", &body.to_string());
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/json"));
    let json = response.json();
    let decisions = json["decisions"].as_array().unwrap();
    let results: Vec<String> = decisions
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
        results,
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
    let empty = server.request("POST", "/v1/check/batch", r#"{"checks":[]}"#);
    assert_eq!((empty.status, &*empty.body), (200, r#"{"decisions":[]}"#));
}

#[test]
fn health_and_readiness_probes_return_200() {
    let server = Server::with_rules(RULES);
    for path in ["/healthz", "/readyz"] {
        let response = server.request("GET", path, "");
        assert_eq!((response.status, &*response.body), (200, "ok\n"));
        let response = server.request("HEAD", path, "");
        assert_eq!((response.status, response.header("content-length")), (200, Some("3")));
    }
}

#[test]
fn configuration_selects_the_header_style() {
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
fn sequential_and_pipelined_requests_share_a_connection() {
    let server = Server::with_rules(RULES);
    let mut connection = server.connect();
    let body = r#"{"rule":"api","client":"alice"}"#;
    connection.send("POST", "/v1/check", body);
    assert_eq!(connection.receive(false).json()["remaining"], 4);
    for _ in 0..3 {
        connection.send("POST", "/v1/check", body);
    }
    for remaining in [3, 2, 1] {
        assert_eq!(connection.receive(false).json()["remaining"], remaining);
    }
}

#[test]
fn concurrent_connections_never_exceed_the_limit() {
    let server = Server::with_rules(
        "rules: [{name: api, per: [user], limit: 100 per 10 days, algorithm: fixed_window}]",
    );
    let threads: Vec<_> = (0..8)
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
    let admitted: u32 = threads.into_iter().map(|caller| caller.join().unwrap()).sum();
    assert_eq!(admitted, 100);
}
