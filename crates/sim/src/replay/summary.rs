//! Builds the report of a replay from its state.

use std::cmp::Reverse;

use tidegate_core::Timestamp;
use tidegate_rules::{Mode, Rule};

use crate::log::LogSummary;
use crate::replay::clients::{DenialSpan, DeniedClient};
use crate::replay::report::{
    ChangedByRule, ChangedDecisions, LogInfo, RankedClient, ReplayOutcome, ReplayReport,
    ReplayTimeline, ReplayedRule, RuleSetDifferences, TimedCounts,
};
use crate::replay::rule_set_run::{RequestCounts, RuleSetRun};
use crate::replay::{Replay, ReplayState};

/// Returns the report of a replay.
pub(crate) fn summarize(replay: Replay, state: ReplayState, lines: LogSummary) -> ReplayReport {
    let (from, to) = state.ends.unwrap_or((Timestamp::EPOCH, Timestamp::EPOCH));
    let log = LogInfo {
        file: replay.log,
        lines: lines.lines,
        requests: state.requests,
        bad: lines.bad,
        bad_lines: lines.shown,
        late: state.late,
        from,
        to,
    };
    let title = format!("replay: {} under {}", log.file, replay.rules.0);
    let outcome = state.outcome(replay.rules.0, &state.new, replay.top);
    let old = state.old.as_ref();
    let against = replay.against.zip(old);
    let against = against.map(|((name, _), old)| state.outcome(name, old, replay.top));
    let differences = old.map(|old| RuleSetDifferences {
        newly_denied: state.newly(&state.new, state.newly.0, 0, replay.top),
        newly_admitted: state.newly(old, state.newly.1, 1, replay.top),
    });
    let mut notes = vec!["every line is replayed, also lines of denied requests".to_owned()];
    let when = &outcome.counts.timeline;
    notes.extend(when.peak().map(|peak| format!("denied most {peak}")));
    if let Some(RuleSetDifferences { newly_denied, newly_admitted }) = &differences {
        for (newly, how) in [(newly_denied, "denied"), (newly_admitted, "admitted")] {
            let most = when.most(&newly.timeline);
            notes.extend(most.map(|most| format!("newly {how} most {most}")));
        }
    }
    if log.late > 0 {
        notes.push(format!(
            "{} lines are too far out of order to be sorted, and count at the time of the line before them",
            log.late
        ));
    }
    let overflowed = state.new.overflowed() + old.map_or(0, RuleSetRun::overflowed);
    if overflowed > 0 {
        notes
            .push(format!("{overflowed} requests used shared buckets, because the store was full"));
    }
    ReplayReport { title, log, outcome, against, differences, notes }
}

impl ReplayState {
    fn outcome(&self, rules: String, run: &RuleSetRun, top: usize) -> ReplayOutcome {
        let set = run.set().rules().iter().zip(&run.rules).enumerate();
        let met = set.filter(|(_, (_, rule_run))| rule_run.counts.offered > 0);
        let by_rule = met.map(|(index, (rule, rule_run))| ReplayedRule {
            rule: rule.name().to_owned(),
            shadow: rule.mode() == Mode::Shadow,
            counts: self.timed_counts(rule_run.counts, run.series_of(Some(index))),
            decided: rule_run.decided,
            blocked: rule_run.blocked,
            clients: (!rule.per().is_empty()).then(|| rule_run.clients.len()),
            clients_denied: rule_run.clients.denied().count(),
        });
        ReplayOutcome {
            rules,
            counts: self.timed_counts(run.all, run.series_of(None)),
            by_rule: by_rule.collect(),
            denied_most: ranked(run, top, |denied| denied.all),
        }
    }

    fn timed_counts(&self, counts: RequestCounts, series: usize) -> TimedCounts {
        let (start, length) = self.timeline.pieces();
        let timeline = ReplayTimeline {
            start,
            piece_seconds: length.as_micros() as f64 / 1e6,
            offered: self.timeline.counts(series),
            admitted: self.timeline.counts(series + 1),
        };
        let RequestCounts { offered, admitted, denied } = counts;
        TimedCounts { offered, admitted, denied, timeline }
    }

    fn newly(
        &self,
        run: &RuleSetRun,
        requests: u64,
        series: usize,
        top: usize,
    ) -> ChangedDecisions {
        let rules = run.set().rules().iter().zip(&run.rules);
        let by_rule = rules.filter(|(_, rule_run)| rule_run.changed > 0).map(|(rule, rule_run)| {
            ChangedByRule {
                rule: rule.name().to_owned(),
                requests: rule_run.changed,
                clients: rule_run
                    .clients
                    .denied()
                    .filter(|(_, denied)| denied.changed.count > 0)
                    .count(),
            }
        });
        ChangedDecisions {
            requests,
            by_rule: by_rule.collect(),
            clients: ranked(run, top, |denied| denied.changed),
            timeline: self.timeline.counts(self.newly_at + series),
        }
    }
}

/// Returns the clients with the highest counts, at most so many.
fn ranked(
    run: &RuleSetRun,
    top: usize,
    denials: impl Fn(&DeniedClient) -> DenialSpan,
) -> Vec<RankedClient> {
    let rules = run.set().rules().iter().zip(&run.rules).enumerate();
    let clients = rules.flat_map(|(index, (rule, rule_run))| {
        rule_run.clients.denied().map(move |(offered, denied)| (index, rule, offered, denied))
    });
    let mut all: Vec<_> = clients.filter(|(.., denied)| denials(denied).count > 0).collect();
    all.sort_by_cached_key(|(index, _, _, denied)| {
        let DenialSpan { count, first, .. } = denials(denied);
        (Reverse(count), *index, first, denied.client.to_string())
    });
    all.truncate(top);
    let row = |(_, rule, offered, denied): (usize, &Rule, u64, &DeniedClient)| {
        let DenialSpan { count, first, last } = denials(denied);
        RankedClient {
            rule: rule.name().to_owned(),
            client: denied.client.name().cloned(),
            id: denied.client.id(),
            shown: denied.client.to_string(),
            denied: count,
            offered,
            first,
            last,
        }
    };
    all.into_iter().map(row).collect()
}
