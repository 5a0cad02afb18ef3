//! The document that describes the doors says what they do.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};

use crate::kit::{Response, Server};

const RULES: &str = "
rules:
  - name: api
    match: {path: '/v1/**'}
    per: [user]
    limit: 2 per 10 days
  - name: paced
    match: {path: /paced}
    limit: 1 per 10 days
    algorithm: leaky_bucket
    queue: 1
  - name: exports
    match: {path: /exports}
    per: [user]
    limit: 1 in flight
    hold: 1h
";

/// Which door a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Door {
    Http,
    Admin,
}

impl Door {
    fn tag(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Admin => "admin",
        }
    }

    fn ask(self, server: &Server, method: &str, path: &str, body: &str) -> Response {
        match self {
            Self::Http => server.ask(method, path, body),
            Self::Admin => server.manage(method, path, body),
        }
    }
}

fn document(server: &Server) -> Value {
    let response = server.ask("GET", "/openapi.json", "");
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/vnd.oai.openapi+json"));
    response.json()
}

/// The methods of every path of a door.
fn operations(document: &Value, door: Door) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if operation["tags"] == json!([door.tag()]) {
                found.push((path.clone(), method.to_ascii_uppercase()));
            }
        }
    }
    found
}

#[test]
fn every_path_that_a_door_answers_is_in_the_document_and_no_other() {
    let server = Server::with_rules(RULES);
    let document = document(&server);
    for door in [Door::Http, Door::Admin] {
        let lost = door.ask(&server, "GET", "/nothing", "").json();
        let wanted = lost["detail"].as_str().unwrap().split_once("wanted ").unwrap().1;
        let words = wanted.split([' ', ',']);
        let answered: BTreeSet<&str> = words.filter(|word| word.starts_with('/')).collect();
        let operations = operations(&document, door);
        let described: BTreeSet<&str> =
            operations.iter().map(|(path, _)| path.split("/{").next().unwrap()).collect();
        assert_eq!(answered, described, "{door:?}");
    }
}

#[test]
fn every_method_in_the_document_is_answered() {
    let server = Server::with_rules(RULES);
    let document = document(&server);
    for door in [Door::Http, Door::Admin] {
        for (path, method) in operations(&document, door) {
            let path = path.replace(['{', '}'], "");
            let response = door.ask(&server, &method, &path, "");
            assert_ne!(response.status, 405, "{method} {path}");
            assert!(!response.body.contains("path: found"), "{method} {path}");
        }
    }
}

/// Fails unless the document has this answer, with a body of this shape.
fn assert_described(document: &Value, method: &str, path: &str, response: &Response) {
    let operation = &document["paths"][path][method.to_ascii_lowercase()];
    let described = &operation["responses"][response.status.to_string()];
    assert!(described.is_object(), "{method} {path} {}: {}", response.status, response.body);
    for name in described["headers"].as_object().into_iter().flat_map(|headers| headers.keys()) {
        let pointer = format!("/components/headers/{name}");
        assert!(document.pointer(&pointer).is_some(), "{name}");
    }
    let kind = response.header("content-type").unwrap();
    let content = &described["content"][kind];
    assert!(content.is_object(), "{method} {path} {}: {kind}", response.status);
    if !kind.ends_with("json") {
        return;
    }
    let mut schema = content["schema"].clone();
    schema["components"] = document["components"].clone();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(&response.json()).map(|error| error.to_string()).collect();
    assert_eq!(errors, [""; 0], "{method} {path}: {}", response.body);
}

