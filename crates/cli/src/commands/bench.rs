//! `tidegate bench`: sends load to a listener and reports latencies and decisions.

use std::time::Duration;

use clap::Args;
use tidegate_core::{Quota, Span};
use tidegate_limiter::Clock;
use tidegate_load::{
    ClientPool, ClientSpread, ListenerKind, LoadBounds, LoadPlan, LoadReport, LoadRequest,
    LoadTarget,
};
use tokio::signal::unix::{SignalKind, signal};

use super::progress::ProgressBar;
use super::values::{length, rate};
use super::{CommandError, CommandOutput, ExitStatus, parse_attributes};
use crate::config;

/// Sends load to a listener and reports latencies and decisions.
///
/// With --rate, requests follow a schedule: each is sent at its scheduled time, even if earlier requests have no reply
/// yet. A latency starts at the scheduled time, so that a stall of the server also counts for the requests that wait
/// behind it. "behind" reports delays of this command or of its connections. Without --rate, each connection sends
/// the next request as soon as it has a reply.
///
/// Ctrl-C stops the run and prints the results so far. Exit status: 0 measured, 2 nothing was measured.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct BenchCommand {
    /// URL of the listener: http:// (POST /v1/check), grpc:// (tidegate.v1) or resp:// (TG.CHECK)
    ///
    /// With TLS: https://, grpcs://, resps://. TIDEGATE_RESP_PASSWORD is the password of a RESP listener.
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,

    /// Sends GET to the URL instead of checks, for a gateway or any other server. {client} in the URL is
    /// replaced by the client's name
    #[arg(long, conflicts_with_all = ["rule", "attributes", "cost"])]
    get: bool,

    /// Header of the GET; {client} in its value is replaced by the client's name
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", requires = "get")]
    headers: Vec<String>,

    /// Name of the rule. Only this rule is checked, and its match is ignored
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,

    /// Attribute of each check; {client} in its value is replaced by the client's name
    ///
    /// The default is api_key={client}. With --rule and without attributes, the client's name is sent as the client of
    /// the rule.
    #[arg(short = 'a', long = "attribute", value_name = "NAME=VALUE")]
    attributes: Vec<String>,

    /// Cost of each check; 0 is a peek and charges nothing
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,

    /// Rate at which requests are scheduled: "5000/s", "300 per minute"
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<Quota>,

    /// Number of connections. Each has at most one request in flight
    #[arg(short = 'c', long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,

    /// Length of the run: 10s, 2m [default: 10s, unbounded with --requests]
    #[arg(long = "for", value_name = "TIME", value_parser = length)]
    length: Option<Span>,

    /// Most requests to send
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,

    /// Number of clients: client-0, client-1 …
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    clients: u64,

    /// Distribution of the requests over the clients
    #[arg(long, value_enum, value_name = "SHAPE", default_value = "even")]
    spread: ClientSpread,

    /// Seed of the random choice of clients
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Prints the report in JSON
    #[arg(long)]
    json: bool,

    /// Allows a server on another machine. Use it only for your own servers
    #[arg(long)]
    yes_remote: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate bench                                          as fast as a server with sample rules replies
  tidegate bench --rule api --rate 5000/s                 at a constant rate
  tidegate bench grpc://127.0.0.1:8081 --rule api -c 64
  tidegate bench resp://127.0.0.1:6380 --rule api --clients 100000 --spread zipf
  tidegate bench -a user={client} -a path=/v1/orders --for 1m --json
  tidegate bench --get http://127.0.0.1:8000/orders -H 'X-API-Key: {client}' --rate 2000/s";

/// Length of a run without `--for` and `--requests`.
const DEFAULT_LENGTH: Span = Span::from_secs(10);

impl BenchCommand {
    pub(crate) fn run(self, output: &mut CommandOutput<'_>) -> Result<ExitStatus, CommandError> {
        let json = self.json;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(CommandError::failed)?;
        let report = runtime.block_on(self.measure());
        // Requests that are still in flight do not delay the report.
        runtime.shutdown_timeout(Duration::ZERO);
        let report: LoadReport = report?;
        if json {
            output.data(serde_json::to_string_pretty(&report).map_err(CommandError::failed)?);
        } else {
            output.text(&report.to_string());
        }
        if report.has_measured() {
            return Ok(ExitStatus::Success);
        }
        Err(CommandError::failed("nothing was measured: no request received a decision"))
    }

    async fn measure(self) -> Result<LoadReport, CommandError> {
        let plan = self.plan().await?;
        let url = plan.target.url().to_owned();
        let mut progress = ProgressBar::new();
        let report = tidegate_load::run(plan, Clock::system(), stop_signal()?, |state| {
            let (ended, per_second) = (state.ended, state.per_second);
            progress.show_with_text(state.part, &format!("{ended} requests, {per_second:.0}/s"));
        })
        .await;
        progress.clear();
        report.map_err(|reason| {
            CommandError::failed(format_args!("{url}: {reason}"))
                .hint("tidegate serve starts a server and prints the addresses of its listeners")
        })
    }

    async fn plan(self) -> Result<LoadPlan, CommandError> {
        let mut target = target(&self.url, self.get).map_err(CommandError::failed)?;
        target.resolve().await.map_err(CommandError::failed)?;
        if !target.is_local() && !self.yes_remote {
            let message = format_args!("{} is not on this machine", target.url()).to_string();
            return Err(CommandError::failed(message)
                .hint("--yes-remote allows it; use it only for your own servers"));
        }
        if target.listener() == ListenerKind::Resp && self.rule.is_none() {
            return Err(CommandError::failed("resp:// needs a rule for TG.CHECK, found none")
                .hint("--rule NAME names it"));
        }
        let mut attributes = parse_attributes(&self.attributes)?;
        if attributes.is_empty() && self.rule.is_none() {
            attributes.push(("api_key".to_owned(), "{client}".to_owned()));
        }
        let length = match self.requests {
            Some(_) => self.length,
            None => Some(self.length.unwrap_or(DEFAULT_LENGTH)),
        };
        Ok(LoadPlan {
            target,
            request: LoadRequest { rule: self.rule, attributes, cost: self.cost },
            headers: headers(&self.headers)?,
            clients: ClientPool::new(self.clients, self.spread),
            connections: usize::from(self.connections),
            rate: self.rate,
            bounds: LoadBounds { requests: self.requests, length },
            seed: self.seed,
        })
    }
}

/// Returns the target of a URL, with TLS files and the RESP password from the environment.
fn target(url: &str, get: bool) -> Result<LoadTarget, String> {
    let mut target = LoadTarget::new(url, get)?;
    if let Some(protocols) = target.tls_protocols() {
        let files = config::client_tls().map_err(|error| error.to_string())?;
        target = target.with_tls(files.connector(protocols)?);
    }
    if target.listener() == ListenerKind::Resp {
        let password = config::resp_password().map_err(|error| error.to_string())?;
        target = target.with_password(password.map(|secret| secret.reveal().to_owned()));
    }
    Ok(target)
}

/// Parses the values of `-H 'Name: value'`.
fn headers(given: &[String]) -> Result<Vec<(String, String)>, CommandError> {
    let pair = |text: &String| match text.split_once(':') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => {
            Err(CommandError::failed(format_args!("-H must read like name: value, found {text:?}")))
        }
    };
    given.iter().map(pair).collect()
}

/// Returns a future that completes on SIGINT or SIGTERM.
fn stop_signal() -> Result<impl Future<Output = ()>, CommandError> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(CommandError::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(CommandError::failed)?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
