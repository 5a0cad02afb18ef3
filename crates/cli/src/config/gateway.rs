//! `gateway` of `tidegate.yaml`, `--gateway` and `--upstream`: from what is written to what can be used.

mod route;
mod upstream;

use std::path::Path;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use tidegate_core::Span;
use tidegate_gateway::{GatewayConfig, ProxyTimeouts, RouteConfig, ServerUrl, UpstreamConfig};
use tidegate_redis::Secret;
use tidegate_service::config_error::ConfigError;

use self::route::RawRoute;
use self::upstream::RawUpstream;
pub(crate) use self::upstream::{MAX_IN_FLIGHT, MAX_SERVERS};
use crate::config::reader::FieldReader;
use crate::config::{DEFAULT_GATEWAY, ListenAddress};

/// What names of upstreams and routes look like.
pub(crate) const NAME_PATTERN: &str = "^[A-Za-z0-9_.-]{1,64}$";

/// Longest name of an upstream or a route.
const MAX_NAME: usize = 64;

/// How `gateway.upstream_headers` is said.
const YES_OR_NO: [(&str, bool); 2] = [("false", false), ("true", true)];

/// `gateway` as it is written.
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
    idle: Option<Spanned<String>>,
}

/// What a file says about the gateway.
#[derive(Debug)]
pub(crate) struct GatewaySource {
    /// None if the command line is to name them.
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
    ) -> GatewaySource {
        let upstreams = upstream::resolve(self.upstreams, folder, reader);
        GatewaySource {
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
                YES_OR_NO,
            ),
        }
    }
}

impl RawTimeouts {
    fn resolve(self, reader: &mut FieldReader<'_>) -> ProxyTimeouts {
        let usual = ProxyTimeouts::default();
        let mut span = |name: &str, text, usual| {
            let range = (Span::from_millis(1), Span::HOUR, "1ms to 1h");
            reader.span_within(&format!("gateway.timeouts.{name}"), text, usual, range)
        };
        ProxyTimeouts {
            connect: span("connect", self.connect, usual.connect),
            response: span("response", self.response, usual.response),
            idle: span("idle", self.idle, usual.idle),
        }
    }
}

impl GatewaySource {
    /// How many upstreams and routes there are.
    pub(crate) fn counts(&self) -> (usize, usize) {
        (self.upstreams.len(), self.routes.len())
    }

    /// What the gateway is to do, if there is an upstream. Servers of the command line take the place of
    /// all upstreams and routes.
    fn with(self, servers: Vec<ServerUrl>) -> Option<GatewayConfig> {
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

/// The gateway's listener and what is done behind it: both are there, or neither.
///
/// # Errors
/// A flag is no URL of a server, or a gateway was asked for that has no upstream.
pub(crate) fn resolve(
    flag: Option<ListenAddress>,
    upstream: &[Secret],
    listen: Option<ListenAddress>,
    file: Option<GatewaySource>,
) -> Result<(ListenAddress, Option<GatewayConfig>), ConfigError> {
    let servers = of_flags(upstream)?;
    let asked = match (&flag, &listen, &file) {
        (Some(_), ..) => "--gateway",
        (None, Some(_), _) => "listen.gateway",
        (None, None, _) => "gateway",
    };
    let is_silent = flag.is_none() && listen.is_none() && file.is_none();
    let gateway = match file {
        Some(file) => file.with(servers),
        None if servers.is_empty() => None,
        None => Some(GatewayConfig::single_upstream(servers)),
    };
    match (flag.or(listen), gateway) {
        (Some(ListenAddress::Off), _) => Ok((ListenAddress::Off, None)),
        (listener, Some(gateway)) => {
            Ok((listener.unwrap_or(ListenAddress::At(DEFAULT_GATEWAY.to_owned())), Some(gateway)))
        }
        (_, None) if is_silent => Ok((ListenAddress::Off, None)),
        (_, None) => {
            let reason = "an upstream is wanted, found none".to_owned();
            Err(ConfigError::NotInFile { place: asked, reason })
        }
    }
}

/// The servers that `--upstream` names.
fn of_flags(urls: &[Secret]) -> Result<Vec<ServerUrl>, ConfigError> {
    let invalid = |reason| ConfigError::NotInFile { place: "--upstream", reason };
    if urls.len() > MAX_SERVERS {
        return Err(invalid(format!("at most {MAX_SERVERS} are wanted, found {}", urls.len())));
    }
    urls.iter().map(|url| url.reveal().parse().map_err(invalid)).collect()
}

/// Returns the error in the name of an upstream or a route, if anything.
fn unfit_name(name: &str) -> Option<String> {
    let letter = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
    let fits = (1..=MAX_NAME).contains(&name.len()) && name.chars().all(letter);
    (!fits).then(|| format!("must be 1 to {MAX_NAME} of A-Z a-z 0-9 _ . -, found {name:?}"))
}

/// Whether a name was seen before; it is from now on.
fn is_repeated<'n>(seen: &mut Vec<&'n str>, name: &'n str) -> bool {
    let repeated = seen.contains(&name);
    seen.push(name);
    repeated
}

#[cfg(test)]
mod tests;
