//! `store.redis` of `tidegate.yaml`, from what is written to what can be used.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Deserialize;
use serde_saphyr::{Location, Spanned};
use tidegate_core::quota::window_of;
use tidegate_redis::{Address, RedisConfig, RedisConfigError, Servers, Tls, TlsIdentity};

use super::reader::FieldReader;
use super::secrets::{RedisSource, Wanted};

/// `store.redis` as it is written. It has no `Debug`: it holds passwords.
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
    tls: Option<Spanned<RawTls>>,
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
struct RawTls {
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
    ) -> Option<RedisSource> {
        let sentinel_login = self.sentinel.as_mut().and_then(|raw| raw.value.login());
        let forms = [
            self.url.map(|raw| Form::new("url", raw, |url| Ok(url.parse()?))),
            self.cluster.map(|raw| Form::new("cluster", raw, |nodes| cluster(&nodes))),
            self.sentinel.map(|raw| Form::new("sentinel", raw, RawSentinel::resolve)),
            self.shards.map(|raw| Form::new("shards", raw, |shards| shards_of(&shards))),
        ];
        let source = only(at, forms, reader).map(RedisSource::new);
        let mut build = Build { source, folder, reader };
        build.set(self.timeout, |config, text| Ok(config.with_timeout(length("timeout", &text)?)?));
        build.set(self.prefix, |config, text| Ok(config.with_prefix(text)?));
        build.set(self.denial_memory, |config, text| {
            let memory = match text.as_str() {
                "off" | "0" | "0s" | "0ms" => Duration::ZERO,
                text => length("denial_memory", text)?,
            };
            Ok(config.with_denial_memory(memory)?)
        });
        build.set(self.database, |config, text| match text.parse() {
            Ok(number) => Ok(config.with_database(number)?),
            Err(_) => Err(Reason(format!("database must be a number, found {text:?}"))),
        });
        build.set(self.user, |config, text| Ok(config.with_user(text)?));
        build.set(self.tls, |config, tls| Ok(config.with_tls(tls.resolve(folder)?)?));
        build.secret(Wanted::Password, self.password, self.password_file);
        build.secret(Wanted::FleetSecret, self.secret, self.secret_file);
        if let Some((user, password, file)) = sentinel_login {
            build.secret(Wanted::SentinelLogin { user }, password, file);
        }
        build.source
    }
}

/// Why a setting can't be used; never with a password in it.
struct Reason(String);

impl From<RedisConfigError> for Reason {
    fn from(error: RedisConfigError) -> Self {
        Self(error.to_string())
    }
}

/// One of the ways to say which servers there are.
struct Form {
    name: &'static str,
    at: Location,
    config: Result<RedisConfig, Reason>,
}

impl Form {
    fn new<T>(
        name: &'static str,
        raw: Spanned<T>,
        resolve: impl FnOnce(T) -> Result<RedisConfig, Reason>,
    ) -> Self {
        Self { name, at: raw.referenced, config: resolve(raw.value) }
    }
}

/// The one form that is given, if it is one and can be used.
fn only(
    at: Location,
    forms: [Option<Form>; 4],
    reader: &mut FieldReader<'_>,
) -> Option<RedisConfig> {
    let mut given: Vec<Form> = forms.into_iter().flatten().collect();
    match (given.pop(), given.as_slice()) {
        (Some(Form { name, at, config }), []) => config
            .map_err(|Reason(reason)| reader.add(at, format!("store.redis.{name}: {reason}")))
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

fn cluster(nodes: &[String]) -> Result<RedisConfig, Reason> {
    let nodes = nodes.iter().map(|text| Address::parse(text, Address::REDIS_PORT));
    Ok(RedisConfig::new(Servers::Cluster(nodes.collect::<Result<_, _>>()?))?)
}

/// Shards by their URLs, or by their addresses alone.
fn shards_of(shards: &[String]) -> Result<RedisConfig, Reason> {
    let shards = shards.iter().map(|text| {
        if text.contains("://") {
            return text.parse();
        }
        RedisConfig::new(Servers::Single(Address::parse(text, Address::REDIS_PORT)?))
    });
    Ok(RedisConfig::shards(shards.collect::<Result<Vec<_>, _>>()?)?)
}

/// Who to be to sentinels: a user, and a password or the file it is in.
type SentinelLogin = (Option<String>, Option<Spanned<String>>, Option<Spanned<PathBuf>>);

impl RawSentinel {
    fn resolve(self) -> Result<RedisConfig, Reason> {
        let sentinels = self.addresses.iter();
        let sentinels = sentinels.map(|text| Address::parse(text, Address::SENTINEL_PORT));
        let sentinels = sentinels.collect::<Result<_, _>>()?;
        if self.user.is_some() {
            return Err(Reason("user must come with a password, found none".to_owned()));
        }
        Ok(RedisConfig::new(Servers::Sentinel { sentinels, master: self.master })?)
    }

    /// Takes the login out, if there is a whole one.
    fn login(&mut self) -> Option<SentinelLogin> {
        if self.password.is_none() && self.password_file.is_none() {
            return None;
        }
        Some((self.user.take(), self.password.take(), self.password_file.take()))
    }
}

impl RawTls {
    fn resolve(self, folder: &Path) -> Result<Tls, Reason> {
        let path = |path: PathBuf| folder.join(path);
        let identity = match (self.certificate, self.key) {
            (Some(certificate), Some(key)) => {
                Some(TlsIdentity { certificate: path(certificate), key: path(key) })
            }
            (None, None) => None,
            (certificate, _) => {
                let found = if certificate.is_some() { "certificate" } else { "key" };
                let wanted = "both or neither of certificate and key";
                return Err(Reason(format!("tls must have {wanted}, found {found}")));
            }
        };
        Ok(Tls { ca: self.ca.map(path), identity })
    }
}

fn length(setting: &str, text: &str) -> Result<Duration, Reason> {
    let length = window_of(text).map(Duration::from);
    length.map_err(|_| Reason(format!("{setting} must be like 25ms or 1s, found {text:?}")))
}

/// A configuration to which one setting after another is added.
struct Build<'w, 's> {
    /// Nothing when a setting before this one was invalid; the others are checked all the same, for
    /// as long as there are servers to set them for.
    source: Option<RedisSource>,
    folder: &'w Path,
    reader: &'w mut FieldReader<'s>,
}

impl Build<'_, '_> {
    fn set<T>(
        &mut self,
        raw: Option<Spanned<T>>,
        set: impl FnOnce(RedisConfig, T) -> Result<RedisConfig, Reason>,
    ) {
        let (Some(raw), Some(source)) = (raw, &mut self.source) else { return };
        match set(source.config.clone(), raw.value) {
            Ok(config) => source.config = config,
            Err(Reason(reason)) => {
                self.reader.add(raw.referenced, format!("store.redis: {reason}"));
            }
        }
    }

    /// A secret that is here, or in a file that is read when it is needed.
    fn secret(
        &mut self,
        wanted: Wanted,
        here: Option<Spanned<String>>,
        file: Option<Spanned<PathBuf>>,
    ) {
        match (here, file) {
            (Some(here), Some(_)) => {
                let name = wanted.name();
                let message = format!("store.redis must have {name} or {name}_file, found both");
                self.reader.add(here.referenced, message);
            }
            (Some(here), None) => {
                self.set(Some(here), |config, secret| Ok(wanted.put(config, secret)?));
            }
            (None, Some(file)) => {
                if let Some(source) = &mut self.source {
                    source.files.push((wanted, self.folder.join(file.value)));
                }
            }
            (None, None) => {}
        }
    }
}
