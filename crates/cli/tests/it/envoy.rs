//! A real Envoy with the configuration of `deploy/envoy` that calls Tidegate for each request.

mod application;
mod proxy;

use tidegate_testkit::{Port, Tool, lacking, wait_for};

use self::proxy::{EnvoyProxy, FIRST_CLIENT, SECOND_CLIENT, ServiceTimeout};
use crate::kit::{Folder, Server, run};

/// Rules with windows that are longer than any test.
const RULES: &str = "
rules:
  - name: login
    match: {domain: edge, method: POST, path: /login}
    per: [remote_address]
    limit: 3 per year
  - name: api
    match: {domain: edge, path: '/api/**'}
    per: [api_key | remote_address]
    limit: 2 per day
    algorithm: sliding_window
  - name: api-in-all
    match: {domain: edge, path: '/api/**'}
    limit: 1000 per day
";

/// Sends requests one after the other, and returns their statuses.
fn statuses(count: usize, send: impl Fn() -> u16) -> Vec<u16> {
    (0..count).map(|_| send()).collect()
}

#[test]
fn envoy_admits_up_to_the_limit_and_adds_quota_headers() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let envoy = EnvoyProxy::start(server.listener("grpc").port(), ServiceTimeout::Long);
    for remaining in ["2", "1", "0"] {
        let response = envoy.send(FIRST_CLIENT, "POST", "/login?again=1", &[]);
        assert_eq!((response.status, response.body.as_str()), (200, "POST /login?again=1"));
        assert_eq!(response.header("x-ratelimit-limit"), Some("3, 3;w=31536000;name=\"login\""));
        assert_eq!(response.header("x-ratelimit-remaining"), Some(remaining));
        assert_ne!(response.header("x-ratelimit-reset"), Some("0"));
        assert_eq!(response.header("retry-after"), None);
    }
    let denied = envoy.send(FIRST_CLIENT, "POST", "/login", &[]);
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=31_536_000).contains(&wait), "{wait}");
    assert_eq!(
        envoy.send(FIRST_CLIENT, "GET", "/login", &[]).status,
        200,
        "the rule matches POST only"
    );
}

#[test]
fn rules_deployed_with_envoy_are_valid() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/envoy/rules.yaml");
    let (code, _, notes) = run(&["validate", rules]);
    assert_eq!(code, 0, "{notes}");
}

#[test]
fn clients_behind_envoy_have_separate_buckets() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let envoy = EnvoyProxy::start(server.listener("grpc").port(), ServiceTimeout::Long);
    assert_eq!(
        statuses(3, || envoy.send(FIRST_CLIENT, "GET", "/api/a", &[]).status),
        [200, 200, 429]
    );
    assert_eq!(
        statuses(3, || envoy.send(SECOND_CLIENT, "GET", "/api/b", &[]).status),
        [200, 200, 429]
    );
    let keyed = |key: &str| envoy.send(FIRST_CLIENT, "GET", "/api/c", &[("x-api-key", key)]).status;
    assert_eq!(statuses(3, || keyed("alice")), [200, 200, 429]);
    assert_eq!(statuses(3, || keyed("bob")), [200, 200, 429]);
    // Envoy uses the peer address and not the X-Forwarded-For of an untrusted client.
    let forged = [("x-forwarded-for", "192.0.2.7")];
    assert_eq!(envoy.send(FIRST_CLIENT, "GET", "/api/a", &forged).status, 429);
}

#[test]
fn header_value_that_is_not_utf8_is_limited_in_a_bucket_of_its_own() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let envoy = EnvoyProxy::start(server.listener("grpc").port(), ServiceTimeout::Long);
    let keys: [&[u8]; 5] = [b"\xff", b"\xfe", br"\xFF", "\u{fffd}".as_bytes(), b"a\xc3"];
    for key in keys {
        let send = || envoy.send_key(FIRST_CLIENT, "/api/a", key).status;
        assert_eq!(statuses(3, send), [200, 200, 429], "{key:?}");
    }
    assert_eq!(envoy.failed_open(), 0);
}

#[test]
fn rule_matches_the_escape_of_a_header_value_that_is_not_utf8() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let rules =
        r"rules: [{name: banned, match: {domain: edge, api_key: 'a\xFF*'}, limit: 0 per day}]";
    let server = Server::with_rules(rules);
    let envoy = EnvoyProxy::start(server.listener("grpc").port(), ServiceTimeout::Long);
    assert_eq!(envoy.send_key(FIRST_CLIENT, "/", b"a\xff1").status, 429);
    assert_eq!(envoy.send_key(FIRST_CLIENT, "/", br"a\xFF1").status, 200);
}

