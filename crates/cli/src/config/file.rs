//! Parses and validates `tidegate.yaml`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::{Error, Location, Spanned};
use tidegate_core::{HeaderStyle, IetfDraft, ResetFormat, Span};
use tidegate_limiter::{Clock, MemoryStore};
use tidegate_net::token::BearerToken;
use tidegate_rules::{RuleSet, SourceRange, WarningContext};
use tidegate_service::config_error::{ConfigError, describe_yaml_error, read_file, source_range};
use tidegate_service::identity::IdentityConfig;
use tidegate_service::rules::{InlineRules, RuleSource};
use tidegate_service::service::OnInvalidCall;
use tidegate_service::service::rls::RlsHeaders;
use tidegate_service::store::StoreConfig;

use crate::config::connections::{PerClient, RawConnections};
use crate::config::gateway::{GatewaySettings, RawGateway};
use crate::config::identity::RawIdentity;
use crate::config::reader::{FieldReader, folder};
use crate::config::redis::RawRedis;
use crate::config::resp::{RawResp, RespPassword};
use crate::config::rules::RawRules;
use crate::config::secrets::RedisSettings;
use crate::config::tls::{RawTls, TlsConfig};
use crate::config::{DrainConfig, InvalidEntry, ListenAddress, ReplyConfig};

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
    pub(crate) read_token: Option<BearerToken>,
    pub(crate) memory: MemorySettings,
    pub(crate) redis: Option<RedisSettings>,
    pub(crate) rules: Option<RuleSource>,
    pub(crate) envoy: Option<PathBuf>,
    pub(crate) copies: Option<PathBuf>,
    pub(crate) poll: Option<Span>,
    pub(crate) replies: ReplyConfig,
    pub(crate) identity: IdentityConfig,
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) drain: DrainConfig,
    pub(crate) per_client: PerClient,
    pub(crate) forwarding: Option<GatewaySettings>,
}

/// `tidegate.yaml` before validation.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawConfig {
    listen: RawListen,
    store: RawStore,
    rules: Option<Spanned<RawRules>>,
    headers: RawHeaders,
    on_invalid_call: Option<Spanned<String>>,
    resp: RawResp,
    identity: RawIdentity,
    admin: RawAdmin,
    tls: Option<Spanned<RawTls>>,
    drain: RawDrain,
    connections: RawConnections,
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
    max_bytes: Option<Spanned<String>>,
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
    read_token: Option<Spanned<String>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawDrain {
    delay: Option<Spanned<String>>,
    timeout: Option<Spanned<String>>,
}

/// The values of `headers.reset`.
pub(crate) const RESETS: [(&str, ResetFormat); 2] =
    [("delta", ResetFormat::Delta), ("epoch", ResetFormat::Epoch)];

/// The values of `headers.ietf`: drafts of the IETF.
pub(crate) const DRAFTS: [(&str, IetfDraft); 3] =
    [("11", IetfDraft::Current), ("6", IetfDraft::Six), ("off", IetfDraft::Off)];

/// The values of `headers.rls`: the responses to which Envoy adds headers.
pub(crate) const RLS_HEADERS: [(&str, RlsHeaders); 3] =
    [("denied", RlsHeaders::Denied), ("all", RlsHeaders::All), ("off", RlsHeaders::Off)];

/// The values of `on_invalid_call`.
pub(crate) const ON_INVALID_CALL: [(&str, OnInvalidCall); 3] = [
    ("deny", OnInvalidCall::Deny),
    ("allow", OnInvalidCall::Allow),
    ("error", OnInvalidCall::Error),
];

impl ConfigFile {
    /// Longest file in bytes, because inline rules may be as long as a file of rules.
    const MAX_LENGTH: usize = RuleSet::MAX_DOCUMENT_BYTES;

    /// Reads and validates a file. The rules file that it refers to is not opened.
    ///
    /// # Errors
    /// The file can't be read or is invalid.
    pub(crate) fn read(path: &Path) -> Result<Self, ConfigError> {
        let text = read_file(path, Self::MAX_LENGTH)?;
        Self::parse(path, &text)
    }

