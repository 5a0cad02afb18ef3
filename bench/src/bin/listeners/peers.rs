//! The servers under test. Each function returns `None`, after a warning, if its program is not installed.

use std::path::PathBuf;

use tidegate_bench::host::{self, SERVER_CORE};
use tidegate_bench::server::{BenchServer, TidegateSettings, new_folder, nginx_command};
use tidegate_testkit::{Port, Redis};

/// A limit of each client that no run reaches, and its value in the calls of CL.THROTTLE and THROTTLE.
pub(crate) const NEVER_REACHED: &str = "1000000";
/// Rules of Tidegate with a limit that no run reaches.
const RULES: &str = "rules: [{name: api, per: ['user | api_key'], limit: 1000000 per second}]";
/// Rules of Tidegate with a limit that the overshoot run exceeds.
const HOURLY_RULES: &str = "rules: [{name: api, per: ['user | api_key'], limit: 1000 per hour}]";

/// The limit that a server is configured with.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum PeerLimit {
    /// 1,000,000 per second.
    NeverReached,
    /// 1,000 per hour.
    Hourly,
}

impl PeerLimit {
    fn rules(self) -> &'static str {
        match self {
            Self::NeverReached => RULES,
            Self::Hourly => HOURLY_RULES,
        }
    }

    /// Returns the amount and the window in seconds.
    fn amount_and_seconds(self) -> [&'static str; 2] {
        match self {
            Self::NeverReached => [NEVER_REACHED, "1"],
            Self::Hourly => ["1000", "3600"],
        }
    }
}

/// A fixed response: the upper bound for a listener built on the same crates.
pub(crate) fn empty(listener: &str) -> Option<BenchServer> {
    let mut command = host::command(host::sibling_binary("empty"), Some(SERVER_CORE));
    command.args([listener, "127.0.0.1:0"]);
    Some(BenchServer::start_and_read_port(command, ":", new_folder()))
}

/// Tidegate in memory, on one core.
pub(crate) fn tidegate(listener: &str) -> Option<BenchServer> {
    Some(tidegate_at(host::sibling_binary("tidegate"), listener, Some(SERVER_CORE)))
}

/// An earlier build of Tidegate, if `TIDEGATE_BEFORE` has its path.
pub(crate) fn tidegate_before(listener: &str) -> Option<BenchServer> {
    let program = PathBuf::from(std::env::var_os("TIDEGATE_BEFORE")?);
    Some(tidegate_at(program, listener, Some(SERVER_CORE)))
}

/// Tidegate in memory, on all cores.
pub(crate) fn tidegate_unpinned(listener: &str) -> Option<BenchServer> {
    Some(tidegate_at(host::sibling_binary("tidegate"), listener, None))
}

fn tidegate_at(program: PathBuf, listener: &str, core: Option<usize>) -> BenchServer {
    let rules = PeerLimit::NeverReached.rules();
    BenchServer::tidegate(&TidegateSettings { program, core, listener, rules, arguments: &[] })
}

/// Tidegate in memory with a limit that the overshoot run exceeds.
pub(crate) fn tidegate_with_hourly_limit(listener: &str) -> BenchServer {
    let program = host::sibling_binary("tidegate");
    let rules = PeerLimit::Hourly.rules();
    BenchServer::tidegate(&TidegateSettings {
        program,
        core: None,
        listener,
        rules,
        arguments: &[],
    })
}

/// Tidegate with exact limits in the Redis on this port, on all cores.
pub(crate) fn tidegate_on_redis(listener: &str, redis: u16, limit: PeerLimit) -> BenchServer {
    // Much longer than in a service, because all processes compete for the cores.
    let url = format!("redis://127.0.0.1:{redis}?timeout=5s");
    BenchServer::tidegate(&TidegateSettings {
        program: host::sibling_binary("tidegate"),
        core: None,
        listener,
        rules: limit.rules(),
        arguments: &["--redis".to_owned(), url],
    })
}

