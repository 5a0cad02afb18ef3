//! `tidegate simulate`: limits under simulated traffic, in virtual time.

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

use super::progress::ProgressBar;
use super::values::{length, rate};
use super::{CommandError, CommandOutput, ExitStatus};

/// Simulates limits under traffic, in virtual time.
///
/// Decisions come from the same code as in the server. Each line of the table has the offered, admitted and denied
/// requests. Next come the most admissions of one client in any window, and in a window aligned to the clock, each with
/// the bound of the algorithm. The last column is the overshoot above the bound.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct SimulateCommand {
    /// Name of a built-in scenario
    #[arg(value_enum, value_name = "SCENARIO", conflicts_with_all = CUSTOM_ARGUMENTS)]
    scenario: Option<Scenario>,

    /// File of rules to simulate
    #[arg(long, value_name = "FILE", conflicts_with_all = LIMIT_ARGUMENTS)]
    rules: Option<PathBuf>,

    /// Attribute of all requests. An attribute of `per` that is not given has the client's name as its value
    #[arg(short = 'a', long = "attribute", value_name = "NAME=VALUE", requires = "rules")]
    attributes: Vec<String>,

    /// Limit for each client, in the syntax of rules: "20 per second"
    #[arg(long, value_name = "LIMIT")]
    limit: Option<Quota>,

    /// Algorithm of the limit. Several, separated by commas, are compared
    #[arg(long, value_enum, value_name = "ALGORITHM", value_delimiter = ',', requires = "limit")]
    algorithm: Vec<AlgorithmKind>,

    /// Capacity of a token_bucket
    #[arg(long, value_name = "N", requires = "limit")]
    burst: Option<u64>,

    /// Length of the queue of a leaky_bucket
    #[arg(long, value_name = "N", requires = "limit")]
    queue: Option<u64>,

    /// Distribution of the requests over time and clients
    #[arg(long, value_enum, value_name = "SHAPE", default_value = "steady")]
    traffic: TrafficKind,

    /// Position in the window at which a boundary attack starts: 85%
    #[arg(long, value_name = "PERCENT", default_value_t = Workload::DEFAULT_ATTACK_PERCENT, value_parser = percent)]
    at: u64,

    /// Requests of each client in a burst
    #[arg(long, value_name = "N", default_value_t = Workload::DEFAULT_BURST_SIZE, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    count: u64,

    /// Rate of requests of all clients at all nodes together: "90/s", "10 per minute"
    #[arg(long, value_name = "RATE", default_value = "100/s", value_parser = rate)]
    rate: Quota,

    /// Number of clients
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    clients: u64,

    /// Length in virtual time: 60s, 24h. A boundary attack takes two windows by default
    #[arg(long = "for", value_name = "TIME", value_parser = length)]
    length: Option<Span>,

    /// Number of nodes that share the limit
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    nodes: u64,

    /// Accuracy of the limit on several nodes. Several, separated by commas, are compared
    #[arg(long, value_enum, value_name = "ACCURACY", value_delimiter = ',', requires = "limit")]
    accuracy: Vec<AccuracyKind>,

    /// Interval at which nodes report their admissions to the store, from 10ms to 1m; 0 is exact. Several are compared
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = sync_interval, requires = "limit")]
    sync: Vec<Span>,

    /// Most admissions of a node that are not reported yet, or unbounded [default: a tenth of the limit]
    #[arg(long, value_name = "N", value_parser = max_ahead, requires = "limit")]
    max_ahead: Option<MaxAhead>,

    /// Times at which nodes report
    #[arg(long, value_enum, value_name = "PHASE", default_value = "together", requires = "limit")]
    sync_phase: SyncPhase,

    /// Difference between the clocks of the nodes
    #[arg(long, value_name = "TIME", value_parser = length)]
    skew: Option<Span>,

    /// Time in which the store is unavailable: 10s..20s
    #[arg(long, value_name = "FROM..UNTIL", value_parser = outage)]
    outage: Option<StoreOutage>,

    /// Decision while the store is unavailable. Several, separated by commas, are compared
    #[arg(long, value_enum, value_name = "ANSWER", value_delimiter = ',', requires_all = ["limit", "outage"])]
    on_store_failure: Vec<OutageAnswer>,

    /// Seed of the random generator
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Prints the report in JSON, with the admissions over time
    #[arg(long)]
    json: bool,

    /// Writes a plot of offered and admitted requests over time, as SVG
    #[arg(long, value_name = "FILE.svg", value_parser = svg_path)]
    plot: Option<PathBuf>,

    #[command(flatten)]
    replay: replay::ReplayArgs,
}

