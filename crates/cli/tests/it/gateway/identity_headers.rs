//! Headers that identify a client: rules read what the upstream gets.

use serde_json::Value;
use tidegate_testkit::{Process, RawUpstream, Tool, Upstream, UpstreamAction, lacking};

use super::GatewayServer;
use super::client::HttpResponse;
use super::http2::{Http2Client, get};

/// An application behind WSGI, which reads `X_Name` and `X-Name` as one header. It returns its headers as JSON.
const WSGI_APP: &str = "
import json
from wsgiref.simple_server import make_server

def app(environ, start):
    headers = {name: text for name, text in environ.items() if name.startswith('HTTP_')}
    body = json.dumps(headers).encode()
    start('200 OK', [('Content-Length', str(len(body)))])
    return [body]

server = make_server('127.0.0.1', 0, app)
print(server.server_port, flush=True)
server.serve_forever()
";

fn start_wsgi_app() -> (Process, String) {
    let mut command = Process::command("python3");
    command.args(["-c", WSGI_APP]);
    let app = Process::spawn(command);
    let port = app.stdout().next().expect("the application prints its port");
    (app, format!("http://127.0.0.1:{port}"))
}

fn one_request_per(attribute: &str) -> String {
    format!("rules: [{{name: api, per: [{attribute}], limit: 1 per 10 days}}]")
}

fn upstream_field(response: &HttpResponse, name: &str) -> Vec<String> {
    let head = response.json();
    let fields = head["headers"].as_array().unwrap().iter();
    let named = fields.filter(|field| field[0] == name);
    named.map(|field| field[1].as_str().unwrap().to_owned()).collect()
}

#[test]
fn key_that_connection_names_is_removed_before_rules_read_it() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::with_rules(&upstream.url(), &one_request_per("api_key"));
    let mut client = gateway.connect();
    let mut send = |connection, key| {
        client.send("GET", "/head", &[("Connection", connection), ("X-API-Key", key)], "")
    };
    let first = send("x-api-key", "one");
    assert_eq!((first.status, upstream_field(&first, "x-api-key")), (200, vec![]));
    // The upstream gets no key, so both requests are in the bucket of requests without a key.
    send("x-api-key", "two").assert_problem(429);
    send("keep-alive, X-Api-Key", "three").assert_problem(429);
}

#[test]
fn several_values_of_an_attribute_that_rules_read_are_400() {
    let upstream = Upstream::start();
    let config = "identity: {session: {cookie: sid}, attributes: {tenant: header.x-tenant}}";
    for (attribute, path, fields) in [
        ("api_key", "/head", [("X-API-Key", "a"), ("x-api-key", "b")]),
        ("api_key", "/head", [("X-API-Key", "a"), ("X_API_Key", "b")]),
        ("api_key", "/head", [("X_API_KEY", "a"), ("Accept", "b")]),
        ("bearer", "/head", [("Authorization", "Bearer a"), ("Authorization", "Bearer b")]),
        ("tenant", "/head", [("X-Tenant", "a"), ("X-Tenant", "b")]),
        ("header.x-tenant", "/head", [("X-Tenant", "a"), ("X-Tenant", "b")]),
        ("session", "/head", [("Cookie", "sid=a"), ("Cookie", "x=1; sid=b")]),
        ("query.key", "/head?key=a&key=b", [("Accept", "a"), ("Accept", "b")]),
    ] {
        let gateway = GatewayServer::launch(
            &["--upstream", &upstream.url()],
            config,
            &one_request_per(attribute),
        );
        let response = gateway.connect().send("GET", path, &fields, "");
        response.assert_problem(400);
    }
    assert_eq!(upstream.seen("GET"), 0);
}

#[test]
fn repeated_headers_that_no_rule_reads_are_forwarded() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::with_rules(&upstream.url(), &one_request_per("api_key"));
    let fields = [("Accept", "a"), ("Accept", "b"), ("my_header", "c"), ("X-API-Key", "k")];
    let response = gateway.connect().send("GET", "/head", &fields, "");
    assert_eq!(upstream_field(&response, "accept"), ["a", "b"]);
    assert_eq!(upstream_field(&response, "my_header"), ["c"]);
}

