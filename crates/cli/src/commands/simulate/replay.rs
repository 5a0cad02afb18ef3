//! `tidegate simulate --log`: an access log against rules.

#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use clap::Args;

use super::Simulate;
use super::rules::{note_held, read_rules};
use crate::commands::progress::Progress;
use crate::commands::{Ending, Failure, Output, named_values};
use tidegate_sim::log::{BadLine, LogFormat, open_log};
use tidegate_sim::replay::{self, ReplayError};

/// What is said about an access log.
#[derive(Debug, Args)]
#[command(next_help_heading = "Access logs")]
pub(crate) struct Replay {
    /// Replays an access log: common, combined or JSON lines, plain or gzip; - is stdin. Every line is offered,
    /// whatever was answered to it
    #[arg(long, value_name = "FILE", requires = "rules", conflicts_with_all = MADE_UP)]
    log: Option<PathBuf>,

    /// Other rules to compare with: what would change if --rules replaced them
    #[arg(long, value_name = "FILE", requires = "log")]
    against: Option<PathBuf>,

    /// How the log is written
    #[arg(long, value_enum, value_name = "FORMAT", default_value = "auto", requires = "log")]
    log_format: LogFormat,

    /// Where JSON lines have an attribute, or time: tenant=request.headers.X-Tenant
    #[arg(long = "field", value_name = "ATTRIBUTE=PATH", requires = "log")]
    fields: Vec<String>,

    /// How many clients are told
    #[arg(long, value_name = "N", default_value_t = 20, requires = "log")]
    top: usize,
}

/// What describes traffic that nobody logged.
const MADE_UP: [&str; 16] = [
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

impl Replay {
    /// The log to replay, if one is.
    pub(crate) fn log(&self) -> Option<&Path> {
        self.log.as_deref()
    }
}

impl Simulate {
    /// Replays a log, and tells what came of it.
    pub(crate) fn replayed(&self, log: &Path, output: &mut Output<'_>) -> Result<Ending, Failure> {
        let Some(rules) = &self.rules else {
            return Err(Failure::refused("--log needs --rules, found none"));
        };
        let named = |path: &Path| Ok::<_, Failure>((shown(path), read_rules(path)?));
        let rules = named(rules)?;
        let against = self.replay.against.as_deref().map(named).transpose()?;
        for (_, set) in [Some(&rules), against.as_ref()].into_iter().flatten() {
            note_held(set, output);
        }
        let name = if is_stdin(log) { "stdin".to_owned() } else { shown(log) };
        let replay = replay::Replay {
            log: name.clone(),
            format: self.replay.log_format,
            fixed: named_values(&self.attributes)?,
            fields: fields(&self.replay.fields)?,
            rules,
            against,
            top: self.replay.top,
        };
        let done = Arc::new(AtomicU64::new(0));
        let unreadable = |error| Failure::failed(format_args!("{name}: can't be read: {error}"));
        let (from, size) = source(log).map_err(unreadable)?;
        let from = open_log(Counted { from, done: Arc::clone(&done) }).map_err(unreadable)?;
        let mut progress = Progress::new();
        let mut show = || {
            if let Some(size) = size.filter(|size| *size > 0) {
                progress.show(done.load(Ordering::Relaxed) as f64 / size as f64);
            }
        };
        let ran = replay.run(from, &mut show);
        progress.clear();
        let replayed = ran.map_err(|error| match error {
            ReplayError::Failed(error) => unreadable(error),
            ReplayError::Empty => {
                Failure::refused(format_args!("{name}: there is no request in it"))
            }
            ReplayError::AllBad(bad) => {
                let wrong = Failure::refused(format_args!("{name}: no line can be read"));
                let lines = bad.iter().map(|bad| told(&name, bad));
                lines.fold(wrong, Failure::hint).hint("--log-format says how it is written")
            }
        })?;
        let log = &replayed.log;
        if log.bad > 0 {
            let (bad, lines) = (log.bad, log.lines);
            output.note(format_args!("{name}: {bad} of {lines} lines can't be read"));
            log.bad_lines.iter().for_each(|bad| output.note(told(&name, bad)));
        }
        self.draw(&replayed.picture(), output)?;
        self.tell(&replayed, output)?;
        Ok(Ending::Fine)
    }
}

fn told(log: &str, BadLine { line, found, wanted }: &BadLine) -> String {
    format!("{log}:{line}: found {found}, wanted {wanted}")
}

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn is_stdin(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What a log is read from, and how long it is.
fn source(log: &Path) -> std::io::Result<(Box<dyn Read + Send>, Option<u64>)> {
    if is_stdin(log) {
        return Ok((Box::new(std::io::stdin()), None));
    }
    let file = File::open(log)?;
    let size = file.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| file.len());
    Ok((Box::new(file), size))
}

/// Counts what was read.
struct Counted<R> {
    from: R,
    done: Arc<AtomicU64>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, room: &mut [u8]) -> std::io::Result<usize> {
        let read = self.from.read(room)?;
        self.done.fetch_add(read as u64, Ordering::Relaxed);
        Ok(read)
    }
}

/// What `--field ATTRIBUTE=PATH` says, each time that it was given.
fn fields(given: &[String]) -> Result<Vec<(String, String)>, Failure> {
    let pair = |text: &String| match text.split_once('=') {
        Some((name, path)) if !name.is_empty() && !path.is_empty() => {
            Ok((name.to_owned(), path.to_owned()))
        }
        _ => Err(Failure::failed(format_args!(
            "--field must read like attribute=json.path, found {text:?}"
        ))),
    };
    given.iter().map(pair).collect()
}
