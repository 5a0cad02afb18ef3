//! Opens connections, and looks at who answers before anything depends on it.

mod error;

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
use super::config::{Login, RedisConfig};
use super::server::{Mode, Role, Server};
use super::servers::Servers;
use super::tls::provide_cryptography;

pub use error::OpenError;

/// What connections are called in `CLIENT LIST`.
const CLIENT_NAME: &str = "tidegate";

/// A connection to a master that the scripts run on, within the connect timeout.
///
/// Commands on it time out after the time that a check has. A timeout leaves the connection open,
/// and what was sent may be done.
///
/// # Errors
/// There is no such server, it does not let us in, or it is not one that can be used.
pub(super) async fn open(
    config: &RedisConfig,
    address: &Address,
) -> Result<MultiplexedConnection, OpenError> {
    let (connection, role) = open_any(config, address).await?;
    match role {
        Some(Role::Replica { of: master }) => {
            Err(OpenError::Replica { address: address.clone(), master })
        }
        Some(Role::Master) | None => Ok(connection),
    }
}

/// As [`open`], to a master or a replica: any node of a cluster can say where the masters are.
/// Which of them it is, if it says.
pub(super) async fn open_any(
    config: &RedisConfig,
    address: &Address,
) -> Result<(MultiplexedConnection, Option<Role>), OpenError> {
    let opening = async {
        let mut connection = connect(config, address, config.login(), config.database()).await?;
        let server = introduce(&mut connection, config, address).await?;
        let role = examine(config, address, server)?;
        connection.set_response_timeout(config.timeout());
        Ok((connection, role))
    };
    within(config.connect_timeout(), address, opening).await
}

/// The outcome, or an error once the time is up.
pub(super) async fn within<T>(
    after: Duration,
    address: &Address,
    opening: impl Future<Output = Result<T, OpenError>>,
) -> Result<T, OpenError> {
    match timeout(after, opening).await {
        Ok(outcome) => outcome,
        Err(_) => Err(OpenError::Timeout { address: address.clone(), after }),
    }
}

/// A connection that has logged in. Commands on it have no timeout of their own.
pub(super) async fn connect(
    config: &RedisConfig,
    address: &Address,
    login: &Login,
    database: u32,
) -> Result<MultiplexedConnection, OpenError> {
    let settings = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(config.connect_timeout()))
        .set_response_timeout(None);
    let connecting = async move |client: Client| {
        client.get_multiplexed_async_connection_with_config(&settings).await
    };
    reach(config, address, login, database, connecting).await
}

/// A connection for subscriptions, opened within the connect timeout.
pub(super) async fn listen(
    config: &RedisConfig,
    address: &Address,
    login: &Login,
    database: u32,
) -> Result<PubSub, OpenError> {
    let patience = config.connect_timeout();
    let connecting = async move |client: Client| {
        let late = |_| RedisError::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        timeout(patience, client.get_async_pubsub()).await.map_err(late)?
    };
    reach(config, address, login, database, connecting).await
}

/// What comes of a client that knows the way to a server and how to log in there.
async fn reach<T: Send + 'static>(
    config: &RedisConfig,
    address: &Address,
    login: &Login,
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
    let unusable = |reason| OpenError::Connect { address: address.clone(), reason };
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
        let certificates = tls.read().map_err(Trouble::Files)?;
        let client = Client::build_with_tls(info, certificates).map_err(Trouble::Redis)?;
        runtime.block_on(connecting(client)).map_err(Trouble::Redis)
    });
    match connecting.await {
        Ok(outcome) => outcome.map_err(|trouble| match trouble {
            Trouble::Files(reason) => unusable(reason),
            Trouble::Redis(error) => failed(error),
        }),
        Err(error) => Err(unusable(error.to_string())),
    }
}

enum Trouble {
    Files(String),
    Redis(RedisError),
}

/// Sends at once, and notices when the other side is gone without a word: replies that time out
/// do not close a connection.
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

/// RESP2 says all that is needed, to servers of any age: one that is too old can still be told so.
fn hello(login: &Login, database: u32) -> RedisConnectionInfo {
    let hello = RedisConnectionInfo::default()
        .set_protocol(ProtocolVersion::RESP2)
        .set_db(i64::from(database));
    let password = login.password.as_ref().map(|password| password.reveal());
    match (&login.user, password) {
        // Without a password the client would not say who it is.
        (Some(user), password) => {
            hello.set_username(user).set_password(password.unwrap_or_default())
        }
        (None, Some(password)) => hello.set_password(password),
        (None, None) => hello,
    }
}

/// Says who we are and asks who it is. An access list that forbids either is no obstacle.
async fn introduce(
    connection: &mut MultiplexedConnection,
    config: &RedisConfig,
    address: &Address,
) -> Result<Server, OpenError> {
    let failed = |error: &RedisError| OpenError::new(address, config.login(), error);
    let named: Result<(), _> =
        redis::cmd("CLIENT").arg("SETNAME").arg(CLIENT_NAME).query_async(connection).await;
    if let Err(error) = named {
        tolerate(address, "CLIENT SETNAME", error).map_err(|error| failed(&error))?;
    }
    let info: Result<Vec<u8>, _> = redis::cmd("INFO").query_async(connection).await;
    match info {
        Ok(info) => return Ok(Server::read(&String::from_utf8_lossy(&info), address)),
        Err(error) => tolerate(address, "INFO", error).map_err(|error| failed(&error))?,
    }
    let role: Result<redis::Value, _> = redis::cmd("ROLE").query_async(connection).await;
    let role = match role {
        Ok(reply) => Role::read(&reply, address),
        Err(error) => {
            tolerate(address, "ROLE", error).map_err(|error| failed(&error))?;
            None
        }
    };
    Ok(Server { role, ..Server::default() })
}

/// Goes on after a server would not answer a question; not when it is gone or wants a password.
fn tolerate(address: &Address, command: &str, error: RedisError) -> Result<(), RedisError> {
    let answered = matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension);
    if !answered || error.code() == Some("NOAUTH") {
        return Err(error);
    }
    debug!(redis = %address, command, error = %error, "redis does not say who it is, going on");
    Ok(())
}

/// Refuses a server that can't be used, and warns of one that may lose counters.
fn examine(
    config: &RedisConfig,
    address: &Address,
    server: Server,
) -> Result<Option<Role>, OpenError> {
    let address = address.clone();
    if let Some(version) = server.version.filter(|version| !version.is_supported()) {
        return Err(OpenError::Version { address, found: version.to_string() });
    }
    let wanted = match config.servers() {
        Servers::Cluster(_) => Mode::Cluster,
        Servers::Single(_) | Servers::Sentinel { .. } | Servers::Shards(_) => Mode::Standalone,
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
