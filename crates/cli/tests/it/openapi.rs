//! The OpenAPI document describes every response of the HTTP and the admin listener.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use serde_json::{Value, json};
use tidegate_api::openapi::{ApiListener, operations};
use tidegate_testkit::{Flavour, Redis, Tool, lacking};

use crate::kit::{Connection, Response, Server};

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

const LISTENERS: [ApiListener; 2] = [ApiListener::Http, ApiListener::Admin];

fn send_request(
    listener: ApiListener,
    server: &Server,
    method: &str,
    path: &str,
    body: &str,
) -> Response {
    match listener {
        ApiListener::Http => server.request(method, path, body),
        ApiListener::Admin => server.request_admin(method, path, body),
    }
}

fn fetch_document(server: &Server) -> Value {
    let response = server.request("GET", "/openapi.json", "");
    assert_eq!(response.status, 200);
    assert_eq!(response.header("content-type"), Some("application/vnd.oai.openapi+json"));
    response.json()
}

/// Returns the paths and methods of a listener in the document.
fn documented_operations(document: &Value, listener: ApiListener) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        for (method, operation) in item.as_object().unwrap() {
            if operation["tags"] == json!([listener.tag()]) {
                found.push((path.clone(), method.to_ascii_uppercase()));
            }
        }
    }
    found
}

#[test]
fn document_has_exactly_the_paths_of_each_listener() {
    let server = Server::with_rules(RULES);
    let document = fetch_document(&server);
    for listener in LISTENERS {
        let not_found = send_request(listener, &server, "GET", "/nothing", "").json();
        let wanted = not_found["detail"].as_str().unwrap().split_once("wanted ").unwrap().1;
        let words = wanted.split([' ', ',']);
        let answered: BTreeSet<&str> = words.filter(|word| word.starts_with('/')).collect();
        let described = documented_operations(&document, listener);
        let described: BTreeSet<&str> =
            described.iter().map(|(path, _)| path.split("/{").next().unwrap()).collect();
        assert_eq!(answered, described, "{listener:?}");
    }
}

#[test]
fn every_documented_method_is_served() {
    let server = Server::with_rules(RULES);
    let document = fetch_document(&server);
    for listener in LISTENERS {
        for (path, method) in documented_operations(&document, listener) {
            let path = path.replace(['{', '}'], "");
            let response = send_request(listener, &server, &method, &path, "");
            assert_ne!(response.status, 405, "{method} {path}");
            assert!(!response.body.contains("path: found"), "{method} {path}");
        }
    }
}

/// Panics unless the document describes a response with this status, content type and body.
fn assert_described(document: &Value, method: &str, path: &str, response: &Response) {
    let operation = &document["paths"][path][method.to_ascii_lowercase()];
    let described = &operation["responses"][response.status.to_string()];
    assert!(described.is_object(), "{method} {path} {}: {}", response.status, response.body);
    for name in described["headers"].as_object().into_iter().flat_map(|headers| headers.keys()) {
        let pointer = format!("/components/headers/{name}");
        assert!(document.pointer(&pointer).is_some(), "{name}");
    }
    let Some(content_type) = response.header("content-type") else {
        assert!(
            described["content"].is_null() && response.body.is_empty(),
            "{method} {path} {}",
            response.status
        );
        return;
    };
    let content = &described["content"][content_type];
    assert!(content.is_object(), "{method} {path} {}: {content_type}", response.status);
    if !content_type.ends_with("json") {
        return;
    }
    let mut schema = content["schema"].clone();
    schema["components"] = document["components"].clone();
    let validator = jsonschema::draft202012::new(&schema).unwrap();
    let errors: Vec<String> =
        validator.iter_errors(&response.json()).map(|error| error.to_string()).collect();
    assert_eq!(errors, [""; 0], "{method} {path}: {}", response.body);
    assert_round_trip(method, path, response);
}

/// Panics unless a round trip through the type in `tidegate-api` returns the same bytes.
fn assert_round_trip(method: &str, path: &str, response: &Response) {
    let operations = operations();
    let is_requested = |operation: &&tidegate_api::openapi::ApiOperation| {
        operation.path == path && operation.method.eq_ignore_ascii_case(method)
    };
    let operation = operations.iter().find(is_requested).unwrap();
    let reply = operation.replies.iter().find(|reply| reply.status == response.status).unwrap();
    let content_type = response.header("content-type");
    let body = reply.bodies.iter().find(|body| Some(body.media_type) == content_type).unwrap();
    let rewritten = (body.rewrite)(&response.body);
    let rewritten =
        rewritten.unwrap_or_else(|error| panic!("{method} {path}: {error}: {}", response.body));
    assert_eq!(rewritten, response.body, "{method} {path}");
}

