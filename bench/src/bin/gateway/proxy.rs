//! The proxies. Each function returns `None`, after a warning, if its program is not installed.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidegate_bench::host;
use tidegate_bench::server::{BenchServer, TidegateSettings, new_folder, nginx_command};
use tidegate_testkit::{Port, Tool, wait_for};

use crate::contender::GatewayLimit;

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Starts NGINX with one worker per core. `location` applies to every path, `http` to the http block.
pub(crate) fn nginx(http: &str, location: &str) -> Option<BenchServer> {
    let (port, folder, program) = (Port::free(), new_folder(), host::installed("nginx")?);
    let http = format!(
        "{http} server {{ listen 127.0.0.1:{}; location / {{ {location} }} }}",
        port.number()
    );
    let command = nginx_command(&program, None, folder.path(), cores(), &http);
    Some(BenchServer::start(command, port, folder))
}

/// Starts an NGINX that forwards, with a limit or without.
pub(crate) fn nginx_with_limit(upstream: u16, limit: Option<GatewayLimit>) -> Option<BenchServer> {
    let upstream = format!(
        "upstream behind {{ server 127.0.0.1:{upstream}; keepalive 128; keepalive_requests 100000000; }}"
    );
    let forward =
        "proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection '';";
    // The burst is above the one request that is always admitted. The lowest rate above 1,000 per hour is 17 per minute.
    let (rate, burst) = match limit {
        None => return nginx(&upstream, forward),
        Some(GatewayLimit::NeverReached) => ("1000000r/s", 1_000_000),
        Some(GatewayLimit::Hourly) => ("17r/m", 999),
    };
    nginx(
        &format!(
            "{upstream} limit_req_zone $binary_remote_addr zone=api:10m rate={rate}; limit_req_status 429;"
        ),
        &format!("limit_req zone=api burst={burst} nodelay; {forward}"),
    )
}

pub(crate) fn tidegate(upstream: u16, limit: GatewayLimit) -> BenchServer {
    tidegate_at(host::sibling_binary("tidegate"), upstream, limit)
}

/// Starts an earlier build, if `TIDEGATE_BEFORE` has its path.
pub(crate) fn tidegate_before(upstream: u16, limit: GatewayLimit) -> Option<BenchServer> {
    Some(tidegate_at(PathBuf::from(std::env::var_os("TIDEGATE_BEFORE")?), upstream, limit))
}

fn tidegate_at(program: PathBuf, upstream: u16, limit: GatewayLimit) -> BenchServer {
    let rules = match limit {
        GatewayLimit::NeverReached => {
            "rules: [{name: api, per: [ip], limit: 1000000 per second, burst: 100000000}]"
        }
        GatewayLimit::Hourly => "rules: [{name: api, per: [ip], limit: 1000 per hour}]",
    };
    let arguments = ["--upstream".to_owned(), format!("http://127.0.0.1:{upstream}")];
    BenchServer::tidegate(&TidegateSettings {
        program,
        core: None,
        listener: "gateway",
        rules,
        arguments: &arguments,
    })
}

/// Starts HAProxy with one thread per core, and a stick table that counts requests of a sliding period.
pub(crate) fn haproxy(upstream: u16, limit: GatewayLimit) -> Option<BenchServer> {
    let (amount, period) = match limit {
        GatewayLimit::NeverReached => (1_000_000, "1s"),
        GatewayLimit::Hourly => (1_000, "1h"),
    };
    let text = |port: u16| {
        format!(
            "global
  maxconn 4096
  nbthread {}
defaults
  mode http
  timeout connect 5s
  timeout client 60s
  timeout server 60s
frontend clients
  bind 127.0.0.1:{port}
  stick-table type ip size 100k expire 1h store http_req_rate({period})
  http-request track-sc0 src
  http-request deny deny_status 429 if {{ sc_http_req_rate(0) gt {amount} }}
  default_backend behind
backend behind
  http-reuse always
  server nginx 127.0.0.1:{upstream}
",
            cores()
        )
    };
    let program = host::installed("haproxy")?;
    Some(start(program, "haproxy.cfg", text, |command, file, _| {
        command.arg("-f").arg(file);
    }))
}

