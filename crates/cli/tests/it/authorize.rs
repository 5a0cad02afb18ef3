//! `/v1/authorize`, which NGINX, Caddy and other proxies call for each request.

use std::fmt::Write as _;

use crate::kit::{Response, Server};

const RULES: &str = "
rules:
  - name: orders
    match: {path: '/v1/**', method: POST, host: shop.example}
    per: [api_key]
    limit: 2 per 10 days
  - name: always
    match: {path: /free}
    limit: 1000 per second
";

/// Sends one request with these headers on a new connection.
fn send(server: &Server, line: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = format!("{line} HTTP/1.1\r\n");
    for (name, value) in headers {
        let _ = write!(request, "{name}: {value}\r\n");
    }
    let mut connection = server.connect();
    connection.write(format!("{request}\r\n").as_bytes());
    connection.receive(line.starts_with("HEAD"))
}

const NGINX: [(&str, &str); 4] = [
    ("Host", "shop.example"),
    ("X-Original-URI", "/v1/orders?page=2"),
    ("X-Original-Method", "POST"),
    ("X-API-Key", "k1"),
];

const CADDY: [(&str, &str); 5] = [
    ("Host", "tidegate"),
    ("X-Forwarded-Uri", "/v1/orders?page=2"),
    ("X-Forwarded-Method", "POST"),
    ("X-Forwarded-Host", "shop.example"),
    ("X-API-Key", "k1"),
];

