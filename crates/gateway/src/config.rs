//! The configuration of the gateway.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use hyper::Method;
use tidegate_core::{EncodedSlashes, Span};
use tidegate_net::client::ClientTls;
use tidegate_rules::ValuePattern;

/// The upstreams, routes and timeouts of a gateway.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// At least one; names are unique.
    pub upstreams: Vec<UpstreamConfig>,
    /// At least one; a request goes to the first that matches.
    pub routes: Vec<RouteConfig>,
    /// Deadlines of the phases of a request.
    pub timeouts: ProxyTimeouts,
    /// Longest time that a request may wait in the queue of a rule.
    pub max_wait: Span,
    /// Adds the rate-limit headers that the client gets to requests to upstreams too.
    pub upstream_headers: bool,
}

/// A group of equivalent servers.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// The name in metrics and logs.
    pub name: Arc<str>,
    /// At least one.
    pub servers: Vec<ServerUrl>,
    /// TLS of `https` servers.
    pub tls: ClientTls,
    /// Most requests in flight from this node.
    pub max_in_flight: Option<usize>,
    /// Health checks. Without them only failed requests eject a server.
    pub health: Option<HealthConfig>,
}

/// The health check of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// The path of the check. A status from 200 to 399 means healthy.
    pub path: String,
    /// Time between two checks.
    pub every: Span,
    /// Longest time until the response to a check.
    pub timeout: Span,
}

impl HealthConfig {
    /// Default time between two checks.
    pub const DEFAULT_INTERVAL: Span = Span::from_secs(5);
    /// Default timeout of a check.
    pub const DEFAULT_TIMEOUT: Span = Span::from_secs(2);
}

/// A filter of requests, the upstream that gets them, and their priority there.
#[derive(Clone, Debug)]
pub struct RouteConfig {
    /// The name in rules and metrics.
    pub name: Arc<str>,
    /// Hosts of the route, in lower case and without a port; `None` means every host.
    pub host: Option<ValuePattern>,
    /// Paths of the route; `None` means every path.
    pub path: Option<ValuePattern>,
    /// Methods of the route; an empty list means every method.
    pub methods: Vec<Method>,
    /// Index in [`GatewayConfig::upstreams`].
    pub upstream: usize,
    /// Priority of its requests when the upstream is nearly full.
    pub priority: Priority,
    /// Treatment of `%2F` and `%5C` in paths.
    pub encoded_slashes: EncodedSlashes,
    /// Form of the path that the upstream gets.
    pub forward_path: ForwardPath,
}

/// The form of the path that an upstream gets. Rules and routes always see the canonical one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardPath {
    /// The canonical path, so that the upstream sees what the rules saw.
    #[default]
    Canonical,
    /// The bytes of the client, for upstreams that verify a signature of the URL.
    Original,
}

impl ForwardPath {
    /// The names in a configuration.
    pub const NAMES: [(&str, Self); 2] =
        [("canonical", Self::Canonical), ("original", Self::Original)];
}

/// The order in which requests are rejected when an upstream is nearly full.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Rejected first under load.
    Low,
    /// The default.
    #[default]
    Normal,
    /// Rejected last under load.
    High,
}

impl Priority {
    /// The names in a configuration.
    pub const NAMES: [(&str, Self); 3] =
        [("low", Self::Low), ("normal", Self::Normal), ("high", Self::High)];
}

/// Timeouts of the steps of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyTimeouts {
    /// Time to connect to a server, TLS included.
    pub connect: Span,
    /// Time from the request to the head of the response. Body frames of the request restart it.
    pub response: Span,
    /// Time in which a client has to send or take 16 KiB of a body, or the rest of it.
    pub body: Span,
    /// Time without a byte in either direction, while a body is transferred or after an upgrade.
    pub idle: Span,
}

impl Default for ProxyTimeouts {
    fn default() -> Self {
        Self {
            connect: Span::from_secs(5),
            response: Span::from_secs(60),
            body: Span::from_secs(60),
            idle: Span::from_secs(60),
        }
    }
}