#[test]
fn call_over_the_size_limit_is_denied_through_an_envoy_that_fails_open() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let with_large_headers = |text: &str| {
        let setting = "use_remote_address: true\n";
        assert_eq!(text.matches(setting).count(), 1);
        let large = format!("{setting}                max_request_headers_kb: 8192\n");
        text.replace(setting, &large)
    };
    let port = server.listener("grpc").port();
    let envoy = EnvoyProxy::start_edited(port, ServiceTimeout::Long, with_large_headers);
    let denied = envoy.send_key(FIRST_CLIENT, "/api/a", &[b'x'; 1_100_000]);
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.header("x-tidegate-denied"), Some("invalid-call"));
    // A value within the limit is counted.
    let send = || envoy.send_key(FIRST_CLIENT, "/api/a", &[b'\xff'; 100_000]).status;
    assert_eq!(statuses(3, send), [200, 200, 429]);
    assert_eq!(envoy.failed_open(), 0);
}

#[test]
fn error_of_the_application_is_not_marked_as_rate_limited() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let envoy = EnvoyProxy::start(server.listener("grpc").port(), ServiceTimeout::Long);
    let response = envoy.send(FIRST_CLIENT, "GET", "/forbidden", &[]);
    assert_eq!(response.status, 403);
    assert_eq!(response.header("x-envoy-ratelimited"), None);
}

#[test]
fn limits_of_envoyproxy_ratelimit_files_are_enforced_unchanged() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let folder = Folder::new();
    folder.file(
        "edge.yaml",
        "
domain: edge
descriptors:
  - key: method
    descriptors:
      - key: path
        value: /files/*
        share_threshold: true
        descriptors:
          - key: remote_address
            rate_limit: {name: downloads, unit: year, requests_per_unit: 2}
      - key: path
        value: /banned
        descriptors:
          - key: remote_address
            rate_limit: {unit: second, requests_per_unit: 0}
",
    );
    let server = Server::with_arguments(&["--rules-envoy", folder.path(), "--http", "127.0.0.1:0"]);
    let envoy = EnvoyProxy::start(server.listener("grpc").port(), ServiceTimeout::Long);
    let first = envoy.send(FIRST_CLIENT, "GET", "/files/a", &[]);
    assert_eq!(first.status, 200);
    assert_eq!(first.header("x-ratelimit-limit"), Some("2, 2;w=31536000;name=\"downloads\""));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(envoy.send(FIRST_CLIENT, "GET", "/files/b/c", &[]).status, 200);
    assert_eq!(envoy.send(FIRST_CLIENT, "GET", "/files/d", &[]).status, 429);
    assert_eq!(envoy.send(SECOND_CLIENT, "GET", "/files/d", &[]).status, 200);
    assert_eq!(envoy.send(FIRST_CLIENT, "GET", "/banned", &[]).status, 429);
    assert_eq!(envoy.send(FIRST_CLIENT, "GET", "/elsewhere", &[]).status, 200);
}

#[test]
fn envoy_fails_open_while_tidegate_is_down_and_limits_after_its_restart() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", RULES);
    let port = Port::free();
    let grpc = format!("127.0.0.1:{}", port.number());
    let arguments = ["--rules", &rules, "--http", "127.0.0.1:0", "--grpc", &grpc];
    let mut server = Server::with_arguments(&arguments);
    let envoy = EnvoyProxy::start(port.number(), ServiceTimeout::AsDeployed);
    let send = || envoy.send(FIRST_CLIENT, "POST", "/login", &[]).status;
    wait_for("the limit is reached", || (send() == 429).then_some(()));

    server.signal("KILL");
    server.wait();
    assert_eq!(statuses(10, send), [200; 10]);
    assert!(envoy.failed_open() >= 10);

    let _restarted = Server::with_arguments(&arguments);
    wait_for("the limit is reached again", || (send() == 429).then_some(()));
}

#[test]
fn envoy_fails_open_at_its_timeout_while_tidegate_is_frozen() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let envoy = EnvoyProxy::start(server.listener("grpc").port(), ServiceTimeout::AsDeployed);
    let send = || envoy.send(FIRST_CLIENT, "POST", "/login", &[]).status;
    wait_for("the limit is reached", || (send() == 429).then_some(()));
    server.freeze();
    assert_eq!(statuses(3, send), [200; 3]);
    server.signal("CONT");
    wait_for("the limit is enforced again", || (send() == 429).then_some(()));
}

#[test]
fn on_store_failure_deny_denies_through_an_envoy_that_fails_open() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let folder = Folder::new();
    let rules = folder.file(
        "rules.yaml",
        "
rules:
  - name: transfers
    match: {domain: edge, path: '/transfers/**'}
    limit: 10 per minute
    on_store_failure: deny
  - name: api
    match: {domain: edge, path: '/api/**'}
    limit: 10 per minute
",
    );
    // No Redis listens on this port.
    let unused = Port::free();
    let redis = format!("redis://127.0.0.1:{}", unused.number());
    let arguments = ["--rules", &rules, "--http", "127.0.0.1:0", "--redis", &redis];
    let server = Server::with_arguments(&arguments);
    let envoy = EnvoyProxy::start(server.listener("grpc").port(), ServiceTimeout::Long);
    let denied = envoy.send(FIRST_CLIENT, "POST", "/transfers/1", &[]);
    assert_eq!(denied.status, 429, "{denied:?}");
    assert!(denied.header("x-tidegate-denied").is_some(), "{denied:?}");
    assert_eq!(envoy.send(FIRST_CLIENT, "GET", "/api/1", &[]).status, 200);
}
