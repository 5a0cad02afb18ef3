//! Live state of a server: `/v1/live`, `/v1/fleet` and the dashboard page.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use tidegate_testkit::{Flavour, Redis, Tool, Upstream, lacking, wait_for};

use crate::kit::{Connection, Server};

const RULES: &str = "
rules:
  - {name: api, match: {path: /api}, per: [user], limit: 3 per 10 days}
  - {name: idle, match: {path: /idle}, limit: 1 per 10 days}
";

const TOKEN: &str = "0123456789abcdef";

fn server_with_token() -> Server {
    Server::with_config(&format!(
        "listen: {{http: 127.0.0.1:0}}\nadmin: {{token: {TOKEN}}}\nrules: {{inline: [{{name: api, limit: 1/s}}]}}\n"
    ))
}

fn get_json(server: &Server, path: &str) -> Value {
    let response = server.request_admin("GET", path, "");
    assert_eq!(response.status, 200, "{path}: {response:?}");
    assert_eq!(response.header("cache-control"), Some("no-store"), "{path}");
    response.json()
}

/// Returns the sum of a counter over all seconds.
fn sum_over_seconds(live: &Value, name: &str) -> u64 {
    let seconds = live["seconds"].as_array().unwrap();
    seconds.iter().map(|second| second[name].as_u64().unwrap()).sum()
}

/// Waits until `/v1/live` has counted this many checks, and returns it.
fn wait_for_checks(server: &Server, checks: u64) -> Value {
    wait_for("all checks are counted", || {
        let live = get_json(server, "/v1/live");
        let names = ["allowed", "denied", "blocked", "unavailable", "invalid"];
        let counted: u64 = names.iter().map(|name| sum_over_seconds(&live, name)).sum();
        (counted == checks).then_some(live)
    })
}