#[test]
fn cookie_crumbs_of_http2_are_joined() {
    let upstream = Upstream::start();
    let gateway = GatewayServer::launch(
        &["--upstream", &upstream.url()],
        "identity: {session: {cookie: sid}}",
        &one_request_per("session"),
    );
    let streams = Http2Client::connect(gateway.address());
    let send = |crumbs: [&'static str; 3]| {
        let mut request = get("/head");
        for crumb in crumbs {
            request.headers_mut().append("cookie", crumb.parse().unwrap());
        }
        streams.send(request)
    };
    let first = send(["theme=dark", "sid=one", "lang=en"]);
    let head: Value = serde_json::from_slice(&first.body).unwrap();
    let headers = head["headers"].as_array().unwrap().iter();
    let cookies: Vec<_> = headers.filter(|field| field[0] == "cookie").collect();
    assert_eq!(cookies, [&serde_json::json!(["cookie", "theme=dark; sid=one; lang=en"])]);
    assert_eq!(send(["a=1", "b=2", "sid=one"]).status, 429);
    assert_eq!(send(["a=1", "b=2", "sid=two"]).status, 200);
}

#[test]
fn wsgi_application_gets_no_forged_address_and_no_uncounted_key() {
    if lacking(&[Tool::Python]) {
        return;
    }
    let (_app, url) = start_wsgi_app();
    let gateway = GatewayServer::with_rules(&url, &one_request_per("api_key"));
    let forged = [
        ("X-API-Key", "k"),
        ("X_Forwarded_For", "6.6.6.6"),
        ("X_Forwarded-For", "6.6.6.6"),
        ("X-Real-IP", "6.6.6.6"),
        ("X_Real_IP", "6.6.6.6"),
        ("X_Forwarded_Proto", "https"),
        ("X-Forwarded-Port", "6666"),
    ];
    let response = gateway.connect().send("GET", "/", &forged, "");
    let headers = response.json();
    assert_eq!(headers["HTTP_X_FORWARDED_FOR"], "127.0.0.1", "{headers}");
    assert_eq!(headers["HTTP_X_FORWARDED_PROTO"], "http", "{headers}");
    assert_eq!(headers["HTTP_X_REAL_IP"], Value::Null, "{headers}");
    assert_eq!(headers["HTTP_X_FORWARDED_PORT"], Value::Null, "{headers}");
    assert_eq!(headers["HTTP_X_API_KEY"], "k", "{headers}");
    // The application would read the same key, which has no request left.
    gateway.connect().send("GET", "/", &[("X_API_Key", "k")], "").assert_problem(400);
}

#[test]
fn rate_limit_headers_of_a_client_do_not_reach_an_upstream_that_reads_them() {
    let upstream = Upstream::start();
    let config = "gateway: {upstream_headers: true}";
    let gateway = GatewayServer::with_config(&upstream.url(), config);
    let forged = [
        ("X-RateLimit-Remaining", "999"),
        ("X-RateLimit-Remaining-Day", "999"),
        ("X_RateLimit_Remaining", "999"),
        ("RateLimit-Reset", "999"),
    ];
    let response = gateway.connect().send("GET", "/head", &forged, "");
    assert_eq!(upstream_field(&response, "x-ratelimit-remaining"), ["999999"]);
    for name in ["x-ratelimit-remaining-day", "x_ratelimit_remaining", "ratelimit-reset"] {
        assert_eq!(upstream_field(&response, name), [""; 0], "{name}");
    }
}

#[test]
fn upgrade_to_http2_beside_an_invalid_protocol_is_removed() {
    let upstream = RawUpstream::start(|_, _| UpstreamAction::ok("ok"));
    let gateway = GatewayServer::forward_to(&upstream.url());
    for protocols in [&b"h2c, \xff"[..], b"\xff, h2c", b"h2c"] {
        let mut client = gateway.connect();
        client.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: ");
        client.write(protocols);
        client.write(b"\r\n\r\n");
        assert_eq!(client.receive("GET").status, 200);
    }
    let received = upstream.received();
    assert_eq!(received.len(), 3);
    for request in received {
        assert_eq!((request.fields("upgrade"), request.fields("connection")), (vec![], vec![]));
    }
}

#[test]
fn trusted_proxy_may_be_an_ipv4_address_written_as_ipv6() {
    let upstream = Upstream::start();
    let config = "identity: {trusted_proxies: ['::ffff:127.0.0.1']}";
    let gateway = GatewayServer::with_config(&upstream.url(), config);
    let fields = [("X-Forwarded-For", "192.0.2.7"), ("X-Real-IP", "192.0.2.7")];
    let response = gateway.connect().send("GET", "/head", &fields, "");
    assert_eq!(upstream_field(&response, "x-forwarded-for"), ["192.0.2.7, 127.0.0.1"]);
    assert_eq!(upstream_field(&response, "x-real-ip"), ["192.0.2.7"]);
}
