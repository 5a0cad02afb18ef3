//! `tidegate.yaml`, from what is written to what can be used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::{Error, Location, Spanned};
use tidegate_core::{HeaderStyle, IetfDraft, ResetFormat, Span};
use tidegate_net::token::BearerToken;
use tidegate_rules::{RuleSet, SourceRange};
use tidegate_service::config_error::{ConfigError, describe_yaml_error, read_file, source_range};
use tidegate_service::identity::IdentityConfig;
use tidegate_service::rules::RuleSource;
use tidegate_service::service::rls::RlsHeaders;

use crate::config::gateway::{GatewaySource, RawGateway};
use crate::config::identity::RawIdentity;
use crate::config::reader::{FieldReader, folder};
use crate::config::redis::RawRedis;
use crate::config::resp::{RawResp, RespPassword};
use crate::config::rules::RawRules;
use crate::config::secrets::RedisSource;
use crate::config::tls::{RawTls, TlsConfig};
use crate::config::{Drain, InvalidEntry, ListenAddress};

/// A configuration file, read and checked.
#[derive(Debug, Default)]
pub(crate) struct ConfigFile {
    pub(crate) http: Option<ListenAddress>,
    pub(crate) grpc: Option<ListenAddress>,
    pub(crate) resp: Option<ListenAddress>,
    pub(crate) resp_password: RespPassword,
    pub(crate) admin: Option<ListenAddress>,
    pub(crate) gateway: Option<ListenAddress>,
    pub(crate) token: Option<BearerToken>,
    pub(crate) max_keys: Option<usize>,
    pub(crate) redis: Option<RedisSource>,
    pub(crate) rules: Option<RuleSource>,
    pub(crate) envoy: Option<PathBuf>,
    pub(crate) copies: Option<PathBuf>,
    pub(crate) poll: Option<Span>,
    pub(crate) headers: HeaderStyle,
    pub(crate) rls_headers: RlsHeaders,
    pub(crate) identity: IdentityConfig,
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) drain: Drain,
    pub(crate) forwarding: Option<GatewaySource>,
}

