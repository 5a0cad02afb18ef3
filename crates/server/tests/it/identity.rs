//! Who is who, as `identity` in `tidegate.yaml` says.

use std::fmt::Write as _;

use crate::kit::{Folder, Server, run};

/// What is left to a client with these headers.
fn left(server: &Server, headers: &[(&str, &str)]) -> String {
    let mut request = "GET /v1/authorize HTTP/1.1\r\nhost: a\r\nx-original-uri: /\r\n\
                       x-original-method: GET\r\n"
        .to_owned();
    for (name, value) in headers {
        let _ = write!(request, "{name}: {value}\r\n");
    }
    let mut connection = server.connect();
    connection.write(format!("{request}\r\n").as_bytes());
    let response = connection.receive(false);
    response.header("x-ratelimit-remaining").unwrap_or_else(|| panic!("{response:?}")).to_owned()
}

fn server(identity: &str, per: &str) -> Server {
    Server::with_config(&format!(
        "listen: {{http: 127.0.0.1:0}}\nidentity: {identity}\n\
         rules: {{inline: [{{name: a, per: [{per}], limit: 100 per 10 days}}]}}\n"
    ))
}

#[test]
fn an_address_behind_a_trusted_proxy_is_a_client_of_its_own() {
    let server = server("{trusted_proxies: [127.0.0.1, 10.0.0.0/8]}", "ip");
    assert_eq!(left(&server, &[("x-forwarded-for", "192.0.2.7")]), "99");
    assert_eq!(left(&server, &[("x-forwarded-for", "192.0.2.8")]), "99");
    assert_eq!(left(&server, &[("x-forwarded-for", "203.0.113.1, 192.0.2.7, 10.1.2.3")]), "98");
    let lines = [("x-forwarded-for", "192.0.2.8"), ("x-forwarded-for", "192.0.2.7:4711")];
    assert_eq!(left(&server, &lines), "97");
    assert_eq!(left(&server, &[("x-forwarded-for", "2001:db8:1:2::1")]), "99");
    assert_eq!(left(&server, &[("x-forwarded-for", "[2001:db8:1:2:ffff::9]:80")]), "98");
    assert_eq!(left(&server, &[("x-forwarded-for", "2001:db8:1:3::1")]), "99");
}

#[test]
fn a_forwarded_header_is_read_where_it_is_chosen() {
    let identity = "{trusted_proxies: [127.0.0.0/8], forwarded_header: forwarded, ipv6_prefix: 48}";
    let server = server(identity, "ip");
    assert_eq!(left(&server, &[("forwarded", "for=\"[2001:db8:1:2::1]\";proto=https")]), "99");
    assert_eq!(left(&server, &[("forwarded", "for=\"[2001:db8:1:9::1]\"")]), "98");
    assert_eq!(left(&server, &[("forwarded", "for=192.0.2.7")]), "99");
    // The other header is a client's own words.
    assert_eq!(left(&server, &[("x-forwarded-for", "192.0.2.7")]), "99");
    assert_eq!(left(&server, &[("x-forwarded-for", "192.0.2.8")]), "98");
}

#[test]
fn a_proxy_that_nobody_trusts_is_named_once_with_the_setting() {
    let server = server("{}", "ip");
    assert_eq!(left(&server, &[("x-forwarded-for", "192.0.2.7")]), "99");
    assert_eq!(left(&server, &[("x-forwarded-for", "192.0.2.8")]), "98");
    let note = server.note("passed over");
    assert!(note.contains("WARN") && note.contains("identity.trusted_proxies"), "{note}");
    assert!(note.contains("127.0.0.1"), "{note}");
    server.signal("TERM");
    let next = server.note("");
    assert!(next.contains("told to stop"), "{next}");
}

#[test]
fn sessions_and_bearer_tokens_count_apart() {
    let server = server("{session: {cookie: sid}}", "session | bearer");
    assert_eq!(left(&server, &[("cookie", "sid=s1; theme=dark")]), "99");
    assert_eq!(left(&server, &[("cookie", "sid=s2")]), "99");
    assert_eq!(left(&server, &[("cookie", "sid=s1")]), "98");
    assert_eq!(left(&server, &[("authorization", "Bearer t1")]), "99");
    assert_eq!(left(&server, &[("authorization", "Bearer t2")]), "99");
    assert_eq!(left(&server, &[("authorization", "bearer t1")]), "98");
    assert_eq!(left(&server, &[("authorization", "Basic t1")]), "99");
}

#[test]
fn secrets_are_in_no_log() {
    let folder = Folder::new();
    let config = folder.file(
        "tidegate.yaml",
        "listen: {http: 127.0.0.1:0}\n\
         identity: {session: {cookie: sid}, jwt: {secret: 'a secret that has thirty-two bytes'}}\n\
         rules: {inline: [{name: a, per: [session, bearer, api_key, user], limit: 1 per day}]}\n",
    );
    let mut command = crate::kit::tidegate();
    command.env("TIDEGATE_LOG", "trace").args(["serve", "--config", &config]);
    let server = Server::launch_command(command);
    let headers = [
        ("cookie", "sid=s3cret-1"),
        ("authorization", "Bearer s3cret-2"),
        ("x-api-key", "s3cret-3"),
    ];
    left(&server, &headers);
    left(&server, &headers);
    server.signal("TERM");
    loop {
        let line = server.note("");
        assert!(!line.contains("s3cret") && !line.contains("thirty-two"), "{line}");
        if line.contains("told to stop") {
            break;
        }
    }
}

#[test]
fn what_is_wrong_with_identity_is_said_with_its_line() {
    let folder = Folder::new();
    let config = folder.file(
        "tidegate.yaml",
        "identity:
  trusted_proxies: [10.0.0.0/8, everybody]
  forwarded_header: x-real-ip
  ipv6_prefix: 129
  api_key: {}
  session: {query: sid}
  jwt:
    secret: short
    public_key: key.pem
    algorithms: [none]
    leeway: a while
  attributes: {tenant: x-tenant}
",
    );
    let (code, _, stderr) = run(&["validate", &config]);
    assert_eq!(code, 1);
    for wanted in [
        ":2: identity.trusted_proxies must be addresses or networks like 10.0.0.0/8, found \"everybody\"",
        ":3: identity.forwarded_header must be x-forwarded-for or forwarded, found \"x-real-ip\"",
        ":4: identity.ipv6_prefix must be a whole number from 1 to 128, found \"129\"",
        ":5: identity.api_key must have one of header, query, cookie, found none",
        ":6: identity.session must have one of cookie, header, found others",
        ":8: identity.jwt.secret must be at least 32 bytes long, found 5",
        "identity.jwt must have one of secret, secret_file, public_key, jwks, found several",
        ":10: identity.jwt.algorithms must be like RS256, ES256, EdDSA or HS256, found \"none\"",
        ":11: identity.jwt.leeway must be a length like 30s, found \"a while\"",
        ":12: identity.attributes.tenant must be header.NAME, query.NAME or cookie.NAME, found \"x-tenant\"",
    ] {
        assert!(stderr.contains(wanted), "{wanted}\n{stderr}");
    }
    assert!(!stderr.contains("short"), "{stderr}");
}

#[test]
fn a_key_that_can_not_be_read_stops_the_start() {
    let folder = Folder::new();
    let config = folder.file("tidegate.yaml", "identity: {jwt: {jwks: keys.json}}\n");
    let (code, _, stderr) =
        run(&["serve", "--config", &config, "--http", "127.0.0.1:0", "--admin", "off"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("keys.json: No such file"), "{stderr}");
}
