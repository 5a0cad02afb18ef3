//! A real Envoy asks Tidegate, with the configuration of `deploy/envoy`.

mod application;
mod edge;

use tidegate_testkit::{Port, Tool, lacking, wait_for};

use self::edge::{Edge, HERE, Patience, THERE};
use crate::kit::{Folder, Server, run};

/// Rules whose windows no test outlasts.
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

/// The statuses of so many requests, one after another.
fn statuses(count: usize, ask: impl Fn() -> u16) -> Vec<u16> {
    (0..count).map(|_| ask()).collect()
}

#[test]
fn envoy_admits_up_to_the_limit_and_says_how_much_is_left() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let edge = Edge::start(server.listener("grpc").port(), Patience::Long);
    for left in ["2", "1", "0"] {
        let answer = edge.ask(HERE, "POST", "/login?again=1", &[]);
        assert_eq!((answer.status, answer.body.as_str()), (200, "POST /login?again=1"));
        assert_eq!(answer.header("x-ratelimit-limit"), Some("3, 3;w=31536000;name=\"login\""));
        assert_eq!(answer.header("x-ratelimit-remaining"), Some(left));
        assert_ne!(answer.header("x-ratelimit-reset"), Some("0"));
        assert_eq!(answer.header("retry-after"), None);
    }
    let denied = edge.ask(HERE, "POST", "/login", &[]);
    assert_eq!(denied.status, 429, "{denied:?}");
    assert_eq!(denied.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(denied.header("x-envoy-ratelimited"), Some("true"));
    let wait: u64 = denied.header("retry-after").unwrap().parse().unwrap();
    assert!((1..=31_536_000).contains(&wait), "{wait}");
    assert_eq!(
        edge.ask(HERE, "GET", "/login", &[]).status,
        200,
        "another method is another matter"
    );
}

#[test]
fn the_rules_that_are_deployed_with_envoy_are_fine() {
    let rules = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/envoy/rules.yaml");
    let (code, _, notes) = run(&["validate", rules]);
    assert_eq!(code, 0, "{notes}");
}

#[test]
fn two_clients_behind_envoy_have_two_buckets() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let edge = Edge::start(server.listener("grpc").port(), Patience::Long);
    assert_eq!(statuses(3, || edge.ask(HERE, "GET", "/api/a", &[]).status), [200, 200, 429]);
    assert_eq!(statuses(3, || edge.ask(THERE, "GET", "/api/b", &[]).status), [200, 200, 429]);
    let keyed = |key: &str| edge.ask(HERE, "GET", "/api/c", &[("x-api-key", key)]).status;
    assert_eq!(statuses(3, || keyed("alice")), [200, 200, 429]);
    assert_eq!(statuses(3, || keyed("bob")), [200, 200, 429]);
    // Who says that it comes from elsewhere is still who connects.
    let forged = [("x-forwarded-for", "192.0.2.7")];
    assert_eq!(edge.ask(HERE, "GET", "/api/a", &forged).status, 429);
}

#[test]
fn what_the_application_refuses_stays_its_own() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let edge = Edge::start(server.listener("grpc").port(), Patience::Long);
    let answer = edge.ask(HERE, "GET", "/forbidden", &[]);
    assert_eq!(answer.status, 403);
    assert_eq!(answer.header("x-envoy-ratelimited"), None);
}

#[test]
fn envoy_finds_the_limits_of_envoyproxy_ratelimit_files_as_they_are() {
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
    let edge = Edge::start(server.listener("grpc").port(), Patience::Long);
    let first = edge.ask(HERE, "GET", "/files/a", &[]);
    assert_eq!(first.status, 200);
    assert_eq!(first.header("x-ratelimit-limit"), Some("2, 2;w=31536000;name=\"downloads\""));
    assert_eq!(first.header("x-ratelimit-remaining"), Some("1"));
    assert_eq!(edge.ask(HERE, "GET", "/files/b/c", &[]).status, 200);
    assert_eq!(edge.ask(HERE, "GET", "/files/d", &[]).status, 429);
    assert_eq!(edge.ask(THERE, "GET", "/files/d", &[]).status, 200);
    assert_eq!(edge.ask(HERE, "GET", "/banned", &[]).status, 429);
    assert_eq!(edge.ask(HERE, "GET", "/elsewhere", &[]).status, 200);
}

#[test]
fn requests_pass_while_tidegate_is_away_and_are_limited_when_it_is_back() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let folder = Folder::new();
    let rules = folder.file("rules.yaml", RULES);
    let port = Port::free();
    let grpc = format!("127.0.0.1:{}", port.number());
    let arguments = ["--rules", &rules, "--http", "127.0.0.1:0", "--grpc", &grpc];
    let mut server = Server::with_arguments(&arguments);
    let edge = Edge::start(port.number(), Patience::AsDeployed);
    let ask = || edge.ask(HERE, "POST", "/login", &[]).status;
    wait_for("the limit is reached", || (ask() == 429).then_some(()));

    server.signal("KILL");
    server.wait();
    assert_eq!(statuses(10, ask), [200; 10]);
    assert!(edge.passed_unasked() >= 10);

    let _back = Server::with_arguments(&arguments);
    wait_for("the limit is reached again", || (ask() == 429).then_some(()));
}

#[test]
fn requests_pass_a_frozen_tidegate_at_their_deadline() {
    if lacking(&[Tool::Envoy]) {
        return;
    }
    let server = Server::with_rules(RULES);
    let edge = Edge::start(server.listener("grpc").port(), Patience::AsDeployed);
    let ask = || edge.ask(HERE, "POST", "/login", &[]).status;
    wait_for("the limit is reached", || (ask() == 429).then_some(()));
    server.freeze();
    assert_eq!(statuses(3, ask), [200; 3]);
    server.signal("CONT");
    wait_for("the limit holds again", || (ask() == 429).then_some(()));
}

#[test]
fn a_rule_that_fails_closed_denies_through_an_envoy_that_fails_open() {
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
    // Nobody listens there.
    let nowhere = Port::free();
    let redis = format!("redis://127.0.0.1:{}", nowhere.number());
    let arguments = ["--rules", &rules, "--http", "127.0.0.1:0", "--redis", &redis];
    let server = Server::with_arguments(&arguments);
    let edge = Edge::start(server.listener("grpc").port(), Patience::Long);
    let denied = edge.ask(HERE, "POST", "/transfers/1", &[]);
    assert_eq!(denied.status, 429, "{denied:?}");
    assert!(denied.header("x-tidegate-denied").is_some(), "{denied:?}");
    assert_eq!(edge.ask(HERE, "GET", "/api/1", &[]).status, 200);
}
