//! Replays an access log against one or two sets of rules, and reports denied clients with times and rules.
//!
//! One thread reads, another decides. Memory grows with clients, not with lines.

mod clients;
mod report;
mod rule_set_run;
mod summary;
mod tables;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use tidegate_core::Timestamp;
use tidegate_limiter::tower::used_attributes;
use tidegate_rules::RuleSet;

pub use self::report::{LogInfo, ReplayReport};
use self::rule_set_run::RuleSetRun;
use self::timeline::TimelineCounter;
use crate::log::{BadLine, LineReader, LogFormat, LogSummary, RequestBatch, SortedLog};

/// A log, and the rules that decide its requests.
#[derive(Debug)]
pub struct Replay {
    /// The name of the log.
    pub log: String,
    /// The format of its lines.
    pub format: LogFormat,
    /// Attributes that all requests have.
    pub fixed: Vec<(String, String)>,
    /// Paths of attributes in JSON lines that are not found by default.
    pub fields: Vec<(String, String)>,
    /// Rules with the name of their file.
    pub rules: (String, RuleSet),
    /// The rules that they are compared with.
    pub against: Option<(String, RuleSet)>,
    /// Number of clients that are listed.
    pub top: usize,
}

/// The reason why a log can't be replayed.
#[derive(Debug)]
pub enum ReplayError {
    /// Reading the log failed.
    Failed(io::Error),
    /// No line could be read.
    AllBad(Vec<BadLine>),
    /// The log is empty.
    Empty,
}

/// Maximum number of batches that the reading thread is ahead.
const MAX_BATCHES_AHEAD: usize = 3;

impl Replay {
    /// Decides all requests. `progress` is called after each batch.
    ///
    /// # Errors
    /// There is no request in the log.
    pub fn run(
        self,
        log: impl Read + Send,
        progress: &mut dyn FnMut(),
    ) -> Result<ReplayReport, ReplayError> {
        let sets = [Some(&self.rules), self.against.as_ref()].into_iter().flatten();
        let names: BTreeSet<&str> = sets.flat_map(|(_, rules)| used_attributes(rules)).collect();
        let reading = LineReader::new(&names, &self.fixed, &self.fields, self.format);
        let names = reading.names().to_vec();
        let mut state = ReplayState::new(&self, names);
        let (ready, batches) = sync_channel(MAX_BATCHES_AHEAD);
        let (back, used) = channel();
        let lines = std::thread::scope(|scope| {
            let reader = scope.spawn(move || read(SortedLog::new(log, reading), &ready, &used));
            for batch in batches {
                state.process(&batch);
                progress();
                // The reading thread may have ended.
                let _ = back.send(batch);
            }
            reader
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("the thread that reads the log panicked")))
        });
        let lines = lines.map_err(ReplayError::Failed)?;
        if state.ends.is_none() {
            return Err(if lines.bad > 0 {
                ReplayError::AllBad(lines.shown)
            } else {
                ReplayError::Empty
            });
        }
        Ok(summary::summarize(self, state, lines))
    }
}

/// Reads a log to its end.
fn read<R: Read>(
    mut log: SortedLog<R>,
    ready: &SyncSender<RequestBatch>,
    used: &Receiver<RequestBatch>,
) -> io::Result<LogSummary> {
    while let Some(batch) = log.next(used.try_recv().unwrap_or_default())? {
        // The deciding thread has ended.
        if ready.send(batch).is_err() {
            break;
        }
    }
    Ok(log.summary())
}

/// The state of a replay.
struct ReplayState {
    names: Vec<String>,
    new: RuleSetRun,
    old: Option<RuleSetRun>,
    timeline: TimelineCounter,
    /// The first and the last time.
    ends: Option<(Timestamp, Timestamp)>,
    requests: u64,
    /// Lines that were too far out of order to be sorted.
    late: u64,
    /// Requests denied only by the new rules, and requests denied only by the old rules.
    newly: (u64, u64),
    /// Index of the first of the two series of `newly` in the timeline.
    newly_at: usize,
}

impl ReplayState {
    fn new(replay: &Replay, names: Vec<String>) -> Self {
        let new = RuleSetRun::new(&replay.rules.1, 0);
        let old = replay.against.as_ref().map(|(_, rules)| RuleSetRun::new(rules, new.series()));
        let newly_at = old.as_ref().map_or(new.series(), RuleSetRun::series);
        Self {
            names,
            new,
            old,
            timeline: TimelineCounter::default(),
            ends: None,
            requests: 0,
            late: 0,
            newly: (0, 0),
            newly_at,
        }
    }

    fn process(&mut self, batch: &RequestBatch) {
        for (at, request) in batch.requests(&self.names) {
            // Values that are too long were rejected when they were read.
            let Ok(request) = request else { continue };
            let (first, reached) = self.ends.unwrap_or((at, at));
            self.late += u64::from(at < reached);
            let now = at.max(reached);
            self.ends = Some((first, now));
            self.requests += 1;
            let piece = self.timeline.piece(now);
            let decision = self.new.decide(&request, now);
            let before = self.old.as_ref().map(|old| old.decide(&request, now));
            let timeline = &mut self.timeline;
            let was = before.as_ref().map(|before| before.is_allowed());
            self.new.record(&request, &decision, was, (now, piece), timeline);
            if let (Some(old), Some(before)) = (&mut self.old, &before) {
                let is = decision.is_allowed();
                old.record(&request, before, Some(is), (now, piece), timeline);
                match (before.is_allowed(), is) {
                    (true, false) => {
                        self.newly.0 += 1;
                        timeline.add(self.newly_at, piece);
                    }
                    (false, true) => {
                        self.newly.1 += 1;
                        timeline.add(self.newly_at + 1, piece);
                    }
                    _ => {}
                }
            }
        }
        // Bounds the memory: expired state is freed after each batch.
        self.new.sweep();
        self.old.iter().for_each(RuleSetRun::sweep);
    }
}
