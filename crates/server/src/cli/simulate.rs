//! `tidegate simulate`: what a limit makes of traffic, before anybody meets it.

mod plan;
mod progress;
mod replay;
#[cfg(test)]
mod tests;

use std::fmt::Display;
use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use tidegate::rule::{Every, MaxAhead};
use tidegate::{Quota, Span};
use tidegate_core::quota::window_of;

use self::progress::Progress;
use super::{Ending, Failure, Output, waiting};
use crate::simulate::{Picture, Scenario};

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
    algorithm: Vec<Counting>,

    /// How much of it a token_bucket lets through at once
    #[arg(long, value_name = "N", requires = "limit")]
    burst: Option<u64>,

    /// How many may wait in a leaky_bucket
    #[arg(long, value_name = "N", requires = "limit")]
    queue: Option<u64>,

    /// How requests are spread over time and clients
    #[arg(long, value_enum, value_name = "SHAPE", default_value = "steady")]
    traffic: Traffic,

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

    /// How often nodes tell each other what they admitted, from 10ms to 1m; 0 is exact. Several are compared
    #[arg(long, value_name = "TIME", value_delimiter = ',', value_parser = lag, requires = "limit")]
    sync: Vec<Span>,

    /// The most that a node admits before it has told; a tenth of the limit unless said, or unbounded
    #[arg(long, value_name = "N", value_parser = max_ahead, requires = "sync")]
    max_ahead: Option<MaxAhead>,

    /// Another seed, another day: what comes by chance
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// All of it in JSON, with what happened over time
    #[arg(long)]
    json: bool,

    /// Draws what was offered and admitted over time; as PNG if the file ends in .png
    #[arg(long, value_name = "FILE.svg", value_parser = picture)]
    plot: Option<PathBuf>,

    #[command(flatten)]
    replay: replay::Replay,
}

/// What describes a simulation of one's own.
const OWN: [&str; 13] = [
    "rules",
    "attributes",
    "limit",
    "algorithm",
    "burst",
    "queue",
    "traffic",
    "rate",
    "clients",
    "length",
    "nodes",
    "sync",
    "seed",
];
/// What describes a limit that is not in a file of rules.
const ONE_LIMIT: [&str; 6] = ["limit", "algorithm", "burst", "queue", "nodes", "sync"];

const EXAMPLES: &str = "\
Examples:
  tidegate simulate boundary-attack
  tidegate simulate sync-lag --plot sync-lag.svg
  tidegate simulate --limit '20 per second' --algorithm token_bucket,sliding_log --rate 50/s
  tidegate simulate --limit '60 per second' --algorithm fixed_window --traffic boundary
  tidegate simulate --limit '60/s' --nodes 3 --sync 0,200ms,1s --max-ahead unbounded --rate 270/s
  tidegate simulate --limit '5 per minute' --traffic retry-storm --clients 50 --rate 10/s
  tidegate simulate --rules rules.yaml -a path=/v1/orders --traffic zipf --clients 1000000 \\
      --rate 1000/s --for 24h --plot day.svg
  tidegate simulate --log access.log --rules new.yaml --against old.yaml

The rules of a file are decided as on one exact store, whatever their accuracy is.";

/// How a limit is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Counting {
    TokenBucket,
    LeakyBucket,
    FixedWindow,
    SlidingWindow,
    SlidingLog,
}

/// How requests are spread over time and clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Traffic {
    /// Evenly, client after client
    Steady,
    /// All that comes in ten seconds comes in the first of them
    Bursty,
    /// Each client spends its limit at 85 % of a window, and again when the next one begins
    Boundary,
    /// By chance, the busiest client twice as often as the second, three times as often as the third
    Zipf,
    /// Steady, and who is denied comes back: every 100 ms, or when Retry-After says
    RetryStorm,
}

fn length(text: &str) -> Result<Span, String> {
    window_of(text.trim()).map_err(|error| error.to_string())
}

fn picture(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    let known = |kind: &std::ffi::OsStr| {
        ["svg", "png"].iter().any(|known| kind.eq_ignore_ascii_case(known))
    };
    match path.extension().is_some_and(known) {
        true => Ok(path),
        false => Err("a file that ends in .svg or .png is wanted".to_owned()),
    }
}

fn rate(text: &str) -> Result<Quota, String> {
    let text = text.trim();
    let quota = match text.parse() {
        Ok(per_second) => Quota::per_second(per_second),
        Err(_) => text.parse::<Quota>().map_err(|error| error.to_string())?,
    };
    if quota.is_in_flight() || quota.amount() == 0 || quota.validate().is_err() {
        return Err("a number of requests in a time is wanted, like 90/s".to_owned());
    }
    Ok(quota)
}

fn lag(text: &str) -> Result<Span, String> {
    if text.trim() == "0" {
        return Ok(Span::ZERO);
    }
    let span = length(text)?;
    let (least, most) = Every::RANGE;
    let wrong = || format!("0 or a time from {least} to {most} is wanted, found {span}");
    Every::new(span).map(Every::span).ok_or_else(wrong)
}

fn max_ahead(text: &str) -> Result<MaxAhead, String> {
    match text.parse() {
        _ if text == "unbounded" => Ok(MaxAhead::Unbounded),
        Ok(tokens @ 1..) => Ok(MaxAhead::Tokens(tokens)),
        _ => Err("a number above 0 or unbounded is wanted".to_owned()),
    }
}

impl Simulate {
    pub(super) fn run(self, output: &mut Output<'_>) -> Result<Ending, Failure> {
        if let Some(log) = self.replay.log() {
            return self.replayed(log, output);
        }
        let plan = match (self.scenario, &self.rules, self.limit) {
            (Some(scenario), ..) => scenario.plan().map_err(Failure::failed)?,
            (None, Some(rules), _) => self.of_rules(rules, output)?,
            (None, None, Some(quota)) => self.of_limit(quota)?,
            (None, None, None) => {
                let wrong = "a scenario, --limit or --rules is wanted, found none";
                let names = "scenarios: boundary-attack, sync-lag, burst";
                return Err(Failure::failed(wrong)
                    .hint(names)
                    .hint("tidegate simulate --limit '20 per second' --rate 50/s"));
            }
        };
        let mut progress = Progress::new();
        // Rules may block a client for a while, which is noticed in the background.
        let report = waiting(async { plan.run(&mut |part| progress.show(part)) })?;
        progress.clear();
        self.draw(&Picture::from(&report), output)?;
        self.tell(&report, output)?;
        Ok(Ending::Fine)
    }

    fn draw(&self, picture: &Picture<'_>, output: &mut Output<'_>) -> Result<(), Failure> {
        let Some(path) = &self.plot else { return Ok(()) };
        let drawn = match path.extension().is_some_and(|kind| kind.eq_ignore_ascii_case("png")) {
            true => picture.png().map_err(Failure::failed)?,
            false => picture.svg().into_bytes(),
        };
        std::fs::write(path, drawn).map_err(|error| {
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
