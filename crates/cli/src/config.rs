//! What to serve and how: `tidegate.yaml`, then the flags, then defaults, as one typed [`Config`].
//!
//! This is the only place that reads the environment.

mod file;
mod gateway;
mod identity;
mod reader;
mod redis;
mod resp;
mod rules;
pub(crate) mod schema;
mod secrets;
mod tls;

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use tidegate_core::{HeaderStyle, Span};
use tidegate_gateway::GatewayConfig;
use tidegate_limiter::MemoryStore;
use tidegate_net::client::{ClientTls, HttpClient};
use tidegate_net::token::BearerToken;
use tidegate_redis::Secret;
use tidegate_service::config_error::{ConfigError, InvalidEntry};
use tidegate_service::identity::IdentityConfig;
use tidegate_service::rules::{RuleSource, RulesConfig};
use tidegate_service::service::rls::RlsHeaders;
use tidegate_service::store::StoreConfig;

pub(crate) use self::file::{ConfigFile, Kind, kind};
pub(crate) use self::gateway::GatewaySource;
pub(crate) use self::secrets::PASSWORD_VARIABLE;
use self::secrets::RedisSource;
pub(crate) use self::tls::TlsConfig;

const DEFAULT_HTTP: &str = "127.0.0.1:8080";
const DEFAULT_GRPC: &str = "127.0.0.1:8081";
const DEFAULT_RESP: &str = "127.0.0.1:6380";
const DEFAULT_ADMIN: &str = "127.0.0.1:9090";
/// Only if there is an upstream.
const DEFAULT_GATEWAY: &str = "127.0.0.1:8000";

/// Everything that `serve` needs to know.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) listen: Listen,
    pub(crate) store: StoreConfig,
    pub(crate) rules: RulesConfig,
    pub(crate) headers: HeaderStyle,
    /// What Envoy is asked to add to its responses.
    pub(crate) rls_headers: RlsHeaders,
    pub(crate) identity: IdentityConfig,
    /// There if and only if the gateway's listener is.
    pub(crate) gateway: Option<GatewayConfig>,
}

/// Which listeners to open, and where.
#[derive(Clone, Debug)]
pub(crate) struct Listen {
    pub(crate) http: ListenAddress,
    pub(crate) grpc: ListenAddress,
    pub(crate) resp: ListenAddress,
    /// What clients of the RESP listener have to say first.
    pub(crate) resp_password: Option<Secret>,
    pub(crate) admin: ListenAddress,
    /// Off without an upstream.
    pub(crate) gateway: ListenAddress,
    /// What opens the admin listener, beyond being able to reach it.
    pub(crate) token: Option<BearerToken>,
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) drain: Drain,
}

/// How a server goes away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Drain {
    /// How long it goes on as before and only says that it is not ready, so that load balancers can
    /// send calls elsewhere.
    pub(crate) delay: Span,
    /// How long it then waits for what is under way.
    pub(crate) timeout: Span,
}

impl Drain {
    const DELAY: Span = Span::from_secs(2);
    const TIMEOUT: Span = Span::from_secs(25);
}

impl Default for Drain {
    fn default() -> Self {
        Self { delay: Self::DELAY, timeout: Self::TIMEOUT }
    }
}

/// Where a listener listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    Off,
    /// A host and a port; port 0 takes any that is free.
    At(String),
}

/// What the command line says about the configuration; it beats the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Flags {
    pub(crate) config: Option<PathBuf>,
    /// A file, or the URL of a Redis or of a document.
    pub(crate) rules: Option<Secret>,
    pub(crate) rules_envoy: Option<PathBuf>,
    /// A URL, which may have a password in it.
    pub(crate) redis: Option<Secret>,
    pub(crate) http: Option<ListenAddress>,
    pub(crate) grpc: Option<ListenAddress>,
    pub(crate) resp: Option<ListenAddress>,
    pub(crate) admin: Option<ListenAddress>,
    pub(crate) gateway: Option<ListenAddress>,
    /// URLs of servers, which take the place of the file's upstreams and routes.
    pub(crate) upstream: Vec<Secret>,
}

