use std::path::Path;
use std::sync::{Arc, Mutex};

use tidegate_testkit::{FaultProxy, Flavour, Redis, Tool, lacking};
use tracing_subscriber::fmt::MakeWriter;

use super::*;
use crate::tls::{Tls, TlsIdentity};

const REDIS: Tool = Tool::Server(Flavour::Redis);

fn config(url: &str) -> RedisConfig {
    let config: RedisConfig = url.parse().unwrap();
    // A busy machine is no reason to fail; the tests about time set their own.
    config.with_connect_timeout(Duration::from_secs(30)).unwrap()
}

async fn attempt(config: &RedisConfig) -> Result<MultiplexedConnection, OpenError> {
    open(config, &config.servers().addresses()[0]).await
}

async fn connected(config: &RedisConfig) -> MultiplexedConnection {
    let mut connection = attempt(config).await.unwrap_or_else(|error| panic!("{error}"));
    connection.set_response_timeout(Duration::from_secs(30));
    connection
}

async fn refused(config: &RedisConfig) -> OpenError {
    let error = attempt(config).await.expect_err("this server can't be used");
    assert!(!format!("{error} {error:?}").contains("hunter"), "{error:?}");
    error
}

async fn client_line(connection: &mut MultiplexedConnection) -> String {
    redis::cmd("CLIENT").arg("INFO").query_async(connection).await.unwrap()
}

#[tokio::test]
async fn connection_has_a_name_and_the_timeout_of_a_check() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let config = config(&redis.url()).with_timeout(Duration::from_millis(20)).unwrap();
    let mut connection = connected(&config).await;
    let line = client_line(&mut connection).await;
    assert!(line.contains(" name=tidegate ") && line.contains(" db=0 "), "{line}");

    let mut connection = attempt(&config).await.unwrap();
    redis.pause();
    let ping = redis::cmd("PING");
    let waited = timeout(Duration::from_secs(30), ping.query_async::<String>(&mut connection));
    assert!(waited.await.expect("it gives up by itself").unwrap_err().is_timeout());
    redis.resume();
}

#[tokio::test]
async fn a_database_is_selected_and_one_too_many_is_refused() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let line = client_line(&mut connected(&config(&format!("{}/3", redis.url()))).await).await;
    assert!(line.contains(" db=3 "), "{line}");
    assert_eq!(
        refused(&config(&format!("{}/99", redis.url()))).await.to_string(),
        format!("redis {}: ERR DB index is out of range", redis.address())
    );
}

#[tokio::test]
async fn a_socket_in_the_file_system_works_like_a_port() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::builder().password("hunter2").start();
    let socket = redis.socket();
    let url = format!("redis+unix://{}?db=2&password=hunter2", socket.display());
    let line = client_line(&mut connected(&config(&url)).await).await;
    assert!(line.contains(" db=2 ") && line.contains("redis.sock"), "{line}");

    let url = format!("redis+unix://{}?password=hunter3", socket.display());
    assert_eq!(
        refused(&config(&url)).await.to_string(),
        format!("redis {}: the password is not accepted", socket.display())
    );
}

#[tokio::test]
async fn a_password_lets_in_and_a_wrong_one_is_not_shown() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::builder().password("hunter2").start();
    let at = redis.address();
    connected(&config(&format!("redis://:hunter2@{at}"))).await;
    for (url, reason) in [
        (format!("redis://:hunter3@{at}"), "the password is not accepted"),
        (format!("redis://{at}"), "a password is wanted, found none"),
        (
            format!("redis://nobody:hunter2@{at}"),
            "user \"nobody\" is not accepted, or not with this password",
        ),
    ] {
        let error = refused(&config(&url)).await;
        assert!(matches!(error, OpenError::Auth { .. }), "{error:?}");
        assert_eq!(error.to_string(), format!("redis {at}: {reason}"));
    }
}

#[tokio::test]
async fn a_user_may_have_no_password() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    redis.query::<()>(&["ACL", "SETUSER", "open", "on", "nopass", "~*", "+@all"]);
    let config = config(&format!("redis://open@{}", redis.address()));
    let line = client_line(&mut connected(&config).await).await;
    assert!(line.contains(" user=open "), "{line}");
}

