//! Parses the source of rules: `rules` of `tidegate.yaml`, and `--rules`.

use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_saphyr::{Location, Spanned};
use tidegate_net::client::ClientTls;
use tidegate_redis::{RedisConfig, Secret};
use tidegate_service::config_error::ConfigError;
use tidegate_service::rules::{RuleSource, RulesRedis, RulesUrl};

use super::reader::{FieldReader, folder};
use super::secrets::RedisSettings;
use super::{client_tls, environment};

/// Variable with the bearer token for `rules.url`.
pub(crate) const TOKEN_VARIABLE: &str = "TIDEGATE_RULES_TOKEN";

/// `rules` before validation.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRules {
    file: Option<PathBuf>,
    redis: Option<Spanned<String>>,
    url: Option<Spanned<String>>,
    inline: Option<IgnoredAny>,
    pub(crate) envoy: Option<PathBuf>,
    pub(crate) copy: Option<PathBuf>,
    pub(crate) poll: Option<Spanned<String>>,
}

impl RawRules {
    /// Returns the source, or `None` after its errors were added to `reader`.
    pub(crate) fn source(
        self,
        at: Location,
        path: &Path,
        reader: &mut FieldReader<'_>,
    ) -> Option<RuleSource> {
        let envoy = self.envoy.is_some();
        let mut given: Vec<(&str, Option<RuleSource>)> = Vec::new();
        if let Some(file) = self.file {
            given.push(("file", Some(RuleSource::File(folder(path).join(file)))));
        }
        if let Some(redis) = self.redis {
            let source = redis_source(&redis.value);
            let source = source.map_err(|error| reader.add(redis.referenced, error));
            given.push(("redis", source.ok().map(RuleSource::Redis)));
        }
        if let Some(url) = self.url {
            let source = url_source(&url.value);
            let message = |error| format!("rules.url {error}");
            let source = source.map_err(|error| reader.add(url.referenced, message(error)));
            given.push(("url", source.ok().map(RuleSource::Url)));
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
                reader.add(at, format!("{wanted}, found {found}"));
                None
            }
        }
    }
}

/// Parses `rules.redis`: `true` for the Redis of the store, or a URL.
fn redis_source(text: &str) -> Result<RulesRedis, String> {
    if text == "true" {
        return Ok(RulesRedis::OfStore);
    }
    let config: RedisConfig = text.parse().map_err(|error| format!("rules.redis: {error}"))?;
    Ok(RulesRedis::Own(Box::new(config)))
}

fn url_source(text: &str) -> Result<RulesUrl, String> {
    let wanted = "must be a URL like https://config.example.com/rules.yaml";
    let uri: hyper::Uri = text.parse().map_err(|_| wanted.to_owned())?;
    let known = matches!(uri.scheme_str(), Some("http" | "https"));
    match uri.authority() {
        Some(authority) if authority.as_str().contains('@') => {
            Err(format!("{wanted}, without a user or password in it"))
        }
        Some(_) if known => Ok(RulesUrl { uri, token: None, tls: ClientTls::default() }),
        _ => Err(wanted.to_owned()),
    }
}

/// Parses `--rules`: a URL, else a file.
///
/// # Errors
/// The URL is invalid. The error contains no part that may be a password.
pub(crate) fn source_of_flag(value: &Secret) -> Result<RuleSource, ConfigError> {
    let invalid = |reason| ConfigError::NotInFile { place: "--rules", reason };
    let text = value.reveal();
    match text.split_once("://") {
        Some(("http" | "https", _)) => Ok(RuleSource::Url(url_source(text).map_err(invalid)?)),
        Some((scheme, _)) if scheme.starts_with("redis") => {
            let config: Result<RedisConfig, _> = text.parse();
            let config = config.map_err(|error| invalid(error.to_string()))?;
            Ok(RuleSource::Redis(RulesRedis::Own(Box::new(config))))
        }
        _ => Ok(RuleSource::File(PathBuf::from(text))),
    }
}

/// Loads the secrets of a source from the environment.
///
/// # Errors
/// A secret can't be read.
pub(crate) fn load_source(source: RuleSource) -> Result<RuleSource, ConfigError> {
    Ok(match source {
        RuleSource::Redis(RulesRedis::Own(config)) => {
            RuleSource::Redis(RulesRedis::Own(Box::new(RedisSettings::new(*config).load()?)))
        }
        RuleSource::Url(from) => {
            let token = environment(TOKEN_VARIABLE)?.map(Secret::from);
            let is_https = from.uri.scheme_str() == Some("https");
            let tls = if is_https { client_tls()? } else { ClientTls::default() };
            RuleSource::Url(RulesUrl { token, tls, ..from })
        }
        other => other,
    })
}
