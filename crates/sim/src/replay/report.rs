//! The report of a replay, in JSON and as a plot.

use std::cmp::Reverse;

use serde::{Serialize, Serializer};
use tidegate_core::Timestamp;
use tidegate_rules::ClientName;

use crate::log::BadLine;
use crate::plot::{PlotPanel, TrafficPlot};
use crate::report::lasting;

/// The report of a replay.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ReplayReport {
    pub(crate) title: String,
    /// The log itself.
    pub log: LogInfo,
    pub(crate) outcome: ReplayOutcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) against: Option<ReplayOutcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) differences: Option<RuleSetDifferences>,
    pub(crate) notes: Vec<String>,
}

/// Counts of the log.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LogInfo {
    pub(crate) file: String,
    /// Number of lines.
    pub lines: u64,
    pub(crate) requests: u64,
    /// Number of lines that can't be read.
    pub bad: u64,
    /// The first lines that can't be read.
    pub bad_lines: Vec<BadLine>,
    /// Lines that are too far out of order to be sorted.
    pub(crate) late: u64,
    #[serde(serialize_with = "as_time")]
    pub(crate) from: Timestamp,
    #[serde(serialize_with = "as_time")]
    pub(crate) to: Timestamp,
}

/// The outcome of one set of rules.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplayOutcome {
    pub(crate) rules: String,
    #[serde(flatten)]
    pub(crate) counts: TimedCounts,
    pub(crate) by_rule: Vec<ReplayedRule>,
    /// The clients that were denied most.
    pub(crate) denied_most: Vec<RankedClient>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct TimedCounts {
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    pub(crate) timeline: ReplayTimeline,
}

/// Requests that arrived and were admitted in each piece of the time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplayTimeline {
    #[serde(serialize_with = "as_time")]
    pub(crate) start: Timestamp,
    pub(crate) piece_seconds: f64,
    pub(crate) offered: Vec<u64>,
    pub(crate) admitted: Vec<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ReplayedRule {
    pub(crate) rule: String,
    /// True if the rule is in shadow mode.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) shadow: bool,
    #[serde(flatten)]
    pub(crate) counts: TimedCounts,
    /// Denials that this rule decided.
    pub(crate) decided: u64,
    /// The part of `decided` that its penalty blocked.
    pub(crate) blocked: u64,
    /// Number of clients; none if the rule counts all together.
    pub(crate) clients: Option<usize>,
    pub(crate) clients_denied: usize,
}

/// A client of a rule. If its name may be a secret, it has no name, and its id is a hash.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RankedClient {
    pub(crate) rule: String,
    pub(crate) client: Option<ClientName>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// The client as text.
    #[serde(skip)]
    pub(crate) shown: String,
    pub(crate) denied: u64,
    pub(crate) offered: u64,
    #[serde(serialize_with = "as_time")]
    pub(crate) first: Timestamp,
    #[serde(serialize_with = "as_time")]
    pub(crate) last: Timestamp,
}

/// RuleSetDifferences between two sets of rules.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct RuleSetDifferences {
    /// Denied by the rules, and admitted by those that they are compared with.
    pub(crate) newly_denied: ChangedDecisions,
    /// Admitted by the rules, and denied by those that they are compared with.
    pub(crate) newly_admitted: ChangedDecisions,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChangedDecisions {
    pub(crate) requests: u64,
    /// Requests by the rule that denies them.
    pub(crate) by_rule: Vec<ChangedByRule>,
    pub(crate) clients: Vec<RankedClient>,
    /// Requests in each piece of the timeline.
    pub(crate) timeline: Vec<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ChangedByRule {
    pub(crate) rule: String,
    pub(crate) requests: u64,
    pub(crate) clients: usize,
}

fn as_time<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&shown(*at))
}

/// Writes a time as in RFC 3339.
pub(crate) fn shown(at: Timestamp) -> String {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX).to_string()
}

impl ReplayTimeline {
    /// Returns the start of a piece.
    fn at(&self, piece: usize) -> Timestamp {
        let micros = (self.piece_seconds * 1e6) as u64 * piece as u64;
        Timestamp::from_micros(self.start.as_micros() + micros)
    }

    /// Describes the twentieth of the time with the most denials.
    pub(crate) fn peak(&self) -> Option<String> {
        let pieces = self.offered.iter().zip(&self.admitted);
        self.most(&pieces.map(|(offered, admitted)| offered - admitted).collect::<Vec<_>>())
    }

    /// Describes the twentieth of the time with the highest count.
    pub(crate) fn most(&self, counts: &[u64]) -> Option<String> {
        let together = counts.len().div_ceil(20).max(1);
        let sums = counts.chunks(together).map(|counts| counts.iter().sum::<u64>());
        // The first of equal maxima.
        let (index, most) = sums.enumerate().min_by_key(|(_, sum)| Reverse(*sum))?;
        (most > 0).then(|| {
            let within = lasting(self.piece_seconds * together as f64);
            format!("from {} on, {most} within {within}", shown(self.at(index * together)))
        })
    }
}

impl ReplayReport {
    /// Returns the plot: all rules, those that they are compared with, and each rule.
    pub fn picture(&self) -> TrafficPlot<'_> {
        let all = [Some(&self.outcome), self.against.as_ref()].into_iter().flatten();
        let all = all.map(|outcome| (format!("all rules of {}", outcome.rules), &outcome.counts));
        let each = self.outcome.by_rule.iter().map(|rule| (rule.name(), &rule.counts));
        let panels = all.chain(each).take(TrafficPlot::MAX_PANELS).map(|(name, counts)| {
            let timeline = &counts.timeline;
            let (start, end) = (timeline.start, timeline.at(timeline.offered.len()));
            PlotPanel {
                name,
                note: format!("{} of {} admitted", counts.admitted, counts.offered),
                piece_seconds: timeline.piece_seconds,
                ends: Some((shown(start), shown(end))),
                series: (&timeline.offered, &timeline.admitted),
            }
        });
        TrafficPlot { title: &self.title, panels: panels.collect() }
    }
}

impl ReplayedRule {
    pub(crate) fn name(&self) -> String {
        if self.shadow { format!("{}, shadow", self.rule) } else { self.rule.clone() }
    }
}