#[tokio::test]
async fn user_without_permission_for_info_can_connect() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::start();
    let at = redis.address();
    let rights = ["~tg:*", "+@read", "+@write", "+@scripting", "-@dangerous", "-@admin"];
    let user = [&["ACL", "SETUSER", "app", "on", ">hunter2"], &rights[..]].concat();
    redis.query::<()>(&user);
    let app = config(&format!("redis://app:hunter2@{at}"));
    let mut connection = connected(&app).await;
    let set = redis::cmd("SET").arg("tg:a").arg(1).query_async::<()>(&mut connection).await;
    set.unwrap();

    // It may ask for the role, and so a replica is still refused.
    let master = Redis::start();
    redis.query::<()>(&["ACL", "SETUSER", "app", "+role"]);
    redis.query::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    assert_eq!(
        refused(&app).await.to_string(),
        format!("redis {at}: a master is wanted, found a replica of {}", master.address())
    );
}

#[tokio::test]
async fn a_replica_is_refused_as_a_master_but_can_be_asked() {
    if lacking(&[REDIS]) {
        return;
    }
    let (master, replica) = (Redis::start(), Redis::start());
    replica.query::<()>(&["REPLICAOF", "127.0.0.1", &master.port().to_string()]);
    let config = config(&replica.url());
    assert_eq!(
        refused(&config).await.to_string(),
        format!(
            "redis {}: a master is wanted, found a replica of {}",
            replica.address(),
            master.address()
        )
    );
    let address = &config.servers().addresses()[0];
    let (_, role) = open_any(&config, address).await.unwrap();
    let of = Address::tcp("127.0.0.1", master.port()).ok();
    assert_eq!(role, Some(ServerRole::Replica { of }));
}

#[tokio::test]
async fn a_server_of_another_kind_is_refused() {
    if lacking(&[REDIS]) {
        return;
    }
    let single = Redis::start();
    let node = Redis::builder().config("cluster-enabled", "yes").start();
    assert_eq!(
        refused(&config(&format!("redis+cluster://{}", single.address()))).await.to_string(),
        format!(
            "redis {}: a node of a cluster is wanted, found a server on its own",
            single.address()
        )
    );
    assert_eq!(
        refused(&config(&node.url())).await.to_string(),
        format!(
            "redis {}: a server on its own is wanted, found a node of a cluster",
            node.address()
        )
    );
    connected(&config(&format!("redis+cluster://{}", node.address()))).await;
}

#[tokio::test]
async fn redis_6_is_refused_by_name_and_version() {
    if lacking(&[Tool::Server(Flavour::Redis6)]) {
        return;
    }
    let redis = Redis::builder().flavour(Flavour::Redis6).start();
    let version = redis.info("redis_version").unwrap();
    assert_eq!(
        refused(&config(&redis.url())).await.to_string(),
        format!("redis {}: version 7.0 or later is wanted, found Redis {version}", redis.address())
    );
}

#[tokio::test]
async fn valkey_is_welcome() {
    if lacking(&[Tool::Server(Flavour::Valkey)]) {
        return;
    }
    connected(&config(&Redis::builder().flavour(Flavour::Valkey).start().url())).await;
}

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Lines {
    type Writer = Self;

    fn make_writer(&'w self) -> Self {
        self.clone()
    }
}

/// Opens a connection and returns the lines that this thread logs at `warn` and above.
async fn warnings_of(config: &RedisConfig) -> String {
    let lines = Lines::default();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(lines.clone())
        .with_max_level(tracing::Level::WARN)
        .with_ansi(false)
        .finish();
    let listening = tracing::subscriber::set_default(subscriber);
    connected(config).await;
    drop(listening);
    let bytes = lines.0.lock().unwrap().clone();
    String::from_utf8(bytes).unwrap()
}