#[test]
fn decision_is_in_the_status_and_quota_is_in_the_headers() {
    for headers in [&NGINX[..], &CADDY[..]] {
        let server = Server::with_rules(RULES);
        for remaining in ["1", "0"] {
            let response = send(&server, "GET /v1/authorize", headers);
            assert_eq!(response.status, 200, "{response:?}");
            assert_eq!(response.header("x-ratelimit-limit"), Some("2"));
            assert_eq!(response.header("x-ratelimit-remaining"), Some(remaining));
            assert_eq!(response.header("x-tidegate-status"), Some("200"));
        }
        let response = send(&server, "GET /v1/authorize", headers);
        assert_eq!(response.status, 429);
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
        assert!((400_000..=432_000).contains(&wait), "{wait}");
        assert_eq!(response.header("ratelimit-policy"), Some(r#""orders";q=2;w=864000"#));
        assert_eq!(response.json()["rule"], "orders");
        let other = [&headers[..headers.len() - 1], &[("X-API-Key", "k2")]].concat();
        assert_eq!(send(&server, "GET /v1/authorize", &other).status, 200);
    }
}

#[test]
fn deny_403_returns_403_with_the_real_status_in_a_header() {
    let server = Server::with_rules(RULES);
    let status = || {
        let response = send(&server, "GET /v1/authorize?deny=403", &NGINX);
        (response.status, response.header("x-tidegate-status").unwrap().to_owned())
    };
    assert_eq!(status(), (200, "200".to_owned()));
    assert_eq!(status(), (200, "200".to_owned()));
    assert_eq!(status(), (403, "429".to_owned()));
}

#[test]
fn every_method_is_accepted_and_a_body_is_ignored() {
    let server = Server::with_rules(RULES);
    let head = send(&server, "HEAD /v1/authorize", &NGINX);
    assert_eq!((head.status, head.header("x-ratelimit-remaining")), (200, Some("1")));
    let mut connection = server.connect();
    let body = "x".repeat(100_000);
    let length = body.len();
    // The proxy forwards headers that describe the body of its client; they must not cause an error here.
    let text = format!(
        "POST /v1/authorize HTTP/1.1\r\nhost: shop.example\r\nx-original-uri: /v1/a\r\n\
         x-original-method: POST\r\nx-api-key: k1\r\ncontent-encoding: br\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    connection.write(text.as_bytes());
    let first = connection.receive(false);
    assert_eq!((first.status, first.header("x-ratelimit-remaining")), (200, Some("0")));
    // The body was read, so the connection can carry the next request.
    connection.write(text.as_bytes());
    assert_eq!(connection.receive(false).status, 429);
}

#[test]
fn request_without_a_matching_rule_is_allowed_without_quota_headers() {
    let server = Server::with_rules(RULES);
    let headers = [("Host", "a"), ("X-Original-URI", "/other"), ("X-Original-Method", "GET")];
    let response = send(&server, "GET /v1/authorize", &headers);
    assert_eq!((response.status, response.header("x-ratelimit-limit")), (200, None));
}

#[test]
fn api_key_that_is_not_utf8_has_a_bucket_of_its_own() {
    let server = Server::with_rules(RULES);
    for key in [&b"\xff"[..], b"\xfe", br"\xFF"] {
        let status = || {
            let head =
                b"GET /v1/authorize HTTP/1.1\r\nhost: shop.example\r\nx-original-uri: /v1/a\r\n\
                         x-original-method: POST\r\nx-api-key: ";
            let mut connection = server.connect();
            connection.write(&[head, key, b"\r\n\r\n"].concat());
            connection.receive(false).status
        };
        assert_eq!([status(), status(), status()], [200, 200, 429], "{key:?}");
    }
}

#[test]
fn on_invalid_call_selects_the_status_of_an_invalid_call() {
    let with = |answer: &str| {
        let config = format!("{{on_invalid_call: {answer}, listen: {{http: '127.0.0.1:0'}}}}");
        Server::with_config(&config)
    };
    for (server, plain, always_403) in [
        (Server::with_rules(RULES), 400, 403),
        (with("allow"), 200, 200),
        (with("error"), 400, 400),
    ] {
        let status = |line: &str| send(&server, line, &[("Host", "a")]).status;
        assert_eq!(status("GET /v1/authorize"), plain);
        assert_eq!(status("GET /v1/authorize?deny=403"), always_403);
    }
    let server = Server::with_rules(RULES);
    let long = "x".repeat(8_193);
    let too_long = [&NGINX[..3], &[("X-API-Key", long.as_str())]].concat();
    let response = send(&server, "GET /v1/authorize?deny=403", &too_long);
    assert_eq!((response.status, response.header("x-tidegate-status")), (403, Some("400")));
}

#[test]
fn missing_or_conflicting_proxy_headers_get_400() {
    let server = Server::with_rules(RULES);
    let error_detail = |line: &str, headers: &[(&str, &str)]| {
        let response = send(&server, line, headers);
        assert_eq!(response.status, 400, "{response:?}");
        response.json()["detail"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        error_detail("GET /v1/authorize", &[("Host", "a")]),
        "headers: found neither, wanted X-Original-URI and -Method, or X-Forwarded-Uri and -Method"
    );
    assert_eq!(
        error_detail("GET /v1/authorize", &[&NGINX[..], &[("X-Forwarded-Uri", "/free")]].concat()),
        "headers: found X-Original-* and X-Forwarded-*, \
         wanted one of them, and the proxy to take the other off its clients"
    );
}

#[test]
fn every_spelling_of_a_path_has_one_limit() {
    let server = Server::with_rules(RULES);
    let status = |target: &str, method: &str| {
        let headers = [
            ("Host", "SHOP.example.:443"),
            ("X-Original-URI", target),
            ("X-Original-Method", method),
            ("X-API-Key", "k1"),
        ];
        send(&server, "GET /v1/authorize", &headers).status
    };
    assert_eq!((status("//v1/a", "POST"), status("/x/../v1/a", "POST")), (200, 200));
    for target in ["/v1/a", "/%76%31/a", "/./v1//a", "/%2e/v1/a?b", "//v1/a"] {
        assert_eq!(status(target, "POST"), 429, "{target}");
    }
}

#[test]
fn request_without_a_canonical_form_is_denied_counted_and_logged() {
    let server = Server::with_rules(RULES);
    let requests = [
        ("/%2Fv1/a", "POST", "shop.example"),
        ("/v1\\a", "POST", "shop.example"),
        ("/v1/%zz", "POST", "shop.example"),
        ("/v1/%00", "POST", "shop.example"),
        ("/v1/a", "post", "shop.example"),
        ("/v1/a", "POST", "shop.example:x"),
    ];
    for (line, status) in [("GET /v1/authorize", 429), ("GET /v1/authorize?deny=403", 403)] {
        for (target, method, host) in requests {
            let headers =
                [("Host", host), ("X-Original-URI", target), ("X-Original-Method", method)];
            let response = send(&server, line, &headers);
            assert_eq!(response.status, status, "{response:?}");
            assert_eq!(response.header("x-tidegate-status"), Some("400"));
            assert_eq!(response.json()["status"], status);
        }
    }
    let metrics = server.request_admin("GET", "/metrics", "").body;
    let invalid = r#"tidegate_checks_total{listener="http",answer="invalid"} 12"#;
    assert!(metrics.contains(invalid), "{metrics}");
    server.wait_for_log("invalid call");
}

#[test]
fn unreachable_store_is_503_or_403_with_deny_403() {
    let config = "
listen: {http: 127.0.0.1:0}
store: {redis: {url: 'redis://127.0.0.1:1'}}
rules: {inline: [{name: paid, limit: 5 per minute, on_store_failure: deny}]}
";
    let server = Server::with_config(config);
    let response = send(&server, "GET /v1/authorize", &NGINX);
    assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
    let response = send(&server, "GET /v1/authorize?deny=403", &NGINX);
    assert_eq!((response.status, response.header("x-tidegate-status")), (403, Some("503")));
}
