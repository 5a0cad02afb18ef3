//! The report of a load, as text and in JSON.

use std::collections::BTreeMap;
use std::fmt;

use hdrhistogram::Histogram;
use serde::Serialize;
use tidegate_core::{Quota, Span};

use crate::run::LoadPlan;
use crate::stats::LoadStats;

/// Width of the longest bar in characters.
const BAR_WIDTH: u64 = 40;

/// The report of a load.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadReport {
    target: String,
    listener: &'static str,
    connections: usize,
    /// Time from the start to the last reply.
    seconds: f64,
    /// Set if it was interrupted.
    interrupted: bool,
    sent: u64,
    /// Decisions per second.
    per_second: f64,
    allowed: u64,
    denied: u64,
    unavailable: u64,
    failed: u64,
    /// Failures by their cause.
    errors: BTreeMap<String, u64>,
    /// Latencies of decisions; with a rate, from the time at which the request was due.
    latency_micros: Option<LatencyPercentiles>,
    #[serde(skip_serializing_if = "Option::is_none")]
    schedule: Option<ScheduleReport>,
    histogram: Vec<HistogramBar>,
}

/// Deviations from the schedule.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct ScheduleReport {
    rate: String,
    /// Requests that were due.
    due: u64,
    /// Requests that were due and never sent.
    unsent: u64,
    /// Delays of sent requests.
    behind_micros: Option<LatencyPercentiles>,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct LatencyPercentiles {
    p50: u64,
    p90: u64,
    p99: u64,
    #[serde(rename = "p99.9")]
    p999: u64,
    max: u64,
}

/// Requests that took less than this, and no less than the bar before it.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct HistogramBar {
    below_micros: u64,
    count: u64,
}

impl LatencyPercentiles {
    /// Returns the percentiles; `None` of an empty histogram.
    fn of(histogram: &Histogram<u64>) -> Option<Self> {
        let max = histogram.max();
        let at = |part| histogram.value_at_quantile(part).min(max);
        let found = Self { p50: at(0.5), p90: at(0.9), p99: at(0.99), p999: at(0.999), max };
        (!histogram.is_empty()).then_some(found)
    }

    fn all(self) -> [(&'static str, u64); 5] {
        let Self { p50, p90, p99, p999, max } = self;
        [("p50", p50), ("p90", p90), ("p99", p99), ("p99.9", p999), ("max", max)]
    }
}

impl LoadReport {
    pub(crate) fn new(
        plan: &LoadPlan,
        stats: &LoadStats,
        duration: Span,
        due: Option<u64>,
        interrupted: bool,
    ) -> Self {
        let seconds = duration.as_micros() as f64 / 1e6;
        let schedule = plan.rate.zip(due).map(|(rate, due)| ScheduleReport {
            rate: format_rate(rate),
            due,
            unsent: due.saturating_sub(stats.sent),
            behind_micros: LatencyPercentiles::of(stats.late()),
        });
        Self {
            target: plan.target.url().to_owned(),
            listener: plan.target.listener().name(),
            connections: plan.connections,
            seconds,
            interrupted,
            sent: stats.sent,
            per_second: if seconds > 0.0 { stats.decided() as f64 / seconds } else { 0.0 },
            allowed: stats.allowed,
            denied: stats.denied,
            unavailable: stats.unavailable,
            failed: stats.failures(),
            errors: stats.failed.clone(),
            latency_micros: LatencyPercentiles::of(stats.latency()),
            schedule,
            histogram: bars(stats.latency()),
        }
    }

