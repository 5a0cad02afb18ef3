//! Parses and validates `gateway.upstreams`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use tidegate_core::Span;
use tidegate_gateway::{HealthConfig, ServerUrl, UpstreamConfig};
use tidegate_net::client::ClientTls;

use crate::config::gateway::{invalid_name, is_repeated};
use crate::config::reader::FieldReader;

/// Most servers of an upstream.
pub(crate) const MAX_SERVERS: usize = 64;

/// Largest value of `max_in_flight` of an upstream.
pub(crate) const MAX_IN_FLIGHT: usize = 1_000_000;

/// One of `gateway.upstreams` before validation.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawUpstream {
    name: Option<Spanned<String>>,
    servers: Vec<Spanned<String>>,
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    max_in_flight: Option<Spanned<String>>,
    health: Option<Spanned<RawHealth>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawHealth {
    path: Option<Spanned<String>>,
    every: Option<Spanned<String>>,
    timeout: Option<Spanned<String>>,
}

/// Returns the resolved upstreams; errors are added to `reader`. Paths are relative to `folder`.
pub(crate) fn resolve(
    raw: Vec<Spanned<RawUpstream>>,
    folder: &Path,
    reader: &mut FieldReader<'_>,
) -> Vec<UpstreamConfig> {
    let mut names = Vec::new();
    for upstream in &raw {
        let Some(name) = &upstream.value.name else {
            let message = "gateway.upstreams must each have a name, found none";
            reader.add(upstream.referenced, message.to_owned());
            continue;
        };
        if let Some(reason) = invalid_name(&name.value) {
            reader.add(name.referenced, format!("gateway.upstreams.name {reason}"));
        } else if is_repeated(&mut names, &name.value) {
            let found = format!("{:?} twice", name.value);
            let message = format!("gateway.upstreams.name must be unique, found {found}");
            reader.add(name.referenced, message);
        }
    }
    raw.into_iter()
        .map(|upstream| upstream.value.resolve(upstream.referenced, folder, reader))
        .collect()
}

impl RawUpstream {
    fn resolve(self, at: Location, folder: &Path, reader: &mut FieldReader<'_>) -> UpstreamConfig {
        let name: Arc<str> = self.name.map_or_else(String::new, |name| name.value).into();
        if !(1..=MAX_SERVERS).contains(&self.servers.len()) {
            let found = self.servers.len();
            let wanted = format!("must be 1 to {MAX_SERVERS} URLs, found {found}");
            let at = self.servers.get(MAX_SERVERS).map_or(at, |server| server.referenced);
            reader.add(at, format!("gateway.upstreams.servers {wanted}"));
        }
        let mut servers: Vec<ServerUrl> = Vec::with_capacity(self.servers.len());
        // An invalid URL may be meant for TLS, so that no second error follows.
        let mut uses_tls = self.servers.is_empty();
        for text in self.servers {
            let reason = match text.value.parse::<ServerUrl>() {
                Ok(server) if servers.contains(&server) => {
                    format!("must be unique, found {server} twice")
                }
                Ok(server) => {
                    uses_tls |= server.uses_tls();
                    servers.push(server);
                    continue;
                }
                Err(reason) => {
                    uses_tls = true;
                    reason
                }
            };
            reader.add(text.referenced, format!("gateway.upstreams.servers {reason}"));
        }
        let path = |path: PathBuf| folder.join(path);
        let (ca, identity) = (self.ca.map(path), (self.certificate, self.key));
        let identity = match identity {
            (Some(certificate), Some(key)) => Some((path(certificate), path(key))),
            (None, None) => None,
            (certificate, _) => {
                let found = if certificate.is_some() { "certificate" } else { "key" };
                let wanted = "both or neither of certificate and key";
                reader.add(at, format!("gateway.upstreams must have {wanted}, found {found}"));
                None
            }
        };
        let tls = ClientTls { ca, identity };
        if tls != ClientTls::default() && !uses_tls {
            let wanted = "an https:// server with ca or certificate";
            reader.add(at, format!("gateway.upstreams must have {wanted}, found none"));
        }
        let cap = "gateway.upstreams.max_in_flight";
        let max_in_flight = reader.whole(cap, self.max_in_flight, MAX_IN_FLIGHT);
        let health = self.health.map(|health| health.value.resolve(health.referenced, reader));
        UpstreamConfig { name, servers, tls, max_in_flight, health }
    }
}

impl RawHealth {
    fn resolve(self, at: Location, reader: &mut FieldReader<'_>) -> HealthConfig {
        const NAME: &str = "gateway.upstreams.health";
        let path = match self.path {
            Some(path) => {
                let fits = path.value.starts_with('/')
                    && path.value.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#');
                if !fits {
                    let found = &path.value;
                    let message = format!("{NAME}.path must be like /healthz, found {found:?}");
                    reader.add(path.referenced, message);
                }
                path.value
            }
            None => {
                reader.add(at, format!("{NAME} must have a path, found none"));
                String::new()
            }
        };
        let range = (Span::SECOND, Span::HOUR, "1s to 1h");
        let every = format!("{NAME}.every");
        let every = reader.span_within(&every, self.every, HealthConfig::DEFAULT_INTERVAL, range);
        let range = (Span::from_millis(1), every, "1ms to the value of every");
        let (timeout, default) =
            (format!("{NAME}.timeout"), HealthConfig::DEFAULT_TIMEOUT.min(every));
        let timeout = reader.span_within(&timeout, self.timeout, default, range);
        HealthConfig { path, every, timeout }
    }
}
