//! The command line: one file per command; output, errors and exit status are shared.

#[cfg(feature = "bench")]
mod bench;
mod block;
mod check;
mod explain;
#[cfg(any(feature = "bench", feature = "simulate"))]
mod progress;
mod rules;
mod serve;
#[cfg(feature = "simulate")]
mod simulate;
mod snippet;
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
use tracing_subscriber::fmt::format::FmtSpan;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// A distributed rate limiter: server, reverse proxy and command line tools.
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 100, after_help = help_examples())]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  tidegate serve                             serve sample rules on 127.0.0.1:8080
  tidegate serve --rules rules.yaml          serve the rules of a file
  tidegate serve --redis redis://cache       share the limits of all nodes through Redis
  tidegate validate rules.yaml               print what each rule admits at most, or its errors
  tidegate explain --rules rules.yaml -H 'X-API-Key: k1' http://api.example/v1/orders
  tidegate simulate boundary-attack          simulate a limit under traffic, in virtual time
  tidegate check per-key alice               request one decision from a running server
  tidegate block add 192.0.2.7 --for 10m     deny a client for ten minutes
  tidegate rules push rules.yaml             change the rules of all nodes without a restart
  tidegate top                               show live traffic in the terminal
  tidegate bench --rate 5000/s               send load and measure latencies

Exit status: 0 success; 1 denied, invalid or different; 2 the command could not run.
TIDEGATE_LOG sets the log filter, for example debug or tidegate=trace. The default is info.
TIDEGATE_LOG_FORMAT sets the log format: text, or json with one object per line.
TIDEGATE_TOKEN is the token for the admin listener.
TIDEGATE_CA, TIDEGATE_CERTIFICATE and TIDEGATE_KEY name PEM files for --server https://…";

/// Returns the examples of the commands that this binary has.
fn help_examples() -> String {
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
    Serve(serve::ServeCommand),
    Check(check::CheckCommand),
    Explain(explain::ExplainCommand),
    Validate(validate::ValidateCommand),
    #[cfg(feature = "simulate")]
    Simulate(Box<simulate::SimulateCommand>),
    Rules(rules::RulesCommand),
    Block(block::BlockCommand),
    #[cfg(feature = "top")]
    Top(top::TopCommand),
    #[cfg(feature = "bench")]
    Bench(bench::BenchCommand),
}

/// Runs a command to its end.
pub(crate) fn run(arguments: Arguments) -> ExitCode {
    let mut stdout = std::io::stdout();
    let mut stderr = std::io::stderr();
    let mut output = CommandOutput { data: &mut stdout, notes: &mut stderr };
    let result = match arguments.command {
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
    match result {
        Ok(status) => status.into(),
        Err(error) => {
            output.note(error.message);
            for hint in error.hints {
                output.note(format_args!("hint: {hint}"));
            }
            error.status.into()
        }
    }
}

/// Installs the subscriber that writes log lines to stderr.
pub(crate) fn init_logging(config: &LogConfig) {
    let filter: Targets =
        config.filter.parse().unwrap_or_else(|_| Targets::new().with_default(LevelFilter::INFO));
    let colours = std::io::stderr().is_terminal();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        // A span is one line when it ends, with its duration.
        .with_span_events(FmtSpan::CLOSE);
    let registry = tracing_subscriber::registry().with(filter);
    match config.format {
        LogFormat::Text => registry.with(lines.with_ansi(colours)).init(),
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
}

/// The output of a command: results on stdout, notes and errors on stderr.
struct CommandOutput<'w> {
    data: &'w mut dyn Write,
    notes: &'w mut dyn Write,
}

impl CommandOutput<'_> {
    /// Prints a line of the result. A closed stdout is no error.
    fn data(&mut self, line: impl Display) {
        let _ = writeln!(self.data, "{line}").and_then(|()| self.data.flush());
    }

    /// Prints a part of the result without a line break.
    fn text(&mut self, text: &str) {
        let _ = self.data.write_all(text.as_bytes()).and_then(|()| self.data.flush());
    }

    /// Prints a line to stderr, for the operator.
    fn note(&mut self, line: impl Display) {
        let _ = writeln!(self.notes, "{line}");
    }
}

/// The exit status of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ExitStatus {
    /// Status 0.
    Success,
    /// Status 1: the command ran, and its result is denied, invalid or different.
    Negative,
    /// Status 2: the command could not run.
    Failed,
}

impl From<ExitStatus> for ExitCode {
    fn from(status: ExitStatus) -> Self {
        match status {
            ExitStatus::Success => Self::SUCCESS,
            ExitStatus::Negative => Self::from(1),
            ExitStatus::Failed => Self::from(2),
        }
    }
}

/// The error that ends a command, with hints for the operator.
#[derive(Debug)]
struct CommandError {
    status: ExitStatus,
    message: String,
    hints: Vec<String>,
}

impl CommandError {
    /// Returns an error with exit status 2.
    fn failed(error: impl Display) -> Self {
        Self { status: ExitStatus::Failed, message: format!("error: {error}"), hints: Vec::new() }
    }

    /// Returns an error with exit status 1.
    fn negative(error: impl Display) -> Self {
        Self { status: ExitStatus::Negative, ..Self::failed(error) }
    }

    /// Adds a line that suggests a fix.
    fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hints.push(hint.into());
        self
    }
}

/// Parses the values of `-a NAME=VALUE`.
fn parse_attributes(given: &[String]) -> Result<Vec<(String, String)>, CommandError> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => {
            Err(CommandError::failed(format_args!("-a must read like name=value, found {text:?}")))
        }
    };
    given.iter().map(pair).collect()
}

impl From<ConfigError> for CommandError {
    fn from(error: ConfigError) -> Self {
        match error {
            ConfigError::Unreadable { .. } => Self::failed(error),
            ConfigError::NotInFile { place: "--redis", .. } => Self::failed(error).hint(
                "--redis takes a URL like redis://127.0.0.1:6379; tidegate serve --help lists all forms",
            ),
            ConfigError::NotInFile { place: "--gateway" | "listen.gateway" | "gateway", .. } => {
                Self::failed(error).hint(
                    "name one with --upstream http://127.0.0.1:3000, or with gateway.upstreams in the \
                     configuration",
                )
            }
            ConfigError::NotInFile { .. } => Self::failed(error),
            // The message has one line per error, with file and line.
            ConfigError::Invalid(_) | ConfigError::Rules(_) => {
                Self { status: ExitStatus::Negative, message: error.to_string(), hints: Vec::new() }
            }
        }
    }
}

impl From<ClientError> for CommandError {
    fn from(error: ClientError) -> Self {
        let command_error = Self::failed(&error);
        match error {
            ClientError::Unreachable { .. } => command_error
                .hint("tidegate serve starts a server")
                .hint("--server http://HOST:PORT selects another server"),
            ClientError::NoResponse { .. } => {
                command_error.hint("is this the HTTP listener of a tidegate server?")
            }
        }
    }
}

/// Runs a future on a runtime of the current thread.
fn block_on<F: Future>(future: F) -> Result<F::Output, CommandError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(runtime.map_err(CommandError::failed)?.block_on(future))
}
