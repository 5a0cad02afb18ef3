//! Valid and invalid settings of the gateway.

use std::path::Path;

use crate::config::ConfigFile;
use tidegate_gateway::{HealthConfig, Priority};
use tidegate_net::client::ClientTls;

use super::*;

fn read(text: &str) -> GatewaySettings {
    let file = ConfigFile::parse(Path::new("/etc/tidegate/tidegate.yaml"), text);
    file.unwrap_or_else(|error| panic!("{error}\n{text}")).forwarding.unwrap()
}

/// Returns the errors of a text, without the name of the file.
fn errors_of(text: &str) -> Vec<String> {
    let error = ConfigFile::parse(Path::new("t"), text).unwrap_err().to_string();
    error.lines().map(|line| line.strip_prefix("t:").unwrap().to_owned()).collect()
}

#[test]
fn every_setting_is_read() {
    let gateway = read(
        r#"
gateway:
  upstreams:
    - name: api
      servers: [http://10.0.0.1:3000, h2c://10.0.0.2]
      max_in_flight: 1_000
      health: {path: "/healthz?deep=1", every: 10s, timeout: 1s}
    - {name: web, servers: [https://web.internal], ca: ca.pem, certificate: c.pem, key: /k.pem}
  routes:
    - {name: checkout, host: Shop.Example.com., path: /checkout/**, method: POST, upstream: api, priority: high}
    - {host: "*.example.com", method: [GET, PURGE], upstream: web, priority: low}
    - {host: "[::1]", upstream: web}
    - {upstream: api}
  timeouts: {connect: 1s, response: 2s, body: 4s, idle: 3m}
  max_wait: 0s
  upstream_headers: true
"#,
    );
    let [api, web] = gateway.upstreams.as_slice() else { panic!("{:?}", gateway.upstreams) };
    let servers: Vec<String> = api.servers.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["http://10.0.0.1:3000", "h2c://10.0.0.2:80"]);
    assert_eq!((&*api.name, api.max_in_flight), ("api", Some(1_000)));
    assert_eq!(api.tls, ClientTls::default());
    let (every, timeout) = (Span::from_secs(10), Span::SECOND);
    let health = HealthConfig { path: "/healthz?deep=1".to_owned(), every, timeout };
    assert_eq!(api.health, Some(health));
    let ca = Some("/etc/tidegate/ca.pem".into());
    let identity = Some(("/etc/tidegate/c.pem".into(), "/k.pem".into()));
    assert_eq!(web.tls, ClientTls { ca, identity });
    assert_eq!((&web.health, web.max_in_flight), (&None, None));

    let [checkout, sites, local, rest] = gateway.routes.as_slice() else { panic!() };
    let host = |route: &RouteConfig, host| route.host.as_ref().is_none_or(|it| it.matches(host));
    let path = |route: &RouteConfig, path| route.path.as_ref().is_none_or(|it| it.matches(path));
    assert_eq!((&*checkout.name, checkout.upstream), ("checkout", 0));
    assert_eq!(checkout.priority, Priority::High);
    assert!(host(checkout, "shop.example.com") && !host(checkout, "example.com"));
    assert!(path(checkout, "/checkout/a/b") && !path(checkout, "/check"));
    assert_eq!(checkout.methods, ["POST"]);
    assert_eq!((&*sites.name, sites.upstream, sites.priority), ("web", 1, Priority::Low));
    assert!(host(sites, "a.b.example.com") && !host(sites, "example.com"));
    assert_eq!(sites.methods, ["GET", "PURGE"]);
    assert!(host(local, "[::1]"));
    assert_eq!((&*rest.name, rest.upstream, rest.priority), ("api", 0, Priority::Normal));
    assert!(rest.host.is_none() && rest.path.is_none() && rest.methods.is_empty());

    let (connect, response) = (Span::SECOND, Span::from_secs(2));
    let (body, idle) = (Span::from_secs(4), Span::from_secs(180));
    assert_eq!(gateway.timeouts, ProxyTimeouts { connect, response, body, idle });
    assert_eq!((gateway.max_wait, gateway.upstream_headers), (Span::ZERO, true));
}

#[test]
fn one_upstream_needs_no_routes() {
    let gateway =
        read("gateway: {upstreams: [{name: api, servers: [http://a], health: {path: /}}]}");
    let [route] = gateway.routes.as_slice() else { panic!("{:?}", gateway.routes) };
    assert_eq!((&*route.name, route.upstream), ("api", 0));
    assert!(route.host.is_none() && route.path.is_none() && route.methods.is_empty());
    assert_eq!(gateway.timeouts, ProxyTimeouts::default());
    assert_eq!(
        (gateway.max_wait, gateway.upstream_headers),
        (GatewayConfig::DEFAULT_MAX_WAIT, false)
    );
    let (every, timeout) = (HealthConfig::DEFAULT_INTERVAL, HealthConfig::DEFAULT_TIMEOUT);
    let health = HealthConfig { path: "/".to_owned(), every, timeout };
    assert_eq!(gateway.upstreams[0].health, Some(health));
    // The default timeout is at most the interval.
    let frequent =
        "gateway: {upstreams: [{name: a, servers: [http://a], health: {path: /, every: 1s}}]}";
    let health = read(frequent).upstreams[0].health.clone().unwrap();
    assert_eq!((health.every, health.timeout), (Span::SECOND, Span::SECOND));
}

#[test]
fn invalid_upstreams_are_reported_with_their_line() {
    let upstream = |more: &str| format!("gateway:\n  upstreams:\n    - {{name: a, {more}}}");
    let url = "must be a URL like http://127.0.0.1:3000, https:// or h2c://, found";
    let many: Vec<String> = (0..65).map(|port| format!("http://a:{}", port + 1)).collect();
    for (text, error) in [
        (
            "gateway:\n  upstreams:\n    - servers: [http://a]".to_owned(),
            "3: gateway.upstreams must each have a name, found none".to_owned(),
        ),
        (
            "gateway:\n  upstreams:\n    - {name: a b, servers: [http://a]}".to_owned(),
            "3: gateway.upstreams.name must be 1 to 64 of A-Z a-z 0-9 _ . -, found \"a b\"".to_owned(),
        ),
        (
            "gateway:\n  upstreams:\n    - {name: a, servers: [http://a]}\n    - {name: a, servers: [http://b]}\n  routes: [{upstream: a}]".to_owned(),
            "4: gateway.upstreams.name must be unique, found \"a\" twice".to_owned(),
        ),
        (
            upstream("servers: []"),
            "3: gateway.upstreams.servers must be 1 to 64 URLs, found 0".to_owned(),
        ),
        (
            upstream(&format!("servers: [{}]", many.join(", "))),
            "3: gateway.upstreams.servers must be 1 to 64 URLs, found 65".to_owned(),
        ),
        (
            upstream("servers: ['a:3000']"),
            format!("3: gateway.upstreams.servers {url} \"a:3000\""),
        ),
        (
            upstream("servers: ['http://u:hunter2@a']"),
            format!("3: gateway.upstreams.servers {url} \"a URL with a user\""),
        ),
        (
            upstream("servers: [http://a, 'http://a:80']"),
            "3: gateway.upstreams.servers must be unique, found http://a:80 twice".to_owned(),
        ),
        (
            upstream("servers: [https://a], key: k"),
            "3: gateway.upstreams must have both or neither of certificate and key, found key".to_owned(),
        ),
        (
            upstream("servers: [http://a], ca: ca.pem"),
            "3: gateway.upstreams must have an https:// server with ca or certificate, found none".to_owned(),
        ),
        (
            upstream("servers: [http://a], max_in_flight: 0"),
            "3: gateway.upstreams.max_in_flight must be a whole number from 1 to 1000000, found \"0\"".to_owned(),
        ),
        (
            upstream("servers: [http://a], health: {every: 5s}"),
            "3: gateway.upstreams.health must have a path, found none".to_owned(),
        ),
        (
            upstream("servers: [http://a], health: {path: healthz}"),
            "3: gateway.upstreams.health.path must be like /healthz, found \"healthz\"".to_owned(),
        ),
        (
            upstream("servers: [http://a], health: {path: /, every: 100ms}"),
            "3: gateway.upstreams.health.every must be from 1s to 1h, found 100 ms".to_owned(),
        ),
        (
            upstream("servers: [http://a], health: {path: /, every: 5s, timeout: 6s}"),
            "3: gateway.upstreams.health.timeout must be from 1ms to the value of every, found 6 s".to_owned(),
        ),
        (
            upstream("servers: [http://a], max_in_fligt: 5"),
            "3: there is no key \"max_in_fligt\", wanted name, servers, ca, certificate, key, \
             max_in_flight, health (did you mean max_in_flight?)"
                .to_owned(),
        ),
    ] {
        assert_eq!(errors_of(&text), [error], "{text}");
    }
}

#[test]
fn invalid_routes_are_reported_with_their_line() {
    const TWO: &str = "gateway:\n  upstreams: [{name: api, servers: [http://a]}, {name: web, servers: [http://b]}]\n";
    let route = |route: &str| format!("{TWO}  routes:\n    - {{{route}}}");
    let host = "must be a host like shop.example.com or *.example.com, without a port, found";
    let path = "must be a path like /checkout or /checkout/**, without a query, found";
    for (text, error) in [
        (
            TWO.to_owned(),
            "2: gateway.routes must have a route if there are several upstreams, found none for 2 upstreams"
                .to_owned(),
        ),
        (
            "gateway:\n  routes: [{upstream: api}]".to_owned(),
            "2: gateway.routes.upstream must be one of gateway.upstreams, which has none, \
             found \"api\""
                .to_owned(),
        ),
        (
            route("path: /"),
            "4: gateway.routes.upstream must be one of api, web, found none".to_owned(),
        ),
        (
            route("upstream: wep"),
            "4: gateway.routes.upstream must be one of api, web, found \"wep\" (did you mean web?)".to_owned(),
        ),
        (
            route("upstream: api, name: ''"),
            "4: gateway.routes.name must be 1 to 64 of A-Z a-z 0-9 _ . -, found \"\"".to_owned(),
        ),
        (
            format!("{TWO}  routes:\n    - {{upstream: api, name: a}}\n    - {{upstream: web, name: a}}"),
            "5: gateway.routes.name must be unique, found \"a\" twice".to_owned(),
        ),
        (
            route("upstream: api, host: 'a.example:80'"),
            format!("4: gateway.routes.host {host} \"a.example:80\""),
        ),
        (
            route("upstream: api, host: 'https://a.example'"),
            format!("4: gateway.routes.host {host} \"https://a.example\""),
        ),
        (
            route("upstream: api, path: checkout"),
            format!("4: gateway.routes.path {path} \"checkout\""),
        ),
        (
            route("upstream: api, path: '/a?b=c'"),
            format!("4: gateway.routes.path {path} \"/a?b=c\""),
        ),
        (
            route("upstream: api, method: post"),
            "4: gateway.routes.method must be in capitals, like GET or POST, found \"post\" (did you mean POST?)".to_owned(),
        ),
        (
            route("upstream: api, method: [GET, 'A B']"),
            "4: gateway.routes.method must be in capitals, like GET or POST, found \"A B\"".to_owned(),
        ),
        (
            route("upstream: api, method: []"),
            "4: gateway.routes.method must have a method, or be left out for all, found none".to_owned(),
        ),
        (
            route("upstream: api, priority: hihg"),
            "4: gateway.routes.priority must be one of low, normal, high, found \"hihg\" (did you mean high?)".to_owned(),
        ),
        (
            route("upstreem: api"),
            "4: there is no key \"upstreem\", wanted name, host, path, method, upstream, priority, \
             encoded_slashes, forward_path (did you mean upstream?)"
                .to_owned(),
        ),
    ] {
        assert_eq!(errors_of(&text), [error], "{text}");
    }
}

#[test]
fn other_invalid_settings_are_reported_with_their_line() {
    for (text, error) in [
        (
            "gateway: {timeouts: {connect: 2h}}",
            "1: gateway.timeouts.connect must be from 1ms to 1h, found 2 h",
        ),
        (
            "gateway: {timeouts: {idle: 0s}}",
            "1: gateway.timeouts.idle must be from 1ms to 1h, found 0 s",
        ),
        (
            "gateway: {timeouts: {response: soon}}",
            "1: gateway.timeouts.response must be a time like 5s or 0s, found \"soon\"",
        ),
        ("gateway: {max_wait: 2h}", "1: gateway.max_wait must be from 0s to 1h, found 2 h"),
        (
            "gateway: {upstream_headers: maybe}",
            "1: gateway.upstream_headers must be one of false, true, found \"maybe\"",
        ),
        (
            "gateway: {upstream: a}",
            "1: there is no key \"upstream\", wanted upstreams, routes, timeouts, max_wait, \
             upstream_headers (did you mean upstreams?)",
        ),
    ] {
        assert_eq!(errors_of(text), [error], "{text}");
    }
}

fn describe(found: Result<(ListenAddress, Option<GatewayConfig>), ConfigError>) -> String {
    match found {
        Ok((listener, None)) => listener.to_string(),
        Ok((listener, Some(gateway))) => {
            let servers = gateway.upstreams.iter().flat_map(|upstream| &upstream.servers);
            let servers: Vec<String> = servers.map(ToString::to_string).collect();
            format!("{listener} to {}, {}", servers.join(" and "), gateway.timeouts.connect)
        }
        Err(error) => error.to_string(),
    }
}

#[test]
fn gateway_is_on_if_and_only_if_there_is_an_upstream() {
    let file = || {
        Some(read(
            "gateway: {upstreams: [{name: a, servers: [http://a]}], timeouts: {connect: 1s}}",
        ))
    };
    let settings = || Some(read("gateway: {timeouts: {connect: 1s}}"));
    let url = |text: &str| vec![Secret::from(text)];
    let at = |text: &str| Some(text.parse::<ListenAddress>().unwrap());
    let none = "an upstream is wanted, found none";
    for (flag, upstream, listen, file, expected) in [
        (None, vec![], None, None, "off"),
        (None, vec![], None, file(), "127.0.0.1:8000 to http://a:80, 1 s"),
        (None, vec![], at("b:1"), file(), "b:1 to http://a:80, 1 s"),
        (at("c:2"), vec![], at("b:1"), file(), "c:2 to http://a:80, 1 s"),
        (None, url("http://f"), None, None, "127.0.0.1:8000 to http://f:80, 5 s"),
        (None, url("http://f"), None, file(), "127.0.0.1:8000 to http://f:80, 1 s"),
        (None, url("http://f"), None, settings(), "127.0.0.1:8000 to http://f:80, 1 s"),
        (at("off"), url("http://f"), at("b:1"), file(), "off"),
        (None, vec![], at("off"), file(), "off"),
        (at("c:2"), vec![], at("off"), file(), "c:2 to http://a:80, 1 s"),
        (at("off"), vec![], None, settings(), "off"),
        (at("c:2"), vec![], None, None, &format!("--gateway: {none}")),
        (None, vec![], at("b:1"), None, &format!("listen.gateway: {none}")),
        (None, vec![], None, settings(), &format!("gateway: {none}")),
        (
            at("off"),
            url("http://u:hunter2@f"),
            None,
            None,
            "--upstream: must be a URL like http://127.0.0.1:3000, https:// or h2c://, found \
             \"a URL with a user\"",
        ),
    ] {
        assert_eq!(describe(resolve(flag, &upstream, listen, file)), expected);
    }
    let many: Vec<Secret> = (0..65).map(|_| Secret::from("http://a")).collect();
    let error = "--upstream: at most 64 are wanted, found 65";
    assert_eq!(describe(resolve(None, &many, None, None)), error);
}
