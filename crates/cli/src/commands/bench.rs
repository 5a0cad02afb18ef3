//! `tidegate bench`: load against a listener, and what came back.

use std::time::Duration;

use clap::Args;
use tidegate_core::{Quota, Span};
use tidegate_limiter::Clock;
use tidegate_load::{
    ClientPool, ClientSpread, ListenerKind, LoadBounds, LoadPlan, LoadReport, LoadRequest,
    LoadTarget,
};
use tokio::signal::unix::{SignalKind, signal};

use super::progress::Progress;
use super::values::{length, rate};
use super::{Ending, Failure, Output, named_values};
use crate::config;

/// Puts a listener under load and tells what came back.
///
/// With --rate, requests are sent when they are due, whether those before them were answered or not, and a
/// latency runs from when its request was due: a server that stalls is charged for everybody who waited behind.
/// What was late because this command or its connections could not keep up is told as "behind". Without
/// --rate, each connection asks again as soon as it is answered.
///
/// Ctrl-C ends it and tells what was measured so far. Exit status: 0 measured, 2 nothing could be measured.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Bench {
    /// The listener: http:// (POST /v1/check), grpc:// (tidegate.v1) or resp:// (TG.CHECK)
    ///
    /// With TLS: https://, grpcs://, resps://. TIDEGATE_RESP_PASSWORD opens a RESP listener that has a password.
    #[arg(value_name = "URL", default_value = "http://127.0.0.1:8080")]
    url: String,

    /// GETs the URL as it is, through a gateway or from any server; {client} in it is replaced
    #[arg(long, conflicts_with_all = ["rule", "attributes", "cost"])]
    get: bool,

    /// A header of what is got; {client} in its value is replaced by the client's name
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", requires = "get")]
    headers: Vec<String>,

    /// The rule to check, alone and whatever its match says
    #[arg(long, value_name = "NAME")]
    rule: Option<String>,

    /// An attribute of what is checked; {client} in its value is replaced by the client's name
    ///
    /// Unless a rule or attributes are given, api_key={client}. A rule without attributes is asked about the client.
    #[arg(short = 'a', long = "attribute", value_name = "NAME=VALUE")]
    attributes: Vec<String>,

    /// What each check costs; 0 looks without spending
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,

    /// How many requests are sent, whatever becomes of them: "5000/s", "300 per minute"
    #[arg(long, value_name = "RATE", value_parser = rate)]
    rate: Option<Quota>,

    /// How many requests may be under way, each on a connection of its own
    #[arg(short = 'c', long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u16).range(1..=10_000))]
    connections: u16,

    /// How long: 10s, 2m; 10s unless --requests says how many
    #[arg(long = "for", value_name = "TIME", value_parser = length)]
    length: Option<Span>,

    /// How many requests at the most
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,

    /// How many clients there are: client-0, client-1 …
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    clients: u64,

    /// How requests are spread over them
    #[arg(long, value_enum, value_name = "SHAPE", default_value = "even")]
    spread: ClientSpread,

    /// Another seed, other clients: what comes by chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// All of it in JSON
    #[arg(long)]
    json: bool,

    /// Allows a server that is not on this machine; be sure that it is yours
    #[arg(long)]
    yes_remote: bool,
}

const EXAMPLES: &str = "\
Examples:
  tidegate bench                                          what a server with the sample rules can do
  tidegate bench --rule api --rate 5000/s                 at a steady rate, as traffic comes
  tidegate bench grpc://127.0.0.1:8081 --rule api -c 64
  tidegate bench resp://127.0.0.1:6380 --rule api --clients 100000 --spread zipf
  tidegate bench -a user={client} -a path=/v1/orders --for 1m --json
  tidegate bench --get http://127.0.0.1:8000/orders -H 'X-API-Key: {client}' --rate 2000/s";

/// How long it takes unless something else bounds it.
const USUAL: Span = Span::from_secs(10);

impl Bench {
    pub(crate) fn run(self, output: &mut Output<'_>) -> Result<Ending, Failure> {
        let json = self.json;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
        let runtime = runtime.map_err(Failure::failed)?;
        let report = runtime.block_on(self.measure());
        // What nobody waits for any more may take its time.
        runtime.shutdown_timeout(Duration::ZERO);
        let report: LoadReport = report?;
        if json {
            output.data(serde_json::to_string_pretty(&report).map_err(Failure::failed)?);
        } else {
            output.text(&report.to_string());
        }
        if report.has_measured() {
            return Ok(Ending::Fine);
        }
        Err(Failure::failed("nothing could be measured: no request was decided"))
    }

    async fn measure(self) -> Result<LoadReport, Failure> {
        let load = self.load().await?;
        let url = load.target.url().to_owned();
        let mut progress = Progress::new();
        let report = tidegate_load::run(load, Clock::system(), asked_to_end()?, |seen| {
            let (ended, per_second) = (seen.ended, seen.per_second);
            progress.tell(seen.part, &format!("{ended} requests, {per_second:.0}/s"));
        })
        .await;
        progress.clear();
        report.map_err(|reason| {
            Failure::failed(format_args!("{url}: {reason}"))
                .hint("tidegate serve starts a server and prints where its listeners are")
        })
    }

    async fn load(self) -> Result<LoadPlan, Failure> {
        let mut target = target(&self.url, self.get).map_err(Failure::failed)?;
        target.resolve().await.map_err(Failure::failed)?;
        if !target.is_local() && !self.yes_remote {
            let found = format_args!("{} is not on this machine", target.url()).to_string();
            return Err(Failure::failed(found).hint(
                "--yes-remote sends the load all the same; be sure that the server is yours",
            ));
        }
        if target.listener() == ListenerKind::Resp && self.rule.is_none() {
            return Err(Failure::failed("TG.CHECK asks about one rule, found none")
                .hint("--rule NAME names it"));
        }
        let mut attributes = named_values(&self.attributes)?;
        if attributes.is_empty() && self.rule.is_none() {
            attributes.push(("api_key".to_owned(), "{client}".to_owned()));
        }
        let length = match self.requests {
            Some(_) => self.length,
            None => Some(self.length.unwrap_or(USUAL)),
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

/// Returns the target of a URL, with what the environment has for it: files for TLS, the password of a RESP listener.
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

/// What `-H 'Name: value'` says, each time that it was given.
fn headers(given: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let pair = |text: &String| match text.split_once(':') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(Failure::failed(format_args!("-H must read like name: value, found {text:?}"))),
    };
    given.iter().map(pair).collect()
}

/// Ctrl-C, or who ends processes politely.
fn asked_to_end() -> Result<impl Future<Output = ()>, Failure> {
    let mut interrupt = signal(SignalKind::interrupt()).map_err(Failure::failed)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(Failure::failed)?;
    Ok(async move {
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
    })
}
