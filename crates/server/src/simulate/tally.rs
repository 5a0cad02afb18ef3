//! What became of the traffic under one limit: counts, the worst window, and how it went over time.

use tidegate::{Bound, Limit, Span, Timestamp};

use super::report::{Aligned, Line, Meanwhile, Timeline};
use super::watch::Watch;
use super::weather::Outage;

/// So many pieces of time are told apart.
const PIECES: u64 = 120;

/// Counts requests under one limit, or under all of them.
#[derive(Debug)]
pub(super) struct Tally {
    name: String,
    /// The limit as a text, and what it lets through.
    limit: Option<(String, Bound)>,
    watch: Watch,
    offered: u64,
    admitted: u64,
    denied: u64,
    longest_wait: Span,
    /// How long all of it takes.
    length: Span,
    timeline: (Vec<u64>, Vec<u64>),
    /// A time that is told apart, and what became of it.
    outage: Option<(Outage, Meanwhile)>,
    /// What was let pass, refused and decided alone, without the store.
    failed: [u64; 3],
}

/// What was said to a request.
#[derive(Clone, Copy, Debug)]
pub(super) enum Said {
    /// Admitted, after a wait.
    Yes(Span),
    No,
    /// Another limit denied it.
    Elsewhere,
}

impl Tally {
    pub(super) fn new(name: &str, limit: Option<&Limit>, length: Span) -> Self {
        let bound = limit.map(|limit| (limit.to_string(), limit.bound()));
        let window = bound.as_ref().map_or(Span::SECOND, |(_, bound)| bound.window);
        let pieces = || vec![0; PIECES as usize];
        Self {
            name: name.to_owned(),
            limit: bound,
            watch: Watch::new(window),
            offered: 0,
            admitted: 0,
            denied: 0,
            longest_wait: Span::ZERO,
            length,
            timeline: (pieces(), pieces()),
            outage: None,
            failed: [0; 3],
        }
    }

    /// What comes in an outage is counted besides.
    pub(super) fn telling_apart(mut self, outage: Option<Outage>) -> Self {
        self.outage = outage.map(|outage| (outage, Meanwhile::default()));
        self
    }

    /// So many were let pass, refused and decided alone because the store did not answer.
    pub(super) fn failed(&mut self, open: u64, closed: u64, local: u64) {
        self.failed = [open, closed, local];
    }

    pub(super) fn offered(&self) -> u64 {
        self.offered
    }

    /// A request of a client at an instant, so long after the start.
    pub(super) fn note(&mut self, client: u64, passed: Span, now: Timestamp, said: Said) {
        self.offered += 1;
        let piece = self.piece(passed);
        self.timeline.0[piece] += 1;
        if let Some((outage, meanwhile)) = &mut self.outage
            && outage.covers(passed)
        {
            meanwhile.offered += 1;
            meanwhile.admitted += u64::from(matches!(said, Said::Yes(_)));
        }
        match said {
            Said::Yes(wait) => {
                self.admitted += 1;
                self.longest_wait = self.longest_wait.max(wait);
                let released = Span::from_micros(passed.as_micros() + wait.as_micros());
                let piece = self.piece(released);
                self.timeline.1[piece] += 1;
                self.watch.admitted(client, now + wait);
            }
            Said::No => self.denied += 1,
            Said::Elsewhere => {}
        }
    }

    fn piece(&self, passed: Span) -> usize {
        let length = u128::from(self.length.as_micros().max(1));
        let piece = u128::from(passed.as_micros()) * u128::from(PIECES) / length;
        usize::try_from(piece.min(u128::from(PIECES) - 1)).unwrap_or_default()
    }

    /// What is told of it.
    pub(super) fn line(self, textbook: Option<u64>) -> Line {
        let (peak, window) = (self.watch.peak(), self.watch.window());
        let bound = self.limit.as_ref().map(|(_, bound)| *bound).filter(|_| !window.is_zero());
        let aligned = bound.and_then(|bound| bound.aligned);
        let aligned = aligned.map(|bound| Aligned { most: self.watch.aligned(), bound });
        let beyond = aligned.map_or(0, |aligned| aligned.most.saturating_sub(aligned.bound));
        let over = bound.map(|bound| peak.most.saturating_sub(bound.most).max(beyond));
        let [open, closed, local] = self.failed.map(|count| (count > 0).then_some(count));
        Line {
            name: self.name,
            limit: self.limit.map(|(limit, _)| limit),
            offered: self.offered,
            admitted: self.admitted,
            denied: self.denied,
            window_seconds: seconds(window),
            most: peak.most,
            within_seconds: seconds(peak.within),
            bound: bound.map(|bound| bound.most),
            aligned,
            over,
            longest_wait_seconds: seconds(self.longest_wait),
            outage: self.outage.map(|(_, meanwhile)| meanwhile),
            failed_open: open,
            failed_closed: closed,
            failed_local: local,
            textbook,
            timeline: Timeline {
                piece_seconds: seconds(self.length) / PIECES as f64,
                offered: self.timeline.0,
                admitted: self.timeline.1,
            },
        }
    }
}

fn seconds(span: Span) -> f64 {
    span.as_micros() as f64 / 1e6
}
