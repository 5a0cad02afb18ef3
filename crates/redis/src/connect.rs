//! Opens connections, and checks the server before it is used.

use std::time::Duration;

use redis::aio::{MultiplexedConnection, PubSub};
use redis::io::tcp::TcpSettings;
use redis::io::tcp::socket2::TcpKeepalive;
use redis::{
    AsyncConnectionConfig, Client, ConnectionAddr, ErrorKind, IntoConnectionInfo, ProtocolVersion,
    RedisConnectionInfo, RedisError,
};
use tokio::runtime::Handle;
use tokio::time::timeout;
use tracing::{debug, warn};

use super::address::Address;
use super::config::{RedisConfig, ServerLogin};
use super::open_error::OpenError;
use super::server_info::{ServerInfo, ServerMode, ServerRole};
use super::servers::Servers;
use super::tls::provide_cryptography;

/// The name of connections in `CLIENT LIST`.
const CLIENT_NAME: &str = "tidegate";

/// Connects to a master that the scripts run on, within the connect timeout.
///
/// Commands time out after the timeout of a check. A timeout leaves the connection open, and the command may be done.
///
/// # Errors
/// The server is unreachable, rejects the login, or can't be used.
pub(crate) async fn open(
    config: &RedisConfig,
    address: &Address,
) -> Result<MultiplexedConnection, OpenError> {
    let (connection, role) = open_any(config, address).await?;
    match role {
        Some(ServerRole::Replica { of: master }) => {
            Err(OpenError::Replica { address: address.clone(), master })
        }
        Some(ServerRole::Master) | None => Ok(connection),
    }
}

/// Connects like [`open`], to a master or a replica: any server of a cluster has the slot map. Returns its role, if it
/// reports one.
pub(crate) async fn open_any(
    config: &RedisConfig,
    address: &Address,
) -> Result<(MultiplexedConnection, Option<ServerRole>), OpenError> {
    let opening = async {
        let mut connection = connect(config, address, config.login(), config.database()).await?;
        let server = identify(&mut connection, config, address).await?;
        let role = check_server(config, address, server)?;
        connection.set_response_timeout(config.timeout());
        Ok((connection, role))
    };
    within(config.connect_timeout(), address, opening).await
}

/// Returns the outcome, or an error after the timeout.
pub(crate) async fn within<T>(
    after: Duration,
    address: &Address,
    opening: impl Future<Output = Result<T, OpenError>>,
) -> Result<T, OpenError> {
    match timeout(after, opening).await {
        Ok(outcome) => outcome,
        Err(_) => Err(OpenError::Timeout { address: address.clone(), after }),
    }
}

/// Connects and logs in. Commands have no timeout of their own.
pub(crate) async fn connect(
    config: &RedisConfig,
    address: &Address,
    login: &ServerLogin,
    database: u32,
) -> Result<MultiplexedConnection, OpenError> {
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.connect_timeout()))
        .set_response_timeout(None);
    let connecting = async move |client: Client| {
        client.get_multiplexed_async_connection_with_config(&settings).await
    };
    connect_with(config, address, login, database, connecting).await
}

/// Connects for subscriptions, within the connect timeout.
pub(crate) async fn connect_pubsub(
    config: &RedisConfig,
    address: &Address,
    login: &ServerLogin,
    database: u32,
) -> Result<PubSub, OpenError> {
    let patience = config.connect_timeout();
    let connecting = async move |client: Client| {
        let late = |_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        timeout(patience, client.get_async_pubsub()).await.map_err(late)?
    };
    connect_with(config, address, login, database, connecting).await
}

/// Connects by `connecting`, with a client that has the address, the login and the TLS settings.
async fn connect_with<T: Send + 'static>(
    config: &RedisConfig,
    address: &Address,
    login: &ServerLogin,
    database: u32,
    connecting: impl AsyncFnOnce(Client) -> Result<T, RedisError> + Send + 'static,
) -> Result<T, OpenError> {
    let failed = |error: RedisError| {
        let after = config.connect_timeout();
        if error.is_timeout() {
            OpenError::Timeout { address: address.clone(), after }
        } else {
            OpenError::new(address, login, &error)
        }
    };
    let unusable = |reason: String| OpenError::connect(address, reason);
    let place = match (address.clone(), config.tls()) {
        (Address::Unix(path), _) => ConnectionAddr::Unix(path),
        (Address::Tcp { host, port }, None) => ConnectionAddr::Tcp(host, port),
        (Address::Tcp { host, port }, Some(_)) => {
            ConnectionAddr::TcpTls { host, port, insecure: false, tls_params: None }
        }
    };
    let info = place.into_connection_info().map_err(failed)?;
    let info =
        info.set_tcp_settings(tcp_settings(config)).set_redis_settings(hello(login, database));
    let Some(tls) = config.tls().cloned() else {
        let client = Client::open(info).map_err(failed)?;
        return connecting(client).await.map_err(failed);
    };
    // Certificates are files, ours and those of the system, which the client reads each time: not
    // on a thread that has checks to answer.
    provide_cryptography();
    let runtime = Handle::current();
    let connecting = tokio::task::spawn_blocking(move || {
        let certificates = tls.read().map_err(ConnectError::Files)?;
        let client = Client::build_with_tls(info, certificates).map_err(ConnectError::Redis)?;
        runtime.block_on(connecting(client)).map_err(ConnectError::Redis)
    });
    match connecting.await {
        Ok(outcome) => outcome.map_err(|trouble| match trouble {
            ConnectError::Files(reason) => unusable(reason),
            ConnectError::Redis(error) => failed(error),
        }),
        Err(error) => Err(unusable(error.to_string())),
    }
}