impl Config {
    /// Reads the file that the flags name, if any, and lets the flags have the last word.
    ///
    /// # Errors
    /// The file can't be read, or what it says can't be used.
    pub(crate) fn resolve(flags: Flags) -> Result<Self, ConfigError> {
        let file = match &flags.config {
            Some(path) => ConfigFile::read(path)?,
            None => ConfigFile::default(),
        };
        let rules = match &flags.rules {
            Some(place) => Some(rules::source_of_flag(place)?),
            None => file.rules,
        };
        let envoy = flags.rules_envoy.or(file.envoy);
        let otherwise = if envoy.is_some() { RuleSource::Nothing } else { RuleSource::Sample };
        let copies = file.copies.clone();
        let state = || copies.clone().map_or_else(state_folder, |folder| Ok(Some(folder)));
        let rules = RulesConfig {
            source: rules::load_source(rules.unwrap_or(otherwise))?,
            envoy,
            copies: file.copies,
            poll: file.poll,
        };
        // What is on this machine needs a copy on this machine only if somebody says so.
        let rules = match &rules.copies {
            None if rules.source.is_remote() => RulesConfig { copies: state()?, ..rules },
            _ => rules,
        };
        let or_at = |listener: Option<ListenAddress>, usual: &str| {
            listener.unwrap_or(ListenAddress::At(usual.to_owned()))
        };
        let (listener, gateway) =
            gateway::resolve(flags.gateway, &flags.upstream, file.gateway, file.forwarding)?;
        let store = Self::store(flags.redis.as_ref(), file.redis, file.max_keys, state)?;
        Ok(Self {
            listen: Listen {
                http: or_at(flags.http.or(file.http), DEFAULT_HTTP),
                grpc: or_at(flags.grpc.or(file.grpc), DEFAULT_GRPC),
                resp: or_at(flags.resp.or(file.resp), DEFAULT_RESP),
                resp_password: file.resp_password.load()?,
                admin: or_at(flags.admin.or(file.admin), DEFAULT_ADMIN),
                tls: file.tls,
                drain: file.drain,
                token: file.token.map_or_else(token, |token| Ok(Some(token)))?,
                gateway: listener,
            },
            store,
            rules,
            headers: file.headers,
            rls_headers: file.rls_headers,
            identity: file.identity,
            gateway,
        })
    }

    /// The flag's store, else the file's, else memory; with its secrets.
    fn store(
        flag: Option<&Secret>,
        file: Option<RedisSource>,
        max_keys: Option<usize>,
        state: impl FnOnce() -> Result<Option<PathBuf>, ConfigError>,
    ) -> Result<StoreConfig, ConfigError> {
        let redis = flag.map(RedisSource::of_flag).transpose()?.or(file);
        Ok(match redis {
            Some(redis) => StoreConfig::Redis { config: Box::new(redis.load()?), state: state()? },
            None => {
                StoreConfig::Memory { max_keys: max_keys.unwrap_or(MemoryStore::DEFAULT_MAX_KEYS) }
            }
        })
    }
}

/// What to log, and how.
#[derive(Debug)]
pub(crate) struct LogConfig {
    /// `debug`, `tidegate=trace`.
    pub(crate) filter: String,
    pub(crate) format: LogFormat,
}

/// How a log line looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// For people.
    Text,
    /// An object on each line, for whoever collects them.
    Json,
}

impl LogConfig {
    /// What `TIDEGATE_LOG` and `TIDEGATE_LOG_FORMAT` ask for; what can't be understood is as if it were
    /// not said, because there is no log yet to complain in.
    #[allow(clippy::disallowed_methods, reason = "this is where the environment is read")]
    pub(crate) fn from_environment() -> Self {
        let format = match std::env::var("TIDEGATE_LOG_FORMAT").as_deref() {
            Ok("json") => LogFormat::Json,
            _ => LogFormat::Text,
        };
        let filter = std::env::var("TIDEGATE_LOG").unwrap_or_else(|_| "info".to_owned());
        Self { filter, format }
    }
}

/// What `TIDEGATE_TOKEN` says, for an admin listener and for commands that ask one.
///
/// # Errors
/// It says something that is no token.
pub(crate) fn token() -> Result<Option<BearerToken>, ConfigError> {
    const NAME: &str = "TIDEGATE_TOKEN";
    let Some(text) = environment(NAME)? else { return Ok(None) };
    text.parse()
        .map(Some)
        .map_err(|message| ConfigError::Invalid(vec![InvalidEntry::new(NAME, None, message)]))
}

/// Whether colours are wanted: not when `NO_COLOR` says anything.
#[cfg(feature = "top")]
pub(crate) fn wants_colours() -> bool {
    matches!(environment("NO_COLOR"), Ok(None))
}