    /// Parses and validates the text of a file.
    ///
    /// # Errors
    /// The text is invalid. All errors are reported, with their lines.
    pub(crate) fn parse(path: &Path, text: &str) -> Result<Self, ConfigError> {
        let source = path.display().to_string();
        if text.trim().is_empty() {
            return Ok(Self::default());
        }
        let options = serde_saphyr::options! { with_snippet: false };
        let raw: RawConfig =
            serde_saphyr::from_str_with_options(text, options).map_err(|error| {
                let at = error.location().map(|location| error_range(&error, location));
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
            read_token: reader.parsed("admin.read_token", raw.admin.read_token),
            redis: redis_source(&mut reader, path, &raw.store.memory, raw.store.redis),
            memory: MemorySettings::read(&mut reader, raw.store.memory.unwrap_or_default()),
            replies: ReplyConfig {
                headers: HeaderStyle {
                    reset: reader.word("headers.reset", raw.headers.reset, RESETS),
                    ietf: reader.word("headers.ietf", raw.headers.ietf, DRAFTS),
                },
                rls_headers: reader.word("headers.rls", raw.headers.rls, RLS_HEADERS),
                on_invalid_call: reader.word(
                    "on_invalid_call",
                    raw.on_invalid_call,
                    ON_INVALID_CALL,
                ),
            },
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
            drain: DrainConfig {
                delay: reader.span("drain.delay", raw.drain.delay, DrainConfig::DELAY),
                timeout: reader.span("drain.timeout", raw.drain.timeout, DrainConfig::TIMEOUT),
            },
            per_client: raw.connections.resolve(&mut reader),
            forwarding: (raw.gateway)
                .map(|raw| raw.value.resolve(raw.referenced, folder(path), &mut reader)),
        };
        let errors = reader.into_errors();
        if !errors.is_empty() {
            return Err(ConfigError::Invalid(errors));
        }
        match file.rules {
            Some(RuleSource::Inline(_)) => {
                let (context, now) = (file.warning_context(), Clock::system().now());
                let path = ["rules", "inline"];
                let (set, warnings) =
                    RuleSet::parse_with_warnings(&source, text, &path, &context, now)?;
                let rules = Box::new(InlineRules { set, warnings });
                Ok(Self { rules: Some(RuleSource::Inline(rules)), ..file })
            }
            _ => Ok(file),
        }
    }

    /// Returns the parts on which warnings about rules depend.
    pub(crate) fn warning_context(&self) -> WarningContext {
        WarningContext {
            attributes: self.identity.attributes.keys().cloned().collect(),
            keeps_encoded_slashes: (self.forwarding.as_ref())
                .is_some_and(GatewaySettings::keeps_encoded_slashes),
        }
    }
}

/// Returns the position of a parser error. For invalid YAML it is the whole line, which is never shown: the parser can't
/// distinguish keys from secrets there.
fn error_range(error: &Error, location: Location) -> SourceRange {
    match error {
        Error::SerdeUnknownField { .. }
        | Error::DuplicateMappingKey { .. }
        | Error::Unexpected { .. } => source_range(location),
        _ => SourceRange::whole_line(location.line()),
    }
}

/// Returns the Redis store, if there is one. A store in memory beside it is an error.
fn redis_source(
    reader: &mut FieldReader<'_>,
    path: &Path,
    memory: &Option<RawMemory>,
    redis: Option<Spanned<RawRedis>>,
) -> Option<RedisSettings> {
    let redis = redis?;
    let at = redis.referenced;
    if memory.is_some() {
        reader.add(at, "store must have memory or redis, found both".to_owned());
    }
    redis.value.resolve(at, folder(path), reader)
}

/// Returns the time between two polls of the rules, at least one second.
fn poll_interval(reader: &mut FieldReader<'_>, text: Spanned<String>) -> Span {
    let at = text.referenced;
    let poll = reader.span("rules.poll", Some(text), Span::SECOND);
    if poll < Span::SECOND {
        reader.add(at, format!("rules.poll must be 1s or more, found {poll}"));
    }
    poll
}

/// The capacity of a store in memory.
#[derive(Debug, Default)]
pub(crate) struct MemorySettings {
    pub(crate) max_keys: Option<usize>,
    pub(crate) max_bytes: Option<usize>,
}

impl MemorySettings {
    /// Largest value of `max_keys`.
    pub(crate) const MAX_KEYS: usize = 1_000_000_000;
    /// Largest value of `max_bytes`: 1 TiB.
    pub(crate) const MAX_BYTES: usize = 1 << 40;

    fn read(reader: &mut FieldReader, raw: RawMemory) -> Self {
        Self {
            max_keys: reader.whole("store.memory.max_keys", raw.max_keys, Self::MAX_KEYS),
            max_bytes: reader.whole("store.memory.max_bytes", raw.max_bytes, Self::MAX_BYTES),
        }
    }

    /// Returns the store with these settings, and the defaults of the others.
    pub(crate) fn store(&self) -> StoreConfig {
        let max_keys = self.max_keys.unwrap_or(MemoryStore::DEFAULT_MAX_KEYS);
        let default_bytes = || MemoryStore::default_max_bytes(max_keys);
        StoreConfig::Memory { max_keys, max_bytes: self.max_bytes.unwrap_or_else(default_bytes) }
    }
}

/// The kind of a YAML file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Rules,
    Config,
    /// A file of envoyproxy/ratelimit.
    Envoy,
}

/// Keys that occur only in a configuration.
const CONFIG_KEYS: [&str; 11] = [
    "listen",
    "store",
    "headers",
    "on_invalid_call",
    "admin",
    "tls",
    "drain",
    "connections",
    "identity",
    "resp",
    "gateway",
];

/// Returns whether a line of the text starts with one of the keys.
fn has_top_level_key(text: &str, keys: &[&str]) -> bool {
    let starts_with_key = |line: &str| {
        keys.iter().any(|key| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')))
    };
    text.lines().any(starts_with_key)
}

/// Detects the kind of a file by its keys, else by its name.
pub(crate) fn detect_kind(path: &Path, text: &str) -> FileKind {
    let name = path.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
    let by_name = if name.starts_with("tidegate") { FileKind::Config } else { FileKind::Rules };
    if serde_saphyr::from_str::<RulesShape<Vec<IgnoredAny>>>(text).is_ok() {
        return FileKind::Rules;
    }
    if serde_saphyr::from_str::<RulesShape<BTreeMap<String, IgnoredAny>>>(text).is_ok() {
        return FileKind::Config;
    }
    match serde_saphyr::from_str::<BTreeMap<String, IgnoredAny>>(text) {
        Ok(keys) if keys.contains_key("domain") || keys.contains_key("descriptors") => {
            FileKind::Envoy
        }
        Ok(keys) if CONFIG_KEYS.iter().any(|key| keys.contains_key(*key)) => FileKind::Config,
        Ok(_) => by_name,
        // The YAML is invalid: the first words of the lines decide.
        Err(_) if has_top_level_key(text, &["domain", "descriptors"]) => FileKind::Envoy,
        Err(_) if has_top_level_key(text, &CONFIG_KEYS) => FileKind::Config,
        Err(_) => by_name,
    }
}

/// A document with `rules` of the type `T`.
#[derive(Deserialize)]
struct RulesShape<T> {
    #[serde(rename = "rules")]
    _rules: T,
}