/// Arguments that conflict with a built-in scenario.
const CUSTOM_ARGUMENTS: [&str; 20] = [
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
/// Arguments that conflict with `--rules`.
const LIMIT_ARGUMENTS: [&str; 7] =
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

On several nodes, each rule of a file has the accuracy that it sets; one node is always exact.";

/// The decision while the store is unavailable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum OutageAnswer {
    Allow,
    Deny,
    /// The node's share of the limit
    Local,
}

impl From<OutageAnswer> for OnStoreFailure {
    fn from(answer: OutageAnswer) -> Self {
        match answer {
            OutageAnswer::Allow => Self::Allow,
            OutageAnswer::Deny => Self::Deny,
            OutageAnswer::Local => Self::Local,
        }
    }
}

/// Parses a percentage: `85%` or `85`.
fn percent(text: &str) -> Result<u64, String> {
    let number = text.trim().trim_end_matches('%').trim_end().parse().ok();
    number
        .filter(|percent| *percent < 100)
        .ok_or_else(|| "a percentage from 0 to 99 is wanted, like 85%".to_owned())
}

/// Parses an outage: `10s..20s` or `0..20s`.
fn outage(text: &str) -> Result<StoreOutage, String> {
    let wanted = || format!("two times are wanted, like 10s..20s, found {text}");
    let (from, until) = text.split_once("..").ok_or_else(wanted)?;
    let from = if from.trim() == "0" { Span::ZERO } else { length(from)? };
    let until = length(until)?;
    if from < until { Ok(StoreOutage { from, until }) } else { Err(wanted()) }
}

fn svg_path(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match path.extension().is_some_and(|kind| kind.eq_ignore_ascii_case("svg")) {
        true => Ok(path),
        false => Err("a file that ends in .svg is wanted".to_owned()),
    }
}

/// Parses an interval of `--sync`.
fn sync_interval(text: &str) -> Result<Span, String> {
    if text.trim() == "0" {
        return Ok(Span::ZERO);
    }
    let span = length(text)?;
    let (min, max) = SyncInterval::RANGE;
    let out_of_range = || format!("0 or a time from {min} to {max} is wanted, found {span}");
    SyncInterval::new(span).map(SyncInterval::span).ok_or_else(out_of_range)
}

fn max_ahead(text: &str) -> Result<MaxAhead, String> {
    match text.parse() {
        _ if text == "unbounded" => Ok(MaxAhead::Unbounded),
        Ok(tokens @ 1..) => Ok(MaxAhead::Tokens(tokens)),
        _ => Err("a number above 0 or unbounded is wanted".to_owned()),
    }
}

impl SimulateCommand {
    pub(crate) fn run(self, output: &mut CommandOutput<'_>) -> Result<ExitStatus, CommandError> {
        if let Some(log) = self.replay.log() {
            return self.replay_log(log, output);
        }
        let plan = match (self.scenario, &self.rules, self.limit) {
            (Some(scenario), ..) => scenario.plan().map_err(CommandError::failed)?,
            (None, Some(rules), _) => self.plan_rules(rules, output)?,
            (None, None, Some(quota)) => self.spec(quota).plan().map_err(CommandError::negative)?,
            (None, None, None) => {
                return Err(CommandError::failed(
                    "a scenario, --limit or --rules is wanted, found none",
                )
                .hint("scenarios: boundary-attack, sync-lag, burst")
                .hint("tidegate simulate --limit '20 per second' --rate 50/s"));
            }
        };
        let mut progress = ProgressBar::new();
        let report = plan.run(&mut |part| progress.show(part));
        progress.clear();
        self.write_plot(&TrafficPlot::from(&report), output)?;
        self.print_report(&report, output)?;
        Ok(ExitStatus::Success)
    }

    /// Writes the plot, if `--plot` names a file.
    fn write_plot(
        &self,
        plot: &TrafficPlot<'_>,
        output: &mut CommandOutput<'_>,
    ) -> Result<(), CommandError> {
        let Some(path) = &self.plot else { return Ok(()) };
        std::fs::write(path, plot.svg()).map_err(|error| {
            CommandError::failed(format_args!("{}: can't be written: {error}", path.display()))
        })?;
        output.note(format_args!("{}: plot written", path.display()));
        Ok(())
    }

    /// Prints the report as text, or in JSON with `--json`.
    fn print_report(
        &self,
        report: &(impl Serialize + Display),
        output: &mut CommandOutput<'_>,
    ) -> Result<(), CommandError> {
        if self.json {
            output.data(serde_json::to_string_pretty(report).map_err(CommandError::failed)?);
        } else {
            output.text(&report.to_string());
        }
        Ok(())
    }
}
