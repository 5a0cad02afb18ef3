//! What a proxy is promised that asks `/v1/authorize`.

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

/// One question to the server, with these headers.
fn ask(server: &Server, line: &str, headers: &[(&str, &str)]) -> Response {
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
fn a_proxy_learns_by_the_status_and_the_client_by_the_headers() {
    for headers in [&NGINX[..], &CADDY[..]] {
        let server = Server::with_rules(RULES);
        for left in ["1", "0"] {
            let response = ask(&server, "GET /v1/authorize", headers);
            assert_eq!(response.status, 200, "{response:?}");
            assert_eq!(response.header("x-ratelimit-limit"), Some("2"));
            assert_eq!(response.header("x-ratelimit-remaining"), Some(left));
            assert_eq!(response.header("x-tidegate-status"), Some("200"));
        }
        let response = ask(&server, "GET /v1/authorize", headers);
        assert_eq!(response.status, 429);
        assert_eq!(response.header("content-type"), Some("application/problem+json"));
        let wait: u64 = response.header("retry-after").unwrap().parse().unwrap();
        assert!((400_000..=432_000).contains(&wait), "{wait}");
        assert_eq!(response.header("ratelimit-policy"), Some(r#""orders";q=2;w=864000"#));
        assert_eq!(response.json()["rule"], "orders");
        let other = [&headers[..headers.len() - 1], &[("X-API-Key", "k2")]].concat();
        assert_eq!(ask(&server, "GET /v1/authorize", &other).status, 200);
    }
}

#[test]
fn nginx_is_answered_403_and_told_what_it_stands_for() {
    let server = Server::with_rules(RULES);
    let status = || {
        let response = ask(&server, "GET /v1/authorize?deny=403", &NGINX);
        (response.status, response.header("x-tidegate-status").unwrap().to_owned())
    };
    assert_eq!(status(), (200, "200".to_owned()));
    assert_eq!(status(), (200, "200".to_owned()));
    assert_eq!(status(), (403, "429".to_owned()));
}

#[test]
fn any_method_asks_and_a_body_is_passed_over() {
    let server = Server::with_rules(RULES);
    let head = ask(&server, "HEAD /v1/authorize", &NGINX);
    assert_eq!((head.status, head.header("x-ratelimit-remaining")), (200, Some("1")));
    let mut connection = server.connect();
    let body = "x".repeat(100_000);
    let length = body.len();
    // Headers of the client's that are about its own body, and no reason to refuse it here.
    let text = format!(
        "POST /v1/authorize HTTP/1.1\r\nhost: shop.example\r\nx-original-uri: /v1/a\r\n\
         x-original-method: POST\r\nx-api-key: k1\r\ncontent-encoding: br\r\n\
         content-length: {length}\r\n\r\n{body}"
    );
    connection.write(text.as_bytes());
    let first = connection.receive(false);
    assert_eq!((first.status, first.header("x-ratelimit-remaining")), (200, Some("0")));
    // The connection is of use for the next question.
    connection.write(text.as_bytes());
    assert_eq!(connection.receive(false).status, 429);
}

#[test]
fn what_no_rule_is_about_passes_without_headers() {
    let server = Server::with_rules(RULES);
    let headers = [("Host", "a"), ("X-Original-URI", "/other"), ("X-Original-Method", "GET")];
    let response = ask(&server, "GET /v1/authorize", &headers);
    assert_eq!((response.status, response.header("x-ratelimit-limit")), (200, None));
}

#[test]
fn a_proxy_that_is_set_up_wrongly_is_told_so() {
    let server = Server::with_rules(RULES);
    let told = |line: &str, headers: &[(&str, &str)]| {
        let response = ask(&server, line, headers);
        assert_eq!(response.status, 400, "{response:?}");
        response.json()["detail"].as_str().unwrap().to_owned()
    };
    assert_eq!(
        told("GET /v1/authorize", &[("Host", "a")]),
        "headers: found neither, wanted X-Original-URI and -Method, or X-Forwarded-Uri and -Method"
    );
    assert_eq!(
        told("GET /v1/authorize", &[&NGINX[..], &[("X-Forwarded-Uri", "/free")]].concat()),
        "headers: found X-Original-* and X-Forwarded-*, \
         wanted one of them, and the proxy to take the other off its clients"
    );
}

#[test]
fn a_store_that_is_away_is_503_and_for_nginx_403() {
    let config = "
listen: {http: 127.0.0.1:0}
store: {redis: {url: 'redis://127.0.0.1:1'}}
rules: {inline: [{name: paid, limit: 5 per minute, on_store_failure: deny}]}
";
    let server = Server::with_config(config);
    let response = ask(&server, "GET /v1/authorize", &NGINX);
    assert_eq!((response.status, response.header("retry-after")), (503, Some("1")));
    let response = ask(&server, "GET /v1/authorize?deny=403", &NGINX);
    assert_eq!((response.status, response.header("x-tidegate-status")), (403, Some("503")));
}