#[test]
fn answers_to_checks_are_as_the_document_says() {
    let server = Server::with_rules(RULES);
    let document = document(&server);
    let long = "x".repeat(65 * 1024);
    let calls = [
        (200, r#"{"rule":"api","client":"alice"}"#),
        (200, r#"{"rule":"api","client":{"user":"alice"}}"#),
        (429, r#"{"rule":"api","client":"alice"}"#),
        (429, r#"{"rule":"api","client":"bob","cost":3}"#),
        (200, r#"{"attributes":{"path":"/elsewhere"}}"#),
        (200, r#"{"attributes":{"path":"/paced"}}"#),
        (200, r#"{"attributes":{"path":"/paced"}}"#),
        (400, r#"{"attributes":[]}"#),
        (400, "nonsense"),
        (404, r#"{"rule":"missing","client":"a"}"#),
        (413, &long),
    ];
    for (status, body) in calls {
        let response = server.check(body);
        assert_eq!(response.status, status, "{response:?}");
        assert_described(&document, "POST", "/v1/check", &response);
    }
    let batch = r#"{"checks":[{"rule":"api","client":"carol"},{"rule":"missing"},{"cost":-1}]}"#;
    let envoy = r#"{"domain":"d","descriptors":[{"entries":[{"key":"user","value":"a"}]}]}"#;
    for body in [envoy, r#"{"domain":"d"}"#, "nonsense"] {
        let response = server.ask("POST", "/json", body);
        assert_described(&document, "POST", "/json", &response);
    }
    for body in [batch, r#"{"checks":1}"#] {
        let response = server.ask("POST", "/v1/check/batch", body);
        assert_described(&document, "POST", "/v1/check/batch", &response);
    }
}

#[test]
fn answers_about_slots_are_as_the_document_says() {
    let server = Server::with_rules(RULES);
    let document = document(&server);
    let mut slot = Value::Null;
    for (status, body) in [
        (200, r#"{"rule":"exports","client":"alice"}"#),
        (429, r#"{"rule":"exports","client":"alice"}"#),
        (200, r#"{"rule":"api","client":"alice"}"#),
        (404, r#"{"rule":"missing","client":"alice"}"#),
        (400, "nonsense"),
    ] {
        let response = server.ask("POST", "/v1/acquire", body);
        assert_eq!(response.status, status, "{response:?}");
        assert_described(&document, "POST", "/v1/acquire", &response);
        if slot.is_null() {
            slot = response.json()["slot"].clone();
        }
    }
    for (path, status, slot) in [
        ("/v1/renew", 200, &slot),
        ("/v1/release", 200, &slot),
        ("/v1/release", 200, &slot),
        ("/v1/renew", 410, &slot),
        ("/v1/renew", 400, &json!("no slot")),
        ("/v1/release", 400, &json!(1)),
    ] {
        let response = server.ask("POST", path, &json!({"slot": slot}).to_string());
        assert_eq!(response.status, status, "{response:?}");
        assert_described(&document, "POST", path, &response);
    }
}

#[test]
fn requests_that_are_understood_are_those_in_the_document() {
    let server = Server::with_rules(RULES);
    let document = document(&server);
    let mut schema = json!({"$ref": "#/components/schemas/Check"});
    schema["components"] = document["components"].clone();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let checks = [
        json!({"rule": "api", "client": "alice"}),
        json!({"rule": "api", "client": {"user": "alice"}, "cost": 0}),
        json!({"attributes": {"user": "alice"}, "rule": null, "cost": null}),
        json!({"attributes": {}}),
        json!({"client": "alice"}),
        json!({"rule": "api", "client": 1}),
        json!({"attributes": {"user": 1}}),
        json!({"attributes": {"user": "alice"}, "cost": -1}),
        json!({"attributes": {"user": "alice"}, "more": 1}),
        json!({}),
        json!([]),
    ];
    for check in checks {
        let understood = server.check(&check.to_string()).status != 400;
        assert_eq!(validator.is_valid(&check), understood, "{check}");
    }
}

#[test]
fn answers_to_proxies_are_as_the_document_says() {
    let server = Server::with_rules(RULES);
    let document = document(&server);
    let ask = |target: &str, headers: &[(&str, &str)]| {
        let mut request = format!("GET {target} HTTP/1.1\r\nhost: a\r\n");
        for (name, value) in headers {
            let _ = write!(request, "{name}: {value}\r\n");
        }
        let mut connection = server.connect();
        connection.write(format!("{request}\r\n").as_bytes());
        connection.receive(false)
    };
    let orders = [("x-original-uri", "/v1/orders"), ("x-original-method", "GET")];
    for (status, target) in [
        (200, "/v1/authorize"),
        (200, "/v1/authorize"),
        (429, "/v1/authorize"),
        (403, "/v1/authorize?deny=403"),
    ] {
        let response = ask(target, &orders);
        assert_eq!(response.status, status);
        assert_described(&document, "GET", "/v1/authorize", &response);
    }
    assert_described(&document, "GET", "/v1/authorize", &ask("/v1/authorize", &[]));
}

#[test]
fn answers_to_operators_and_probes_are_as_the_document_says() {
    let server = Server::with_rules(RULES);
    let document = document(&server);
    for path in ["/healthz", "/readyz", "/healthcheck", "/openapi.json"] {
        assert_described(&document, "GET", path, &server.ask("GET", path, ""));
    }
    for (method, body) in [
        ("POST", r#"{"ip":"192.0.2.0/24","for":"10m","reason":"a test"}"#),
        ("POST", r#"{"attribute":"user","value":"mallory","for":"1h"}"#),
        ("POST", r#"{"ip":"192.0.2.0/24"}"#),
        ("GET", ""),
        ("DELETE", r#"{"ip":"192.0.2.0/24"}"#),
        ("DELETE", r#"{"ip":"192.0.2.0/24"}"#),
    ] {
        let response = server.manage(method, "/v1/block", body);
        assert_described(&document, method, "/v1/block", &response);
    }
    let plain = server.manage("GET", "/v1/block?format=plain", "");
    assert_described(&document, "GET", "/v1/block", &plain);
    server.check(r#"{"rule":"api","client":"alice"}"#);
    for (method, path, described, body) in [
        ("GET", "/metrics", "/metrics", ""),
        ("GET", "/rlconfig", "/rlconfig", ""),
        ("GET", "/v1/rules", "/v1/rules", ""),
        ("GET", "/v1/schema/rules.json", "/v1/schema/rules.json", ""),
        ("GET", "/v1/schema/config.json", "/v1/schema/config.json", ""),
        ("GET", "/v1/rules?version=1", "/v1/rules", ""),
        ("GET", "/v1/rules?version=x", "/v1/rules", ""),
        ("PUT", "/v1/rules", "/v1/rules", "rules: []"),
        ("POST", "/v1/rules/diff", "/v1/rules/diff", "rules: [{name: b, limit: 1/s}]"),
        ("POST", "/v1/rules/diff", "/v1/rules/diff", "rules: [{name: b, limt: 1/s}]"),
        ("GET", "/v1/rules/diff", "/v1/rules/diff", ""),
        ("GET", "/v1/rules/diff?from=1&to=2", "/v1/rules/diff", ""),
        ("GET", "/v1/rules/history", "/v1/rules/history", ""),
        ("GET", "/v1/rules/status", "/v1/rules/status", ""),
        ("GET", "/", "/", ""),
        ("GET", "/v1/live", "/v1/live", ""),
        ("GET", "/v1/live?since=x", "/v1/live", ""),
        ("GET", "/v1/fleet", "/v1/fleet", ""),
        ("GET", "/v1/top", "/v1/top", ""),
        ("GET", "/v1/top?by=denials&limit=1", "/v1/top", ""),
        ("GET", "/v1/top?by=size", "/v1/top", ""),
        ("GET", "/v1/clients/api/alice", "/v1/clients/{rule}/{client}", ""),
        ("GET", "/v1/clients/missing/alice", "/v1/clients/{rule}/{client}", ""),
        ("GET", "/v1/clients/api?user=alice", "/v1/clients/{rule}", ""),
        ("POST", "/v1/refund", "/v1/refund", r#"{"rule":"api","client":"alice"}"#),
        ("POST", "/v1/refund", "/v1/refund", r#"{"rule":"api","client":"alice","cost":0}"#),
        ("DELETE", "/v1/clients/api/alice", "/v1/clients/{rule}/{client}", ""),
        ("POST", "/v1/lab", "/v1/lab", "{}"),
        ("POST", "/v1/lab", "/v1/lab", r#"{"nodes":3,"algorithms":["fixed_window"]}"#),
        ("POST", "/v1/lab", "/v1/lab", r#"{"nodes":0}"#),
    ] {
        if path == "/v1/lab" && !cfg!(feature = "simulate") {
            continue;
        }
        let response = server.manage(method, path, body);
        assert_described(&document, method, described, &response);
    }
    let denied = server.check(r#"{"attributes":{"user":"mallory"}}"#);
    assert_eq!(denied.status, 429);
    assert_described(&document, "POST", "/v1/check", &denied);
}