impl GatewayConfig {
    /// Default of [`max_wait`](Self::max_wait).
    pub const DEFAULT_MAX_WAIT: Span = Span::from_secs(30);

    /// Returns a configuration that sends every request to these servers.
    pub fn single_upstream(servers: Vec<ServerUrl>) -> Self {
        let name: Arc<str> = "default".into();
        let tls = ClientTls::default();
        let upstream = UpstreamConfig {
            name: Arc::clone(&name),
            servers,
            tls,
            max_in_flight: None,
            health: None,
        };
        Self {
            routes: vec![RouteConfig::catch_all(name)],
            upstreams: vec![upstream],
            timeouts: ProxyTimeouts::default(),
            max_wait: Self::DEFAULT_MAX_WAIT,
            upstream_headers: false,
        }
    }
}

impl RouteConfig {
    /// Returns a route of every request to the first upstream.
    pub fn catch_all(name: Arc<str>) -> Self {
        Self {
            name,
            host: None,
            path: None,
            methods: Vec::new(),
            upstream: 0,
            priority: Priority::default(),
            encoded_slashes: EncodedSlashes::default(),
            forward_path: ForwardPath::default(),
        }
    }
}

/// The URL of a server: `http://10.0.0.1:3000`, `https://…`, or `h2c://…` for HTTP/2 without TLS. It has no path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    pub(crate) scheme: ServerScheme,
    /// A name or an address; an IPv6 address has no brackets.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// The protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerScheme {
    /// HTTP/1.1.
    Http,
    /// HTTP/2 without TLS.
    H2c,
    /// TLS, with HTTP/2 or HTTP/1.1 by ALPN.
    Https,
}

impl ServerScheme {
    const ALL: [(&str, Self, u16); 3] =
        [("http", Self::Http, 80), ("h2c", Self::H2c, 80), ("https", Self::Https, 443)];
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || {
            let found = if text.contains('@') { "a URL with a user" } else { text };
            format!("must be a URL like http://127.0.0.1:3000, https:// or h2c://, found {found:?}")
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(invalid)?;
        let known = ServerScheme::ALL.into_iter().find(|(name, ..)| *name == scheme);
        let (_, scheme, default_port) = known.ok_or_else(invalid)?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let bracketed = authority.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (host, port) = match bracketed {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let is_host_char = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let is_valid_host = if bracketed.is_some() {
            host.parse::<std::net::Ipv6Addr>().is_ok()
        } else {
            !host.is_empty() && host.chars().all(is_host_char)
        };
        let port =
            port.map_or(Some(default_port), |port| port.parse().ok().filter(|port| *port > 0));
        match port {
            Some(port) if is_valid_host => Ok(Self { scheme, host: host.to_owned(), port }),
            _ => Err(invalid()),
        }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = ServerScheme::ALL.iter().find(|(_, scheme, _)| *scheme == self.scheme);
        let name = name.map_or("http", |(name, ..)| name);
        write!(f, "{name}://{}", self.authority())
    }
}

impl ServerUrl {
    /// Returns whether the server uses TLS.
    pub fn uses_tls(&self) -> bool {
        self.scheme == ServerScheme::Https
    }

    /// Returns `host:port`, with brackets around an IPv6 address.
    pub(crate) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_url_has_scheme_host_and_port_but_no_path() {
        for (text, shown) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://api.internal/", "http://api.internal:80"),
            ("https://api.internal", "https://api.internal:443"),
            ("h2c://[::1]:50051", "h2c://[::1]:50051"),
        ] {
            assert_eq!(text.parse::<ServerUrl>().unwrap().to_string(), shown);
        }
        for text in [
            "127.0.0.1:3000",
            "ftp://a",
            "http://",
            "http://a:0",
            "http://a:99999",
            "http://a/path",
            "http://u:secret@a",
            "http://[1.2.3.4]",
            "http://::1",
        ] {
            let error = text.parse::<ServerUrl>().unwrap_err();
            assert!(error.starts_with("must be a URL like"), "{text}: {error}");
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
