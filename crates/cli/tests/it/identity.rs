//! Client attributes that `identity` in `tidegate.yaml` configures: address, session, token and certificate.

use std::fmt::Write as _;
use std::path::Path;
use std::process::Command;

use jsonwebtoken::{EncodingKey, Header, encode};
use serde_json::json;
use tidegate_testkit::{Certificates, Tool, lacking};

use crate::kit::{Folder, Server, run};

/// Returns the remaining quota of a client with these headers.
fn remaining_for(server: &Server, headers: &[(&str, &str)]) -> String {
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

fn server_with_identity(identity: &str, per: &str) -> Server {
    Server::with_config(&format!(
        "listen: {{http: 127.0.0.1:0}}\nidentity: {identity}\n\
         rules: {{inline: [{{name: a, per: [{per}], limit: 100 per 10 days}}]}}\n"
    ))
}

#[test]
fn forwarded_address_of_a_trusted_proxy_identifies_the_client() {
    let server = server_with_identity("{trusted_proxies: [127.0.0.1, 10.0.0.0/8]}", "ip");
    assert_eq!(remaining_for(&server, &[("x-forwarded-for", "192.0.2.7")]), "99");
    assert_eq!(remaining_for(&server, &[("x-forwarded-for", "192.0.2.8")]), "99");
    assert_eq!(
        remaining_for(&server, &[("x-forwarded-for", "203.0.113.1, 192.0.2.7, 10.1.2.3")]),
        "98"
    );
    let two_headers = [("x-forwarded-for", "192.0.2.8"), ("x-forwarded-for", "192.0.2.7:4711")];
    assert_eq!(remaining_for(&server, &two_headers), "97");
    assert_eq!(remaining_for(&server, &[("x-forwarded-for", "2001:db8:1:2::1")]), "99");
    assert_eq!(remaining_for(&server, &[("x-forwarded-for", "[2001:db8:1:2:ffff::9]:80")]), "98");
    assert_eq!(remaining_for(&server, &[("x-forwarded-for", "2001:db8:1:3::1")]), "99");
}

#[test]
fn configured_forwarded_header_replaces_x_forwarded_for() {
    let identity = "{trusted_proxies: [127.0.0.0/8], forwarded_header: forwarded, ipv6_prefix: 48}";
    let server = server_with_identity(identity, "ip");
    assert_eq!(
        remaining_for(&server, &[("forwarded", "for=\"[2001:db8:1:2::1]\";proto=https")]),
        "99"
    );
    assert_eq!(remaining_for(&server, &[("forwarded", "for=\"[2001:db8:1:9::1]\"")]), "98");
    assert_eq!(remaining_for(&server, &[("forwarded", "for=192.0.2.7")]), "99");
    // `X-Forwarded-For` is ignored: any client can set it.
    assert_eq!(remaining_for(&server, &[("x-forwarded-for", "192.0.2.7")]), "99");
    assert_eq!(remaining_for(&server, &[("x-forwarded-for", "192.0.2.8")]), "98");
}

#[test]
fn untrusted_proxy_is_logged_once_with_the_setting_that_trusts_it() {
    let server = server_with_identity("{}", "ip");
    assert_eq!(remaining_for(&server, &[("x-forwarded-for", "192.0.2.7")]), "99");
    assert_eq!(remaining_for(&server, &[("x-forwarded-for", "192.0.2.8")]), "98");
    let line = server.wait_for_log("ignored a forwarded address");
    assert!(line.contains("WARN") && line.contains("identity.trusted_proxies"), "{line}");
    assert!(line.contains("127.0.0.1"), "{line}");
    server.signal("TERM");
    let next = server.wait_for_log("");
    assert!(next.contains("stop signal"), "{next}");
}

#[test]
fn each_session_and_bearer_token_has_its_own_bucket() {
    let server = server_with_identity("{session: {cookie: sid}}", "session | bearer");
    assert_eq!(remaining_for(&server, &[("cookie", "sid=s1; theme=dark")]), "99");
    assert_eq!(remaining_for(&server, &[("cookie", "sid=s2")]), "99");
    assert_eq!(remaining_for(&server, &[("cookie", "sid=s1")]), "98");
    assert_eq!(remaining_for(&server, &[("authorization", "Bearer t1")]), "99");
    assert_eq!(remaining_for(&server, &[("authorization", "Bearer t2")]), "99");
    assert_eq!(remaining_for(&server, &[("authorization", "bearer t1")]), "98");
    assert_eq!(remaining_for(&server, &[("authorization", "Basic t1")]), "99");
}

#[test]
fn jwt_sets_the_user_and_a_claim_sets_the_tier() {
    let secret = "a secret that has thirty-two bytes";
    let folder = Folder::new();
    folder.file("secret", &format!("{secret}\n"));
    let config = folder.file(
        "tidegate.yaml",
        "listen: {http: 127.0.0.1:0}
identity:
  jwt: {secret_file: secret, algorithms: [HS256], issuer: me, audience: [shop, api], leeway: 5s}
rules:
  inline:
    - name: a
      per: [user]
      limit: 100 per 10 days
      tiers: {by: claim.plan, limits: {pro: 1000 per 10 days}}
",
    );
    let server = Server::with_arguments(&["--config", &config]);
    let remaining = |secret: &str, user: &str, plan: &str, audience: &str| {
        let year_2100: u64 = 4_102_444_800;
        let claims =
            json!({"sub": user, "plan": plan, "iss": "me", "aud": audience, "exp": year_2100});
        let key = EncodingKey::from_secret(secret.as_bytes());
        let token = encode(&Header::default(), &claims, &key).unwrap();
        remaining_for(&server, &[("authorization", &format!("Bearer {token}"))])
    };
    assert_eq!(remaining(secret, "alice", "free", "shop"), "99");
    assert_eq!(remaining(secret, "bob", "pro", "api"), "999");
    assert_eq!(remaining(secret, "alice", "free", "shop"), "98");
    // A token with a wrong signature or audience counts as no token. Such requests share one bucket.
    assert_eq!(remaining("another secret of thirty-two bytes", "alice", "pro", "shop"), "99");
    assert_eq!(remaining(secret, "alice", "pro", "elsewhere"), "98");
}

#[test]
fn client_certificate_sets_the_service() {
    if lacking(&[Tool::Openssl]) {
        return;
    }
    let folder = Folder::new();
    let certificates = Certificates::create(Path::new(folder.path()));
    let text = |path: &Path| path.to_str().unwrap().to_owned();
    let server = Server::with_config(&format!(
        "listen: {{http: '127.0.0.1:0'}}
tls: {{certificate: {}, key: {}, client_ca: {}, listeners: [http]}}
rules: {{inline: [{{name: a, per: [service], limit: 2 per 10 days}}]}}",
        text(&certificates.certificate),
        text(&certificates.key),
        text(&certificates.ca)
    ));
    let as_service = |name: &str| {
        let (certificate, key) = certificates.client(name, &format!("URI:spiffe://shop/{name}"));
        let ca = text(&certificates.ca);
        let identity = ["--cert", &text(&certificate), "--key", &text(&key), "--cacert", &ca];
        let identity = identity.map(str::to_owned);
        let url = format!("https://{}", server.address);
        move |arguments: &[&str]| {
            let mut command = Command::new("curl");
            command.args(["--silent", "--output", "/dev/null", "--write-out", "%{http_code}"]);
            command.args(&identity).args(&arguments[1..]).arg(format!("{url}{}", arguments[0]));
            String::from_utf8(command.output().unwrap().stdout).unwrap()
        }
    };
    let proxy = ["/v1/authorize", "-HX-Original-URI: /", "-HX-Original-Method: GET"];
    let call = ["/v1/check", "-d", "{\"attributes\":{}}"];
    let (orders, billing) = (as_service("orders"), as_service("billing"));
    assert_eq!(
        [orders(&proxy), orders(&call), orders(&proxy), orders(&call)].join(" "),
        "200 200 429 429"
    );
    assert_eq!(billing(&call), "200");
    // An explicit `service` takes precedence over the certificate.
    let explicit_service =
        ["/v1/check", "-d", "{\"attributes\":{\"service\":\"spiffe://shop/orders\"}}"];
    assert_eq!(billing(&explicit_service), "429");
}

#[test]
fn credentials_are_never_logged() {
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
    remaining_for(&server, &headers);
    remaining_for(&server, &headers);
    server.signal("TERM");
    loop {
        let line = server.wait_for_log("");
        assert!(!line.contains("s3cret") && !line.contains("thirty-two"), "{line}");
        if line.contains("stop signal") {
            break;
        }
    }
}

#[test]
fn errors_in_identity_settings_are_reported_with_their_line() {
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
fn unreadable_jwks_file_prevents_the_start() {
    let folder = Folder::new();
    let config = folder.file("tidegate.yaml", "identity: {jwt: {jwks: keys.json}}\n");
    let (code, _, stderr) =
        run(&["serve", "--config", &config, "--http", "127.0.0.1:0", "--admin", "off"]);
    assert_eq!(code, 2, "{stderr}");
    assert!(stderr.contains("keys.json: No such file"), "{stderr}");
}
