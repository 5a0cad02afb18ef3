//! What a replay found, in JSON and as a picture.

use std::cmp::Reverse;

use serde::{Serialize, Serializer};
use tidegate::Timestamp;

use super::super::log::BadLine;
use super::super::plot::{Panel, Picture};
use super::super::report::lasting;
use crate::top::Name;

/// Everything that is told of a replay.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Replayed {
    pub(crate) title: String,
    pub(crate) log: Log,
    pub(crate) outcome: Outcome,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) against: Option<Outcome>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) differences: Option<Differences>,
    pub(crate) notes: Vec<String>,
}

/// The log itself.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Log {
    pub(crate) file: String,
    pub(crate) lines: u64,
    pub(crate) requests: u64,
    /// Lines that can't be read, and the first of them.
    pub(crate) bad: u64,
    pub(crate) bad_lines: Vec<BadLine>,
    /// Lines too far from their place to be put there.
    pub(crate) late: u64,
    #[serde(serialize_with = "as_time")]
    pub(crate) from: Timestamp,
    #[serde(serialize_with = "as_time")]
    pub(crate) to: Timestamp,
}

/// What one set of rules made of it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Outcome {
    pub(crate) rules: String,
    #[serde(flatten)]
    pub(crate) counts: Tallied,
    pub(crate) by_rule: Vec<ByRule>,
    /// The clients that were denied most.
    pub(crate) denied_most: Vec<Ranked>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Tallied {
    pub(crate) offered: u64,
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    pub(crate) timeline: When,
}

/// How many came and passed in each piece of the time.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct When {
    #[serde(serialize_with = "as_time")]
    pub(crate) start: Timestamp,
    pub(crate) piece_seconds: f64,
    pub(crate) offered: Vec<u64>,
    pub(crate) admitted: Vec<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ByRule {
    pub(crate) rule: String,
    /// Whether it only counts.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub(crate) shadow: bool,
    #[serde(flatten)]
    pub(crate) counts: Tallied,
    /// Of what was denied: how often this rule had the last word.
    pub(crate) decided: u64,
    /// Of these: how often because its penalty had the client blocked.
    pub(crate) blocked: u64,
    /// How many clients it met; none where all are one.
    pub(crate) clients: Option<usize>,
    pub(crate) clients_denied: usize,
}

/// A client of a rule. Without a name what it is called may be a secret; the id is a hash of that.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Ranked {
    pub(crate) rule: String,
    pub(crate) client: Option<Name>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) id: Option<String>,
    /// For people.
    #[serde(skip)]
    pub(super) shown: String,
    pub(crate) denied: u64,
    pub(crate) offered: u64,
    #[serde(serialize_with = "as_time")]
    pub(crate) first: Timestamp,
    #[serde(serialize_with = "as_time")]
    pub(crate) last: Timestamp,
}

/// What one set of rules does and the other does not.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Differences {
    /// Denied by the rules, and admitted by those that they are compared with.
    pub(crate) newly_denied: Newly,
    /// Admitted by the rules, and denied by those that they are compared with.
    pub(crate) newly_admitted: Newly,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Newly {
    pub(crate) requests: u64,
    /// By the rule that denies them, of those that do.
    pub(crate) by_rule: Vec<NewlyByRule>,
    pub(crate) clients: Vec<Ranked>,
    /// In the pieces of the timeline above.
    pub(crate) timeline: Vec<u64>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct NewlyByRule {
    pub(crate) rule: String,
    pub(crate) requests: u64,
    pub(crate) clients: usize,
}

fn as_time<S: Serializer>(at: &Timestamp, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&shown(*at))
}

/// An instant as RFC 3339 has it.
pub(super) fn shown(at: Timestamp) -> String {
    let micros = i64::try_from(at.as_micros()).unwrap_or(i64::MAX);
    jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::MAX).to_string()
}

impl When {
    /// When a piece starts.
    fn at(&self, piece: usize) -> Timestamp {
        let micros = (self.piece_seconds * 1e6) as u64 * piece as u64;
        Timestamp::from_micros(self.start.as_micros() + micros)
    }

    /// When the most was denied: in which twentieth of the time.
    pub(super) fn peak(&self) -> Option<String> {
        let pieces = self.offered.iter().zip(&self.admitted);
        self.most(&pieces.map(|(offered, admitted)| offered - admitted).collect::<Vec<_>>())
    }

    /// When the most of something happened: in which twentieth of the time.
    pub(super) fn most(&self, counts: &[u64]) -> Option<String> {
        let together = counts.len().div_ceil(20).max(1);
        let sums = counts.chunks(together).map(|counts| counts.iter().sum::<u64>());
        // Of equals the first.
        let (place, most) = sums.enumerate().min_by_key(|(_, sum)| Reverse(*sum))?;
        (most > 0).then(|| {
            let within = lasting(self.piece_seconds * together as f64);
            format!("from {} on, {most} within {within}", shown(self.at(place * together)))
        })
    }
}

impl Replayed {
    /// What is to be drawn: all rules, those that they are compared with, and each of them.
    pub(crate) fn picture(&self) -> Picture<'_> {
        let all = [Some(&self.outcome), self.against.as_ref()].into_iter().flatten();
        let all = all.map(|outcome| (format!("all rules of {}", outcome.rules), &outcome.counts));
        let each = self.outcome.by_rule.iter().map(|rule| (rule.name(), &rule.counts));
        let panels = all.chain(each).take(Picture::MOST).map(|(name, counts)| {
            let timeline = &counts.timeline;
            let (start, end) = (timeline.start, timeline.at(timeline.offered.len()));
            Panel {
                name,
                note: format!("{} of {} admitted", counts.admitted, counts.offered),
                piece_seconds: timeline.piece_seconds,
                ends: Some((shown(start), shown(end))),
                series: (&timeline.offered, &timeline.admitted),
            }
        });
        Picture { title: &self.title, panels: panels.collect() }
    }
}

impl ByRule {
    pub(super) fn name(&self) -> String {
        if self.shadow { format!("{}, shadow", self.rule) } else { self.rule.clone() }
    }
}
