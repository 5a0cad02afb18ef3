//! What the gateway is to do, typed.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use hyper::Method;
use tidegate_core::Span;
use tidegate_net::client::ClientTls;
use tidegate_rules::Glob;

/// Where requests go, and how long each step may take.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Never none, each name once.
    pub upstreams: Vec<UpstreamConfig>,
    /// The first that matches a request has it. Never none.
    pub routes: Vec<RouteConfig>,
    /// Deadlines of the phases of a request.
    pub timeouts: Timeouts,
    /// How long a request may wait for its turn.
    pub max_wait: Span,
    /// Whether upstreams are told how the client stands, by the headers that the client gets.
    pub tell_upstream: bool,
}

/// Servers that do the same.
#[derive(Clone, Debug)]
pub struct UpstreamConfig {
    /// The name, as metrics and logs show it.
    pub name: Arc<str>,
    /// Never none.
    pub servers: Vec<ServerUrl>,
    /// For servers that speak TLS.
    pub tls: ClientTls,
    /// Most requests under way there at once, from this node.
    pub max_in_flight: Option<usize>,
    /// Health checks; without them only failed requests eject a server.
    pub health: Option<HealthConfig>,
}

/// How a server is asked whether it is well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthConfig {
    /// What is fetched: a status from 200 to 399 means well.
    pub path: String,
    /// Time between two checks.
    pub every: Span,
    /// Time within which a check has to be answered.
    pub timeout: Span,
}

impl HealthConfig {
    /// Time between two checks unless the configuration has one.
    pub const EVERY: Span = Span::from_secs(5);
    /// Deadline of a check unless the configuration has one.
    pub const TIMEOUT: Span = Span::from_secs(2);
}

/// Which requests go to an upstream, and how much they matter there.
#[derive(Clone, Debug)]
pub struct RouteConfig {
    /// What rules and metrics know it by.
    pub name: Arc<str>,
    /// Without a port, in lower case.
    pub host: Option<Words>,
    /// Paths of the route; without one every path.
    pub path: Option<Words>,
    /// None means any.
    pub methods: Vec<Method>,
    /// Its place among the upstreams.
    pub upstream: usize,
    /// Which requests are admitted first under load.
    pub priority: Priority,
}

/// A text, or a pattern of texts.
#[derive(Clone, Debug)]
pub enum Words {
    /// This text alone.
    Exactly(Box<str>),
    /// Every text that the pattern matches.
    Like(Glob),
}

impl Words {
    /// A pattern if there is a star in it.
    pub fn new(text: &str) -> Self {
        Glob::new(text).map_or_else(|| Self::Exactly(text.into()), Self::Like)
    }

    /// Returns whether a host or path matches.
    pub fn matches(&self, text: &str) -> bool {
        match self {
            Self::Exactly(exactly) => **exactly == *text,
            Self::Like(glob) => glob.matches(text),
        }
    }
}

/// Who is turned away first when an upstream has all it can take.
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
    /// How a configuration calls them.
    pub const WORDS: [(&str, Self); 3] =
        [("low", Self::Low), ("normal", Self::Normal), ("high", Self::High)];
}

/// How long each step of a request may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To reach a server, TLS included.
    pub connect: Span,
    /// From the request to the head of the answer.
    pub response: Span,
    /// Without a byte in either direction while a body is under way, or after an upgrade.
    pub idle: Span,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            connect: Span::from_secs(5),
            response: Span::from_secs(60),
            idle: Span::from_secs(60),
        }
    }
}

impl GatewayConfig {
    /// How long a request may wait for its turn, unless somebody says otherwise.
    pub const MAX_WAIT: Span = Span::from_secs(30);

    /// Everything goes to these servers.
    pub fn to(servers: Vec<ServerUrl>) -> Self {
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
            routes: vec![RouteConfig::everything(name)],
            upstreams: vec![upstream],
            timeouts: Timeouts::default(),
            max_wait: Self::MAX_WAIT,
            tell_upstream: false,
        }
    }
}

impl RouteConfig {
    /// All requests, to the first upstream.
    pub fn everything(name: Arc<str>) -> Self {
        let (host, path, methods) = (None, None, Vec::new());
        Self { name, host, path, methods, upstream: 0, priority: Priority::default() }
    }
}

/// Where a server is and what it speaks: `http://10.0.0.1:3000`, `https://`, or `h2c://` for HTTP/2
/// without TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUrl {
    pub(crate) scheme: Scheme,
    /// A name or an address, which has no brackets here.
    pub(crate) host: String,
    pub(crate) port: u16,
}

/// What a server speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scheme {
    /// HTTP/1.1.
    Http,
    /// HTTP/2 from the first byte.
    H2c,
    /// TLS, and inside of it what the server prefers.
    Https,
}

impl Scheme {
    const ALL: [(&str, Self, u16); 3] =
        [("http", Self::Http, 80), ("h2c", Self::H2c, 80), ("https", Self::Https, 443)];
}

impl FromStr for ServerUrl {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let found = if text.contains('@') { "a URL with a user" } else { text };
            format!("must be a URL like http://127.0.0.1:3000, https:// or h2c://, found {found:?}")
        };
        let (scheme, rest) = text.split_once("://").ok_or_else(wrong)?;
        let known = Scheme::ALL.into_iter().find(|(name, ..)| *name == scheme);
        let (_, scheme, usual) = known.ok_or_else(wrong)?;
        let authority = rest.strip_suffix('/').unwrap_or(rest);
        let bracketed = authority.strip_prefix('[').and_then(|rest| rest.split_once(']'));
        let (host, port) = match bracketed {
            Some((host, port)) => (host, port.strip_prefix(':')),
            None => match authority.split_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (authority, None),
            },
        };
        let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        let plain = if bracketed.is_some() {
            host.parse::<std::net::Ipv6Addr>().is_ok()
        } else {
            !host.is_empty() && host.chars().all(letter)
        };
        let port = port.map_or(Some(usual), |port| port.parse().ok().filter(|port| *port > 0));
        match port {
            Some(port) if plain => Ok(Self { scheme, host: host.to_owned(), port }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for ServerUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Scheme::ALL.iter().find(|(_, scheme, _)| *scheme == self.scheme);
        let name = name.map_or("http", |(name, ..)| name);
        write!(f, "{name}://{}", self.authority())
    }
}

impl ServerUrl {
    /// Whether it has to show a certificate.
    pub fn speaks_tls(&self) -> bool {
        self.scheme == Scheme::Https
    }

    /// The host and the port.
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
    fn a_server_is_named_by_a_url_without_a_path() {
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
