//! Parses and validates `gateway` of `tidegate.yaml`, `--gateway` and `--upstream`.

mod route;
mod upstream;

use std::path::Path;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use tidegate_core::{EncodedSlashes, Span};
use tidegate_gateway::{GatewayConfig, ProxyTimeouts, RouteConfig, ServerUrl, UpstreamConfig};
use tidegate_redis::Secret;
use tidegate_service::config_error::ConfigError;

use self::route::RawRoute;
use self::upstream::RawUpstream;
pub(crate) use self::upstream::{MAX_IN_FLIGHT, MAX_SERVERS};
use crate::config::reader::FieldReader;
use crate::config::{DEFAULT_GATEWAY, ListenAddress};

/// Regular expression of the names of upstreams and routes.
pub(crate) const NAME_PATTERN: &str = "^[A-Za-z0-9_.-]{1,64}$";

/// Longest name of an upstream or a route, in bytes.
const MAX_NAME: usize = 64;

/// The values of `gateway.upstream_headers`.
const BOOLEANS: [(&str, bool); 2] = [("false", false), ("true", true)];

/// `gateway` before validation.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawGateway {
    upstreams: Vec<Spanned<RawUpstream>>,
    routes: Vec<Spanned<RawRoute>>,
    timeouts: RawTimeouts,
    max_wait: Option<Spanned<String>>,
    upstream_headers: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawTimeouts {
    connect: Option<Spanned<String>>,
    response: Option<Spanned<String>>,
    body: Option<Spanned<String>>,
    idle: Option<Spanned<String>>,
}

/// The gateway settings of a file.
#[derive(Debug)]
pub(crate) struct GatewaySettings {
    /// Empty if the command line names the servers.
    upstreams: Vec<UpstreamConfig>,
    routes: Vec<RouteConfig>,
    timeouts: ProxyTimeouts,
    max_wait: Span,
    upstream_headers: bool,
}

impl RawGateway {
    /// Returns the resolved form; its errors are added to `reader`. Paths are relative to `folder`.
    pub(crate) fn resolve(
        self,
        at: Location,
        folder: &Path,
        reader: &mut FieldReader<'_>,
    ) -> GatewaySettings {
        let upstreams = upstream::resolve(self.upstreams, folder, reader);
        GatewaySettings {
            routes: route::resolve(self.routes, &upstreams, at, reader),
            upstreams,
            timeouts: self.timeouts.resolve(reader),
            max_wait: reader.span_within(
                "gateway.max_wait",
                self.max_wait,
                GatewayConfig::DEFAULT_MAX_WAIT,
                (Span::ZERO, Span::HOUR, "0s to 1h"),
            ),
            upstream_headers: reader.word(
                "gateway.upstream_headers",
                self.upstream_headers,
                BOOLEANS,
            ),
        }
    }
}

impl RawTimeouts {
    fn resolve(self, reader: &mut FieldReader<'_>) -> ProxyTimeouts {
        let defaults = ProxyTimeouts::default();
        let mut span = |name: &str, text, default| {
            let range = (Span::from_millis(1), Span::HOUR, "1ms to 1h");
            reader.span_within(&format!("gateway.timeouts.{name}"), text, default, range)
        };
        ProxyTimeouts {
            connect: span("connect", self.connect, defaults.connect),
            response: span("response", self.response, defaults.response),
            body: span("body", self.body, defaults.body),
            idle: span("idle", self.idle, defaults.idle),
        }
    }
}

impl GatewaySettings {
    /// Returns the numbers of upstreams and routes.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.upstreams.len(), self.routes.len())
    }

    /// Returns whether a route has `encoded_slashes: keep`.
    pub(crate) fn keeps_encoded_slashes(&self) -> bool {
        self.routes.iter().any(|route| route.encoded_slashes == EncodedSlashes::Keep)
    }

    /// Returns the configuration, if there is an upstream. Servers of the command line replace all upstreams and routes.
    fn into_config(self, servers: Vec<ServerUrl>) -> Option<GatewayConfig> {
        let Self { upstreams, routes, timeouts, max_wait, upstream_headers } = self;
        if !servers.is_empty() {
            let config = GatewayConfig::single_upstream(servers);
            return Some(GatewayConfig { timeouts, max_wait, upstream_headers, ..config });
        }
        (!upstreams.is_empty()).then_some(GatewayConfig {
            upstreams,
            routes,
            timeouts,
            max_wait,
            upstream_headers,
        })
    }
}

/// Resolves the gateway listener and its configuration. Either both are there, or neither.
///
/// # Errors
/// The URL of a flag is invalid, or the gateway has no upstream.
pub(crate) fn resolve(
    flag: Option<ListenAddress>,
    upstream: &[Secret],
    listen: Option<ListenAddress>,
    file: Option<GatewaySettings>,
) -> Result<(ListenAddress, Option<GatewayConfig>), ConfigError> {
    let servers = parse_servers(upstream)?;
    let setting = match (&flag, &listen, &file) {
        (Some(_), ..) => "--gateway",
        (None, Some(_), _) => "listen.gateway",
        (None, None, _) => "gateway",
    };
    let is_unset = flag.is_none() && listen.is_none() && file.is_none();
    let gateway = match file {
        Some(file) => file.into_config(servers),
        None if servers.is_empty() => None,
        None => Some(GatewayConfig::single_upstream(servers)),
    };
    match (flag.or(listen), gateway) {
        (Some(ListenAddress::Off), _) => Ok((ListenAddress::Off, None)),
        (listener, Some(gateway)) => {
            Ok((listener.unwrap_or(ListenAddress::At(DEFAULT_GATEWAY.to_owned())), Some(gateway)))
        }
        (_, None) if is_unset => Ok((ListenAddress::Off, None)),
        (_, None) => {
            let reason = "an upstream is wanted, found none".to_owned();
            Err(ConfigError::NotInFile { place: setting, reason })
        }
    }
}

/// Parses the servers of `--upstream`.
fn parse_servers(urls: &[Secret]) -> Result<Vec<ServerUrl>, ConfigError> {
    let invalid = |reason| ConfigError::NotInFile { place: "--upstream", reason };
    if urls.len() > MAX_SERVERS {
        return Err(invalid(format!("at most {MAX_SERVERS} are wanted, found {}", urls.len())));
    }
    urls.iter().map(|url| url.reveal().parse().map_err(invalid)).collect()
}

/// Returns the error of an invalid name of an upstream or a route.
fn invalid_name(name: &str) -> Option<String> {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let fits = (1..=MAX_NAME).contains(&name.len()) && name.chars().all(letter);
    (!fits).then(|| format!("must be 1 to {MAX_NAME} of A-Z a-z 0-9 _ . -, found {name:?}"))
}

/// Returns whether a name was seen before, and adds it to `seen`.
fn is_repeated<'n>(seen: &mut Vec<&'n str>, name: &'n str) -> bool {
    let repeated = seen.contains(&name);
    seen.push(name);
    repeated
}

#[cfg(test)]
mod tests;
