//! `tidegate serve`: runs until it is told to stop.

use std::path::PathBuf;

use clap::Args;
use tidegate_redis::{OpenError, Secret};
use tidegate_service::reload::ReloadSignal;
use tidegate_service::rules::{LoadedRules, RuleSource};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::app::{App, Stage};
use crate::commands::{Ending, Failure, Output};
use crate::config::{Config, Flags, ListenAddress, PASSWORD_VARIABLE};
use crate::listeners::{BindError, BoundListener};

/// Answers rate-limit checks until it is told to stop.
///
/// Without arguments: sample rules, spending kept in memory, HTTP on 127.0.0.1:8080, gRPC on
/// 127.0.0.1:8081, RESP on 127.0.0.1:6380 and the admin listener on 127.0.0.1:9090. With an upstream also a
/// gateway on 127.0.0.1:8000. Each address is printed on stdout once it is bound, `http 127.0.0.1:8080`,
/// so that port 0 is of use to scripts.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Serve {
    /// The configuration: listen, store, rules, identity, headers, admin, gateway. Flags beat it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// The rules to enforce: a file, which is watched, the URL of a document, or that of a Redis whose
    /// rules are changed by tidegate rules push
    #[arg(long, value_name = "FILE|URL", value_parser = unseen)]
    rules: Option<Secret>,

    /// Limits of envoyproxy/ratelimit, read as they are: a directory of its *.yaml files
    #[arg(long, value_name = "DIR")]
    rules_envoy: Option<PathBuf>,

    /// Keep spending in Redis or Valkey, for all that use it together [default: in memory]
    #[arg(long, value_name = "URL", value_parser = unseen)]
    redis: Option<Secret>,

    /// Where to answer HTTP: an address, or off [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    http: Option<ListenAddress>,

    /// Where to answer gRPC, Envoy's rate limit service among it: an address, or off
    /// [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    grpc: Option<ListenAddress>,

    /// Where to answer RESP, as Redis speaks it: an address, or off. Clients need a password if one is
    /// in the configuration or TIDEGATE_RESP_PASSWORD [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDRESS")]
    resp: Option<ListenAddress>,

    /// Where operators see and change things: an address, or off. Other machines can reach it only if
    /// it has a token, from the configuration or TIDEGATE_TOKEN [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<ListenAddress>,

    /// Where to take HTTP requests and forward those that the rules allow to --upstream: an address, or
    /// off [default: 127.0.0.1:8000 with an upstream, else off]
    #[arg(long, value_name = "ADDRESS")]
    gateway: Option<ListenAddress>,

    /// A server that the gateway forwards to: http://HOST:PORT, https:// or h2c://. Given several times:
    /// servers that do the same. Takes the place of upstreams and routes in the configuration
    #[arg(long, value_name = "URL", value_parser = unseen)]
    upstream: Vec<Secret>,
}

const EXAMPLES: &str = "\
Examples:
  tidegate serve
  tidegate serve --rules rules.yaml --http 0.0.0.0:8080
  tidegate serve --config tidegate.yaml --http 127.0.0.1:0
  tidegate serve --gateway 0.0.0.0:8000 --upstream http://127.0.0.1:3000
  tidegate serve --redis redis://127.0.0.1:6379 --rules redis://127.0.0.1:6379
  tidegate serve --rules-envoy /srv/runtime_data/current/ratelimit/config

--redis takes, with rediss in place of redis for TLS:
  redis://[USER[:PASSWORD]@]HOST[:PORT][/DATABASE]
  redis+cluster://HOST:PORT,HOST:PORT,...
  redis+sentinel://HOST:PORT,HOST:PORT,.../MASTER
  redis+unix:///PATH/OF/SOCKET
and ?prefix=tg:&timeout=10ms after any of them. A password that stands in the environment, as
TIDEGATE_REDIS_PASSWORD, or in the configuration is not seen by who lists processes.