#[tokio::test]
async fn a_server_that_evicts_is_warned_about_once_per_connection() {
    if lacking(&[REDIS]) {
        return;
    }
    let redis = Redis::builder()
        .config("maxmemory", "100mb")
        .config("maxmemory-policy", "allkeys-lru")
        .start();
    let warnings = warnings_of(&config(&redis.url())).await;
    assert_eq!(warnings.lines().count(), 1, "{warnings}");
    let wanted = format!(
        "counters may be evicted, and their clients start anew redis={} policy=\"allkeys-lru\"",
        redis.address()
    );
    assert!(warnings.contains(&wanted), "{warnings}");

    redis.query::<()>(&["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
    assert_eq!(warnings_of(&config(&redis.url())).await, "");
}

fn trusting(url: &str, ca: &Path) -> RedisConfig {
    let tls = Tls { ca: Some(ca.to_owned()), identity: None };
    config(url).with_tls(tls).unwrap()
}

#[tokio::test]
async fn encrypted_connection_trusts_the_configured_certificates_only() {
    if lacking(&[REDIS, Tool::Openssl]) {
        return;
    }
    let redis =
        Redis::builder().tls().password("hunter2").config("bind", "127.0.0.1 127.0.0.2").start();
    let mut connection = connected(&trusting(&redis.url(), &redis.ca())).await;
    assert!(client_line(&mut connection).await.contains(" name=tidegate "));

    // No authority of the system's list signed the certificate.
    let error = refused(&config(&redis.url())).await;
    assert!(matches!(error, OpenError::Connect { .. }), "{error:?}");
    assert!(error.to_string().contains("certificate"), "{error}");

    // Its certificate is for 127.0.0.1 and localhost.
    connected(&trusting(&redis.url().replace("127.0.0.1", "localhost"), &redis.ca())).await;
    let other = redis.url().replace("127.0.0.1", "127.0.0.2");
    let error = refused(&trusting(&other, &redis.ca())).await;
    assert!(error.to_string().contains("not valid for name"), "{error}");

    let error = refused(&trusting(&redis.url(), Path::new("/no/such.pem"))).await;
    let wanted = "/no/such.pem: No such file or directory (os error 2)";
    assert_eq!(error.to_string(), format!("redis {}: {wanted}", redis.address()));
}

#[tokio::test]
async fn a_server_that_asks_for_a_certificate_gets_one() {
    if lacking(&[REDIS, Tool::Openssl]) {
        return;
    }
    let redis = Redis::builder().tls().config("tls-auth-clients", "yes").start();
    let folder = redis.folder();
    let ca = Some(redis.ca());
    let identity = Some(TlsIdentity {
        certificate: folder.join("server.pem"),
        key: folder.join("server.key"),
    });
    let with = |identity| config(&redis.url()).with_tls(Tls { ca: ca.clone(), identity }).unwrap();
    connected(&with(identity)).await;
    let error = refused(&with(None)).await;
    assert!(matches!(error, OpenError::Connect { .. }), "{error:?}");
}

#[tokio::test]
async fn refused_connection_and_silent_server_have_different_errors() {
    if lacking(&[REDIS, Tool::Openssl]) {
        return;
    }
    let (plain, encrypted) = (Redis::start(), Redis::builder().tls().start());
    let brief =
        |config: RedisConfig| config.with_connect_timeout(Duration::from_millis(100)).unwrap();
    // Before the login, and in the handshake.
    for server in [&plain, &encrypted] {
        let proxy = FaultProxy::to(server.address());
        proxy.stall();
        let url = server.url().replace(&server.address(), &proxy.address());
        assert_eq!(
            refused(&brief(config(&url))).await.to_string(),
            format!("redis {}: no connection within 100 ms", proxy.address())
        );
    }
    // Cut in the middle.
    let proxy = FaultProxy::to(plain.address());
    proxy.cut_reply_after(0);
    let error = refused(&config(&proxy.url())).await;
    assert!(matches!(error, OpenError::Connect { .. }), "{error:?}");

    plain.kill();
    assert_eq!(
        refused(&config(&plain.url())).await.to_string(),
        format!("redis {}: Connection refused (os error 111)", plain.address())
    );
}
