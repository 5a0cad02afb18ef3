//! `tidegate.yaml`, from what is written to what can be used.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::{Error, Location, Spanned};
use tidegate_core::quota::window_of;
use tidegate_core::{HeaderStyle, Ietf, Reset, Span};
use tidegate_net::token::BearerToken;
use tidegate_rules::{Mark, RuleSet, did_you_mean};
use tidegate_service::config_error::{ConfigError, mark, read_file, unreadable};
use tidegate_service::identity::IdentityConfig;
use tidegate_service::rules::RuleSource;
use tidegate_service::service::rls::RlsHeaders;

use crate::config::gateway::{GatewaySource, RawGateway};
use crate::config::identity::RawIdentity;
use crate::config::redis::RawRedis;
use crate::config::resp::{RawResp, RespPassword};
use crate::config::rules::RawRules;
use crate::config::secrets::RedisSource;
use crate::config::tls::{RawTls, TlsConfig};
use crate::config::{Door, Drain, InvalidEntry};

/// A configuration file, read and checked.
#[derive(Debug, Default)]
pub(crate) struct ConfigFile {
    pub(super) http: Option<Door>,
    pub(super) grpc: Option<Door>,
    pub(super) resp: Option<Door>,
    pub(super) resp_password: RespPassword,
    pub(super) admin: Option<Door>,
    pub(super) gateway: Option<Door>,
    pub(super) token: Option<BearerToken>,
    pub(super) max_keys: Option<usize>,
    pub(super) redis: Option<RedisSource>,
    pub(crate) rules: Option<RuleSource>,
    pub(crate) envoy: Option<PathBuf>,
    pub(super) copies: Option<PathBuf>,
    pub(super) poll: Option<Span>,
    pub(super) headers: HeaderStyle,
    pub(super) rls_headers: RlsHeaders,
    pub(super) identity: IdentityConfig,
    pub(super) tls: Option<TlsConfig>,
    pub(super) drain: Drain,
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
pub(super) const RESETS: [(&str, Reset); 2] = [("delta", Reset::Delta), ("epoch", Reset::Epoch)];

/// The drafts of the IETF that `headers.ietf` knows.
pub(super) const DRAFTS: [(&str, Ietf); 3] =
    [("11", Ietf::Current), ("6", Ietf::Six), ("off", Ietf::Off)];

/// Which responses `headers.rls` has Envoy add headers to.
pub(super) const RLS_HEADERS: [(&str, RlsHeaders); 3] =
    [("denied", RlsHeaders::Denied), ("all", RlsHeaders::All), ("off", RlsHeaders::Off)];

impl ConfigFile {
    /// Longest file in bytes: its inline rules may be as long as a file of rules.
    const MAX_LENGTH: usize = RuleSet::MAX_DOCUMENT;

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
                ConfigError::Invalid(vec![InvalidEntry::new(&source, at, unreadable(&error, text))])
            })?;
        let mut wrong = Wrongs { source: &source, found: Vec::new() };
        let listen = raw.listen;
        let rules = raw.rules.as_ref().map(|rules| &rules.value);
        let file = Self {
            http: wrong.parsed("listen.http", listen.http),
            grpc: wrong.parsed("listen.grpc", listen.grpc),
            resp: wrong.parsed("listen.resp", listen.resp),
            resp_password: raw.resp.resolve(folder(path), &mut wrong),
            admin: wrong.parsed("listen.admin", listen.admin),
            gateway: wrong.parsed("listen.gateway", listen.gateway),
            token: wrong.parsed("admin.token", raw.admin.token),
            redis: wrong.redis(path, &raw.store.memory, raw.store.redis),
            max_keys: (raw.store.memory)
                .and_then(|memory| wrong.whole("store.memory.max_keys", memory.max_keys, MAX_KEYS)),
            headers: HeaderStyle {
                reset: wrong.word("headers.reset", raw.headers.reset, RESETS),
                ietf: wrong.word("headers.ietf", raw.headers.ietf, DRAFTS),
            },
            rls_headers: wrong.word("headers.rls", raw.headers.rls, RLS_HEADERS),
            envoy: rules.and_then(|rules| Some(folder(path).join(rules.envoy.as_ref()?))),
            copies: rules.and_then(|rules| Some(folder(path).join(rules.copy.as_ref()?))),
            poll: rules.and_then(|rules| rules.poll.clone()).map(|poll| wrong.poll(poll)),
            rules: raw
                .rules
                .and_then(|rules| rules.value.source(rules.referenced, path, &mut wrong)),
            identity: raw.identity.resolve(folder(path), &mut wrong),
            tls: raw
                .tls
                .and_then(|tls| tls.value.resolve(tls.referenced, folder(path), &mut wrong)),
            drain: Drain {
                delay: wrong.span("drain.delay", raw.drain.delay, Drain::DELAY),
                timeout: wrong.span("drain.timeout", raw.drain.timeout, Drain::TIMEOUT),
            },
            forwarding: (raw.gateway)
                .map(|raw| raw.value.resolve(raw.referenced, folder(path), &mut wrong)),
        };
        if !wrong.found.is_empty() {
            return Err(ConfigError::Invalid(wrong.found));
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
fn place(error: &Error, location: Location) -> Mark {
    match error {
        Error::SerdeUnknownField { .. }
        | Error::DuplicateMappingKey { .. }
        | Error::Unexpected { .. } => mark(location),
        _ => Mark::line_alone(location.line()),
    }
}

/// What paths in a file are relative to: they mean the same wherever the process was started.
pub(super) fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new(""))
}

