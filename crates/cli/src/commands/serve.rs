//! `tidegate serve`: runs the server until a signal stops it.

use std::path::PathBuf;

use clap::Args;
use tidegate_net::listener::ProcessResources;
use tidegate_redis::{OpenError, Secret};
use tidegate_service::reload::ReloadSignal;
use tidegate_service::rules::{LoadedRules, RuleSource};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

use crate::app::{App, ShutdownStage};
use crate::commands::{CommandError, CommandOutput, ExitStatus};
use crate::config::{Config, ConfigFlags, ListenAddress, PASSWORD_VARIABLE};
use crate::listeners::{BindError, BoundListener};
use crate::resources;

/// Runs the rate limit server until SIGTERM or SIGINT.
///
/// Without arguments it serves sample rules and counts in memory. The listeners are HTTP on 127.0.0.1:8080, gRPC on
/// 127.0.0.1:8081, RESP on 127.0.0.1:6380 and admin on 127.0.0.1:9090. With an upstream, a gateway listens on
/// 127.0.0.1:8000. Each bound address is printed on stdout, for example `http 127.0.0.1:8080`, so that scripts can use
/// port 0.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct ServeCommand {
    /// Configuration file: listen, store, rules, identity, headers, admin, gateway. Flags override it
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Source of the rules: a file, which is watched, the http(s) URL of a document, or the URL of a
    /// Redis with rules that tidegate rules push changes
    #[arg(long, value_name = "FILE|URL", value_parser = parse_secret)]
    rules: Option<Secret>,

    /// Directory of envoyproxy/ratelimit *.yaml files, which are served unchanged
    #[arg(long, value_name = "DIR")]
    rules_envoy: Option<PathBuf>,

    /// Counts in Redis or Valkey, so that all nodes share the limits [default: in memory]
    #[arg(long, value_name = "URL", value_parser = parse_secret)]
    redis: Option<Secret>,

    /// Address of the HTTP listener, or off [default: 127.0.0.1:8080]
    #[arg(long, value_name = "ADDRESS")]
    http: Option<ListenAddress>,

    /// Address of the gRPC listener, or off. It includes Envoy's rate limit service
    /// [default: 127.0.0.1:8081]
    #[arg(long, value_name = "ADDRESS")]
    grpc: Option<ListenAddress>,

    /// Address of the RESP listener, or off. RESP is the protocol of Redis. Clients must authenticate if a
    /// password is set in the configuration or in TIDEGATE_RESP_PASSWORD [default: 127.0.0.1:6380]
    #[arg(long, value_name = "ADDRESS")]
    resp: Option<ListenAddress>,

    /// Address of the admin listener, or off. It has the dashboard, the admin API and the metrics. If other
    /// machines can reach it, it needs a token from the configuration or TIDEGATE_TOKEN [default: 127.0.0.1:9090]
    #[arg(long, value_name = "ADDRESS")]
    admin: Option<ListenAddress>,

    /// Address of the gateway, or off. It forwards the requests that the rules allow to --upstream
    /// [default: 127.0.0.1:8000 with an upstream, else off]
    #[arg(long, value_name = "ADDRESS")]
    gateway: Option<ListenAddress>,

    /// URL of a server behind the gateway: http://HOST:PORT, https:// or h2c://. Several are replicas of each
    /// other. Replaces the upstreams and routes of the configuration
    #[arg(long, value_name = "URL", value_parser = parse_secret)]
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
and ?prefix=tg:&timeout=10ms after any of them. Other users can read a password in --redis from the
list of processes: set it in TIDEGATE_REDIS_PASSWORD or in the configuration.