A configuration:
  listen: {http: 127.0.0.1:8080, grpc: 127.0.0.1:8081, resp: 127.0.0.1:6380, admin: 127.0.0.1:9090}
  resp: {password: secret}                # or password_file: PATH
  admin: {token: at-least-16-characters}  # sent as Authorization: Bearer
  store: {memory: {max_keys: 1000000}}    # or redis: {url: redis://cache, timeout: 10ms}
  rules: {file: rules.yaml}               # or redis: true, redis: URL, url: URL,
                                          # inline: [{name: api, per: [user], limit: 100/s}];
                                          # and envoy: DIR, for files of envoyproxy/ratelimit;
                                          # copy: DIR keeps the last good ones, poll: 30s
  identity: {trusted_proxies: [127.0.0.1]} # and api_key, session, jwt, attributes
  headers: {reset: delta, ietf: 11}       # reset: delta, epoch; ietf: 11, 6, off;
                                          # rls, through Envoy: denied, all, off
  gateway: {upstreams: [{name: api, servers: [http://10.0.0.1:3000]}]} # and routes, timeouts,
                                          # max_wait, upstream_headers
  tls: {certificate: c.pem, key: k.pem}   # client_ca: ca.pem asks clients for certificates
  drain: {delay: 2s, timeout: 25s}        # after SIGTERM: not ready, then no new connections";

impl Serve {
    pub(crate) fn run(self, output: &mut Output<'_>) -> Result<Ending, Failure> {
        if self.redis.as_ref().is_some_and(has_password) {
            output.note(format_args!(
                "hint: who lists processes sees the password in --redis, \
                 and not one in {PASSWORD_VARIABLE}"
            ));
        }
        let runtime = tokio::runtime::Runtime::new().map_err(Failure::failed)?;
        // Before anything that takes time: without a handler the signal ends the process.
        let reloads = runtime.block_on(async { reload_by_signals() }).map_err(Failure::failed)?;
        let config = Config::resolve(Flags {
            config: self.config,
            rules: self.rules,
            rules_envoy: self.rules_envoy,
            redis: self.redis,
            http: self.http,
            grpc: self.grpc,
            resp: self.resp,
            admin: self.admin,
            gateway: self.gateway,
            upstream: self.upstream,
        })?;
        raise_file_limit();
        runtime.block_on(serve(config, reloads, output))
    }
}

async fn serve(
    config: Config,
    reloads: ReloadSignal,
    output: &mut Output<'_>,
) -> Result<Ending, Failure> {
    let sample = matches!(config.rules.source, RuleSource::Sample);
    let rules = LoadedRules::read(config.rules)?;
    let store = config.store.to_string();
    let app = App::bind(
        &config.listen,
        rules,
        config.store,
        config.headers,
        config.rls_headers,
        config.identity,
        config.gateway,
    )
    .await?;
    output.note(format_args!("tidegate {}, spending kept in {store}", env!("CARGO_PKG_VERSION")));
    match app.listener("http").map(BoundListener::address) {
        Some(http) if sample => output.note(banner(http)),
        http => {
            let count = app.rules();
            let rules = if count == 1 { "rule" } else { "rules" };
            let on = http.map_or_else(String::new, |http| format!(" on http://{http}"));
            output.note(format_args!("{count} {rules}, answering{on}"));
        }
    }
    if let Some(gateway) = app.listener("gateway").map(BoundListener::address) {
        output.note(format_args!("what the rules allow is forwarded from http://{gateway}"));
    }
    if let Some(dashboard) = app.listener("admin").map(BoundListener::url) {
        output.note(format_args!("dashboard on {dashboard}"));
    }
    let stage = stage_by_signals().map_err(Failure::failed)?;
    for listener in app.listeners() {
        output.data(format_args!("{} {}", listener.name(), listener.address()));
    }
    match app.run(stage, reloads).await {
        0 => tracing::info!("every request under way was answered, stopping"),
        cut_off => tracing::warn!(cut_off, "stopping, some connections took too long"),
    }
    Ok(Ending::Fine)
}

/// Lets this process have as many files, and so connections, as the system allows it to ask for: the
/// usual 1024 is for programs that can't count further.
fn raise_file_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    if limit.current == limit.maximum {
        return;
    }
    limit.current = limit.maximum;
    if let Err(error) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%error, "limit of open files not raised");
    }
}

/// Keeps a flag's value out of whatever the command line parser prints.
fn unseen(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::from(text))
}

