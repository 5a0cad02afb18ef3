//! `rules` of `tidegate.yaml` and `--rules`: where rules come from.

use std::fmt;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::{Location, Spanned};
use tidegate::{RedisConfig, RuleSet, Secret, Span};

use super::file::{Wrongs, folder};
use super::secrets::RedisSource;
use super::{ConfigError, SAMPLE_NAME, environment};

/// Has what the server of `rules.url` is shown.
pub(crate) const TOKEN_VARIABLE: &str = "TIDEGATE_RULES_TOKEN";

/// Which rules to enforce, and how to keep up with them.
#[derive(Debug)]
pub(crate) struct RulesConfig {
    pub(crate) source: RuleSource,
    /// A directory of envoyproxy/ratelimit files, beside the rules.
    pub(crate) envoy: Option<PathBuf>,
    /// Where the last good rules are kept, for a start without their source.
    pub(crate) copies: Option<PathBuf>,
    /// How often the source is looked at, whatever it says by itself.
    pub(crate) poll: Option<Span>,
}

/// Where rules come from.
#[derive(Debug)]
pub(crate) enum RuleSource {
    /// There are none of our own.
    Nothing,
    Sample,
    File(PathBuf),
    Inline(Box<RuleSet>),
    Redis(RulesRedis),
    Url(RulesUrl),
}

/// Which Redis has the rules.
#[derive(Debug)]
pub(crate) enum RulesRedis {
    /// The one that has the spending.
    OfStore,
    Own(Box<RedisConfig>),
    /// As [`Own`](Self::Own), before its secrets are there.
    Sealed(Box<RedisSource>),
}

/// A document somewhere on the web.
#[derive(Clone, Debug)]
pub(crate) struct RulesUrl {
    pub(crate) uri: hyper::Uri,
    /// What its server is shown.
    pub(crate) token: Option<Secret>,
}

/// `rules` as it is written.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct RawRules {
    file: Option<PathBuf>,
    redis: Option<Spanned<String>>,
    url: Option<Spanned<String>>,
    inline: Option<IgnoredAny>,
    pub(super) envoy: Option<PathBuf>,
    pub(super) copy: Option<PathBuf>,
    pub(super) poll: Option<Spanned<String>>,
}

impl RawRules {
    /// The source, or `None` after what is wrong was added.
    pub(super) fn source(
        self,
        at: Location,
        path: &Path,
        wrong: &mut Wrongs<'_>,
    ) -> Option<RuleSource> {
        let envoy = self.envoy.is_some();
        let mut given: Vec<(&str, Option<RuleSource>)> = Vec::new();
        if let Some(file) = self.file {
            given.push(("file", Some(RuleSource::File(folder(path).join(file)))));
        }
        if let Some(redis) = self.redis {
            let source = of_redis(&redis.value);
            let noted = source.map_err(|error| wrong.add(redis.referenced, error));
            given.push(("redis", noted.ok().map(RuleSource::Redis)));
        }
        if let Some(url) = self.url {
            let source = RulesUrl::of(&url.value);
            let said = |error| format!("rules.url {error}");
            let noted = source.map_err(|error| wrong.add(url.referenced, said(error)));
            given.push(("url", noted.ok().map(RuleSource::Url)));
        }
        if self.inline.is_some() {
            given.push(("inline", Some(RuleSource::Inline(Box::default()))));
        }
        match (given.pop(), given.as_slice()) {
            (Some((_, source)), []) => source,
            (None, _) if envoy => None,
            (last, others) => {
                let names = others.iter().chain(&last).map(|(name, _)| *name);
                let names: Vec<&str> = names.collect();
                let found = if names.is_empty() { "none".to_owned() } else { names.join(" and ") };
                let wanted = "rules must have one of file, redis, url, inline, or envoy";
                wrong.add(at, format!("{wanted}, found {found}"));
                None
            }
        }
    }
}

/// Reads `true`, for the store's Redis, or the URL of another.
fn of_redis(text: &str) -> Result<RulesRedis, String> {
    if text == "true" {
        return Ok(RulesRedis::OfStore);
    }
    let config: RedisConfig = text.parse().map_err(|error| format!("rules.redis: {error}"))?;
    Ok(RulesRedis::Sealed(Box::new(RedisSource::new(config))))
}

impl RulesUrl {
    fn of(text: &str) -> Result<Self, String> {
        let wanted = "must be a URL like https://config.example.com/rules.yaml";
        let uri: hyper::Uri = text.parse().map_err(|_| wanted.to_owned())?;
        let known = matches!(uri.scheme_str(), Some("http" | "https"));
        match uri.authority() {
            Some(authority) if authority.as_str().contains('@') => {
                Err(format!("{wanted}, without a user or password in it"))
            }
            Some(_) if known => Ok(Self { uri, token: None }),
            _ => Err(wanted.to_owned()),
        }
    }
}

impl RuleSource {
    /// What `--rules` says: a URL, or else a file.
    ///
    /// # Errors
    /// It is a URL that can't be used. The error shows no part of it that may be a password.
    pub(super) fn of_flag(place: &Secret) -> Result<Self, ConfigError> {
        let wrong = |reason| ConfigError::Elsewhere { place: "--rules", reason };
        let text = place.reveal();
        match text.split_once("://") {
            Some(("http" | "https", _)) => Ok(Self::Url(RulesUrl::of(text).map_err(wrong)?)),
            Some((scheme, _)) if scheme.starts_with("redis") => {
                let config: Result<RedisConfig, _> = text.parse();
                let config = config.map_err(|error| wrong(error.to_string()))?;
                Ok(Self::Redis(RulesRedis::Sealed(Box::new(RedisSource::new(config)))))
            }
            _ => Ok(Self::File(PathBuf::from(text))),
        }
    }

    /// The same with the secrets that are kept elsewhere.
    ///
    /// # Errors
    /// One can't be had.
    pub(super) fn load(self) -> Result<Self, ConfigError> {
        Ok(match self {
            Self::Redis(RulesRedis::Sealed(source)) => {
                Self::Redis(RulesRedis::Own(Box::new(source.load()?)))
            }
            Self::Url(from) => {
                let token = environment(TOKEN_VARIABLE)?.map(Secret::from);
                Self::Url(RulesUrl { token, ..from })
            }
            other => other,
        })
    }

    /// Whether rules have to be fetched from another machine.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Self::Redis(_) | Self::Url(_))
    }
}

/// Prints as the place that it is, without secrets.
impl fmt::Display for RuleSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Sample => f.write_str(SAMPLE_NAME),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::Inline(_) => f.write_str("the configuration"),
            Self::Redis(RulesRedis::OfStore) => f.write_str("redis"),
            Self::Redis(RulesRedis::Own(config)) => config.fmt(f),
            Self::Redis(RulesRedis::Sealed(_)) => f.write_str("redis"),
            Self::Url(RulesUrl { uri, .. }) => {
                // What follows may be a token.
                let authority = uri.authority().map_or("", |authority| authority.as_str());
                write!(f, "{}://{authority}{}", uri.scheme_str().unwrap_or("http"), uri.path())
            }
        }
    }
}