A configuration:
  listen: {http: 127.0.0.1:8080, grpc: 127.0.0.1:8081, resp: 127.0.0.1:6380, admin: 127.0.0.1:9090}
  resp: {password: secret}                # or password_file: PATH
  admin: {token: at-least-16-characters}  # sent as Authorization: Bearer
  store: {memory: {max_keys: 1000000}}    # or redis: {url: redis://cache, timeout: 10ms}
  rules: {file: rules.yaml}               # or redis: true, redis: URL, url: URL,
                                          # inline: [{name: api, per: [user], limit: 100/s}];
                                          # and envoy: DIR, for files of envoyproxy/ratelimit;
                                          # copy: DIR stores the last valid rules, poll: 30s
  identity: {trusted_proxies: [127.0.0.1]} # and api_key, session, jwt, attributes
  headers: {reset: delta, ietf: 11}       # reset: delta, epoch; ietf: 11, 6, off;
                                          # rls, through Envoy: denied, all, off
  gateway: {upstreams: [{name: api, servers: [http://10.0.0.1:3000]}]} # and routes, timeouts,
                                          # max_wait, upstream_headers
  tls: {certificate: c.pem, key: k.pem}   # client_ca: ca.pem requires client certificates
  connections: {per_client: 256}          # of one address at the gateway; or off
  drain: {delay: 2s, timeout: 25s}        # after SIGTERM: not ready, then no new connections";

impl ServeCommand {
    pub(crate) fn run(self, output: &mut CommandOutput<'_>) -> Result<ExitStatus, CommandError> {
        if self.redis.as_ref().is_some_and(has_password) {
            output.note(format_args!(
                "hint: other users can read the password in --redis from the list of processes; \
                 set {PASSWORD_VARIABLE} instead"
            ));
        }
        let runtime = tokio::runtime::Runtime::new().map_err(CommandError::failed)?;
        // First of all, because SIGHUP without a handler ends the process.
        let reloads =
            runtime.block_on(async { reload_by_signals() }).map_err(CommandError::failed)?;
        let config = Config::resolve(ConfigFlags {
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
        let resources = resources::raise_and_read();
        runtime.block_on(serve(config, resources, reloads, output))
    }
}

async fn serve(
    config: Config,
    resources: ProcessResources,
    reloads: ReloadSignal,
    output: &mut CommandOutput<'_>,
) -> Result<ExitStatus, CommandError> {
    let sample = matches!(config.rules.source, RuleSource::Sample);
    let rules = LoadedRules::read(config.rules)?;
    let store = config.store.to_string();
    let app = App::bind(
        &config.listen,
        resources,
        rules,
        config.store,
        config.replies,
        config.identity,
        config.gateway,
    )
    .await?;
    output.note(format_args!("tidegate {}, counting in {store}", env!("CARGO_PKG_VERSION")));
    match app.listener("http").map(BoundListener::address) {
        Some(http) if sample => output.note(banner(http)),
        http => {
            let count = app.rules();
            let rules = if count == 1 { "rule" } else { "rules" };
            let on = http.map_or_else(String::new, |http| format!(" on http://{http}"));
            output.note(format_args!("{count} {rules}, listening{on}"));
        }
    }
    if let Some(gateway) = app.listener("gateway").map(BoundListener::address) {
        output.note(format_args!("gateway on http://{gateway}"));
    }
    if let Some(dashboard) = app.listener("admin").map(BoundListener::url) {
        output.note(format_args!("dashboard on {dashboard}"));
    }
    let stage = watch_stop_signals().map_err(CommandError::failed)?;
    for listener in app.listeners() {
        output.data(format_args!("{} {}", listener.name(), listener.address()));
    }
    match app.run(stage, reloads).await {
        0 => tracing::info!("all requests completed, stopping"),
        aborted => tracing::warn!(aborted, "drain timeout, connections aborted, stopping"),
    }
    Ok(ExitStatus::Success)
}

/// Wraps the value of a flag, so that clap prints it in no message.
fn parse_secret(text: &str) -> Result<Secret, std::convert::Infallible> {
    Ok(Secret::from(text))
}

fn has_password(url: &Secret) -> bool {
    url.reveal().parse().is_ok_and(|config: tidegate_redis::RedisConfig| config.has_password())
}

/// Returns the introduction for a server with the sample rules.
fn banner(http: std::net::SocketAddr) -> String {
    let check = format!(
        "http://{http}/v1/check -d '{{\"attributes\":{{\"api_key\":\"alice\",\"ip\":\"192.0.2.7\"}}}}'"
    );
    format!(
        "No --rules, serving sample rules:
  per-key   5 in any 10 s for each api_key
  per-ip    100 per 60 s for each ip
  global    1000 per 1 s for all clients together

Listening on http://{http}. Try it:
  curl -i {check}
The sixth request within ten seconds is denied:
  for i in 1 2 3 4 5 6; do curl -s -o /dev/null -w '%{{http_code}}\\n' {check}; done

Your own rules: tidegate serve --rules FILE
"
    )
}

/// Watches the stop signals. SIGTERM drains; SIGINT, or a second signal, closes the listeners at once. One more signal
/// ends the process.
fn watch_stop_signals() -> std::io::Result<watch::Receiver<ShutdownStage>> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let (sender, stage) = watch::channel(ShutdownStage::Running);
    tokio::spawn(async move {
        let mut next = async || {
            tokio::select! {
                _ = terminate.recv() => ShutdownStage::Draining,
                _ = interrupt.recv() => ShutdownStage::Closing,
            }
        };
        let first = next().await;
        // The receiver is dropped only after the server has ended.
        let _ = sender.send(first);
        if first < ShutdownStage::Closing {
            next().await;
            tracing::info!("second stop signal, closing listeners now");
            let _ = sender.send(ShutdownStage::Closing);
        }
        next().await;
        tracing::warn!("another stop signal, exiting at once");
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

impl From<BindError> for CommandError {
    fn from(error: BindError) -> Self {
        if let BindError::Identity(error) = error {
            return error.into();
        }
        let command_error = Self::failed(&error);
        match &error {
            BindError::AllOff => command_error.hint("--http 127.0.0.1:8080 opens the HTTP listener"),
            BindError::Address { listener: listener @ ("resp" | "admin" | "gateway"), .. } => command_error
                .hint(format!("--{listener} 127.0.0.1:0 uses any free port"))
                .hint(format!("--{listener} off disables the listener")),
            BindError::Address { listener, .. } => {
                command_error.hint(format!("--{listener} 127.0.0.1:0 uses any free port"))
            }
            BindError::NoToken { .. } => command_error
                .hint("set admin: {token: …} in the configuration, or TIDEGATE_TOKEN")
                .hint("--admin 127.0.0.1:9090 accepts only connections of this machine"),
            BindError::Store(OpenError::Version { .. }) => {
                command_error.hint("Redis 7 or later is required, or any Valkey")
            }
            BindError::Store(OpenError::Kind { .. }) => command_error
                .hint("redis:// is one server, redis+cluster:// a cluster, redis+sentinel:// a master found by sentinels"),
            BindError::Tls(_) | BindError::Upstream(_) | BindError::Identity(_)
            | BindError::Store(_) => command_error,
        }
    }
}