enum ConnectError {
    Files(String),
    Redis(RedisError),
}

/// Sends without delay, and detects a peer that is gone: replies that time out do not close a connection.
fn tcp_settings(config: &RedisConfig) -> TcpSettings {
    let keepalive = TcpKeepalive::new()
        .with_time(Duration::from_secs(5))
        .with_interval(Duration::from_secs(1))
        .with_retries(3);
    let settings = TcpSettings::default().set_nodelay(true).set_keepalive(keepalive);
    #[cfg(any(target_os = "android", target_os = "fuchsia", target_os = "linux"))]
    let settings = settings.set_user_timeout(config.connect_timeout().max(config.timeout()));
    settings
}

/// Uses RESP2, which servers of any age understand: the error for one that is too old names its version.
fn hello(login: &ServerLogin, database: u32) -> RedisConnectionInfo {
    let hello = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP2)
        .set_db(i64::from(database));
    let password = login.password.as_ref().map(|password| password.reveal());
    match (&login.user, password) {
        // Without a password the client would not send the user.
        (Some(user), password) => {
            hello.set_username(user).set_password(password.unwrap_or_default())
        }
        (None, Some(password)) => hello.set_password(password),
        (None, None) => hello,
    }
}

/// Names the connection and reads the identity of the server. An access list may forbid either.
async fn identify(
    connection: &mut MultiplexedConnection,
    config: &RedisConfig,
    address: &Address,
) -> Result<ServerInfo, OpenError> {
    let failed = |error: &RedisError| OpenError::new(address, config.login(), error);
    let named: Result<(), _> =
        redis::cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME).query_async(connection).await;
    if let Err(error) = named {
        tolerate(address, "CLIENT SETNAME", error).map_err(|error| failed(&error))?;
    }
    let info: Result<Vec<u8>, _> = redis::cmd("INFO").query_async(connection).await;
    match info {
        Ok(info) => return Ok(ServerInfo::read(&String::from_utf8_lossy(&info), address)),
        Err(error) => tolerate(address, "INFO", error).map_err(|error| failed(&error))?,
    }
    let role: Result<redis::Value, _> = redis::cmd("ROLE").query_async(connection).await;
    let role = match role {
        Ok(reply) => ServerRole::read(&reply, address),
        Err(error) => {
            tolerate(address, "ROLE", error).map_err(|error| failed(&error))?;
            None
        }
    };
    Ok(ServerInfo { role, ..ServerInfo::default() })
}

/// Accepts that a server rejects a command, but not that it is unreachable or requires a password.
fn tolerate(address: &Address, command: &str, error: RedisError) -> Result<(), RedisError> {
    let answered = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
    if !answered || error.code() == Some("NOAUTH") {
        return Err(error);
    }
    debug!(redis = %address, command, error = %error, "redis rejects a command that identifies it, continuing");
    Ok(())
}

/// Rejects a server that can't be used, and warns of one that may evict counters.
fn check_server(
    config: &RedisConfig,
    address: &Address,
    server: ServerInfo,
) -> Result<Option<ServerRole>, OpenError> {
    let address = address.clone();
    if let Some(version) = server.version.filter(|version| !version.is_supported()) {
        return Err(OpenError::Version { address, found: version.to_string() });
    }
    let wanted = match config.servers() {
        Servers::Cluster(_) => ServerMode::Cluster,
        Servers::Single(_) | Servers::Sentinel { .. } | Servers::Shards(_) => {
            ServerMode::Standalone
        }
    };
    if let Some(found) = server.mode.filter(|mode| *mode != wanted) {
        let (wanted, found) = (wanted.to_string(), found.to_string());
        return Err(OpenError::Kind { address, wanted, found });
    }
    if let Some(policy) = server.evicts {
        warn!(redis = %address, policy, "counters may be evicted, and their clients start anew");
    }
    Ok(server.role)
}

#[cfg(test)]
mod tests;
