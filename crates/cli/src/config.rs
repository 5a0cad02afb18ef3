//! Merges flags, `tidegate.yaml` and defaults into one typed [`Config`].
//!
//! Only this module reads the environment.

mod connections;
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
use tidegate_net::client::{ClientTls, HttpClient};
use tidegate_net::token::BearerToken;
use tidegate_redis::Secret;
use tidegate_service::config_error::{ConfigError, InvalidEntry};
use tidegate_service::identity::IdentityConfig;
use tidegate_service::rules::{RuleSource, RulesConfig};
use tidegate_service::service::OnInvalidCall;
use tidegate_service::service::rls::RlsHeaders;
use tidegate_service::store::StoreConfig;

use self::file::MemorySettings;
pub(crate) use self::file::{ConfigFile, FileKind, detect_kind};
pub(crate) use self::gateway::GatewaySettings;
pub(crate) use self::secrets::PASSWORD_VARIABLE;
use self::secrets::RedisSettings;
pub(crate) use self::tls::TlsConfig;

const DEFAULT_HTTP: &str = "127.0.0.1:8080";
const DEFAULT_GRPC: &str = "127.0.0.1:8081";
const DEFAULT_RESP: &str = "127.0.0.1:6380";
const DEFAULT_ADMIN: &str = "127.0.0.1:9090";
/// Used only if there is an upstream.
const DEFAULT_GATEWAY: &str = "127.0.0.1:8000";

/// The complete configuration of `serve`.
#[derive(Debug)]
pub(crate) struct Config {
    pub(crate) listen: ListenConfig,
    pub(crate) store: StoreConfig,
    pub(crate) rules: RulesConfig,
    pub(crate) replies: ReplyConfig,
    pub(crate) identity: IdentityConfig,
    /// `Some` if and only if the gateway listener is on.
    pub(crate) gateway: Option<GatewayConfig>,
}

/// The headers of replies, and the answer to invalid calls.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ReplyConfig {
    pub(crate) headers: HeaderStyle,
    /// Selects the responses to which Envoy adds rate limit headers.
    pub(crate) rls_headers: RlsHeaders,
    /// The answer to invalid calls of proxies.
    pub(crate) on_invalid_call: OnInvalidCall,
}

/// The addresses of the listeners, and their security.
#[derive(Clone, Debug)]
pub(crate) struct ListenConfig {
    pub(crate) http: ListenAddress,
    pub(crate) grpc: ListenAddress,
    pub(crate) resp: ListenAddress,
    /// Password that clients of the RESP listener must send.
    pub(crate) resp_password: Option<Secret>,
    pub(crate) admin: ListenAddress,
    /// Off without an upstream.
    pub(crate) gateway: ListenAddress,
    /// Token that requests to the admin listener must have.
    pub(crate) token: Option<BearerToken>,
    /// Token that permits requests to the admin listener that change nothing.
    pub(crate) read_token: Option<BearerToken>,
    pub(crate) tls: Option<TlsConfig>,
    pub(crate) drain: DrainConfig,
    /// Most connections of one client address at the gateway; `None` without a limit.
    pub(crate) per_client: Option<usize>,
}

/// The timing of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DrainConfig {
    /// Time in which the server is not ready but still accepts calls, so that load balancers can redirect them.
    pub(crate) delay: Span,
    /// Time to complete the requests in flight, after the listeners are closed.
    pub(crate) timeout: Span,
}

impl DrainConfig {
    const DELAY: Span = Span::from_secs(2);
    const TIMEOUT: Span = Span::from_secs(25);
}

impl Default for DrainConfig {
    fn default() -> Self {
        Self { delay: Self::DELAY, timeout: Self::TIMEOUT }
    }
}

/// The address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ListenAddress {
    Off,
    /// A host and a port; port 0 selects any free port.
    At(String),
}

/// The flags of the command line. They override the file.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConfigFlags {
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
    /// URLs of servers, which replace the upstreams and routes of the file.
    pub(crate) upstream: Vec<Secret>,
}

