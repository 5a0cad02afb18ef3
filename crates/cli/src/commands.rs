//! The command line: one file per command, and how all of them speak.

#[cfg(feature = "bench")]
mod bench;
mod block;
mod check;
mod excerpt;
mod explain;
#[cfg(any(feature = "bench", feature = "simulate"))]
mod progress;
mod rules;
mod serve;
#[cfg(feature = "simulate")]
mod simulate;
#[cfg(feature = "top")]
mod top;
mod validate;
#[cfg(any(feature = "bench", feature = "simulate"))]
mod values;

use std::fmt::Display;
use std::io::{IsTerminal, Write};
use std::process::ExitCode;

use crate::config::{LogConfig, LogFormat};
use clap::{Parser, Subcommand};
use tidegate_net::client::ClientError;
use tidegate_service::config_error::ConfigError;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Rate limits as a service.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100, after_help = examples())]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tidegate serve                             sample rules on 127.0.0.1:8080, with a curl line to try
  tidegate serve --rules rules.yaml          your own rules
  tidegate serve --redis redis://cache       one limit for all that use this Redis
  tidegate validate rules.yaml               what each rule admits at the most, or what is wrong
  tidegate explain --rules rules.yaml -H 'X-API-Key: k1' http://api.example/v1/orders
  tidegate simulate boundary-attack          what a limit makes of traffic, in a second
  tidegate check per-key alice               one decision by a running server
  tidegate block add 192.0.2.7 --for 10m     no answer but a refusal for ten minutes
  tidegate rules push rules.yaml             other rules on every node, while traffic flows
  tidegate top                               a server as it works, in the terminal
  tidegate bench --rate 5000/s               load against a server, and how long it took

Exit status: 0 fine, 1 denied or invalid, 2 could not do it.
TIDEGATE_LOG sets what is logged: debug, or tidegate=trace; info by default.
TIDEGATE_LOG_FORMAT sets how: text, or json, an object on each line.
TIDEGATE_TOKEN opens an admin listener that has a token.
TIDEGATE_CA, TIDEGATE_CERTIFICATE and TIDEGATE_KEY name PEM files for --server https://…";

/// Returns the examples of the commands that this binary has.
fn examples() -> String {
    let optional = [
        ("tidegate simulate ", cfg!(feature = "simulate")),
        ("tidegate top ", cfg!(feature = "top")),
        ("tidegate bench ", cfg!(feature = "bench")),
    ];
    let is_present = |line: &&str| {
        let command = line.trim_start();
        optional.iter().all(|(start, present)| *present || !command.starts_with(start))
    };
    EXAMPLES.lines().filter(is_present).collect::<Vec<_>>().join("\n")
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Check(check::Check),
    Explain(explain::Explain),
    Validate(validate::Validate),
    #[cfg(feature = "simulate")]
    Simulate(Box<simulate::Simulate>),
    Rules(rules::Rules),
    Block(block::Block),
    #[cfg(feature = "top")]
    Top(top::Top),
    #[cfg(feature = "bench")]
    Bench(bench::Bench),
}

/// Runs a command to its end.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let mut stdout = std::io::stdout();
    let mut stderr = std::io::stderr();
    let mut output = Output { data: &mut stdout, notes: &mut stderr };
    let done = match arguments.command {
        Command::Serve(command) => command.run(&mut output),
        Command::Check(command) => command.run(&mut output),
        Command::Explain(command) => command.run(&mut output),
        Command::Validate(command) => command.run(&mut output),
        #[cfg(feature = "simulate")]
        Command::Simulate(command) => command.run(&mut output),
        Command::Rules(command) => command.run(&mut output),
        Command::Block(command) => command.run(&mut output),
        #[cfg(feature = "top")]
        Command::Top(command) => command.run(&mut output),
        #[cfg(feature = "bench")]
        Command::Bench(command) => command.run(&mut output),
    };
    match done {
        Ok(ending) => ending.into(),
        Err(failure) => {
            output.note(failure.message);
            for hint in failure.hints {
                output.note(format_args!("hint: {hint}"));
            }
            failure.ending.into()
        }
    }
}

/// Sends log lines to stderr.
pub(crate) fn log(config: &LogConfig) {
    let filter: Targets =
        config.filter.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer().with_writer(std::io::stderr);
    let registry = tracing_subscriber::registry().with(filter);
    match config.format {
        LogFormat::Text => registry.with(lines.with_ansi(colours)).init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
}

/// Where a command writes: what it was asked for, and everything else.
struct Output<'w> {
    data: &'w mut dyn Write,
    notes: &'w mut dyn Write,
}

impl Output<'_> {
    /// A line for whoever reads the result. A reader that has gone away is no error.
    fn data(&mut self, line: impl Display) {
        let _ = writeln!(self.data, "{line}").and_then(|()| self.data.flush());
    }

    /// A text for whoever reads the result, as it is.
    fn text(&mut self, text: &str) {
        let _ = self.data.write_all(text.as_bytes()).and_then(|()| self.data.flush());
    }

    /// A line for the person at the terminal.
    fn note(&mut self, line: impl Display) {
        let _ = writeln!(self.notes, "{line}");
    }
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Ending {
    Fine,
    /// Denied, or invalid.
    No,
    /// Could not do it.
    Failed,
}

impl From<Ending> for ExitCode {
    fn from(ending: Ending) -> Self {
        match ending {
            Ending::Fine => Self::SUCCESS,
            Ending::No => Self::from(1),
            Ending::Failed => Self::from(2),
        }
    }
}

/// Why a command did not do what it was asked to.
#[derive(Debug)]
struct Failure {
    ending: Ending,
    message: String,
    hints: Vec<String>,
}

impl Failure {
    fn failed(error: impl Display) -> Self {
        Self { ending: Ending::Failed, message: format!("error: {error}"), hints: Vec::new() }
    }

    fn refused(error: impl Display) -> Self {
        Self { ending: Ending::No, ..Self::failed(error) }
    }

    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

/// What `-a NAME=VALUE` says, each time that it was given.
fn named_values(given: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => Err(Failure::failed(format_args!("-a must read like name=value, found {text:?}"))),
    };
    given.iter().map(pair).collect()
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Unreadable { .. } => Self::failed(error),
            ConfigError::NotInFile { place: "--redis", .. } => Self::failed(error).hint(
                "--redis takes a URL like redis://127.0.0.1:6379; tidegate serve --help has them all",
            ),
            ConfigError::NotInFile { place: "--gateway" | "listen.gateway" | "gateway", .. } => {
                Self::failed(error).hint(
                    "--upstream http://127.0.0.1:3000 names one, as gateway.upstreams does in the \
                     configuration",
                )
            }
            ConfigError::NotInFile { .. } => Self::failed(error),
            // Each line starts with its file and line already.
            ConfigError::Invalid(_) | ConfigError::Rules(_) => {
                Self { ending: Ending::No, message: error.to_string(), hints: Vec::new() }
            }
        }
    }
}

impl From<ClientError> for Failure {
    fn from(error: ClientError) -> Self {
        let failure = Self::failed(&error);
        match error {
            ClientError::Unreachable { .. } => failure
                .hint("tidegate serve starts a server")
                .hint("--server http://HOST:PORT asks another one"),
            ClientError::NoResponse { .. } => {
                failure.hint("is that the HTTP listener of a tidegate?")
            }
        }
    }
}

/// Waits for something that needs no threads.
fn waiting<F: Future>(work: F) -> Result<F::Output, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(Failure::failed)?.block_on(work))
}