/// Starts Envoy with one thread per core and its local rate limit, one bucket for all clients.
pub(crate) fn envoy(upstream: u16, limit: GatewayLimit) -> Option<BenchServer> {
    let bucket = match limit {
        GatewayLimit::NeverReached => {
            "{max_tokens: 1000000000, tokens_per_fill: 1000000, fill_interval: 1s}"
        }
        GatewayLimit::Hourly => "{max_tokens: 1000, tokens_per_fill: 1, fill_interval: 3.6s}",
    };
    let extension = "type.googleapis.com/envoy.extensions.filters";
    let text = |port: u16| {
        format!(
            r#"static_resources:
  listeners:
  - address: {{socket_address: {{address: 127.0.0.1, port_value: {port}}}}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": {extension}.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: bench
          http_filters:
          - name: envoy.filters.http.local_ratelimit
            typed_config:
              "@type": {extension}.http.local_ratelimit.v3.LocalRateLimit
              stat_prefix: bench
              token_bucket: {bucket}
              filter_enabled: {{default_value: {{numerator: 100}}}}
              filter_enforced: {{default_value: {{numerator: 100}}}}
          - name: envoy.filters.http.router
            typed_config: {{"@type": {extension}.http.router.v3.Router}}
          route_config:
            virtual_hosts:
            - {{name: all, domains: ["*"], routes: [{{match: {{prefix: "/"}}, route: {{cluster: behind}}}}]}}
  clusters:
  - name: behind
    type: STATIC
    load_assignment:
      cluster_name: behind
      endpoints:
      - lb_endpoints:
        - endpoint: {{address: {{socket_address: {{address: 127.0.0.1, port_value: {upstream}}}}}}}
"#
        )
    };
    let program = tool(Tool::Envoy)?;
    Some(start(program, "envoy.yaml", text, |command, file, _| {
        command.arg("--config-path").arg(file).args(["--concurrency", &cores().to_string()]);
        command.args(["--log-level", "error", "--use-dynamic-base-id"]);
    }))
}

/// Starts Traefik with its middleware `rateLimit`.
pub(crate) fn traefik(upstream: u16, limit: GatewayLimit) -> Option<BenchServer> {
    let limit = match limit {
        GatewayLimit::NeverReached => "{average: 1000000, burst: 1000000}",
        GatewayLimit::Hourly => "{average: 1000, period: 1h, burst: 1000}",
    };
    let routes = format!(
        r#"http:
  routers: {{all: {{rule: "PathPrefix(`/`)", service: behind, middlewares: [limit]}}}}
  middlewares: {{limit: {{rateLimit: {limit}}}}}
  services: {{behind: {{loadBalancer: {{servers: [{{url: "http://127.0.0.1:{upstream}"}}]}}}}}}
"#
    );
    let text = |port: u16| {
        format!(
            "entryPoints: {{web: {{address: \"127.0.0.1:{port}\"}}}}
providers: {{file: {{filename: routes.yaml}}}}
global: {{checkNewVersion: false, sendAnonymousUsage: false}}
log: {{level: ERROR}}
"
        )
    };
    let program = tool(Tool::Traefik)?;
    Some(start(program, "traefik.yaml", text, |command, file, folder| {
        std::fs::write(folder.join("routes.yaml"), &routes).unwrap();
        command.current_dir(folder).arg("--configFile").arg(file);
    }))
}

#[allow(clippy::print_stderr, reason = "a warning about an incomplete comparison")]
fn tool(tool: Tool) -> Option<PathBuf> {
    let path = tool.path();
    if path.is_none() {
        eprintln!("warning: {tool} is not installed, skipping it; tools/setup.sh installs it");
    }
    path
}

/// Starts a proxy with a configuration file, and waits until it forwards.
fn start(
    program: PathBuf,
    file_name: &str,
    text: impl Fn(u16) -> String,
    add_arguments: impl Fn(&mut Command, &Path, &Path),
) -> BenchServer {
    let (port, folder) = (Port::free(), new_folder());
    let number = port.number();
    let file = folder.path().join(file_name);
    std::fs::write(&file, text(number)).unwrap();
    let mut command = host::command(program, None);
    add_arguments(&mut command, &file, folder.path());
    let server = BenchServer::start(command, port, folder);
    wait_for("the proxy forwards", || {
        let mut stream = TcpStream::connect(("127.0.0.1", number)).ok()?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n").ok()?;
        let mut response = String::new();
        stream.read_to_string(&mut response).ok()?;
        response.starts_with("HTTP/1.1 200").then_some(())
    });
    server
}
