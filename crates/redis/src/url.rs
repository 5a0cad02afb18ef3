//! Configurations as URLs.
//!
//! ```text
//! redis://[user[:password]@]host[:port][/database]           rediss:// encrypts
//! redis+cluster://[user[:password]@]host[:port],...          rediss+cluster://
//! redis+sentinel://[user[:password]@]host[:port],.../master[/database]
//! redis+unix:///path/of/socket
//! ```
//!
//! Each may end with `?prefix=tg:&timeout=10ms&db=0`; that of a socket also with `user` and
//! `password`. What would be read as a delimiter is percent-encoded.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use tidegate_core::quota::window_of;

use super::address::Address;
use super::config::RedisConfig;
use super::config_error::RedisConfigError;
use super::servers::Servers;
use super::tls::Tls;

const SCHEMES: &str = "redis, rediss, redis+cluster, rediss+cluster, redis+sentinel, \
                       rediss+sentinel or redis+unix";
const MAX_LENGTH: usize = 65_536;

#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlKind {
    Single,
    Cluster,
    Sentinel,
    Unix,
}

impl FromStr for RedisConfig {
    type Err = RedisConfigError;

    fn from_str(url: &str) -> Result<Self, RedisConfigError> {
        if url.len() > MAX_LENGTH {
            let wanted = format!("at most {MAX_LENGTH} bytes long");
            return Err(RedisConfigError::new("url", wanted).found(url.len()));
        }
        let (scheme, rest) = url.split_once("://").ok_or_else(|| {
            RedisConfigError::new("url", "like redis://host:port, with a scheme and a host")
        })?;
        let (kind, tls) = kind_of(scheme)?;
        if rest.contains('#') {
            return Err(RedisConfigError::new("# in a url", "written as %23"));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            return Err(misplaced_at());
        }
        let config = if kind == UrlKind::Unix { socket(place) } else { network(kind, place) }?;
        let config = if tls { config.with_tls(Tls::default())? } else { config };
        parameters(config, kind, query)
    }
}

fn kind_of(scheme: &str) -> Result<(UrlKind, bool), RedisConfigError> {
    Ok(match scheme.to_ascii_lowercase().as_str() {
        "redis" => (UrlKind::Single, false),
        "rediss" => (UrlKind::Single, true),
        "redis+cluster" => (UrlKind::Cluster, false),
        "rediss+cluster" => (UrlKind::Cluster, true),
        "redis+sentinel" => (UrlKind::Sentinel, false),
        "rediss+sentinel" => (UrlKind::Sentinel, true),
        "redis+unix" => (UrlKind::Unix, false),
        other => {
            let error = RedisConfigError::new("scheme", SCHEMES);
            let plain = other.len() < 24
                && other.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b));
            return Err(if plain { error.found(format_args!("{other:?}")) } else { error });
        }
    })
}

/// An `@` that does not end a user and password is most likely a part of them, and so is what
/// stands before it: nothing of it may be shown.
fn misplaced_at() -> RedisConfigError {
    RedisConfigError::new(
        "url",
        "percent-encoded where a user, password or value has one of @ / ? # (@ is %40)",
    )
}

fn socket(place: &str) -> Result<RedisConfig, RedisConfigError> {
    if !place.starts_with('/') {
        let wanted = "an absolute path like redis+unix:///run/redis.sock";
        return Err(RedisConfigError::new("socket", wanted));
    }
    let path = decoded("socket path", place)?;
    RedisConfig::new(Servers::Single(Address::Unix(path.into_owned().into())))
}

fn network(kind: UrlKind, place: &str) -> Result<RedisConfig, RedisConfigError> {
    let (authority, path) = place.split_once('/').unwrap_or((place, ""));
    if path.contains('@') {
        return Err(misplaced_at());
    }
    let (login, hosts) = match authority.split_once('@') {
        Some((_, hosts)) if hosts.contains('@') => return Err(misplaced_at()),
        Some((login, hosts)) => (login, hosts),
        None => ("", authority),
    };
    let addresses = |port| hosts.split(',').map(move |host| Address::parse(host, port));
    let (servers, database) = match kind {
        UrlKind::Sentinel => {
            let sentinels = addresses(Address::SENTINEL_PORT).collect::<Result<_, _>>()?;
            let (master, database) = path.split_once('/').unwrap_or((path, ""));
            let master = decoded("master", master)?.into_owned();
            (Servers::Sentinel { sentinels, master }, database)
        }
        UrlKind::Cluster => {
            (Servers::Cluster(addresses(Address::REDIS_PORT).collect::<Result<_, _>>()?), path)
        }
        UrlKind::Single | UrlKind::Unix => {
            if hosts.contains(',') {
                let wanted = "one, unless the scheme is redis+cluster or redis+sentinel";
                let found = hosts.split(',').count();
                return Err(RedisConfigError::new("number of servers", wanted).found(found));
            }
            (Servers::Single(Address::parse(hosts, Address::REDIS_PORT)?), path)
        }
    };
    let mut config = RedisConfig::new(servers)?;
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    if !user.is_empty() {
        config = config.with_user(decoded("user", user)?)?;
    }
    if !password.is_empty() {
        config = config.with_password(decoded("password", password)?)?;
    }
    if database.is_empty() { Ok(config) } else { with_database(config, database) }
}

