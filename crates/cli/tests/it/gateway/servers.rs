//! Several servers that do the same: requests go to those that are well.

use tidegate_testkit::{Port, Upstream, wait_for};

use super::{Gateway, NO_LIMIT};

/// Asked often, so that a test need not wait for long.
fn config(servers: &[String], health: &str) -> String {
    let servers = servers.join(", ");
    format!("gateway: {{upstreams: [{{name: api, servers: [{servers}]{health}}}]}}")
}

fn url(port: &Port) -> String {
    format!("http://127.0.0.1:{}", port.number())
}

/// Whether requests are sent to a server.
fn is_up(gateway: &Gateway, server: &str) -> bool {
    let metrics = gateway.server.manage("GET", "/metrics", "").body;
    let line = format!("tidegate_upstream_up{{upstream=\"api\",server=\"{server}\"}} ");
    let line = metrics.lines().find_map(|told| told.strip_prefix(&line));
    line.unwrap_or_else(|| panic!("{server} is not in {metrics}")) == "1"
}

fn get(gateway: &Gateway, path: &str) -> u16 {
    gateway.connect().get(path).status
}

#[test]
fn requests_are_shared_out_among_servers() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let gateway = Gateway::launch(&[], &config(&[one.url(), other.url()], ""), NO_LIMIT);
    for _ in 0..20 {
        assert_eq!(get(&gateway, "/bytes/1"), 200);
    }
    let (here, there) = (one.seen("GET /bytes"), other.seen("GET /bytes"));
    assert_eq!(here + there, 20);
    assert!(here > 0 && there > 0, "{here} and {there}");
}

#[test]
fn a_server_that_can_not_be_reached_costs_nobody_an_answer() {
    let (one, nobody) = (Upstream::start(), Port::free());
    let gateway = Gateway::launch(&[], &config(&[url(&nobody), one.url()], ""), NO_LIMIT);
    for _ in 0..20 {
        assert_eq!(get(&gateway, "/bytes/1"), 200);
    }
    assert_eq!(one.seen("GET /bytes"), 20);
    assert!(!is_up(&gateway, &url(&nobody)));
    // It comes back, and after a while of rest it is tried again.
    let back = Upstream::at(&nobody);
    wait_for("it is tried again", || {
        assert_eq!(get(&gateway, "/bytes/2"), 200);
        (back.seen("GET /bytes/2") > 0).then_some(())
    });
}

#[test]
fn a_health_check_takes_a_server_out_and_brings_it_back() {
    let (one, port) = (Upstream::start(), Port::free());
    let other = Upstream::at(&port);
    let health = ", health: {path: /status/204, every: 1s, timeout: 500ms}";
    let gateway = Gateway::launch(&[], &config(&[one.url(), url(&port)], health), NO_LIMIT);
    assert!(is_up(&gateway, &one.url()) && is_up(&gateway, &url(&port)));
    drop(other);
    wait_for("it is taken out", || (!is_up(&gateway, &url(&port))).then_some(()));
    for _ in 0..10 {
        assert_eq!(get(&gateway, "/bytes/1"), 200);
    }
    let other = Upstream::at(&port);
    wait_for("it is brought back", || is_up(&gateway, &url(&port)).then_some(()));
    for _ in 0..10 {
        assert_eq!(get(&gateway, "/bytes/1"), 200);
    }
    assert!(other.seen("GET /bytes") > 0);
    assert!(other.seen("GET /status/204") > 1);
}

#[test]
fn if_no_server_is_well_the_check_is_not_believed() {
    let (one, other) = (Upstream::start(), Upstream::start());
    let health = ", health: {path: /status/503, every: 1s, timeout: 500ms}";
    let gateway = Gateway::launch(&[], &config(&[one.url(), other.url()], health), NO_LIMIT);
    wait_for("both are taken out", || {
        (!is_up(&gateway, &one.url()) && !is_up(&gateway, &other.url())).then_some(())
    });
    // It may be the check that is wrong.
    assert_eq!(get(&gateway, "/bytes/1"), 200);
}