impl Config {
    /// Reads the file of `--config`, if there is one, and applies the flags and the environment.
    ///
    /// # Errors
    /// The file can't be read or is invalid, or a flag or a variable is invalid.
    pub(crate) fn resolve(flags: ConfigFlags) -> Result<Self, ConfigError> {
        let file = match &flags.config {
            Some(path) => ConfigFile::read(path)?,
            None => ConfigFile::default(),
        };
        let warnings = file.warning_context();
        let rules = match &flags.rules {
            Some(source) => Some(rules::source_of_flag(source)?),
            None => file.rules,
        };
        let envoy = flags.rules_envoy.or(file.envoy);
        let default_source = if envoy.is_some() { RuleSource::Nothing } else { RuleSource::Sample };
        let copies = file.copies.clone();
        let state = || copies.clone().map_or_else(state_folder, |folder| Ok(Some(folder)));
        let rules = RulesConfig {
            source: rules::load_source(rules.unwrap_or(default_source))?,
            envoy,
            copies: file.copies,
            poll: file.poll,
            warnings,
        };
        // A local source needs a local copy only if the configuration asks for one.
        let rules = match &rules.copies {
            None if rules.source.is_remote() => RulesConfig { copies: state()?, ..rules },
            _ => rules,
        };
        let or_default = |address: Option<ListenAddress>, default: &str| {
            address.unwrap_or(ListenAddress::At(default.to_owned()))
        };
        let (listener, gateway) =
            gateway::resolve(flags.gateway, &flags.upstream, file.gateway, file.forwarding)?;
        let token = file.token.map_or_else(token, |token| Ok(Some(token)))?;
        let read_token = file.read_token.map_or_else(read_token, |token| Ok(Some(token)))?;
        check_read_token(token.as_ref(), read_token.as_ref())?;
        let store = Self::store(flags.redis.as_ref(), file.redis, &file.memory, state)?;
        Ok(Self {
            listen: ListenConfig {
                http: or_default(flags.http.or(file.http), DEFAULT_HTTP),
                grpc: or_default(flags.grpc.or(file.grpc), DEFAULT_GRPC),
                resp: or_default(flags.resp.or(file.resp), DEFAULT_RESP),
                resp_password: file.resp_password.load()?,
                admin: or_default(flags.admin.or(file.admin), DEFAULT_ADMIN),
                tls: file.tls,
                drain: file.drain,
                per_client: file.per_client.most(),
                token,
                read_token,
                gateway: listener,
            },
            store,
            rules,
            replies: file.replies,
            identity: file.identity,
            gateway,
        })
    }

    /// Returns the store of the flag, else of the file, else memory; with its secrets.
    fn store(
        flag: Option<&Secret>,
        file: Option<RedisSettings>,
        memory: &MemorySettings,
        state: impl FnOnce() -> Result<Option<PathBuf>, ConfigError>,
    ) -> Result<StoreConfig, ConfigError> {
        let redis = flag.map(RedisSettings::from_flag).transpose()?.or(file);
        Ok(match redis {
            Some(redis) => StoreConfig::Redis { config: Box::new(redis.load()?), state: state()? },
            None => memory.store(),
        })
    }
}

/// Filter and format of the log.
#[derive(Debug)]
pub(crate) struct LogConfig {
    /// A filter of `tracing`: `debug`, `tidegate=trace`.
    pub(crate) filter: String,
    pub(crate) format: LogFormat,
}

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogFormat {
    /// Readable text.
    Text,
    /// One JSON object per line, for log collectors.
    Json,
}

