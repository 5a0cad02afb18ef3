//! Statistics of one limit in a trial: counts, the worst window, and a timeline.

use tidegate_api::{AlignedPeak, OutageCounts, SimulationLine, Timeline};
use tidegate_core::{Bound, Limit, Span, Timestamp};

use crate::faults::StoreOutage;
use crate::worst_window::WorstWindow;

/// Number of steps of a timeline.
const TIMELINE_STEPS: u64 = 120;

/// Counts of requests under one limit, or under all limits.
#[derive(Debug)]
pub(crate) struct TrialStats {
    name: String,
    /// The limit as text, and its bound.
    limit: Option<(String, Bound)>,
    worst: WorstWindow,
    offered: u64,
    admitted: u64,
    denied: u64,
    longest_wait: Span,
    /// Length of the trial.
    length: Span,
    /// Requests that arrived and that were admitted in each step.
    timeline: (Vec<u64>, Vec<u64>),
    /// An outage, and the requests that arrived during it.
    outage: Option<(StoreOutage, OutageCounts)>,
    /// Requests that were admitted, denied and decided locally because the store did not reply.
    failures: [u64; 3],
}

/// The outcome of a request under one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) enum TrialOutcome {
    /// Admitted, after a wait.
    Admitted(Span),
    Denied,
    /// Denied by another limit only.
    DeniedElsewhere,
}

impl TrialStats {
    pub(crate) fn new(name: String, limit: Option<&Limit>, length: Span) -> Self {
        let bound = limit.map(|limit| (limit.to_string(), limit.bound()));
        let window = bound.as_ref().map_or(Span::SECOND, |(_, bound)| bound.window);
        let steps = || vec![0; TIMELINE_STEPS as usize];
        Self {
            name,
            limit: bound,
            worst: WorstWindow::new(window),
            offered: 0,
            admitted: 0,
            denied: 0,
            longest_wait: Span::ZERO,
            length,
            timeline: (steps(), steps()),
            outage: None,
            failures: [0; 3],
        }
    }

    /// Counts the requests of an outage separately as well.
    pub(crate) fn with_outage(mut self, outage: Option<StoreOutage>) -> Self {
        self.outage = outage.map(|outage| (outage, OutageCounts::default()));
        self
    }

    /// Sets the number of requests that were admitted, denied and decided locally because the store did not reply.
    pub(crate) fn record_failures(&mut self, open: u64, closed: u64, local: u64) {
        self.failures = [open, closed, local];
    }

    pub(crate) fn offered(&self) -> u64 {
        self.offered
    }

    /// Counts a request of a client at `now`, which is `passed` after the start.
    pub(crate) fn record(
        &mut self,
        client: u64,
        passed: Span,
        now: Timestamp,
        outcome: TrialOutcome,
    ) {
        self.offered += 1;
        let step = self.step(passed);
        self.timeline.0[step] += 1;
        if let Some((outage, counts)) = &mut self.outage
            && outage.covers(passed)
        {
            counts.offered += 1;
            counts.admitted += u64::from(matches!(outcome, TrialOutcome::Admitted(_)));
        }
        match outcome {
            TrialOutcome::Admitted(wait) => {
                self.admitted += 1;
                self.longest_wait = self.longest_wait.max(wait);
                let released = Span::from_micros(passed.as_micros() + wait.as_micros());
                let step = self.step(released);
                self.timeline.1[step] += 1;
                self.worst.record(client, now + wait);
            }
            TrialOutcome::Denied => self.denied += 1,
            TrialOutcome::DeniedElsewhere => {}
        }
    }

    /// Returns the timeline's step for the time since the start.
    fn step(&self, passed: Span) -> usize {
        let length = u128::from(self.length.as_micros().max(1));
        let step = u128::from(passed.as_micros()) * u128::from(TIMELINE_STEPS) / length;
        usize::try_from(step.min(u128::from(TIMELINE_STEPS) - 1)).unwrap_or_default()
    }

    /// Returns the report's line.
    pub(crate) fn into_line(self, textbook: Option<u64>) -> SimulationLine {
        let (peak, window) = (self.worst.peak(), self.worst.window());
        let bound = self.limit.as_ref().map(|(_, bound)| *bound).filter(|_| !window.is_zero());
        let aligned = bound.and_then(|bound| bound.aligned);
        let aligned = aligned.map(|bound| AlignedPeak { most: self.worst.aligned(), bound });
        let beyond = aligned.map_or(0, |aligned| aligned.most.saturating_sub(aligned.bound));
        let over = bound.map(|bound| peak.most.saturating_sub(bound.most).max(beyond));
        let [open, closed, local] = self.failures.map(|count| (count > 0).then_some(count));
        SimulationLine {
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
            outage: self.outage.map(|(_, counts)| counts),
            failed_open: open,
            failed_closed: closed,
            failed_local: local,
            textbook,
            timeline: Timeline {
                piece_seconds: seconds(self.length) / TIMELINE_STEPS as f64,
                offered: self.timeline.0,
                admitted: self.timeline.1,
            },
        }
    }
}

fn seconds(span: Span) -> f64 {
    span.as_micros() as f64 / 1e6
}
