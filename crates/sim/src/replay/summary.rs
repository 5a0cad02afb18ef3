//! From the state of a replay to its report.

use std::cmp::Reverse;

use tidegate_core::Timestamp;
use tidegate_rules::{Mode, Rule};

use crate::log::LogSummary;
use crate::replay::clients::{DenialSpan, DeniedClient};
use crate::replay::report::{
    ChangedByRule, ChangedDecisions, Differences, LogInfo, RankedClient, ReplayOutcome,
    ReplayReport, ReplayTimeline, RuleOutcome, TimedCounts,
};
use crate::replay::rule_set_run::{RequestCounts, RuleSetRun};
use crate::replay::{Replay, ReplayState};

/// Returns the report of a replay.
pub(crate) fn summarize(replay: Replay, course: ReplayState, told: LogSummary) -> ReplayReport {
    let (from, to) = course.ends.unwrap_or((Timestamp::EPOCH, Timestamp::EPOCH));
    let log = LogInfo {
        file: replay.log,
        lines: told.lines,
        requests: course.requests,
        bad: told.bad,
        bad_lines: told.shown,
        late: course.late,
        from,
        to,
    };
    let title = format!("replay: what {} makes of {}", replay.rules.0, log.file);
    let outcome = course.outcome(replay.rules.0, &course.new, replay.top);
    let old = course.old.as_ref();
    let against = replay.against.zip(old);
    let against = against.map(|((name, _), old)| course.outcome(name, old, replay.top));
    let differences = old.map(|old| Differences {
        newly_denied: course.newly(&course.new, course.newly.0, 0, replay.top),
        newly_admitted: course.newly(old, course.newly.1, 1, replay.top),
    });
    let mut notes = vec!["every line is offered, whatever was answered to it".to_owned()];
    let when = &outcome.counts.timeline;
    notes.extend(when.peak().map(|peak| format!("denied most {peak}")));
    if let Some(Differences { newly_denied, newly_admitted }) = &differences {
        for (newly, how) in [(newly_denied, "denied"), (newly_admitted, "admitted")] {
            let most = when.most(&newly.timeline);
            notes.extend(most.map(|most| format!("newly {how} most {most}")));
        }
    }
    if log.late > 0 {
        notes.push(format!(
            "{} lines are far from their place in time, and count as of the instant before them",
            log.late
        ));
    }
    let overflowed = course.new.overflowed() + old.map_or(0, RuleSetRun::overflowed);
    if overflowed > 0 {
        notes.push(format!("{overflowed} requests met a full store, and shared buckets"));
    }
    ReplayReport { title, log, outcome, against, differences, notes }
}

impl ReplayState {
    fn outcome(&self, rules: String, side: &RuleSetRun, top: usize) -> ReplayOutcome {
        let set = side.set().rules().iter().zip(&side.rules).enumerate();
        let met = set.filter(|(_, (_, ruled))| ruled.counts.offered > 0);
        let by_rule = met.map(|(place, (rule, ruled))| RuleOutcome {
            rule: rule.name().to_owned(),
            shadow: rule.mode() == Mode::Shadow,
            counts: self.tallied(ruled.counts, side.series_of(Some(place))),
            decided: ruled.decided,
            blocked: ruled.blocked,
            clients: (!rule.per().is_empty()).then(|| ruled.clients.len()),
            clients_denied: ruled.clients.denied().count(),
        });
        ReplayOutcome {
            rules,
            counts: self.tallied(side.all, side.series_of(None)),
            by_rule: by_rule.collect(),
            denied_most: ranked(side, top, |denied| denied.all),
        }
    }

    fn tallied(&self, counts: RequestCounts, series: usize) -> TimedCounts {
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
        side: &RuleSetRun,
        requests: u64,
        series: usize,
        top: usize,
    ) -> ChangedDecisions {
        let rules = side.set().rules().iter().zip(&side.rules);
        let by_rule =
            rules.filter(|(_, ruled)| ruled.alone > 0).map(|(rule, ruled)| ChangedByRule {
                rule: rule.name().to_owned(),
                requests: ruled.alone,
                clients: ruled
                    .clients
                    .denied()
                    .filter(|(_, denied)| denied.alone.count > 0)
                    .count(),
            });
        ChangedDecisions {
            requests,
            by_rule: by_rule.collect(),
            clients: ranked(side, top, |denied| denied.alone),
            timeline: self.timeline.counts(self.newly_at + series),
        }
    }
}

/// Returns the clients with the highest counts, at most so many.
fn ranked(
    side: &RuleSetRun,
    top: usize,
    what: impl Fn(&DeniedClient) -> DenialSpan,
) -> Vec<RankedClient> {
    let rules = side.set().rules().iter().zip(&side.rules).enumerate();
    let clients = rules.flat_map(|(place, (rule, ruled))| {
        ruled.clients.denied().map(move |(offered, denied)| (place, rule, offered, denied))
    });
    let mut all: Vec<_> = clients.filter(|(.., denied)| what(denied).count > 0).collect();
    all.sort_by_cached_key(|(place, _, _, denied)| {
        let DenialSpan { count, first, .. } = what(denied);
        (Reverse(count), *place, first, denied.who.to_string())
    });
    all.truncate(top);
    let row = |(_, rule, offered, denied): (usize, &Rule, u64, &DeniedClient)| {
        let DenialSpan { count, first, last } = what(denied);
        RankedClient {
            rule: rule.name().to_owned(),
            client: denied.who.name().cloned(),
            id: denied.who.id(),
            shown: denied.who.to_string(),
            denied: count,
            offered,
            first,
            last,
        }
    };
    all.into_iter().map(row).collect()
}