impl LogConfig {
    /// Reads `TIDEGATE_LOG` and `TIDEGATE_LOG_FORMAT`. An invalid value has the effect of no value, because there is no
    /// log yet for a warning.
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

/// Returns the admin token of `TIDEGATE_TOKEN`, for the admin listener and for commands that use it.
///
/// # Errors
/// The value is not a valid token.
pub(crate) fn token() -> Result<Option<BearerToken>, ConfigError> {
    token_variable("TIDEGATE_TOKEN")
}

/// Returns the read token of `TIDEGATE_READ_TOKEN`.
fn read_token() -> Result<Option<BearerToken>, ConfigError> {
    token_variable("TIDEGATE_READ_TOKEN")
}

fn token_variable(name: &'static str) -> Result<Option<BearerToken>, ConfigError> {
    let Some(text) = environment(name)? else { return Ok(None) };
    text.parse()
        .map(Some)
        .map_err(|message| ConfigError::Invalid(vec![InvalidEntry::new(name, None, message)]))
}

/// Checks that a read token limits access: there is a full token, and it is another one.
fn check_read_token(
    token: Option<&BearerToken>,
    read_token: Option<&BearerToken>,
) -> Result<(), ConfigError> {
    let Some(read_token) = read_token else { return Ok(()) };
    let reason = match token {
        None => "needs admin.token, found none (without it every request may change rules)",
        Some(token) if token == read_token => "must differ from admin.token, found the same text",
        Some(_) => return Ok(()),
    };
    Err(ConfigError::NotInFile { place: "admin.read_token", reason: reason.to_owned() })
}

/// Returns whether colours are wanted: `NO_COLOR` is unset or empty.
#[cfg(feature = "top")]
pub(crate) fn wants_colours() -> bool {
    matches!(environment("NO_COLOR"), Ok(None))
}

/// Returns the password of `TIDEGATE_RESP_PASSWORD`, for commands that use a RESP listener.
///
/// # Errors
/// The value is not UTF-8.
#[cfg(feature = "bench")]
pub(crate) fn resp_password() -> Result<Option<Secret>, ConfigError> {
    resp::RespPassword::Environment.load()
}

/// Returns the operator of a command, from `USER` or `LOGNAME` and the host name: `ann@laptop`. Without either variable
/// it is the host name alone.
///
/// # Errors
/// The value of a variable is not UTF-8.
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

/// Returns the TLS files for connections to a server: `TIDEGATE_CA`, `TIDEGATE_CERTIFICATE` and `TIDEGATE_KEY`.
///
/// # Errors
/// Only one of certificate and key is set.
pub(crate) fn client_tls() -> Result<ClientTls, ConfigError> {
    let path = |name| Ok::<_, ConfigError>(environment(name)?.map(PathBuf::from));
    let ca = path("TIDEGATE_CA")?;
    let identity = match (path("TIDEGATE_CERTIFICATE")?, path("TIDEGATE_KEY")?) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (found, _) => {
            let place = if found.is_some() { "TIDEGATE_KEY" } else { "TIDEGATE_CERTIFICATE" };
            let reason =
                "both a certificate and its key are wanted, found only the other".to_owned();
            return Err(ConfigError::NotInFile { place, reason });
        }
    };
    Ok(ClientTls { ca, identity })
}

/// Returns an HTTP client for the URL of a server. The URL has no path.
///
/// # Errors
/// The URL is invalid, or the TLS files are incomplete.
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

/// Returns the folder for data that survives a restart: `STATE_DIRECTORY` of systemd, else the state folder of the
/// user. `None` if there is neither.
///
/// # Errors
/// The value of a variable is not UTF-8.
fn state_folder() -> Result<Option<PathBuf>, ConfigError> {
    // systemd separates several folders by colons; the first is ours.
    let listed = environment("STATE_DIRECTORY")?;
    if let Some(first) = listed.as_deref().and_then(|list| list.split(':').next()) {
        return Ok(Some(PathBuf::from(first)));
    }
    let user_folder = match environment("XDG_STATE_HOME")? {
        Some(folder) => Some(PathBuf::from(folder)),
        None => environment("HOME")?.map(|home| Path::new(&home).join(".local/state")),
    };
    Ok(user_folder.filter(|folder| folder.is_absolute()).map(|folder| folder.join("tidegate")))
}

/// Returns the value of a variable; `None` if it is unset or empty.
///
/// # Errors
/// The value is not UTF-8.
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