/// What `TIDEGATE_RESP_PASSWORD` says, for commands that ask a RESP listener.
///
/// # Errors
/// It is no text.
#[cfg(feature = "bench")]
pub(crate) fn resp_password() -> Result<Option<Secret>, ConfigError> {
    resp::RespPassword::Elsewhere.load()
}

/// Who gives a command: `ann@laptop`, by `USER` or `LOGNAME`; the machine alone if neither says.
///
/// # Errors
/// A variable is no text.
pub(crate) fn operator() -> Result<String, ConfigError> {
    let system = rustix::system::uname();
    let host = system.nodename().to_string_lossy();
    let user =
        environment("USER")?.map_or_else(|| environment("LOGNAME"), |user| Ok(Some(user)))?;
    Ok(match user {
        Some(user) => format!("{user}@{host}"),
        None => host.into_owned(),
    })
}

/// How commands speak TLS to a server: `TIDEGATE_CA`, `TIDEGATE_CERTIFICATE` and `TIDEGATE_KEY` name files.
///
/// # Errors
/// There is a certificate without a key, or the other way round.
pub(crate) fn client_tls() -> Result<ClientTls, ConfigError> {
    let path = |name| Ok::<_, ConfigError>(environment(name)?.map(PathBuf::from));
    let ca = path("TIDEGATE_CA")?;
    let identity = match (path("TIDEGATE_CERTIFICATE")?, path("TIDEGATE_KEY")?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (found, _) => {
            let place = if found.is_some() { "TIDEGATE_KEY" } else { "TIDEGATE_CERTIFICATE" };
            let reason = "a certificate and its key are wanted, found the other one".to_owned();
            return Err(ConfigError::NotInFile { place, reason });
        }
    };
    Ok(ClientTls { ca, identity })
}

/// Returns the client of a server by its URL, for commands; it has no path.
///
/// # Errors
/// It is not such a URL, or the files for TLS are not complete.
pub(crate) fn http_client(text: &str) -> Result<HttpClient, String> {
    let wanted = || format!("must be a URL like http://127.0.0.1:8080, found {text:?}");
    let uri: hyper::Uri = text.parse().map_err(|_| wanted())?;
    if !matches!(uri.path(), "" | "/") || uri.query().is_some() {
        return Err(wanted());
    }
    let tls = match uri.scheme_str() {
        Some("https") => client_tls().map_err(|error| format!("{error}, found {text:?}"))?,
        _ => ClientTls::default(),
    };
    HttpClient::new(&uri, &tls).map_err(|error| format!("{error}, found {text:?}"))
}

/// Where a server may keep what it should still have after a restart: what systemd names, else the usual
/// place of its user. Nothing if it has neither.
///
/// # Errors
/// A variable is no text.
fn state_folder() -> Result<Option<PathBuf>, ConfigError> {
    // systemd may name several, the first is the one that was asked for first.
    let given = environment("STATE_DIRECTORY")?;
    if let Some(first) = given.as_deref().and_then(|list| list.split(':').next()) {
        return Ok(Some(PathBuf::from(first)));
    }
    let own = match environment("XDG_STATE_HOME")? {
        Some(folder) => Some(PathBuf::from(folder)),
        None => environment("HOME")?.map(|home| Path::new(&home).join(".local/state")),
    };
    Ok(own.filter(|folder| folder.is_absolute()).map(|folder| folder.join("tidegate")))
}

/// What a variable says; nothing if it is not there or empty.
#[allow(clippy::disallowed_methods, reason = "this is where the environment is read")]
fn environment(name: &'static str) -> Result<Option<String>, ConfigError> {
    match std::env::var(name) {
        Ok(value) => Ok(Some(value).filter(|value| !value.is_empty())),
        Err(std::env::VarError::NotPresent) => Ok(None),
        Err(std::env::VarError::NotUnicode(_)) => {
            let reason = "text in UTF-8 is wanted".to_owned();
            Err(ConfigError::NotInFile { place: name, reason })
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => f.write_str(address),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "off" {
            return Ok(Self::Off);
        }
        let host_and_port = text.rsplit_once(':').filter(|(host, port)| {
            let bracketed = host.starts_with('[') && host.ends_with(']');
            !host.is_empty() && (bracketed || !host.contains(':')) && port.parse::<u16>().is_ok()
        });
        match host_and_port {
            Some(_) => Ok(Self::At(text.to_owned())),
            None => Err(format!("must be an address like 127.0.0.1:8080, or off, found {text:?}")),
        }
    }
}
