//! The gateway between real clients and real upstreams.

mod abandoned;
mod aborts;
mod bodies;
mod canonical_paths;
mod client;
mod drain;
mod expect_continue;
mod grpc;
mod headers;
mod http2;
mod http2_frames;
mod identity_headers;
mod idle_connections;
mod in_flight;
mod large_bodies;
mod limits;
mod malformed_responses;
mod shaping;
mod slow_bodies;
mod slow_clients;
mod smuggling;
mod smuggling_http2;
mod socket_limit;
mod tls;
mod upgrade;
mod upstream_failures;
mod upstream_servers;
mod websocket;

use std::net::SocketAddr;

use tidegate_testkit::Redis;

use crate::kit::{Folder, Server};
use client::HttpClient;

/// A limit that no test reaches, for tests of allowed requests.
const NO_LIMIT: &str = "rules: [{name: api, per: [ip], limit: 1000000 per second}]";

/// A server with a gateway that forwards to an upstream.
struct GatewayServer {
    server: Server,
    _folder: Folder,
}

/// Returns a `store` section for Redis. Its timeout of 1 s prevents store failures on a busy machine.
fn redis_store_with_long_timeout(redis: &Redis) -> String {
    format!("store: {{redis: {{url: '{}', timeout: 1s}}}}\n", redis.url())
}

impl GatewayServer {
    /// Starts a gateway that allows every request.
    fn forward_to(upstream: &str) -> Self {
        Self::with_rules(upstream, NO_LIMIT)
    }

    fn with_rules(upstream: &str, rules: &str) -> Self {
        Self::launch(&["--upstream", upstream], "", rules)
    }

    /// Starts a gateway with this `tidegate.yaml`, which allows every request.
    fn with_config(upstream: &str, config: &str) -> Self {
        Self::launch(&["--upstream", upstream], config, NO_LIMIT)
    }

    fn launch(arguments: &[&str], config: &str, rules: &str) -> Self {
        let folder = Folder::new();
        let rules = folder.file("rules.yaml", rules);
        let file = (!config.is_empty()).then(|| folder.file("tidegate.yaml", config));
        let mut all = vec!["--rules", rules.as_str(), "--http", "127.0.0.1:0"];
        if let Some(file) = &file {
            all.extend(["--config", file.as_str()]);
        }
        if !arguments.contains(&"--gateway") {
            all.extend(["--gateway", "127.0.0.1:0"]);
        }
        all.extend(arguments);
        Self { server: Server::with_arguments(&all), _folder: folder }
    }

    fn address(&self) -> SocketAddr {
        self.server.listener("gateway")
    }

    fn connect(&self) -> HttpClient {
        HttpClient::connect(self.address())
    }

    /// Returns the peak resident memory of the process, in bytes.
    fn peak_memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }
}
