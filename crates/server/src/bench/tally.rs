//! What became of requests.

use std::collections::BTreeMap;

use hdrhistogram::Histogram;
use tidegate::{Span, Timestamp};

use super::link::{Answer, Lost};
use super::schedule::Turn;
use crate::plain::Plain;

/// So many ways to fail are told apart; the rest are one.
const KINDS: usize = 16;
const OTHERS: &str = "others";
/// So much is told of each.
const LONGEST: usize = 160;

/// Counts of answers, and how long they took, in microseconds.
#[derive(Debug)]
pub(super) struct Tally {
    pub(super) sent: u64,
    pub(super) allowed: u64,
    pub(super) denied: u64,
    pub(super) unavailable: u64,
    pub(super) failed: BTreeMap<String, u64>,
    latency: Histogram<u64>,
    late: Histogram<u64>,
    last: Timestamp,
}

impl Default for Tally {
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

impl Tally {
    /// Counts what became of a request. Only what was decided has a latency: a failure would make it better or
    /// worse than it is.
    pub(super) fn add(
        &mut self,
        turn: &Turn,
        sent: Timestamp,
        ended: Timestamp,
        answer: Result<Answer, Lost>,
    ) {
        self.sent += 1;
        record(&mut self.late, sent.since(turn.due));
        let failure = match answer {
            Ok(Answer::Allowed) => counted(&mut self.allowed),
            Ok(Answer::Denied) => counted(&mut self.denied),
            Ok(Answer::Unavailable) => counted(&mut self.unavailable),
            Ok(Answer::Other(what)) => Some(what),
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
        let what: String = what.chars().take(LONGEST).collect();
        let what = Plain::from(what).to_string();
        let is_new = !self.failed.contains_key(&what) && self.failed.len() >= KINDS;
        let what = if is_new { OTHERS.to_owned() } else { what };
        *self.failed.entry(what).or_default() += count;
    }

    /// Adds what another counted.
    pub(super) fn merge(&mut self, other: &Self) {
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

    /// From when a request was due until its answer was there.
    pub(super) fn latency(&self) -> &Histogram<u64> {
        &self.latency
    }

    /// From when a request was due until it was sent.
    pub(super) fn late(&self) -> &Histogram<u64> {
        &self.late
    }

    /// When the last answer came.
    pub(super) fn last(&self) -> Timestamp {
        self.last
    }

    /// How many were decided.
    pub(super) fn decided(&self) -> u64 {
        self.allowed + self.denied + self.unavailable
    }

    pub(super) fn failures(&self) -> u64 {
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

    fn turn() -> Turn {
        Turn { number: 0, due: Timestamp::EPOCH }
    }

    #[test]
    fn a_failure_is_counted_by_its_kind_and_has_no_latency() {
        let (mut tally, at) = (Tally::default(), Timestamp::from_secs(1));
        for number in 0..40 {
            let what = Answer::Other(format!("status {number}\u{1b}[2J"));
            tally.add(&turn(), Timestamp::EPOCH, at, Ok(what));
        }
        tally.add(&turn(), Timestamp::EPOCH, at, Err(Lost::broken("reset")));
        assert_eq!((tally.failed.len(), tally.failures()), (KINDS + 1, 41));
        assert_eq!(tally.failed[OTHERS], 41 - KINDS as u64);
        assert!(tally.failed.keys().all(|what| !what.contains('\u{1b}')));
        assert_eq!((tally.latency().len(), tally.late().len()), (0, 41));
    }

    #[test]
    fn tallies_add_up() {
        let mut all = Tally::default();
        for answer in [Answer::Allowed, Answer::Denied, Answer::Unavailable] {
            let mut one = Tally::default();
            one.add(&turn(), Timestamp::EPOCH, Timestamp::from_secs(2), Ok(answer));
            all.merge(&one);
        }
        assert_eq!((all.allowed, all.denied, all.unavailable, all.sent), (1, 1, 1, 3));
        assert_eq!((all.decided(), all.last()), (3, Timestamp::from_secs(2)));
        assert!(all.latency().max() >= 2_000_000);
    }
}