fn with_database(config: RedisConfig, text: &str) -> Result<RedisConfig, RedisConfigError> {
    match text.parse() {
        Ok(number) => config.with_database(number),
        Err(_) => {
            Err(RedisConfigError::new("database", "a number").found(format_args!("{text:?}")))
        }
    }
}

fn parameters(
    mut config: RedisConfig,
    kind: UrlKind,
    query: &str,
) -> Result<RedisConfig, RedisConfigError> {
    let mut seen: Vec<&str> = Vec::new();
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        if seen.contains(&name) {
            return Err(RedisConfigError::new("parameter", "given once").found(name));
        }
        // What follows a password may be the rest of one with an & in it.
        let after_password = seen.contains(&"password");
        seen.push(name);
        config = parameter(config, kind, name, value)
            .map_err(|error| if after_password { error.hidden() } else { error })?;
    }
    Ok(config)
}

fn parameter(
    config: RedisConfig,
    kind: UrlKind,
    name: &str,
    value: &str,
) -> Result<RedisConfig, RedisConfigError> {
    let value = decoded("parameter", value)?;
    match (name, kind) {
        ("prefix", _) => config.with_prefix(value),
        ("timeout", _) => config.with_timeout(timeout(&value)?),
        ("db", _) if config.database() == 0 => with_database(config, &value),
        ("db", _) => Err(RedisConfigError::new("database", "given once").found("two of them")),
        ("user", UrlKind::Unix) => config.with_user(value),
        ("password", UrlKind::Unix) => config.with_password(value.into_owned()),
        (other, UrlKind::Unix) => {
            let wanted = "prefix, timeout, db, user or password";
            Err(RedisConfigError::new("parameter", wanted).found(format_args!("{other:?}")))
        }
        (other, _) => {
            let wanted = "prefix, timeout or db";
            Err(RedisConfigError::new("parameter", wanted).found(format_args!("{other:?}")))
        }
    }
}

fn timeout(text: &str) -> Result<Duration, RedisConfigError> {
    window_of(text).map(Duration::from).map_err(|_| {
        RedisConfigError::new("timeout", "like 25ms or 1s").found(format_args!("{text:?}"))
    })
}

fn decoded<'t>(setting: &'static str, text: &'t str) -> Result<Cow<'t, str>, RedisConfigError> {
    percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| RedisConfigError::new(setting, "text in UTF-8, once decoded"))
}

/// Bytes that are not encoded anywhere in a URL.
const PLAIN: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');
/// The same in a path, in which slashes are not encoded.
const PATH: &AsciiSet = &PLAIN.remove(b'/');

/// Prints the URL without passwords, with every setting that differs from its default and has a place in a URL. The URLs of
/// shards are listed.
impl fmt::Display for RedisConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shards = match self.servers() {
            Servers::Shards(shards) => shards.as_slice(),
            others => return self.write_url(f, others),
        };
        for (index, shard) in shards.iter().enumerate() {
            if index > 0 {
                f.write_str(", ")?;
            }
            self.write_url(f, &Servers::Single(shard.clone()))?;
        }
        Ok(())
    }
}

impl RedisConfig {
    fn write_url(&self, f: &mut fmt::Formatter<'_>, servers: &Servers) -> fmt::Result {
        let mut parameters = Vec::new();
        let user = self.user().map(|user| utf8_percent_encode(user, PLAIN).to_string());
        if let Servers::Single(Address::Unix(path)) = servers {
            let path = path.to_string_lossy();
            write!(f, "redis+unix://{}", utf8_percent_encode(&path, PATH))?;
            parameters.extend(user.map(|user| format!("user={user}")));
            if self.database() > 0 {
                parameters.push(format!("db={}", self.database()));
            }
        } else {
            let encrypted = if self.tls().is_some() { "s" } else { "" };
            let kind = match servers {
                Servers::Cluster(_) => "+cluster",
                Servers::Sentinel { .. } => "+sentinel",
                Servers::Single(_) | Servers::Shards(_) => "",
            };
            write!(f, "redis{encrypted}{kind}://")?;
            if let Some(user) = user {
                write!(f, "{user}@")?;
            }
            let hosts: Vec<String> = servers.addresses().iter().map(Address::to_string).collect();
            f.write_str(&hosts.join(","))?;
            if let Servers::Sentinel { master, .. } = servers {
                write!(f, "/{}", utf8_percent_encode(master, PLAIN))?;
            }
            if self.database() > 0 {
                write!(f, "/{}", self.database())?;
            }
        }
        if self.prefix() != Self::DEFAULT_PREFIX {
            parameters.push(format!("prefix={}", utf8_percent_encode(self.prefix(), PLAIN)));
        }
        if self.timeout() != Self::DEFAULT_TIMEOUT {
            parameters.push(format!("timeout={}ms", self.timeout().as_millis()));
        }
        match parameters.as_slice() {
            [] => Ok(()),
            some => write!(f, "?{}", some.join("&")),
        }
    }
}

#[cfg(test)]
mod tests;
