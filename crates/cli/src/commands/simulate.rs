//! `tidegate simulate`: what a limit makes of traffic, before anybody meets it.

mod plan;
mod replay;
mod rules;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tidegate_core::{Quota, Span};
use tidegate_rules::{MaxAhead, OnStoreFailure, SyncInterval};
use tidegate_sim::{
    AccuracyKind, AlgorithmKind, Scenario, StoreOutage, SyncPhase, TrafficKind, TrafficPlot,
    Workload,
};

use super::progress::Progress;
use super::values::{length, rate};
use super::{Ending, Failure, Output};

/// Shows what a limit makes of traffic, in virtual time.
///
/// The code that decides is the one that serves. Each line of the table has what was offered, admitted and
/// denied; the most that one client was admitted in any span as long as the window, and in one that is
/// aligned to the clock, of what the algorithm promises at the most; and by how much that was exceeded.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Simulate {
    /// A scenario that comes with tidegate
    #[arg(value_enum, value_name = "SCENARIO", conflicts_with_all = OWN)]
    scenario: Option<Scenario>,

    /// Rules to decide by
    #[arg(long, value_name = "FILE", conflicts_with_all = ONE_LIMIT)]
    rules: Option<PathBuf>,

    /// An attribute that all requests have; those that rules count by name the client unless given
    #[arg(short = 'a', long = "attribute", value_name = "NAME=VALUE", requires = "rules")]
    attributes: Vec<String>,

    /// A limit for each client, as rules spell it: "20 per second"
    #[arg(long, value_name = "LIMIT")]
    limit: Option<Quota>,

    /// How it is counted; several, with commas between them, are compared
    #[arg(long, value_enum, value_name = "ALGORITHM", value_delimiter = ',', requires = "limit")]
    algorithm: Vec<AlgorithmKind>,

    /// How much of it a token_bucket lets through at once
    #[arg(long, value_name = "N", requires = "limit")]
    burst: Option<u64>,

    /// How many may wait in a leaky_bucket
    #[arg(long, value_name = "N", requires = "limit")]
    queue: Option<u64>,

    /// How requests are spread over time and clients
    #[arg(long, value_enum, value_name = "SHAPE", default_value = "steady")]
    traffic: TrafficKind,

    /// Where in a window a boundary attack begins: 85%
    #[arg(long, value_name = "PERCENT", default_value_t = Workload::DEFAULT_ATTACK_PERCENT, value_parser = percent)]
    at: u64,

    /// How many a burst is, of each client
    #[arg(long, value_name = "N", default_value_t = Workload::DEFAULT_BURST_SIZE, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: u64,

    /// How many requests come, of all clients and at all nodes: "90/s", "10 per minute"
    #[arg(long, value_name = "RATE", default_value = "100/s", value_parser = rate)]
    rate: Quota,

    /// How many clients there are
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    clients: u64,

    /// How long it takes, in virtual time: 60s, 24h; two windows of a boundary attack
    #[arg(long = "for", value_name = "TIME", value_parser = length)]
    length: Option<Span>,

    /// How many nodes share the limit
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    nodes: u64,

    /// How nodes keep it; several, with commas between them, are compared
    #[arg(long, value_enum, value_name = "ACCURACY", value_delimiter = ',', requires = "limit")]
    accuracy: Vec<AccuracyKind>,

    /// How often nodes tell each other what they admitted, from 10ms to 1m; 0 is exact. Several are compared
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = lag, requires = "limit")]
    sync: Vec<Span>,

    /// The most that a node admits before it has told; a tenth of the limit unless said, or unbounded
    #[arg(long, value_name = "N", value_parser = max_ahead, requires = "limit")]
    max_ahead: Option<MaxAhead>,

    /// When nodes sync
    #[arg(long, value_enum, value_name = "PHASE", default_value = "together", requires = "limit")]
    sync_phase: SyncPhase,

    /// How far the clocks of nodes are apart
    #[arg(long, value_name = "TIME", value_parser = length)]
    skew: Option<Span>,

    /// When the store does not answer: 10s..20s
    #[arg(long, value_name = "FROM..UNTIL", value_parser = outage)]
    outage: Option<StoreOutage>,

    /// What is answered then; several, with commas between them, are compared
    #[arg(long, value_enum, value_name = "ANSWER", value_delimiter = ',', requires_all = ["limit", "outage"])]
    on_store_failure: Vec<Without>,

    /// Another seed, another day: what comes by chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// All of it in JSON, with what happened over time
    #[arg(long)]
    json: bool,

    /// Draws what was offered and admitted over time, as SVG
    #[arg(long, value_name = "FILE.svg", value_parser = picture)]
    plot: Option<PathBuf>,

    #[command(flatten)]
    replay: replay::Replay,
}

/// What describes a simulation of one's own.
const OWN: [&str; 20] = [
    "rules",
    "attributes",
    "limit",
    "algorithm",
    "burst",
    "queue",
    "traffic",
    "at",
    "count",
    "rate",
    "clients",
    "length",
    "nodes",
    "accuracy",
    "sync",
    "sync_phase",
    "skew",
    "outage",
    "on_store_failure",
    "seed",
];
/// What describes a limit that is not in a file of rules.
const ONE_LIMIT: [&str; 7] =
    ["limit", "algorithm", "burst", "queue", "accuracy", "sync", "on_store_failure"];

