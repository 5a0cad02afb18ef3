//! The gateway, between real clients and real upstreams.

mod aborts;
mod answers;
mod bodies;
mod client;
mod drain;
mod expect;
mod failures;
mod frames;
mod grpc;
mod heads;
mod in_flight;
mod large;
mod limits;
mod servers;
mod shaping;
mod slow;
mod smuggling;
mod smuggling_http2;
mod streams;
mod tls;
mod upgrade;
mod websocket;

use std::net::SocketAddr;

use tidegate_testkit::Redis;

use crate::kit::{Folder, Server};
use client::Client;

/// A limit that is never reached, for tests of what happens to requests that are allowed.
const NO_LIMIT: &str = "rules: [{name: api, per: [ip], limit: 1000000 per second}]";

/// A server whose gateway stands before an upstream.
struct Gateway {
    server: Server,
    _folder: Folder,
}

/// Keeps counts in Redis, with more time for it than a busy machine takes: what a late answer would do is
/// another test's business.
fn patiently_in(redis: &Redis) -> String {
    format!("store: {{redis: {{url: '{}', timeout: 1s}}}}\n", redis.url())
}

impl Gateway {
    /// Denies nobody.
    fn before(upstream: &str) -> Self {
        Self::with_rules(upstream, NO_LIMIT)
    }

    fn with_rules(upstream: &str, rules: &str) -> Self {
        Self::launch(&["--upstream", upstream], "", rules)
    }

    /// With more to say in `tidegate.yaml`.
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

    fn connect(&self) -> Client {
        Client::to(self.address())
    }

    /// The most memory that it ever had, in bytes.
    fn peak_memory(&self) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.server.id())).unwrap();
        let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
    }
}
