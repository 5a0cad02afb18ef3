//! Parses and validates `store.redis` of `tidegate.yaml`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use tidegate_core::quota::window_of;
use tidegate_redis::{Address, RedisConfig, RedisConfigError, Servers, Tls, TlsIdentity};

use super::reader::FieldReader;
use super::secrets::{RedisSettings, SecretKind};

/// `store.redis` before validation. It has no `Debug`, because it holds passwords.
#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawRedis {
    url: Option<Spanned<String>>,
    cluster: Option<Spanned<Vec<String>>>,
    sentinel: Option<Spanned<RawSentinel>>,
    shards: Option<Spanned<Vec<String>>>,
    timeout: Option<Spanned<String>>,
    prefix: Option<Spanned<String>>,
    denial_memory: Option<Spanned<String>>,
    database: Option<Spanned<String>>,
    user: Option<Spanned<String>>,
    password: Option<Spanned<String>>,
    password_file: Option<Spanned<PathBuf>>,
    secret: Option<Spanned<String>>,
    secret_file: Option<Spanned<PathBuf>>,
    tls: Option<Spanned<RawRedisTls>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawSentinel {
    addresses: Vec<String>,
    master: String,
    user: Option<String>,
    password: Option<Spanned<String>>,
    password_file: Option<Spanned<PathBuf>>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct RawRedisTls {
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

impl RawRedis {
    /// Returns the resolved form, or `None` after its errors were added to `reader`. Paths are relative to
    /// `folder`.
    pub(crate) fn resolve(
        mut self,
        at: Location,
        folder: &Path,
        reader: &mut FieldReader<'_>,
    ) -> Option<RedisSettings> {
        let sentinel_login = self.sentinel.as_mut().and_then(|raw| raw.value.take_login());
        let forms = [
            self.url.map(|raw| ServersForm::new("url", raw, |url| Ok(url.parse()?))),
            self.cluster.map(|raw| ServersForm::new("cluster", raw, |nodes| cluster(&nodes))),
            self.sentinel.map(|raw| ServersForm::new("sentinel", raw, RawSentinel::resolve)),
            self.shards
                .map(|raw| ServersForm::new("shards", raw, |shards| independent_shards(&shards))),
        ];
        let source = single_form(at, forms, reader).map(RedisSettings::new);
        let mut builder = RedisBuilder { source, folder, reader };
        builder.set(self.timeout, |config, text| {
            Ok(config.with_timeout(parse_time("timeout", &text)?)?)
        });
        builder.set(self.prefix, |config, text| Ok(config.with_prefix(text)?));
        builder.set(self.denial_memory, |config, text| {
            let memory = match text.as_str() {
                "off" | "0" | "0s" | "0ms" => Duration::ZERO,
                text => parse_time("denial_memory", text)?,
            };
            Ok(config.with_denial_memory(memory)?)
        });
        builder.set(self.database, |config, text| match text.parse() {
            Ok(number) => Ok(config.with_database(number)?),
            Err(_) => Err(SettingError(format!("database must be a number, found {text:?}"))),
        });
        builder.set(self.user, |config, text| Ok(config.with_user(text)?));
        builder.set(self.tls, |config, tls| Ok(config.with_tls(tls.resolve(folder)?)?));
        builder.secret(SecretKind::Password, self.password, self.password_file);
        builder.secret(SecretKind::FleetSecret, self.secret, self.secret_file);
        if let Some((user, password, file)) = sentinel_login {
            builder.secret(SecretKind::SentinelLogin { user }, password, file);
        }
        builder.source
    }
}

/// The error of a setting. It never contains a password.
struct SettingError(String);

impl From<RedisConfigError> for SettingError {
    fn from(error: RedisConfigError) -> Self {
        Self(error.to_string())
    }
}

/// One of the keys that name the servers: `url`, `cluster`, `sentinel` or `shards`.
struct ServersForm {
    name: &'static str,
    at: Location,
    config: Result<RedisConfig, SettingError>,
}

impl ServersForm {
    fn new<T>(
        name: &'static str,
        raw: Spanned<T>,
        resolve: impl FnOnce(T) -> Result<RedisConfig, SettingError>,
    ) -> Self {
        Self { name, at: raw.referenced, config: resolve(raw.value) }
    }
}

/// Returns the configuration of the only form. No form, several forms or an invalid one add an error.
fn single_form(
    at: Location,
    forms: [Option<ServersForm>; 4],
    reader: &mut FieldReader<'_>,
) -> Option<RedisConfig> {
    let mut given: Vec<ServersForm> = forms.into_iter().flatten().collect();
    match (given.pop(), given.as_slice()) {
        (Some(ServersForm { name, at, config }), []) => config
            .map_err(|SettingError(reason)| reader.add(at, format!("store.redis.{name}: {reason}")))
            .ok(),
        (last, others) => {
            let names: Vec<&str> = others.iter().chain(&last).map(|form| form.name).collect();
            let found = if names.is_empty() { "none".to_owned() } else { names.join(" and ") };
            let wanted = "one of url, cluster, sentinel, shards";
            reader.add(at, format!("store.redis must have {wanted}, found {found}"));
            None
        }
    }
}

fn cluster(nodes: &[String]) -> Result<RedisConfig, SettingError> {
    let nodes = nodes.iter().map(|text| Address::parse(text, Address::REDIS_PORT));
    Ok(RedisConfig::new(Servers::Cluster(nodes.collect::<Result<_, _>>()?))?)
}

/// Parses shards, each a URL or an address.
fn independent_shards(shards: &[String]) -> Result<RedisConfig, SettingError> {
    let shards = shards.iter().map(|text| {
        if text.contains("://") {
            return text.parse();
        }
        RedisConfig::new(Servers::Single(Address::parse(text, Address::REDIS_PORT)?))
    });
    Ok(RedisConfig::shards(shards.collect::<Result<Vec<_>, _>>()?)?)
}

/// The user for the sentinels, with a password or its file.
type SentinelLogin = (Option<String>, Option<Spanned<String>>, Option<Spanned<PathBuf>>);

impl RawSentinel {
    fn resolve(self) -> Result<RedisConfig, SettingError> {
        let sentinels = self.addresses.iter();
        let sentinels = sentinels.map(|text| Address::parse(text, Address::SENTINEL_PORT));
        let sentinels = sentinels.collect::<Result<_, _>>()?;
        if self.user.is_some() {
            return Err(SettingError("user needs a password, found none".to_owned()));
        }
        Ok(RedisConfig::new(Servers::Sentinel { sentinels, master: self.master })?)
    }

    /// Takes the login out, if it has a password.
    fn take_login(&mut self) -> Option<SentinelLogin> {
        if self.password.is_none() && self.password_file.is_none() {
            return None;
        }
        Some((self.user.take(), self.password.take(), self.password_file.take()))
    }
}

impl RawRedisTls {
    fn resolve(self, folder: &Path) -> Result<Tls, SettingError> {
        let path = |path: PathBuf| folder.join(path);
        let identity = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => {
                Some(TlsIdentity { certificate: path(certificate), key: path(key) })
            }
            (None, None) => None,
            (certificate, _) => {
                let found = if certificate.is_some() { "certificate" } else { "key" };
                let wanted = "both or neither of certificate and key";
                return Err(SettingError(format!("tls must have {wanted}, found {found}")));
            }
        };
        Ok(Tls { ca: self.ca.map(path), identity })
    }
}

fn parse_time(setting: &str, text: &str) -> Result<Duration, SettingError> {
    let time = window_of(text).map(Duration::from);
    time.map_err(|_| SettingError(format!("{setting} must be like 25ms or 1s, found {text:?}")))
}

/// Applies settings to a configuration, one after another.
struct RedisBuilder<'w, 's> {
    /// `None` if the servers are invalid; settings are then not checked. An invalid setting leaves it unchanged.
    source: Option<RedisSettings>,
    folder: &'w Path,
    reader: &'w mut FieldReader<'s>,
}

impl RedisBuilder<'_, '_> {
    /// Applies a setting, or adds its error.
    fn set<T>(
        &mut self,
        raw: Option<Spanned<T>>,
        set: impl FnOnce(RedisConfig, T) -> Result<RedisConfig, SettingError>,
    ) {
        let (Some(raw), Some(source)) = (raw, &mut self.source) else { return };
        match set(source.config.clone(), raw.value) {
            Ok(config) => source.config = config,
            Err(SettingError(reason)) => {
                self.reader.add(raw.referenced, format!("store.redis: {reason}"));
            }
        }
    }

    /// Applies a secret of the configuration, or notes the file that [`RedisSettings::load`] reads it from.
    fn secret(
        &mut self,
        kind: SecretKind,
        inline: Option<Spanned<String>>,
        file: Option<Spanned<PathBuf>>,
    ) {
        match (inline, file) {
            (Some(inline), Some(_)) => {
                let name = kind.name();
                let message = format!("store.redis must have {name} or {name}_file, found both");
                self.reader.add(inline.referenced, message);
            }
            (Some(inline), None) => {
                self.set(Some(inline), |config, secret| Ok(kind.apply(config, secret)?));
            }
            (None, Some(file)) => {
                if let Some(source) = &mut self.source {
                    source.files.push((kind, self.folder.join(file.value)));
                }
            }
            (None, None) => {}
        }
    }
}