const EXAMPLES: &str = "\
Examples:
  tidegate simulate boundary-attack
  tidegate simulate sync-lag --plot sync-lag.svg
  tidegate simulate --limit '20 per second' --algorithm token_bucket,sliding_log --rate 50/s
  tidegate simulate --limit '60 per second' --algorithm fixed_window --traffic boundary --at 90%
  tidegate simulate --limit '60/s' --nodes 3 --sync 0,200ms,1s --max-ahead unbounded --rate 270/s
  tidegate simulate --limit '5 per minute' --traffic retry-storm --clients 50 --rate 10/s
  tidegate simulate --rules rules.yaml -a path=/v1/orders --traffic zipf --clients 1000000 \\
      --rate 1000/s --for 24h --plot day.svg
  tidegate simulate --limit '60/s' --nodes 3 --accuracy exact,leased,split --skew 50ms --rate 270/s
  tidegate simulate --limit '20/s' --nodes 3 --outage 10s..20s --on-store-failure allow,deny,local
  tidegate simulate --log access.log --rules new.yaml --against old.yaml

On several nodes the rules of a file are kept as their accuracy says; one alone keeps them exactly.";

/// What is answered without the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Without {
    Allow,
    Deny,
    /// By the node's share of the limit
    Local,
}

impl From<Without> for OnStoreFailure {
    fn from(answer: Without) -> Self {
        match answer {
            Without::Allow => Self::Allow,
            Without::Deny => Self::Deny,
            Without::Local => Self::Local,
        }
    }
}

/// `85%` or `85`.
fn percent(text: &str) -> Result<u64, String> {
    let number = text.trim().trim_end_matches('%').trim_end().parse().ok();
    number
        .filter(|percent| *percent < 100)
        .ok_or_else(|| "a percentage from 0 to 99 is wanted, like 85%".to_owned())
}

/// `10s..20s`, or `0..20s`.
fn outage(text: &str) -> Result<StoreOutage, String> {
    let wanted = || format!("two times are wanted, like 10s..20s, found {text}");
    let (from, until) = text.split_once("..").ok_or_else(wanted)?;
    let from = if from.trim() == "0" { Span::ZERO } else { length(from)? };
    let until = length(until)?;
    if from < until { Ok(StoreOutage { from, until }) } else { Err(wanted()) }
}

fn picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().is_some_and(|kind| kind.eq_ignore_ascii_case("svg")) {
        true => Ok(path),
        false => Err("a file that ends in .svg is wanted".to_owned()),
    }
}

fn lag(text: &str) -> Result<Span, String> {
    if text.trim() == "0" {
        return Ok(Span::ZERO);
    }
    let span = length(text)?;
    let (least, most) = SyncInterval::RANGE;
    let wrong = || format!("0 or a time from {least} to {most} is wanted, found {span}");
    SyncInterval::new(span).map(SyncInterval::span).ok_or_else(wrong)
}

fn max_ahead(text: &str) -> Result<MaxAhead, String> {
    match text.parse() {
        _ if text == "unbounded" => Ok(MaxAhead::Unbounded),
        Ok(tokens @ 1..) => Ok(MaxAhead::Tokens(tokens)),
        _ => Err("a number above 0 or unbounded is wanted".to_owned()),
    }
}

impl Simulate {
    pub(crate) fn run(self, output: &mut Output<'_>) -> Result<Ending, Failure> {
        if let Some(log) = self.replay.log() {
            return self.replayed(log, output);
        }
        let plan = match (self.scenario, &self.rules, self.limit) {
            (Some(scenario), ..) => scenario.plan().map_err(Failure::failed)?,
            (None, Some(rules), _) => self.of_rules(rules, output)?,
            (None, None, Some(quota)) => self.spec(quota).plan().map_err(Failure::refused)?,
            (None, None, None) => {
                let wrong = "a scenario, --limit or --rules is wanted, found none";
                let names = "scenarios: boundary-attack, sync-lag, burst";
                return Err(Failure::failed(wrong)
                    .hint(names)
                    .hint("tidegate simulate --limit '20 per second' --rate 50/s"));
            }
        };
        let mut progress = Progress::new();
        let report = plan.run(&mut |part| progress.show(part));
        progress.clear();
        self.draw(&TrafficPlot::from(&report), output)?;
        self.tell(&report, output)?;
        Ok(Ending::Fine)
    }

    fn draw(&self, picture: &TrafficPlot<'_>, output: &mut Output<'_>) -> Result<(), Failure> {
        let Some(path) = &self.plot else { return Ok(()) };
        std::fs::write(path, picture.svg()).map_err(|error| {
            Failure::failed(format_args!("{}: can't be written: {error}", path.display()))
        })?;
        output.note(format_args!("{}: drawn", path.display()));
        Ok(())
    }

    fn tell(
        &self,
        report: &(impl Serialize + Display),
        output: &mut Output<'_>,
    ) -> Result<(), Failure> {
        if self.json {
            output.data(serde_json::to_string_pretty(report).map_err(Failure::failed)?);
        } else {
            output.text(&report.to_string());
        }
        Ok(())
    }
}