/// throttlecrab-server with its listener `http`, `grpc` or `redis`.
pub(crate) fn throttlecrab(listener: &str) -> Option<BenchServer> {
    let port = Port::free();
    let program = host::peer("bin/throttlecrab-server")?;
    let mut command = host::command(program, Some(SERVER_CORE));
    command.args([&format!("--{listener}"), &format!("--{listener}-host"), "127.0.0.1"]);
    command.args([&format!("--{listener}-port"), &port.number().to_string()]);
    command.args(["--store", "periodic", "--log-level", "error"]);
    Some(BenchServer::start(command, port, new_folder()))
}

/// NGINX that responds by itself, with `limit_req`.
pub(crate) fn nginx() -> Option<BenchServer> {
    let (port, folder) = (Port::free(), new_folder());
    let http = format!(
        "limit_req_zone $arg_user zone=api:64m rate={NEVER_REACHED}r/s;
         server {{ listen 127.0.0.1:{}; location / {{ limit_req zone=api burst={NEVER_REACHED} nodelay; empty_gif; }} }}",
        port.number()
    );
    let program = host::installed("nginx")?;
    let command = nginx_command(&program, Some(SERVER_CORE), folder.path(), 1, &http);
    Some(BenchServer::start(command, port, folder))
}

/// A Redis with one key to read.
pub(crate) fn redis(core: Option<usize>) -> BenchServer {
    let redis = Redis::start();
    redis.query::<()>(&["SET", "key:000000000001", "value"]);
    BenchServer::redis(redis, core)
}

/// A Redis with the module redis-cell.
pub(crate) fn redis_cell() -> Option<BenchServer> {
    let module = host::peer("lib/libredis_cell.so")?;
    let redis = Redis::builder().config("loadmodule", module.to_str()?).start();
    Some(BenchServer::redis(redis, Some(SERVER_CORE)))
}

/// rate-limiter-flexible behind Node's HTTP server, in memory or in the Redis on this port.
pub(crate) fn rate_limiter_flexible(
    core: Option<usize>,
    redis: Option<u16>,
    limit: PeerLimit,
) -> Option<BenchServer> {
    let (port, packages) = (Port::free(), host::peer("lib/node_modules/rate-limiter-flexible")?);
    let mut command = host::command(host::installed("node")?, core);
    command.env("NODE_PATH", packages.parent()?);
    command.arg(concat!(env!("CARGO_MANIFEST_DIR"), "/peers/rate-limiter-flexible.js"));
    command.arg(port.number().to_string()).args(limit.amount_and_seconds());
    command.args(redis.map(|port| port.to_string()));
    Some(BenchServer::start(command, port, new_folder()))
}

/// envoyproxy/ratelimit on the Redis on this port, on all cores.
pub(crate) fn envoyproxy_ratelimit(redis: u16, limit: PeerLimit) -> Option<BenchServer> {
    let program = host::peer("bin/envoyproxy-ratelimit")?;
    let (port, http, debug, folder) = (Port::free(), Port::free(), Port::free(), new_folder());
    let config = folder.path().join("ratelimit/config");
    let [amount, seconds] = limit.amount_and_seconds();
    let unit = if seconds == "1" { "second" } else { "hour" };
    let text = format!(
        "{{domain: bench, descriptors: [{{key: user, rate_limit: {{unit: {unit}, requests_per_unit: {amount}}}}}]}}"
    );
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("bench.yaml"), text).unwrap();
    let mut command = host::command(program, None);
    command.env("RUNTIME_ROOT", folder.path()).env("RUNTIME_SUBDIRECTORY", "ratelimit");
    command.envs([
        ("RUNTIME_WATCH_ROOT", "false"),
        ("RUNTIME_IGNOREDOTFILES", "true"),
        ("USE_STATSD", "false"),
        ("LOG_LEVEL", "error"),
        ("REDIS_SOCKET_TYPE", "tcp"),
        ("HOST", "127.0.0.1"),
        ("GRPC_HOST", "127.0.0.1"),
        ("DEBUG_HOST", "127.0.0.1"),
    ]);
    command.env("REDIS_URL", format!("127.0.0.1:{redis}"));
    command.env("GRPC_PORT", port.number().to_string());
    command.env("PORT", http.number().to_string());
    command.env("DEBUG_PORT", debug.number().to_string());
    Some(BenchServer::start(command, port, folder))
}
