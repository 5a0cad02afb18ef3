//! `tidegate simulate --log`: replays an access log against rules.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;

use super::SimulateCommand;
use super::rules::{note_concurrency_rules, read_rules};
use crate::commands::progress::ProgressBar;
use crate::commands::{CommandError, CommandOutput, ExitStatus, parse_attributes};
use tidegate_sim::log::{BadLine, LogFormat, open_log};
use tidegate_sim::replay::{self, ReplayError};

/// Arguments for the replay of an access log.
#[derive(Debug, Args)]
#[command(next_help_heading = "Access logs")]
pub(crate) struct ReplayArgs {
    /// Access log to replay: common, combined or JSON lines, plain or gzip; - is stdin. Every line counts as a
    /// request, whatever its status was
    #[arg(long, value_name = "FILE", requires = "rules", conflicts_with_all = SYNTHETIC_ARGUMENTS)]
    log: Option<PathBuf>,

    /// Current rules to compare with. The report shows what changes if --rules replaces them
    #[arg(long, value_name = "FILE", requires = "log")]
    against: Option<PathBuf>,

    /// Format of the log
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "auto", requires = "log")]
    log_format: LogFormat,

    /// Path of an attribute, or of time, in JSON lines: tenant=request.headers.X-Tenant
    #[arg(long = "field", value_name = "ATTRIBUTE=PATH", requires = "log")]
    fields: Vec<String>,

    /// Number of clients in the report
    #[arg(long, value_name = "N", default_value_t = 20, requires = "log")]
    top: usize,
}

/// Arguments for synthetic traffic, which conflict with a log.
const SYNTHETIC_ARGUMENTS: [&str; 16] = [
    "scenario",
    "limit",
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

impl ReplayArgs {
    /// Returns the log to replay, if one is given.
    pub(crate) fn log(&self) -> Option<&Path> {
        self.log.as_deref()
    }
}

impl SimulateCommand {
    /// Replays a log and prints the report.
    pub(crate) fn replay_log(
        &self,
        log: &Path,
        output: &mut CommandOutput<'_>,
    ) -> Result<ExitStatus, CommandError> {
        let Some(rules) = &self.rules else {
            return Err(CommandError::negative("--log needs --rules, found none"));
        };
        let named = |path: &Path| Ok::<_, CommandError>((path_name(path), read_rules(path)?));
        let rules = named(rules)?;
        let against = self.replay.against.as_deref().map(named).transpose()?;
        for (_, set) in [Some(&rules), against.as_ref()].into_iter().flatten() {
            note_concurrency_rules(set, output);
        }
        let name = if is_stdin(log) { "stdin".to_owned() } else { path_name(log) };
        let replay = replay::Replay {
            log: name.clone(),
            format: self.replay.log_format,
            fixed: parse_attributes(&self.attributes)?,
            fields: fields(&self.replay.fields)?,
            rules,
            against,
            top: self.replay.top,
        };
        let bytes_read = Arc::new(AtomicU64::new(0));
        let unreadable =
            |error| CommandError::failed(format_args!("{name}: can't be read: {error}"));
        let (inner, size) = open_source(log).map_err(unreadable)?;
        let counting = CountingReader { inner, bytes_read: Arc::clone(&bytes_read) };
        let lines = open_log(counting).map_err(unreadable)?;
        let mut progress = ProgressBar::new();
        let mut show = || {
            if let Some(size) = size.filter(|size| *size > 0) {
                progress.show(bytes_read.load(Ordering::Relaxed) as f64 / size as f64);
            }
        };
        let result = replay.run(lines, &mut show);
        progress.clear();
        let report = result.map_err(|error| match error {
            ReplayError::Failed(error) => unreadable(error),
            ReplayError::Empty => {
                CommandError::negative(format_args!("{name}: the log has no request"))
            }
            ReplayError::AllBad(bad) => {
                let error = CommandError::negative(format_args!("{name}: no line can be read"));
                let lines = bad.iter().map(|bad| describe_bad_line(&name, bad));
                lines
                    .fold(error, CommandError::hint)
                    .hint("--log-format sets the format of the log")
            }
        })?;
        let log = &report.log;
        if log.bad > 0 {
            let (bad, lines) = (log.bad, log.lines);
            output.note(format_args!("{name}: {bad} of {lines} lines can't be read"));
            log.bad_lines.iter().for_each(|bad| output.note(describe_bad_line(&name, bad)));
        }
        self.write_plot(&report.picture(), output)?;
        self.print_report(&report, output)?;
        Ok(ExitStatus::Success)
    }
}

fn describe_bad_line(log: &str, BadLine { line, found, wanted }: &BadLine) -> String {
    format!("{log}:{line}: found {found}, wanted {wanted}")
}

fn path_name(path: &Path) -> String {
    path.display().to_string()
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// Opens a log. Returns its size too, if it is a file.
fn open_source(log: &Path) -> std::io::Result<(Box<dyn Read + Send>, Option<u64>)> {
    if is_stdin(log) {
        return Ok((Box::new(std::io::stdin()), None));
    }
    let file = File::open(log)?;
    let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
    Ok((Box::new(file), size))
}

/// A reader that counts its bytes.
struct CountingReader<R> {
    inner: R,
    bytes_read: Arc<AtomicU64>,
}

impl<R: Read> Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.bytes_read.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// Parses the values of `--field ATTRIBUTE=PATH`.
fn fields(given: &[String]) -> Result<Vec<(String, String)>, CommandError> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), path.to_owned()))
        }
        _ => Err(CommandError::failed(format_args!(
            "--field must read like attribute=json.path, found {text:?}"
        ))),
    };
    given.iter().map(pair).collect()
}