#[test]
fn every_check_is_counted_in_one_second() {
    let server = Server::with_rules(RULES);
    for _ in 0..5 {
        server.check(r#"{"rule":"api","client":"alice"}"#);
    }
    server.check(r#"{"rule":"nothing","client":"alice"}"#);
    server.request_admin(
        "POST",
        "/v1/block",
        r#"{"attribute":"user","value":"mallory","for":"1h"}"#,
    );
    server.check(r#"{"attributes":{"path":"/api","user":"mallory"}}"#);
    let live = wait_for_checks(&server, 7);
    let names = ["allowed", "denied", "blocked", "invalid", "unavailable", "failedOpen"];
    assert_eq!(names.map(|name| sum_over_seconds(&live, name)), [3, 2, 1, 1, 0, 0], "{live}");
    let seconds = live["seconds"].as_array().unwrap();
    assert!(seconds.is_sorted_by_key(|second| second["at"].as_u64()), "{live}");
    for second in seconds {
        let checks = names[..3].iter().map(|name| second[*name].as_u64().unwrap()).sum::<u64>();
        assert_eq!(checks > 0, second["p50Micros"].is_u64(), "{second}");
        assert!(second["p50Micros"].as_u64() <= second["p99Micros"].as_u64(), "{second}");
    }
    assert_eq!((&live["ready"], &live["store"]), (&json!(true), &json!("memory")));
    assert_eq!((&live["rulesVersion"], &live["blocked"]), (&json!(1), &json!(1)));
    assert_eq!(live["release"], env!("CARGO_PKG_VERSION"));
    assert_eq!(live["rulesHash"], get_json(&server, "/v1/rules")["hash"]);
    assert!(live["started"].as_u64() <= live["at"].as_u64());
    let rules = live["rules"].as_array().unwrap();
    let named: Vec<&str> = rules.iter().map(|rule| rule["rule"].as_str().unwrap()).collect();
    assert_eq!(named, ["api", "idle", "(operator)"]);
    let total = json!({"allowed": 3, "denied": 2, "shadowAllowed": 0, "shadowDenied": 0,
        "failedOpen": 0, "failedClosed": 0, "blocked": 0});
    assert_eq!(rules[0]["total"], total);
    assert!(rules[0]["perSecond"]["allowed"].as_f64().unwrap() > 0.0, "{live}");
    assert_eq!(rules[1]["perSecond"]["allowed"], json!(0.0));
}

#[test]
fn since_returns_only_later_seconds() {
    let server = Server::with_rules(RULES);
    let live = wait_for("two seconds are over", || {
        let live = get_json(&server, "/v1/live");
        (live["seconds"].as_array().unwrap().len() > 1).then_some(live)
    });
    let first = live["seconds"][0]["at"].as_u64().unwrap();
    let later = get_json(&server, &format!("/v1/live?since={first}"));
    assert!(later["seconds"][0]["at"].as_u64().unwrap() > first, "{later}");
    let no_seconds = get_json(&server, &format!("/v1/live?since={}", u64::MAX));
    assert_eq!(no_seconds["seconds"], json!([]));
    for query in ["since=yesterday", "since=-1", "since=", "until=1"] {
        let response = server.request_admin("GET", &format!("/v1/live?{query}"), "");
        assert_eq!(response.status, 400, "{query}: {response:?}");
    }
}

#[test]
fn fleet_reports_store_listeners_and_process_of_the_node() {
    let server = Server::with_rules(RULES);
    server.check(r#"{"rule":"api","client":"alice"}"#);
    let fleet = get_json(&server, "/v1/fleet");
    assert_eq!((&fleet["latest"], &fleet["unknown"]), (&json!(1), &Value::Null));
    let status = get_json(&server, "/v1/rules/status");
    for name in ["node", "source", "version", "hash", "behind", "problem"] {
        assert_eq!(fleet["nodes"][0][name], status["nodes"][0][name], "{name}");
    }
    assert_eq!(fleet["nodes"][0]["node"], fleet["node"]);
    assert_eq!((&fleet["store"]["kind"], &fleet["store"]["keys"]), (&json!("memory"), &json!(1)));
    let listeners = fleet["listeners"].as_array().unwrap();
    let named: Vec<&str> =
        listeners.iter().map(|listener| listener["listener"].as_str().unwrap()).collect();
    assert_eq!(named, ["http", "grpc", "resp", "admin"]);
    assert_eq!(listeners[0]["accepted"], 1);
    // Depends on the limit of open files.
    assert!((1..=10_000).contains(&listeners[0]["most"].as_u64().unwrap()), "{fleet}");
    assert_eq!(fleet["upstreams"], json!([]));
    for name in ["residentBytes", "threads", "openFiles"] {
        assert!(fleet["process"][name].as_u64().unwrap() > 0, "{fleet}");
    }
}

#[test]
fn fleet_reports_upstream_responses_of_the_gateway() {
    let upstream = Upstream::start();
    let arguments = ["--http", "127.0.0.1:0", "--gateway", "127.0.0.1:0", "--upstream"];
    let server = Server::with_arguments(&[&arguments[..], &[&upstream.url()]].concat());
    let mut connection =
        Connection::connect_from(Ipv4Addr::LOCALHOST.into(), server.listener("gateway")).unwrap();
    connection.send("GET", "/head", "");
    assert_eq!(connection.receive(false).status, 200);
    let fleet = wait_for("the request is over", || {
        let fleet = get_json(&server, "/v1/fleet");
        (fleet["upstreams"][0]["inFlight"] == 0).then_some(fleet)
    });
    let reported = &fleet["upstreams"][0];
    assert_eq!(reported["most"], Value::Null);
    assert_eq!(
        (&reported["outcomes"]["2xx"], &reported["outcomes"]["5xx"]),
        (&json!(1), &json!(0))
    );
    assert_eq!(reported["servers"], json!([{"server": upstream.url(), "up": true}]));
}

#[test]
fn fleet_reports_health_and_latency_of_each_redis_server() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let redis = Redis::start();
    let url = format!("redis://{}?timeout=1s", redis.address());
    let server = Server::with_arguments(&["--http", "127.0.0.1:0", "--redis", &url]);
    for _ in 0..5 {
        server.check(r#"{"rule":"per-key","client":"alice"}"#);
    }
    let fleet = wait_for("latency and memory of Redis are sampled", || {
        let fleet = get_json(&server, "/v1/fleet");
        let redis_server = &fleet["store"]["servers"][0];
        (redis_server["p50Micros"].is_u64() && redis_server["memory"].is_u64()).then_some(fleet)
    });
    let store = &fleet["store"];
    assert_eq!((&store["kind"], &store["fleet"]), (&json!("redis"), &json!(1)));
    let redis_server = &store["servers"][0];
    assert_eq!(redis_server["server"], redis.address());
    assert_eq!((&redis_server["up"], &redis_server["opened"]), (&json!(true), &json!(0)));
    assert!(
        redis_server["p50Micros"].as_u64() <= redis_server["p99Micros"].as_u64(),
        "{redis_server}"
    );
    assert_eq!(get_json(&server, "/v1/live")["store"], "redis");
    redis.kill();
    let outage = wait_for("the breaker is open", || {
        server.check(r#"{"rule":"per-key","client":"alice"}"#);
        let fleet = get_json(&server, "/v1/fleet");
        (fleet["store"]["servers"][0]["up"] == false).then_some(fleet)
    });
    assert!(outage["store"]["servers"][0]["opened"].as_u64().unwrap() > 0, "{outage}");
    wait_for("requests allowed without the store are counted", || {
        (sum_over_seconds(&get_json(&server, "/v1/live"), "failedOpen") > 0).then_some(())
    });
}

#[test]
fn dashboard_page_needs_no_token_but_its_data_does() {
    let server = server_with_token();
    for method in ["GET", "HEAD"] {
        let page = server.request_admin(method, "/", "");
        assert_eq!(page.status, 200, "{page:?}");
        assert_eq!(page.header("content-type"), Some("text/html; charset=utf-8"));
        assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
        assert_eq!(page.header("cache-control"), Some("no-store"));
        let policy = page.header("content-security-policy").unwrap();
        for part in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            assert!(policy.contains(part), "{policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
    }
    let paths =
        ["/v1/live", "/v1/fleet", "/metrics", "/nothing.js", "/../openapi.json", "/v1/live/x.js"];
    for path in paths {
        assert_eq!(server.request_admin("GET", path, "").status, 401, "{path}");
    }
    let bearer = format!("Bearer {TOKEN}");
    let token = [("authorization", bearer.as_str())];
    for path in ["/v1/live", "/v1/fleet", "/"] {
        assert_eq!(server.request_admin_with("GET", path, &token, "").status, 200, "{path}");
        assert_eq!(server.request_admin_with("POST", path, &token, "").status, 405, "{path}");
    }
    assert_eq!(server.request_admin_with("GET", "/nothing.js", &token, "").status, 404);
}

#[test]
fn requests_from_other_origins_and_unknown_hosts_are_rejected() {
    let server = server_with_token();
    let other_origin = [("origin", "http://evil.example")];
    assert_eq!(server.request_admin_with("GET", "/", &other_origin, "").status, 403);
    // Without a token, the host must also be a known name.
    let server = Server::with_rules(RULES);
    let mut connection = server.connect_admin();
    connection.write(b"GET / HTTP/1.1\r\nhost: evil.example\r\n\r\n");
    assert_eq!(connection.receive(false).status, 403);
}

#[test]
fn start_prints_the_dashboard_url() {
    let server = Server::with_rules(RULES);
    let line = server.wait_for_log("dashboard");
    assert_eq!(line, format!("dashboard on http://{}/", server.listener("admin")));
}
