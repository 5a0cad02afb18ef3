//! Statistics of replies.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use tidegate_core::{Span, TerminalSafe, Timestamp};

use crate::reply::{ConnectionError, LoadReply};
use crate::schedule::ScheduledSend;

/// Most kinds of failures that are counted separately.
const MAX_ERROR_KINDS: usize = 16;
const OTHER_ERRORS: &str = "others";
/// Longest description of a failure.
const MAX_ERROR_CHARS: usize = 160;

/// Counts of replies, and their latencies in microseconds.
#[derive(Debug)]
pub(crate) struct LoadStats {
    pub(crate) sent: u64,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) unavailable: u64,
    pub(crate) failed: BTreeMap<String, u64>,
    latency: Histogram<u64>,
    late: Histogram<u64>,
    last: Timestamp,
}

impl Default for LoadStats {
    fn default() -> Self {
        let histogram = || Histogram::new(3).expect("three digits are kept");
        Self {
            sent: 0,
            allowed: 0,
            denied: 0,
            unavailable: 0,
            failed: BTreeMap::new(),
            latency: histogram(),
            late: histogram(),
            last: Timestamp::EPOCH,
        }
    }
}

impl LoadStats {
    /// Counts a reply or a failure. Only decisions have a latency: failures would make it better or
    /// worse than it is.
    pub(crate) fn add(
        &mut self,
        turn: &ScheduledSend,
        sent: Timestamp,
        ended: Timestamp,
        answer: Result<LoadReply, ConnectionError>,
    ) {
        self.sent += 1;
        record(&mut self.late, sent.since(turn.due));
        let failure = match answer {
            Ok(LoadReply::Allowed) => counted(&mut self.allowed),
            Ok(LoadReply::Denied) => counted(&mut self.denied),
            Ok(LoadReply::Unavailable) => counted(&mut self.unavailable),
            Ok(LoadReply::Other(what)) => Some(what),
            Err(lost) => Some(lost.into_text()),
        };
        match failure {
            Some(what) => self.fail(&what, 1),
            None => {
                record(&mut self.latency, ended.since(turn.due));
                self.last = self.last.max(ended);
            }
        }
    }

    fn fail(&mut self, what: &str, count: u64) {
        let what: String = what.chars().take(MAX_ERROR_CHARS).collect();
        let what = TerminalSafe::from(what).to_string();
        let is_new = !self.failed.contains_key(&what) && self.failed.len() >= MAX_ERROR_KINDS;
        let what = if is_new { OTHER_ERRORS.to_owned() } else { what };
        *self.failed.entry(what).or_default() += count;
    }

    /// Adds the counts of another.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.sent += other.sent;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.unavailable += other.unavailable;
        other.failed.iter().for_each(|(what, count)| self.fail(what, *count));
        // They grow as needed.
        let _ = self.latency.add(&other.latency);
        let _ = self.late.add(&other.late);
        self.last = self.last.max(other.last);
    }

    /// Returns the times from when a request was due to its reply.
    pub(crate) fn latency(&self) -> &Histogram<u64> {
        &self.latency
    }

    /// Returns the times from when a request was due until it was sent.
    pub(crate) fn late(&self) -> &Histogram<u64> {
        &self.late
    }

    /// Returns the time of the last reply.
    pub(crate) fn last(&self) -> Timestamp {
        self.last
    }

    /// Returns the number of decisions.
    pub(crate) fn decided(&self) -> u64 {
        self.allowed + self.denied + self.unavailable
    }

    pub(crate) fn failures(&self) -> u64 {
        self.failed.values().sum()
    }
}

fn counted(count: &mut u64) -> Option<String> {
    *count += 1;
    None
}

fn record(histogram: &mut Histogram<u64>, span: Span) {
    // It grows as needed.
    let _ = histogram.record(span.as_micros());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turn() -> ScheduledSend {
        ScheduledSend { number: 0, due: Timestamp::EPOCH }
    }

    #[test]
    fn a_failure_is_counted_by_its_kind_and_has_no_latency() {
        let (mut tally, at) = (LoadStats::default(), Timestamp::from_secs(1));
        for number in 0..40 {
            let what = LoadReply::Other(format!("status {number}\u{1b}[2J"));
            tally.add(&turn(), Timestamp::EPOCH, at, Ok(what));
        }
        tally.add(&turn(), Timestamp::EPOCH, at, Err(ConnectionError::broken("reset")));
        assert_eq!((tally.failed.len(), tally.failures()), (MAX_ERROR_KINDS + 1, 41));
        assert_eq!(tally.failed[OTHER_ERRORS], 41 - MAX_ERROR_KINDS as u64);
        assert!(tally.failed.keys().all(|what| !what.contains('\u{1b}')));
        assert_eq!((tally.latency().len(), tally.late().len()), (0, 41));
    }

    #[test]
    fn tallies_add_up() {
        let mut all = LoadStats::default();
        for answer in [LoadReply::Allowed, LoadReply::Denied, LoadReply::Unavailable] {
            let mut one = LoadStats::default();
            one.add(&turn(), Timestamp::EPOCH, Timestamp::from_secs(2), Ok(answer));
            all.merge(&one);
        }
        assert_eq!((all.allowed, all.denied, all.unavailable, all.sent), (1, 1, 1, 3));
        assert_eq!((all.decided(), all.last()), (3, Timestamp::from_secs(2)));
        assert!(all.latency().max() >= 2_000_000);
    }
}