fn has_password(url: &Secret) -> bool {
    url.reveal().parse().is_ok_and(|config: tidegate_redis::RedisConfig| config.has_password())
}

/// What somebody sees who started us without arguments.
fn banner(http: std::net::SocketAddr) -> String {
    let check = format!(
        "http://{http}/v1/check -d '{{\"attributes\":{{\"api_key\":\"alice\",\"ip\":\"192.0.2.7\"}}}}'"
    );
    format!(
        "No rules were given, so these are enforced:
  per-key   5 in any 10 s for each api_key
  per-ip    100 per 60 s for each ip
  global    1000 per 1 s for all together

Answering on http://{http}. Try it:
  curl -i {check}
and see the sixth within ten seconds refused:
  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\\n' {check}; done

Your own: tidegate serve --rules FILE
"
    )
}

/// What signals ask for: SIGTERM to leave in good order, SIGINT to close now, as does a signal on the way
/// out. One more ends the process at once.
fn stage_by_signals() -> std::io::Result<watch::Receiver<Stage>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (told, stage) = watch::channel(Stage::Open);
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => Stage::Leaving,
                _ = interrupt.recv() => Stage::Closing,
            }
        };
        let first = next().await;
        // Nobody listens any more only when everything is over already.
        let _ = told.send(first);
        if first < Stage::Closing {
            next().await;
            tracing::info!("told to stop again, closing now");
            let _ = told.send(Stage::Closing);
        }
        next().await;
        tracing::warn!("told to stop again, stopping at once");
        std::process::exit(2);
    });
    Ok(stage)
}

/// Requests a reload on every SIGHUP, for as long as the process runs.
fn reload_by_signals() -> std::io::Result<ReloadSignal> {
    let mut hangup = signal(SignalKind::hangup())?;
    let (requests, reloads) = ReloadSignal::new();
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            tracing::info!("SIGHUP: reading rules, certificates and keys again");
            requests.send_replace(());
        }
    });
    Ok(reloads)
}

impl From<BindError> for Failure {
    fn from(error: BindError) -> Self {
        if let BindError::Identity(error) = error {
            return error.into();
        }
        let failure = Self::failed(&error);
        match &error {
            BindError::AllOff => failure.hint("--http 127.0.0.1:8080 opens one"),
            BindError::Address { listener: listener @ ("resp" | "admin" | "gateway"), .. } => failure
                .hint(format!("--{listener} 127.0.0.1:0 takes any free port"))
                .hint(format!("--{listener} off does without the listener")),
            BindError::Address { listener, .. } => {
                failure.hint(format!("--{listener} 127.0.0.1:0 takes any free port"))
            }
            BindError::NoToken { .. } => failure
                .hint("admin: {token: …} in the configuration sets one, or TIDEGATE_TOKEN")
                .hint("--admin 127.0.0.1:9090 keeps the listener on this machine"),
            BindError::Store(OpenError::Version { .. }) => {
                failure.hint("Redis 7 and later will do, and every Valkey")
            }
            BindError::Store(OpenError::Kind { .. }) => failure
                .hint("redis:// is one server, redis+cluster:// a cluster, redis+sentinel:// a master by name"),
            BindError::Tls(_) | BindError::Upstream(_) | BindError::Identity(_)
            | BindError::Store(_) => failure,
        }
    }
}