/// Collects what is wrong with a file.
pub(super) struct Wrongs<'s> {
    source: &'s str,
    found: Vec<InvalidEntry>,
}

impl Wrongs<'_> {
    pub(super) fn add(&mut self, at: Location, message: String) {
        self.found.push(InvalidEntry::new(self.source, Some(mark(at)), message));
    }

    fn parsed<T: FromStr<Err = String>>(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
    ) -> Option<T> {
        let text = text?;
        let parsed = text.value.parse();
        parsed.map_err(|error| self.add(text.referenced, format!("{name} {error}"))).ok()
    }

    pub(super) fn word<T: Copy + Default, const N: usize>(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
        words: [(&str, T); N],
    ) -> T {
        let Some(text) = text else { return T::default() };
        if let Some((_, value)) = words.iter().find(|(word, _)| *word == text.value) {
            return *value;
        }
        let words = words.map(|(word, _)| word);
        let (wanted, meant) = (words.join(", "), did_you_mean(&text.value, words));
        let message = format!("{name} must be one of {wanted}, found {:?}{meant}", text.value);
        self.add(text.referenced, message);
        T::default()
    }

    /// A length of time, which may be none: `0s`.
    fn span(&mut self, name: &str, text: Option<Spanned<String>>, usual: Span) -> Span {
        let Some(text) = text else { return usual };
        match text.value.trim() {
            "0" | "0s" | "0ms" => Span::ZERO,
            value => window_of(value).unwrap_or_else(|_| {
                let message = format!("{name} must be a time like 5s or 0s, found {value:?}");
                self.add(text.referenced, message);
                usual
            }),
        }
    }

    /// The same between a least and a most, which are said in words too.
    pub(super) fn span_within(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
        usual: Span,
        (least, most, words): (Span, Span, &str),
    ) -> Span {
        let Some(text) = text else { return usual };
        let at = text.referenced;
        let found = self.span(name, Some(text), usual);
        if !(least..=most).contains(&found) {
            self.add(at, format!("{name} must be from {words}, found {found}"));
            return usual;
        }
        found
    }

    /// A whole number, at least one, which may have its digits grouped.
    pub(super) fn whole(
        &mut self,
        name: &str,
        text: Option<Spanned<String>>,
        most: usize,
    ) -> Option<usize> {
        let text = text?;
        let number = text.value.replace('_', "").parse().ok();
        let number = number.filter(|number| (1..=most).contains(number));
        if number.is_none() {
            let found = &text.value;
            let wanted = format!("must be a whole number from 1 to {most}, found {found:?}");
            self.add(text.referenced, format!("{name} {wanted}"));
        }
        number
    }

    fn redis(
        &mut self,
        path: &Path,
        memory: &Option<RawMemory>,
        redis: Option<Spanned<RawRedis>>,
    ) -> Option<RedisSource> {
        let redis = redis?;
        let at = redis.referenced;
        if memory.is_some() {
            self.add(at, "store must have memory or redis, found both".to_owned());
        }
        redis.value.resolve(at, folder(path), self)
    }

    /// How often to look: not more than once a second.
    fn poll(&mut self, text: Spanned<String>) -> Span {
        let at = text.referenced;
        let poll = self.span("rules.poll", Some(text), Span::SECOND);
        if poll < Span::SECOND {
            self.add(at, format!("rules.poll must be 1s or more, found {poll}"));
        }
        poll
    }
}

/// Most keys that a memory store can be told to hold.
pub(super) const MAX_KEYS: usize = 1_000_000_000;

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
