//! Roles: the read token, wrong tokens and passwords, refunds of callers, and requests of web pages.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use serde_json::{Value, json};

use crate::kit::{Response, Server};

const CONFIG: &str = "
listen: {http: 127.0.0.1:0, grpc: off, resp: 127.0.0.1:0, admin: 127.0.0.1:0}
admin: {token: full-token-of-test, read_token: read-token-of-test}
resp: {password: open sesame}
rules:
  inline:
    - {name: native, match: {domain: edge}, per: [user], limit: 5 per 30 days}
    - {name: refundable, match: {domain: shop}, per: [user], limit: 5 per 30 days, caller_refunds: allow}
    - {name: observed, match: {domain: shop}, limit: 5 per 30 days, mode: shadow}
";

fn request_with_token(
    server: &Server,
    token: &str,
    method: &str,
    path: &str,
    body: &str,
) -> Response {
    let authorization = format!("Bearer {token}");
    server.request_admin_with(method, path, &[("authorization", &authorization)], body)
}

fn metrics(server: &Server) -> String {
    let response = request_with_token(server, "read-token-of-test", "GET", "/metrics", "");
    assert_eq!(response.status, 200, "{response:?}");
    response.body
}

fn post_page(server: &Server, path: &str, headers: &str) -> Response {
    let mut connection = server.connect();
    let body = r#"{"attributes": {"user": "a"}}"#;
    let length = body.len();
    let request =
        format!("POST {path} HTTP/1.1\r\n{headers}content-length: {length}\r\n\r\n{body}");
    connection.write(request.as_bytes());
    connection.receive(false)
}

#[test]
fn read_token_reads_everything_and_changes_nothing() {
    let server = Server::with_config(CONFIG);
    for path in ["/metrics", "/v1/rules", "/v1/top", "/v1/live", "/v1/block", "/v1/fleet"] {
        let response = request_with_token(&server, "read-token-of-test", "GET", path, "");
        assert_eq!(response.status, 200, "{path}: {response:?}");
    }
    let block = r#"{"ip": "192.0.2.7", "for": "1h"}"#;
    let refused = request_with_token(&server, "read-token-of-test", "POST", "/v1/block", block);
    assert_eq!(refused.status, 403);
    assert_eq!(
        refused.json()["detail"],
        "authorization: found the read token, wanted the full token of this listener for \"POST /v1/block\""
    );
    for (method, path) in
        [("PUT", "/v1/rules"), ("POST", "/v1/refund"), ("DELETE", "/v1/clients/native/a")]
    {
        let refused = request_with_token(&server, "read-token-of-test", method, path, "");
        assert_eq!(refused.status, 403, "{method} {path}");
    }
    let blocked = request_with_token(&server, "full-token-of-test", "POST", "/v1/block", block);
    assert_eq!(blocked.status, 200, "{blocked:?}");
    assert!(metrics(&server).contains("tidegate_auth_failures_total{listener=\"admin\"} 0"));
}

#[test]
fn wrong_tokens_and_passwords_are_counted_and_logged_without_the_secret() {
    let server = Server::with_config(CONFIG);
    let refused = request_with_token(&server, "wrong-token-of-test", "GET", "/metrics", "");
    assert_eq!(refused.status, 401);
    let line = server.wait_for_log("wrong token or password");
    assert!(line.contains("admin") && line.contains("127.0.0.1:"), "{line}");
    assert!(!line.contains("wrong-token-of-test"), "{line}");
    // A pipeline of guesses gets three answers, then the connection is closed.
    let mut stream = TcpStream::connect(server.listener("resp")).unwrap();
    stream.write_all("AUTH wrong\r\n".repeat(10).as_bytes()).unwrap();
    let mut replies = String::new();
    let _ = stream.read_to_string(&mut replies);
    assert_eq!(replies.matches("-WRONGPASS ").count(), 3, "{replies}");
    let metrics = metrics(&server);
    assert!(metrics.contains("tidegate_auth_failures_total{listener=\"admin\"} 1"), "{metrics}");
    assert!(metrics.contains("tidegate_auth_failures_total{listener=\"resp\"} 3"), "{metrics}");
}

#[test]
fn negative_hits_refund_a_rule_only_if_it_allows_them() {
    let server = Server::with_config(CONFIG);
    let hits = |domain: &str, hits: u64, negative: bool| {
        let entries = json!([{"key": "user", "value": "alice"}]);
        let descriptor =
            json!({"entries": entries, "hitsAddend": hits, "isNegativeHits": negative});
        let body = json!({"domain": domain, "descriptors": [descriptor]});
        server.request("POST", "/json", &body.to_string())
    };
    let remaining = |response: &Response| response.json()["statuses"][0]["limitRemaining"].clone();
    assert_eq!(remaining(&hits("edge", 4, false)), 1);
    let refused = hits("edge", 4, true);
    assert_eq!((refused.status, &refused.json()["overallCode"]), (429, &json!("OVER_LIMIT")));
    assert_eq!(remaining(&hits("edge", 1, false)), Value::Null, "the last hit leaves 0");
    assert_eq!(hits("edge", 1, false).status, 429);
    assert_eq!(remaining(&hits("shop", 4, false)), 1);
    assert_eq!(remaining(&hits("shop", 3, true)), 4);
    let label = "tidegate_invalid_calls_total{listener=\"http\",reason=\"not_allowed\"} 1";
    assert!(metrics(&server).contains(label), "{}", metrics(&server));
}

#[test]
fn web_pages_of_other_origins_cannot_post_to_the_data_listener() {
    let server = Server::with_config(CONFIG);
    let address = server.url().replace("http://", "");
    for path in ["/v1/check", "/v1/check/batch", "/v1/acquire", "/v1/release", "/json"] {
        let foreign = format!("host: {address}\r\norigin: http://evil.example\r\n");
        assert_eq!(post_page(&server, path, &foreign).status, 403, "{path}");
        let rebound = "host: evil.example:8080\r\norigin: http://evil.example:8080\r\n";
        assert_eq!(post_page(&server, path, rebound).status, 403, "{path}");
    }
    let own = format!("host: {address}\r\norigin: http://{address}\r\n");
    for headers in [own.as_str(), "host: tidegate\r\n", "host: limits.example\r\n"] {
        assert_eq!(post_page(&server, "/v1/check", headers).status, 200, "{headers}");
    }
}

#[test]
fn every_response_forbids_content_sniffing() {
    let server = Server::with_config(CONFIG);
    let data = ["/healthz", "/openapi.json", "/v1/check", "/unknown"]
        .map(|path| server.request("GET", path, ""));
    let admin = ["/", "/app.js", "/metrics", "/v1/rules"]
        .map(|path| request_with_token(&server, "full-token-of-test", "GET", path, ""));
    for response in data.iter().chain(&admin) {
        assert_eq!(response.header("x-content-type-options"), Some("nosniff"), "{response:?}");
    }
}

#[test]
fn read_token_needs_another_full_token() {
    for (admin, reason) in [
        ("{read_token: read-token-of-test}", "needs admin.token"),
        (
            "{token: read-token-of-test, read_token: read-token-of-test}",
            "must differ from admin.token",
        ),
    ] {
        let folder = crate::kit::Folder::new();
        let config = folder.file("tidegate.yaml", &format!("admin: {admin}\n"));
        let (code, _, stderr) = crate::kit::run(&["serve", "--config", &config]);
        assert!(code != 0 && stderr.contains(reason), "{stderr}");
    }
}
