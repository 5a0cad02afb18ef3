//! Text output: progress, violations with their history, and totals.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::episode::EpisodeResult;
use super::faults::FaultKind;
use super::history::{AnswerKind, EpisodeHistory, Micros};

/// Counts over all episodes.
#[derive(Debug, Default)]
pub(crate) struct SoakTotals {
    pub(crate) episodes: u64,
    faults: BTreeMap<FaultKind, u64>,
    checks: u64,
    admitted: u64,
    denied: u64,
    unavailable: u64,
    uncounted: u64,
    lost: u64,
    pub(crate) failed: Vec<(u64, u64)>,
}

impl SoakTotals {
    pub(crate) fn add(&mut self, result: &EpisodeResult) {
        self.episodes += 1;
        for fault in &result.history.faults {
            *self.faults.entry(fault.kind).or_default() += 1;
        }
        for answer in result.history.lanes.iter().flat_map(|lane| &lane.answers) {
            self.checks += 1;
            *match answer.kind {
                AnswerKind::Admitted { .. } => &mut self.admitted,
                AnswerKind::Denied => &mut self.denied,
                AnswerKind::Unavailable => &mut self.unavailable,
                AnswerKind::PassedUncounted => &mut self.uncounted,
                AnswerKind::Lost => &mut self.lost,
            } += 1;
        }
        if result.failed() {
            self.failed.push((result.scenario.seed, result.scenario.episode));
        }
    }

    pub(crate) fn text(&self) -> String {
        let Self { episodes, checks, admitted, denied, unavailable, uncounted, lost, .. } = self;
        let faults: Vec<String> =
            self.faults.iter().map(|(kind, count)| format!("{kind:?} {count}")).collect();
        format!(
            "episodes: {episodes}\nfaults: {}: {}\nchecks: {checks}: admitted {admitted}, denied {denied}, \
             unavailable {unavailable}, passed uncounted {uncounted}, lost {lost}\nviolations: {}{}",
            self.faults.values().sum::<u64>(),
            faults.join(", "),
            self.failed.len(),
            self.failed.iter().fold(String::new(), |mut text, (seed, episode)| {
                let _ = write!(text, "\n  make soak-faults SEED={seed} EPISODE={episode}");
                text
            })
        )
    }
}

/// Returns one line about a finished episode.
pub(crate) fn progress(result: &EpisodeResult) -> String {
    let EpisodeResult { scenario, history, .. } = result;
    let answers = history.lanes.iter().flat_map(|lane| &lane.answers);
    let (mut checks, mut admitted) = (0, 0);
    for answer in answers {
        checks += 1;
        admitted += u64::from(matches!(answer.kind, AnswerKind::Admitted { .. }));
    }
    let kinds: Vec<String> =
        history.faults.iter().map(|fault| format!("{:?}", fault.kind)).collect();
    let lanes: Vec<String> = (scenario.lanes.iter())
        .map(|lane| format!("{:?}/{:?}", lane.limit.algorithm, lane.accuracy))
        .collect();
    format!(
        "episode {}: {:?} x {}: {}: {checks} checks, {admitted} admitted: {}{}",
        scenario.episode,
        scenario.topology,
        scenario.nodes(),
        lanes.join(" "),
        kinds.join(" "),
        if result.failed() { ": VIOLATION" } else { "" }
    )
}

/// Returns the scenario, history and violations of a failed episode.
pub(crate) fn failure(result: &EpisodeResult) -> String {
    let EpisodeResult { scenario, history, violations, log } = result;
    let (seed, episode) = (scenario.seed, scenario.episode);
    let mut text =
        format!("seed {seed}, episode {episode}: a stated bound does not hold\n{scenario}");
    text.push_str(&history_text(history));
    for violation in violations {
        let since = |at: Micros| (at - history.began) / 1_000;
        let _ = writeln!(
            text,
            "lane {}: {}: admitted {}, stated bound {}, from {} ms to {} ms",
            violation.lane_index,
            violation.bound,
            violation.admitted,
            violation.max,
            since(violation.from),
            since(violation.until)
        );
        for reason in &violation.allowances {
            let _ = writeln!(text, "  including {reason}");
        }
    }
    for broken in &history.broken {
        let _ = writeln!(text, "{broken}");
    }
    let _ = writeln!(text, "{log}repeat: make soak-faults SEED={seed} EPISODE={episode}");
    text
}

fn history_text(history: &EpisodeHistory) -> String {
    let since = |at: Micros| at.saturating_sub(history.began) / 1_000;
    let mut text = String::from("faults, in milliseconds since the start of the load:\n");
    for fault in &history.faults {
        let (began, ended) = (since(fault.began), since(fault.ended));
        let _ = writeln!(text, "  {began:>6} to {ended:>6}  {:?}: {}", fault.kind, fault.note);
    }
    for version in history.versions.iter().skip(1) {
        let adopted = version.adopted.map(since);
        let _ = writeln!(text, "  rules {:?}: on all nodes after {adopted:?} ms", version.number);
    }
    text
}