#[test]
fn check_responses_match_the_document() {
    let server = Server::with_rules(RULES);
    let document = fetch_document(&server);
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
        let response = server.request("POST", "/json", body);
        assert_described(&document, "POST", "/json", &response);
    }
    for body in [batch, r#"{"checks":1}"#] {
        let response = server.request("POST", "/v1/check/batch", body);
        assert_described(&document, "POST", "/v1/check/batch", &response);
    }
}

#[test]
fn slot_responses_match_the_document() {
    let server = Server::with_rules(RULES);
    let document = fetch_document(&server);
    let mut slot = Value::Null;
    for (status, body) in [
        (200, r#"{"rule":"exports","client":"alice"}"#),
        (429, r#"{"rule":"exports","client":"alice"}"#),
        (200, r#"{"rule":"api","client":"alice"}"#),
        (404, r#"{"rule":"missing","client":"alice"}"#),
        (400, "nonsense"),
    ] {
        let response = server.request("POST", "/v1/acquire", body);
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
        let response = server.request("POST", path, &json!({"slot": slot}).to_string());
        assert_eq!(response.status, status, "{response:?}");
        assert_described(&document, "POST", path, &response);
    }
}

#[test]
fn accepted_checks_are_those_that_the_schema_permits() {
    let server = Server::with_rules(RULES);
    let document = fetch_document(&server);
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
        let is_accepted = server.check(&check.to_string()).status != 400;
        assert_eq!(validator.is_valid(&check), is_accepted, "{check}");
    }
}

#[test]
fn authorize_responses_match_the_document() {
    let server = Server::with_rules(RULES);
    let document = fetch_document(&server);
    let authorize_get = |target: &str, headers: &[(&str, &str)]| {
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
        let response = authorize_get(target, &orders);
        assert_eq!(response.status, status);
        assert_described(&document, "GET", "/v1/authorize", &response);
    }
    assert_described(&document, "GET", "/v1/authorize", &authorize_get("/v1/authorize", &[]));
}

#[test]
fn admin_and_probe_responses_match_the_document() {
    let server = Server::with_rules(RULES);
    let document = fetch_document(&server);
    for path in ["/healthz", "/readyz", "/healthcheck", "/openapi.json"] {
        assert_described(&document, "GET", path, &server.request("GET", path, ""));
    }
    for (method, body) in [
        ("POST", r#"{"ip":"192.0.2.0/24","for":"10m","reason":"a test"}"#),
        ("POST", r#"{"attribute":"user","value":"mallory","for":"1h"}"#),
        ("POST", r#"{"ip":"192.0.2.0/24"}"#),
        ("GET", ""),
        ("DELETE", r#"{"ip":"192.0.2.0/24"}"#),
        ("DELETE", r#"{"ip":"192.0.2.0/24"}"#),
    ] {
        let response = server.request_admin(method, "/v1/block", body);
        assert_described(&document, method, "/v1/block", &response);
    }
    let plain = server.request_admin("GET", "/v1/block?format=plain", "");
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
        let response = server.request_admin(method, path, body);
        assert_described(&document, method, described, &response);
    }
    let denied = server.check(r#"{"attributes":{"user":"mallory"}}"#);
    assert_eq!(denied.status, 429);
    assert_described(&document, "POST", "/v1/check", &denied);
}

/// Replies that `every_status_in_the_document_is_returned_by_a_server` does not provoke, with the reason.
const UNTESTED_REPLIES: [(&str, &str, u16, &str); 4] = [
    ("POST", "/v1/check/batch", 503, "needs 128 MiB of long bodies in flight"),
    ("POST", "/v1/block", 503, "needs 100,000 entries, one call each"),
    (
        "GET",
        "/v1/rules/diff",
        422,
        "needs a stored document that an older release accepted and this one rejects",
    ),
    ("POST", "/v1/rules/diff", 503, "needs three documents that are read at the same time"),
];

/// Compares responses with the document, and records which were seen.
struct ReplyChecker {
    document: Value,
    seen: BTreeSet<(String, String, u16)>,
}

impl ReplyChecker {
    /// Panics unless a response has this status and matches the document.
    fn verify(&mut self, method: &str, path: &str, status: u16, response: &Response) {
        assert_eq!(response.status, status, "{method} {path}: {response:?}");
        assert_described(&self.document, method, path, response);
        self.seen.insert((method.to_owned(), path.to_owned(), status));
    }

    /// Sends a request to the HTTP listener and verifies the response.
    fn request_http(
        &mut self,
        server: &Server,
        method: &str,
        path: &str,
        status: u16,
        body: &str,
    ) -> Response {
        let response = server.request(method, path, body);
        self.verify(method, path, status, &response);
        response
    }

    /// Sends a request for `target` to the admin listener, and verifies the response as documented for `path`.
    fn request_admin(
        &mut self,
        server: &Server,
        method: &str,
        (path, target): (&str, &str),
        status: u16,
        body: &str,
    ) {
        let response = server.request_admin(method, target, body);
        self.verify(method, path, status, &response);
    }

    /// Verifies 415 for a compressed body, and 413 for a long body of which only the head is sent.
    fn verify_rejected_bodies(
        &mut self,
        connect: impl Fn() -> Connection,
        method: &str,
        path: &str,
        statuses: &[u16],
    ) {
        for status in statuses {
            let head = match status {
                415 => "content-encoding: gzip\r\ncontent-length: 2\r\n",
                _ => "content-length: 33554432\r\n",
            };
            let mut connection = connect();
            let request =
                format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\nif-match: *\r\n{head}\r\n");
            connection.write(request.as_bytes());
            if *status == 415 {
                connection.write(b"{}");
            }
            self.verify(method, path, *status, &connection.receive(false));
        }
    }
}

fn authorize(server: &Server, method: &str, target: &str, headers: &str) -> Response {
    let mut connection = server.connect();
    connection.write(format!("{method} {target} HTTP/1.1\r\nhost: a\r\n{headers}\r\n").as_bytes());
    connection.receive(false)
}

const FORWARDED: &str = "x-original-uri: /v1/orders\r\nx-original-method: GET\r\n";

fn verify_checks(checker: &mut ReplyChecker, server: &Server) {
    let alice = r#"{"rule":"api","client":"alice"}"#;
    for path in ["/v1/check", "/v1/acquire"] {
        checker.request_http(server, "POST", path, 200, alice);
        checker.request_http(
            server,
            "POST",
            path,
            429,
            r#"{"rule":"api","client":"alice","cost":3}"#,
        );
        checker.request_http(server, "POST", path, 404, r#"{"rule":"missing","client":"alice"}"#);
        checker.request_http(server, "POST", path, 400, "nonsense");
        checker.verify_rejected_bodies(|| server.connect(), "POST", path, &[413, 415]);
    }
    let batch = r#"{"checks":[{"rule":"api","client":"carol"},{"rule":"missing"}]}"#;
    checker.request_http(server, "POST", "/v1/check/batch", 200, batch);
    checker.request_http(server, "POST", "/v1/check/batch", 400, r#"{"checks":1}"#);
    checker.verify_rejected_bodies(|| server.connect(), "POST", "/v1/check/batch", &[413, 415]);
    let exports = r#"{"rule":"exports","client":"alice"}"#;
    let slot =
        checker.request_http(server, "POST", "/v1/acquire", 200, exports).json()["slot"].clone();
    let slot = json!({"slot": slot}).to_string();
    for (path, status) in [("/v1/renew", 200), ("/v1/release", 200), ("/v1/renew", 410)] {
        checker.request_http(server, "POST", path, status, &slot);
    }
    for path in ["/v1/renew", "/v1/release"] {
        checker.request_http(server, "POST", path, 400, r#"{"slot":"none"}"#);
        checker.verify_rejected_bodies(|| server.connect(), "POST", path, &[413, 415]);
    }
    for method in ["GET", "POST"] {
        for (status, target, headers) in [
            (400, "/v1/authorize", ""),
            (403, "/v1/authorize?deny=403", ""),
            (200, "/v1/authorize", "x-original-uri: /free\r\nx-original-method: GET\r\n"),
            (429, "/v1/authorize", FORWARDED),
            (403, "/v1/authorize?deny=403", FORWARDED),
        ] {
            // Two admitted requests exhaust the limit.
            let spent = (0..if status == 429 { 2 } else { 0 })
                .map(|_| authorize(server, method, target, headers));
            spent.for_each(drop);
            checker.verify(
                method,
                "/v1/authorize",
                status,
                &authorize(server, method, target, headers),
            );
        }
    }
    let envoy = r#"{"domain":"d","descriptors":[{"entries":[{"key":"path","value":"/v1/x"},{"key":"user","value":"zoe"}]}]}"#;
    for status in [200, 200, 429] {
        checker.request_http(server, "POST", "/json", status, envoy);
    }
    checker.request_http(server, "POST", "/json", 429, "nonsense");
    let strict = Server::with_config("{on_invalid_call: error, listen: {http: '127.0.0.1:0'}}");
    checker.request_http(&strict, "POST", "/json", 400, "nonsense");
    checker.verify_rejected_bodies(|| strict.connect(), "POST", "/json", &[413, 415]);
    for path in ["/openapi.json", "/healthz", "/readyz", "/healthcheck"] {
        checker.request_http(server, "GET", path, 200, "");
    }
}

fn verify_admin(checker: &mut ReplyChecker, server: &Server) {
    let same = |path: &'static str| (path, path);
    let network = r#"{"ip":"192.0.2.0/24","for":"10m","reason":"a test"}"#;
    for (method, status, body) in [
        ("POST", 200, network),
        ("POST", 400, "nonsense"),
        ("GET", 200, ""),
        ("DELETE", 200, r#"{"ip":"192.0.2.0/24"}"#),
        ("DELETE", 404, r#"{"ip":"192.0.2.0/24"}"#),
        ("DELETE", 400, "nonsense"),
    ] {
        checker.request_admin(server, method, same("/v1/block"), status, body);
    }
    checker.request_admin(server, "GET", ("/v1/block", "/v1/block?format=x"), 400, "");
    for path in [
        "/",
        "/metrics",
        "/rlconfig",
        "/v1/live",
        "/v1/fleet",
        "/v1/top",
        "/v1/rules",
        "/v1/rules/status",
    ] {
        checker.request_admin(server, "GET", same(path), 200, "");
    }
    checker.request_admin(server, "GET", same("/v1/schema/rules.json"), 200, "");
    checker.request_admin(server, "GET", same("/v1/schema/config.json"), 200, "");
    checker.request_admin(server, "GET", ("/v1/live", "/v1/live?since=x"), 400, "");
    checker.request_admin(server, "GET", ("/v1/top", "/v1/top?by=size"), 400, "");
    checker.request_admin(server, "GET", ("/v1/top", "/v1/top?by=denials"), 200, "");
    checker.request_admin(server, "GET", ("/v1/top", "/v1/top?rule=missing"), 404, "");
    let one = "/v1/clients/{rule}/{client}";
    for method in ["GET", "DELETE"] {
        for (path, target, status) in [
            (one, "/v1/clients/api/alice", 200),
            (one, "/v1/clients/missing/alice", 404),
            (one, "/v1/clients/api/alice?user=bob", 400),
            ("/v1/clients/{rule}", "/v1/clients/api?user=alice", 200),
            ("/v1/clients/{rule}", "/v1/clients/missing?user=alice", 404),
            ("/v1/clients/{rule}", "/v1/clients/api", 400),
        ] {
            checker.request_admin(server, method, (path, target), status, "");
        }
    }
    for (status, body) in [
        (200, r#"{"rule":"api","client":"alice"}"#),
        (400, r#"{"rule":"api","client":"alice","cost":0}"#),
        (404, r#"{"rule":"missing","client":"alice"}"#),
    ] {
        checker.request_admin(server, "POST", same("/v1/refund"), status, body);
    }
    if cfg!(feature = "simulate") {
        checker.request_admin(
            server,
            "POST",
            same("/v1/lab"),
            200,
            r#"{"nodes":3,"algorithms":["fixed_window"]}"#,
        );
        checker.request_admin(server, "POST", same("/v1/lab"), 400, r#"{"nodes":0}"#);
        checker.verify_rejected_bodies(|| server.connect_admin(), "POST", "/v1/lab", &[413]);
    }
    // Only rules in Redis have a history and can be pushed; these come from a file.
    for target in ["/v1/rules?version=1", "/v1/rules/diff?from=1&to=2", "/v1/rules/history"] {
        checker.request_admin(server, "GET", (target.split('?').next().unwrap(), target), 409, "");
    }
    let pushed = server.request_admin_with("PUT", "/v1/rules", &[("if-match", "*")], "rules: []");
    checker.verify("PUT", "/v1/rules", 409, &pushed);
}

fn verify_shared_rules(checker: &mut ReplyChecker, server: &Server) {
    let push = |version: &str, text: &str| {
        server.request_admin_with("PUT", "/v1/rules", &[("if-match", version)], text)
    };
    let document = "rules: [{name: exports, per: [user], limit: 1 in flight, hold: 1h, on_store_failure: deny}]";
    for (status, version, text) in [
        (200, "\"0\"", "rules: []"),
        (200, "\"1\"", document),
        (412, "\"1\"", document),
        (422, "*", "rules: [{name: b, limt: 1/s}]"),
        (400, "x", document),
    ] {
        checker.verify("PUT", "/v1/rules", status, &push(version, text));
    }
    checker.verify("PUT", "/v1/rules", 428, &server.request_admin("PUT", "/v1/rules", document));
    checker.verify_rejected_bodies(|| server.connect_admin(), "PUT", "/v1/rules", &[413, 415]);
    checker.verify_rejected_bodies(
        || server.connect_admin(),
        "POST",
        "/v1/rules/diff",
        &[413, 415],
    );
    for (status, headers) in
        [(304, ("if-none-match", "\"2\"")), (200, ("accept", "application/yaml"))]
    {
        checker.verify(
            "GET",
            "/v1/rules",
            status,
            &server.request_admin_with("GET", "/v1/rules", &[headers], ""),
        );
    }
    for (path, target, status) in [
        ("/v1/rules", "/v1/rules", 200),
        ("/v1/rules", "/v1/rules?version=1", 200),
        ("/v1/rules", "/v1/rules?version=99", 404),
        ("/v1/rules", "/v1/rules?version=x", 400),
        ("/v1/rules/diff", "/v1/rules/diff?from=1&to=2", 200),
        ("/v1/rules/diff", "/v1/rules/diff?from=1", 400),
        ("/v1/rules/diff", "/v1/rules/diff?from=1&to=99", 404),
        ("/v1/rules/history", "/v1/rules/history", 200),
        ("/v1/rules/history", "/v1/rules/history?limit=x", 400),
        ("/v1/rules/status", "/v1/rules/status", 200),
        ("/v1/fleet", "/v1/fleet", 200),
    ] {
        checker.request_admin(server, "GET", (path, target), status, "");
    }
    let diff = ("/v1/rules/diff", "/v1/rules/diff");
    checker.request_admin(server, "POST", diff, 200, "rules: [{name: b, limit: 1/s}]");
    checker.request_admin(server, "POST", diff, 422, "rules: [{name: b, limt: 1/s}]");
    let mut connection = server.connect_admin();
    connection.write(
        b"POST /v1/rules/diff HTTP/1.1\r\nhost: localhost\r\ncontent-length: 2\r\n\r\n\xff\xfe",
    );
    checker.verify("POST", "/v1/rules/diff", 400, &connection.receive(false));
}

fn verify_without_store(checker: &mut ReplyChecker, server: &Server, slot: &Value) {
    let alice = r#"{"rule":"exports","client":"alice"}"#;
    checker.request_http(server, "POST", "/v1/check", 503, alice);
    checker.request_http(server, "POST", "/v1/acquire", 503, alice);
    let slot = json!({"slot": slot}).to_string();
    checker.request_http(server, "POST", "/v1/renew", 503, &slot);
    checker.request_http(server, "POST", "/v1/release", 503, &slot);
    for method in ["GET", "POST"] {
        let response =
            authorize(server, method, "/v1/authorize", &format!("{FORWARDED}x-user: alice\r\n"));
        checker.verify(method, "/v1/authorize", 503, &response);
    }
    for (path, target) in [
        ("/v1/clients/{rule}/{client}", "/v1/clients/exports/alice"),
        ("/v1/clients/{rule}", "/v1/clients/exports?user=alice"),
    ] {
        checker.request_admin(server, "GET", (path, target), 503, "");
        checker.request_admin(server, "DELETE", (path, target), 503, "");
    }
    checker.request_admin(server, "POST", ("/v1/refund", "/v1/refund"), 503, alice);
    let pushed = server.request_admin_with("PUT", "/v1/rules", &[("if-match", "*")], "rules: []");
    checker.verify("PUT", "/v1/rules", 503, &pushed);
    for target in ["/v1/rules?version=1", "/v1/rules/diff?from=1&to=2", "/v1/rules/history"] {
        checker.request_admin(server, "GET", (target.split('?').next().unwrap(), target), 503, "");
    }
}

/// Verifies that the admin listener rejects requests without a token or from another origin.
fn verify_rejected_admin_requests(checker: &mut ReplyChecker) {
    let server = Server::with_config(
        "listen: {http: 127.0.0.1:0}\nadmin: {token: 0123456789abcdef}\nrules: {inline: [{name: api, limit: 1 per day}]}\n",
    );
    for operation in
        operations().iter().filter(|operation| operation.listener == ApiListener::Admin)
    {
        if operation.path == "/v1/lab" && !cfg!(feature = "simulate") {
            continue;
        }
        let (method, target) =
            (operation.method.to_ascii_uppercase(), operation.path.replace(['{', '}'], ""));
        if operation.replies.iter().any(|reply| reply.status == 401) {
            checker.request_admin(&server, &method, (operation.path, &target), 401, "");
        }
        let response =
            server.request_admin_with(&method, &target, &[("origin", "http://example.com")], "");
        checker.verify(&method, operation.path, 403, &response);
    }
}

#[test]
fn every_status_in_the_document_is_returned_by_a_server() {
    if lacking(&[Tool::Server(Flavour::Redis)]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let mut checker = ReplyChecker { document: fetch_document(&server), seen: BTreeSet::new() };
    verify_checks(&mut checker, &server);
    verify_admin(&mut checker, &server);
    verify_rejected_admin_requests(&mut checker);
    let redis = Redis::start();
    let config = format!(
        "store: {{redis: {{url: '{}', timeout: 5s}}}}\nrules: {{redis: true, poll: 1h}}\nlisten: {{http: 127.0.0.1:0}}\n",
        redis.url()
    );
    let server = Server::with_config(&config);
    verify_shared_rules(&mut checker, &server);
    let acquired = server.request("POST", "/v1/acquire", r#"{"rule":"exports","client":"bob"}"#);
    redis.kill();
    verify_without_store(&mut checker, &server, &acquired.json()["slot"]);
    let unready = Server::with_config(&config);
    checker.request_http(&unready, "GET", "/readyz", 503, "");
    checker.request_http(&unready, "GET", "/healthcheck", 500, "");
    let mut described = BTreeSet::new();
    for operation in operations() {
        let method = operation.method.to_ascii_uppercase();
        let statuses = operation.replies.iter().map(|reply| reply.status);
        described
            .extend(statuses.map(|status| (method.clone(), operation.path.to_owned(), status)));
    }
    described.retain(|(_, path, _)| path != "/v1/lab" || cfg!(feature = "simulate"));
    let untested = UNTESTED_REPLIES
        .map(|(method, path, status, _)| (method.to_owned(), path.to_owned(), status));
    let missing: BTreeSet<_> = described.difference(&checker.seen).cloned().collect();
    assert_eq!(missing, BTreeSet::from(untested));
}

#[test]
#[cfg(feature = "simulate")]
fn lab_ranges_and_defaults_match_the_document() {
    let server = Server::with_rules(RULES);
    let document = fetch_document(&server);
    let properties =
        document["components"]["schemas"]["Experiment"]["properties"].as_object().unwrap();
    let run = |body: Value| server.request_admin("POST", "/v1/lab", &body.to_string()).json();
    let mut ranges = 0;
    for (name, property) in properties {
        let (Some(minimum), Some(maximum)) =
            (property["minimum"].as_u64(), property["maximum"].as_u64())
        else {
            continue;
        };
        let wanted = format!(
            "{name}: found {}, wanted a whole number from {minimum} to {maximum}",
            maximum + 1
        );
        assert_eq!(run(json!({name.as_str(): maximum + 1}))["detail"], wanted);
        ranges += 1;
    }
    assert_eq!(ranges, 10);
    let defaults =
        properties.iter().map(|(name, property)| (name.clone(), property["default"].clone()));
    let (explicit, implicit) = (run(Value::Object(defaults.collect())), run(json!({})));
    assert_eq!((&explicit["lines"], &explicit["about"]), (&implicit["lines"], &implicit["about"]));
    assert!(implicit["lines"].is_array());
}
