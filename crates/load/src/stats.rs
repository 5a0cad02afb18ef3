//! Statistics of replies.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use tidegate_core::{Span, TerminalSafe, Timestamp};

use crate::reply::{ConnectionError, LoadReply};
use crate::schedule::ScheduledSend;

/// Most kinds of failures that are counted separately.
const MAX_ERROR_KINDS: usize = 16;
const OTHER_ERRORS: &str = "others";
/// Longest description of a failure in characters.
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
    /// Delays between the due time and the send.
    late: Histogram<u64>,
    /// Time of the last decision.
    last: Timestamp,
}

impl Default for LoadStats {
    fn default() -> Self {
        let histogram = || Histogram::new(3).expect("3 is a valid precision");
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
        scheduled: &ScheduledSend,
        sent: Timestamp,
        ended: Timestamp,
        reply: Result<LoadReply, ConnectionError>,
    ) {
        self.sent += 1;
        record(&mut self.late, sent.since(scheduled.due));
        let failure = match reply {
            Ok(LoadReply::Allowed) => increment(&mut self.allowed),
            Ok(LoadReply::Denied) => increment(&mut self.denied),
            Ok(LoadReply::Unavailable) => increment(&mut self.unavailable),
            Ok(LoadReply::Other(text)) => Some(text),
            Err(error) => Some(error.into_text()),
        };
        match failure {
            Some(error) => self.count_failure(&error, 1),
            None => {
                record(&mut self.latency, ended.since(scheduled.due));
                self.last = self.last.max(ended);
            }
        }
    }

    fn count_failure(&mut self, error: &str, count: u64) {
        let error: String = error.chars().take(MAX_ERROR_CHARS).collect();
        let error = TerminalSafe::from(error).to_string();
        let is_other = !self.failed.contains_key(&error) && self.failed.len() >= MAX_ERROR_KINDS;
        let error = if is_other { OTHER_ERRORS.to_owned() } else { error };
        *self.failed.entry(error).or_default() += count;
    }

    /// Adds the counts of another.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.sent += other.sent;
        self.allowed += other.allowed;
        self.denied += other.denied;
        self.unavailable += other.unavailable;
        other.failed.iter().for_each(|(error, count)| self.count_failure(error, *count));
        // Adding can't fail: the histograms resize themselves.
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

fn increment(count: &mut u64) -> Option<String> {
    *count += 1;
    None
}

fn record(histogram: &mut Histogram<u64>, span: Span) {
    // Recording can't fail: the histogram resizes itself.
    let _ = histogram.record(span.as_micros());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scheduled() -> ScheduledSend {
        ScheduledSend { number: 0, due: Timestamp::EPOCH }
    }

    #[test]
    fn failure_is_counted_by_its_text_and_has_no_latency() {
        let (mut stats, at) = (LoadStats::default(), Timestamp::from_secs(1));
        for number in 0..40 {
            let reply = LoadReply::Other(format!("status {number}\u{1b}[2J"));
            stats.add(&scheduled(), Timestamp::EPOCH, at, Ok(reply));
        }
        stats.add(&scheduled(), Timestamp::EPOCH, at, Err(ConnectionError::broken("reset")));
        assert_eq!((stats.failed.len(), stats.failures()), (MAX_ERROR_KINDS + 1, 41));
        assert_eq!(stats.failed[OTHER_ERRORS], 41 - MAX_ERROR_KINDS as u64);
        assert!(stats.failed.keys().all(|error| !error.contains('\u{1b}')));
        assert_eq!((stats.latency().len(), stats.late().len()), (0, 41));
    }

    #[test]
    fn merge_adds_the_counts() {
        let mut all = LoadStats::default();
        for reply in [LoadReply::Allowed, LoadReply::Denied, LoadReply::Unavailable] {
            let mut one = LoadStats::default();
            one.add(&scheduled(), Timestamp::EPOCH, Timestamp::from_secs(2), Ok(reply));
            all.merge(&one);
        }
        assert_eq!((all.allowed, all.denied, all.unavailable, all.sent), (1, 1, 1, 3));
        assert_eq!((all.decided(), all.last()), (3, Timestamp::from_secs(2)));
        assert!(all.latency().max() >= 2_000_000);
    }
}