/// `tidegate.yaml` as it is written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawConfig {
    listen: RawListen,
    store: RawStore,
    rules: Option<Spanned<RawRules>>,
    headers: RawHeaders,
    resp: RawResp,
    identity: RawIdentity,
    admin: RawAdmin,
    tls: Option<Spanned<RawTls>>,
    drain: RawDrain,
    gateway: Option<Spanned<RawGateway>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawListen {
    http: Option<Spanned<String>>,
    grpc: Option<Spanned<String>>,
    resp: Option<Spanned<String>>,
    admin: Option<Spanned<String>>,
    gateway: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawStore {
    memory: Option<RawMemory>,
    redis: Option<Spanned<RawRedis>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawMemory {
    max_keys: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawHeaders {
    reset: Option<Spanned<String>>,
    ietf: Option<Spanned<String>>,
    rls: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawAdmin {
    token: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawDrain {
    delay: Option<Spanned<String>>,
    timeout: Option<Spanned<String>>,
}

/// How `headers.reset` tells a time.
pub(crate) const RESETS: [(&str, ResetFormat); 2] =
    [("delta", ResetFormat::Delta), ("epoch", ResetFormat::Epoch)];

/// The drafts of the IETF that `headers.ietf` knows.
pub(crate) const DRAFTS: [(&str, IetfDraft); 3] =
    [("11", IetfDraft::Current), ("6", IetfDraft::Six), ("off", IetfDraft::Off)];

/// Which responses `headers.rls` has Envoy add headers to.
pub(crate) const RLS_HEADERS: [(&str, RlsHeaders); 3] =
    [("denied", RlsHeaders::Denied), ("all", RlsHeaders::All), ("off", RlsHeaders::Off)];

impl ConfigFile {
    /// Longest file in bytes: its inline rules may be as long as a file of rules.
    const MAX_LENGTH: usize = RuleSet::MAX_DOCUMENT_BYTES;

    /// Reads and checks a file. A rules file that it names is not opened.
    ///
    /// # Errors
    /// The file can't be read, or what it says can't be used.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = read_file(path, Self::MAX_LENGTH)?;
        Self::parse(path, &text)
    }

    /// As [`read`](Self::read), for text that was read already.
    ///
    /// # Errors
    /// What the text says can't be used.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = path.display().to_string();
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let options = serde_saphyr::options! { with_snippet: false };
        let raw: RawConfig =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| {
                let at = error.location().map(|location| place(&error, location));
                ConfigError::Invalid(vec![InvalidEntry::new(
                    &source,
                    at,
                    describe_yaml_error(&error, text),
                )])
            })?;
        let mut reader = FieldReader::new(&source);
        let listen = raw.listen;
        let rules = raw.rules.as_ref().map(|rules| &rules.value);
        let file = Self {
            http: reader.parsed("listen.http", listen.http),
            grpc: reader.parsed("listen.grpc", listen.grpc),
            resp: reader.parsed("listen.resp", listen.resp),
            resp_password: raw.resp.resolve(folder(path), &mut reader),
            admin: reader.parsed("listen.admin", listen.admin),
            gateway: reader.parsed("listen.gateway", listen.gateway),
            token: reader.parsed("admin.token", raw.admin.token),
            redis: redis_source(&mut reader, path, &raw.store.memory, raw.store.redis),
            max_keys: (raw.store.memory).and_then(|memory| {
                reader.whole("store.memory.max_keys", memory.max_keys, MAX_KEYS)
            }),
            headers: HeaderStyle {
                reset: reader.word("headers.reset", raw.headers.reset, RESETS),
                ietf: reader.word("headers.ietf", raw.headers.ietf, DRAFTS),
            },
            rls_headers: reader.word("headers.rls", raw.headers.rls, RLS_HEADERS),
            envoy: rules.and_then(|rules| Some(folder(path).join(rules.envoy.as_ref()?))),
            copies: rules.and_then(|rules| Some(folder(path).join(rules.copy.as_ref()?))),
            poll: rules
                .and_then(|rules| rules.poll.clone())
                .map(|poll| poll_interval(&mut reader, poll)),
            rules: raw
                .rules
                .and_then(|rules| rules.value.source(rules.referenced, path, &mut reader)),
            identity: raw.identity.resolve(folder(path), &mut reader),
            tls: raw
                .tls
                .and_then(|tls| tls.value.resolve(tls.referenced, folder(path), &mut reader)),
            drain: Drain {
                delay: reader.span("drain.delay", raw.drain.delay, Drain::DELAY),
                timeout: reader.span("drain.timeout", raw.drain.timeout, Drain::TIMEOUT),
            },
            forwarding: (raw.gateway)
                .map(|raw| raw.value.resolve(raw.referenced, folder(path), &mut reader)),
        };
        let errors = reader.into_errors();
        if !errors.is_empty() {
            return Err(ConfigError::Invalid(errors));
        }
        match file.rules {
            Some(RuleSource::Inline(_)) => {
                let rules = RuleSet::parse_at(&source, text, &["rules", "inline"])?;
                Ok(Self { rules: Some(RuleSource::Inline(Box::new(rules))), ..file })
            }
            _ => Ok(file),
        }
    }
}

/// Where an error of the reader stands in a configuration. A text that is no YAML has no place in its
/// line: nobody can tell there which word is a key and which a secret.
fn place(error: &Error, location: Location) -> SourceRange {
    match error {
        Error::SerdeUnknownField { .. }
        | Error::DuplicateMappingKey { .. }
        | Error::Unexpected { .. } => source_range(location),
        _ => SourceRange::whole_line(location.line()),
    }
}

/// Returns the Redis store, if there is one. It excludes a store in memory.
fn redis_source(
    reader: &mut FieldReader<'_>,
    path: &Path,
    memory: &Option<RawMemory>,
    redis: Option<Spanned<RawRedis>>,
) -> Option<RedisSource> {
    let redis = redis?;
    let at = redis.referenced;
    if memory.is_some() {
        reader.add(at, "store must have memory or redis, found both".to_owned());
    }
    redis.value.resolve(at, folder(path), reader)
}

/// Returns the time between two polls of the rules: not more often than once a second.
fn poll_interval(reader: &mut FieldReader<'_>, text: Spanned<String>) -> Span {
    let at = text.referenced;
    let poll = reader.span("rules.poll", Some(text), Span::SECOND);
    if poll < Span::SECOND {
        reader.add(at, format!("rules.poll must be 1s or more, found {poll}"));
    }
    poll
}

/// Most keys that a memory store can be told to hold.
pub(crate) const MAX_KEYS: usize = 1_000_000_000;

/// What a YAML file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rules,
    Config,
    /// A file of envoyproxy/ratelimit.
    Envoy,
}

/// The keys that only a configuration has.
const CONFIG_KEYS: [&str; 9] =
    ["listen", "store", "headers", "admin", "tls", "drain", "identity", "resp", "gateway"];

fn begins_a_line_of(text: &str, keys: &[&str]) -> bool {
    let begins = |line: &str| {
        keys.iter().any(|key| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')))
    };
    text.lines().any(begins)
}

/// Tells a configuration from a file of rules by its keys, or else by its name.
pub(crate) fn kind(path: &Path, text: &str) -> Kind {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let by_name = if name.starts_with("tidegate") { Kind::Config } else { Kind::Rules };
    if serde_saphyr::from_str::<Having<Vec<IgnoredAny>>>(text).is_ok() {
        return Kind::Rules;
    }
    if serde_saphyr::from_str::<Having<BTreeMap<String, IgnoredAny>>>(text).is_ok() {
        return Kind::Config;
    }
    match serde_saphyr::from_str::<BTreeMap<String, IgnoredAny>>(text) {
        Ok(keys) if keys.contains_key("domain") || keys.contains_key("descriptors") => Kind::Envoy,
        Ok(keys) if CONFIG_KEYS.iter().any(|key| keys.contains_key(*key)) => Kind::Config,
        Ok(_) => by_name,
        // It can't be read, so that its words have to do.
        Err(_) if begins_a_line_of(text, &["domain", "descriptors"]) => Kind::Envoy,
        Err(_) if begins_a_line_of(text, &CONFIG_KEYS) => Kind::Config,
        Err(_) => by_name,
    }
}

/// A document whose rules have a certain shape.
#[derive(Deserialize)]
struct Having<T> {
    #[serde(rename = "rules")]
    _rules: T,
}