    /// Returns whether anything was decided.
    #[must_use]
    pub fn has_measured(&self) -> bool {
        self.latency_micros.is_some()
    }
}

/// Writes a rate: `5000 per second`, `10 per 1m`.
fn format_rate(rate: Quota) -> String {
    match rate.window() {
        Span::SECOND => format!("{} per second", rate.amount()),
        window => format!("{} per {window}", rate.amount()),
    }
}

/// Returns the bars from the first to the last that is not empty, each about twice as wide as the one before.
fn bars(histogram: &Histogram<u64>) -> Vec<HistogramBar> {
    let mut bars: Vec<HistogramBar> = Vec::new();
    for step in histogram.iter_recorded() {
        let micros = histogram.lowest_equivalent(step.value_iterated_to());
        let mut end = bars.last().map_or(1, |bar| bar.below_micros);
        while end <= micros {
            end = next_bound(end);
            if !bars.is_empty() {
                bars.push(HistogramBar { below_micros: end, count: 0 });
            }
        }
        match bars.last_mut() {
            Some(bar) => bar.count += step.count_at_value(),
            None => bars.push(HistogramBar { below_micros: end, count: step.count_at_value() }),
        }
    }
    bars
}

/// Returns the next of 1, 2, 5, 10, 20, 50 and so on.
fn next_bound(end: u64) -> u64 {
    match end / 10_u64.pow(end.ilog10()) {
        2 => end / 2 * 5,
        _ => end * 2,
    }
}

/// Writes a time: `85 us`, `1.25 ms`, `2.50 s`.
fn format_micros(micros: u64) -> String {
    match micros {
        0..1_000 => format!("{micros} us"),
        1_000..1_000_000 => format!("{:.2} ms", micros as f64 / 1e3),
        _ => format!("{:.2} s", micros as f64 / 1e6),
    }
}

impl fmt::Display for LoadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let loop_kind = match &self.schedule {
            Some(schedule) => schedule.rate.as_str(),
            None => "as fast as it answers",
        };
        let (target, connections) = (&self.target, self.connections);
        let connections = match connections {
            1 => "1 connection".to_owned(),
            count => format!("{count} connections"),
        };
        writeln!(f, "{target}, {connections}, {loop_kind}, {:.2} s", self.seconds)?;
        if self.interrupted {
            writeln!(f, "ended before its time")?;
        }
        writeln!(f)?;
        let mut line = |name: &str, count: u64| {
            let part = 100.0 * count as f64 / self.sent.max(1) as f64;
            writeln!(f, "{name:<12}{count:>10}  {part:>5.1} %")
        };
        line("allowed", self.allowed)?;
        line("denied", self.denied)?;
        line("unavailable", self.unavailable)?;
        line("failed", self.failed)?;
        writeln!(f, "{:<12}{:>10}  {:.1} decided per second", "sent", self.sent, self.per_second)?;
        for (error, count) in &self.errors {
            writeln!(f, "  {count} x {error}")?;
        }
        let mut table = vec![("latency", self.latency_micros)];
        table.extend(self.schedule.as_ref().map(|schedule| ("behind", schedule.behind_micros)));
        let mut heading = true;
        for (name, percentiles) in table {
            let Some(percentiles) = percentiles else { continue };
            if std::mem::take(&mut heading) {
                write!(f, "\n{:<10}", "")?;
                percentiles.all().iter().try_for_each(|(name, _)| write!(f, "{name:>12}"))?;
                writeln!(f)?;
            }
            write!(f, "{name:<10}")?;
            let mut cells = percentiles.all().into_iter();
            cells.try_for_each(|(_, micros)| write!(f, "{:>12}", format_micros(micros)))?;
            writeln!(f)?;
        }
        if let Some(ScheduleReport { due, unsent, .. }) = &self.schedule {
            writeln!(f, "\nof {due} requests that were due, {unsent} were never sent")?;
        }
        let max_count = self.histogram.iter().map(|bar| bar.count).max().unwrap_or_default();
        if max_count > 0 {
            writeln!(f)?;
        }
        for bar in &self.histogram {
            let length = (bar.count * BAR_WIDTH).div_ceil(max_count.max(1));
            let drawn = "#".repeat(usize::try_from(length).unwrap_or_default());
            let below = format_micros(bar.below_micros);
            writeln!(f, "{}", format!("  < {below:>9} {:>9}  {drawn}", bar.count).trim_end())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_latency_is_in_one_bar() {
        let mut histogram = Histogram::new(3).unwrap();
        for micros in [0, 1, 4, 5, 9, 10, 99, 100, 12_345, 99_999, 100_000, 7_654_321] {
            histogram.record(micros).unwrap();
        }
        let bars = bars(&histogram);
        assert_eq!(bars.iter().map(|bar| bar.count).sum::<u64>(), 12);
        assert_eq!(bars.first().unwrap().below_micros, 1);
        assert_eq!(bars.last().unwrap().below_micros, 10_000_000);
    }

    #[test]
    fn time_is_written_in_microseconds_milliseconds_or_seconds() {
        let texts = [85, 1_250, 2_500_000].map(format_micros);
        assert_eq!(texts, ["85 us", "1.25 ms", "2.50 s"]);
    }
}
