//! Upstreams with several servers: balancing, ejection and health checks.

use tidegate_testkit::{Port, Upstream, wait_for};

use super::{GatewayServer, NO_LIMIT};

/// Configures one upstream with these servers.
fn config(servers: &[String], health: &str) -> String {
    let servers = servers.join(", ");
    format!("gateway: {{upstreams: [{{name: api, servers: [{servers}]{health}}}]}}")
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}

/// Returns whether the gateway sends requests to a server, from its metrics.
fn is_up(gateway: &GatewayServer, server: &str) -> bool {
    let metrics = gateway.server.request_admin("GET", "/metrics", "").body;
    let line = format!("tidegate_upstream_up{{upstream=\"api\",server=\"{server}\"}} ");
    let line = metrics.lines().find_map(|metric| metric.strip_prefix(&line));
    line.unwrap_or_else(|| panic!("{server} is not in {metrics}")) == "1"
}

fn get(gateway: &GatewayServer, path: &str) -> u16 {
    gateway.connect().get(path).status
}

#[test]
fn requests_are_balanced_across_servers() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let gateway = GatewayServer::launch(&[], &config(&[one.url(), other.url()], ""), NO_LIMIT);
    for _ in 0..20 {
        assert_eq!(get(&gateway, "/bytes/1"), 200);
    }
    let (first, second) = (one.seen("GET /bytes"), other.seen("GET /bytes"));
    assert_eq!(first + second, 20);
    assert!(first > 0 && second > 0, "{first} and {second}");
}

#[test]
fn unreachable_server_is_ejected_and_retried_later() {
    let (one, unused) = (Upstream::start(), Port::free());
    let gateway = GatewayServer::launch(&[], &config(&[url(&unused), one.url()], ""), NO_LIMIT);
    for _ in 0..20 {
        assert_eq!(get(&gateway, "/bytes/1"), 200);
    }
    assert_eq!(one.seen("GET /bytes"), 20);
    assert!(!is_up(&gateway, &url(&unused)));
    // After its ejection time, a server that is reachable again gets requests.
    let restarted = Upstream::at(&unused);
    wait_for("the server gets requests again", || {
        assert_eq!(get(&gateway, "/bytes/2"), 200);
        (restarted.seen("GET /bytes/2") > 0).then_some(())
    });
}

#[test]
fn health_check_ejects_a_server_and_restores_it() {
    let (one, port) = (Upstream::start(), Port::free());
    let other = Upstream::at(&port);
    let health = ", health: {path: /status/204, every: 1s, timeout: 500ms}";
    let gateway = GatewayServer::launch(&[], &config(&[one.url(), url(&port)], health), NO_LIMIT);
    assert!(is_up(&gateway, &one.url()) && is_up(&gateway, &url(&port)));
    drop(other);
    wait_for("the server is ejected", || (!is_up(&gateway, &url(&port))).then_some(()));
    for _ in 0..10 {
        assert_eq!(get(&gateway, "/bytes/1"), 200);
    }
    let other = Upstream::at(&port);
    wait_for("the server is restored", || is_up(&gateway, &url(&port)).then_some(()));
    for _ in 0..10 {
        assert_eq!(get(&gateway, "/bytes/1"), 200);
    }
    assert!(other.seen("GET /bytes") > 0);
    assert!(other.seen("GET /status/204") > 1);
}

#[test]
fn health_check_is_ignored_when_it_fails_for_every_server() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let health = ", health: {path: /status/503, every: 1s, timeout: 500ms}";
    let gateway = GatewayServer::launch(&[], &config(&[one.url(), other.url()], health), NO_LIMIT);
    wait_for("both servers fail their health check", || {
        (!is_up(&gateway, &one.url()) && !is_up(&gateway, &other.url())).then_some(())
    });
    // The health check itself may be misconfigured, so requests are still forwarded.
    assert_eq!(get(&gateway, "/bytes/1"), 200);
}
