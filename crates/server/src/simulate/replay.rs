//! An access log against rules, and against two sets of them: who would have been denied, when, and by what.
//!
//! One thread reads, another decides. Memory grows with clients, not with lines.

mod clients;
mod report;
mod side;
mod tables;
mod telling;
#[cfg(test)]
mod tests;
mod timeline;

use std::collections::BTreeSet;
use std::io::{self, Read};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

use tidegate::tower::mentioned;
use tidegate::{RuleSet, Timestamp};

pub(crate) use self::report::Replayed;
use self::side::Side;
use self::timeline::Timeline;
use super::log::{BadLine, Batch, LogFormat, Reading, Sorted, Told};

/// A log, and what it is put to.
#[derive(Debug)]
pub(crate) struct Replay {
    /// What the log is called.
    pub(crate) log: String,
    pub(crate) format: LogFormat,
    /// Attributes that all requests have.
    pub(crate) fixed: Vec<(String, String)>,
    /// Where JSON lines have things that are not found by themselves.
    pub(crate) fields: Vec<(String, String)>,
    /// Rules with the name of their file.
    pub(crate) rules: (String, RuleSet),
    /// Those that they are compared with.
    pub(crate) against: Option<(String, RuleSet)>,
    /// How many clients are told by name.
    pub(crate) top: usize,
}

/// Why nothing can be told of a log.
#[derive(Debug)]
pub(crate) enum Unread {
    Failed(io::Error),
    /// No line could be read.
    AllBad(Vec<BadLine>),
    Empty,
}

/// So many batches are read ahead.
const AHEAD: usize = 3;

impl Replay {
    /// Lets all of it happen. `progress` is told now and then that it goes on.
    ///
    /// # Errors
    /// There is no request in the log.
    pub(crate) fn run(
        self,
        log: impl Read + Send,
        progress: &mut dyn FnMut(),
    ) -> Result<Replayed, Unread> {
        let sets = [Some(&self.rules), self.against.as_ref()].into_iter().flatten();
        let names: BTreeSet<&str> = sets.flat_map(|(_, rules)| mentioned(rules)).collect();
        let reading = Reading::new(&names, &self.fixed, &self.fields, self.format);
        let names = reading.names().to_vec();
        let mut course = Course::new(&self, names);
        let (ready, batches) = sync_channel(AHEAD);
        let (back, used) = channel();
        let told = std::thread::scope(|scope| {
            let reader = scope.spawn(move || read(Sorted::new(log, reading), &ready, &used));
            for batch in batches {
                course.go(&batch);
                progress();
                // Who reads may be through.
                let _ = back.send(batch);
            }
            reader.join().unwrap_or_else(|_| Err(io::Error::other("the log was not read on")))
        });
        let told = told.map_err(Unread::Failed)?;
        if course.ends.is_none() {
            return Err(if told.bad > 0 { Unread::AllBad(told.shown) } else { Unread::Empty });
        }
        Ok(telling::told(self, course, told))
    }
}

/// Reads a log to its end.
fn read<R: Read>(
    mut log: Sorted<R>,
    ready: &SyncSender<Batch>,
    used: &Receiver<Batch>,
) -> io::Result<Told> {
    while let Some(batch) = log.next(used.try_recv().unwrap_or_default())? {
        // Nobody decides any more.
        if ready.send(batch).is_err() {
            break;
        }
    }
    Ok(log.told())
}

/// What happened so far.
struct Course {
    names: Vec<String>,
    new: Side,
    old: Option<Side>,
    timeline: Timeline,
    /// The first and the last instant.
    ends: Option<(Timestamp, Timestamp)>,
    requests: u64,
    /// Lines that were too late to be put in order.
    late: u64,
    /// Denied by the new rules and not by the old ones, and the other way round.
    newly: (u64, u64),
    /// Where the timeline has these two.
    newly_at: usize,
}

impl Course {
    fn new(replay: &Replay, names: Vec<String>) -> Self {
        let new = Side::new(&replay.rules.1, 0);
        let old = replay.against.as_ref().map(|(_, rules)| Side::new(rules, new.series()));
        let newly_at = old.as_ref().map_or(new.series(), Side::series);
        Self {
            names,
            new,
            old,
            timeline: Timeline::default(),
            ends: None,
            requests: 0,
            late: 0,
            newly: (0, 0),
            newly_at,
        }
    }

    fn go(&mut self, batch: &Batch) {
        for (at, request) in batch.requests(&self.names) {
            // What is too long or too much was refused when it was read.
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
            self.new.note(&request, &decision, was, (now, piece), timeline);
            if let (Some(old), Some(before)) = (&mut self.old, &before) {
                let is = decision.is_allowed();
                old.note(&request, before, Some(is), (now, piece), timeline);
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
        // What clients have left for good need not be kept.
        self.new.sweep();
        self.old.iter().for_each(Side::sweep);
    }
}
