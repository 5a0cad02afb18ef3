//! Families of labelled values as text, in the format that the client accepts.
//!
//! The two formats differ in the name of a counter's family. OpenMetrics has the suffix `_total` in the samples only, the
//! classic format also in the description. The classic format has no type `info` and no end mark.

use std::fmt::{self, Write};

use super::names::{Metric, MetricKind};
use crate::stats::latency::Histogram;

/// The labels of a write_sample, in the order of the output.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// The metrics of one moment.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    families: Vec<(Metric, Vec<(Labels, MetricValue)>)>,
}

#[derive(Debug)]
pub(crate) enum MetricValue {
    Whole(u64),
    Number(f64),
    Histogram(Histogram),
}

impl From<u64> for MetricValue {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<usize> for MetricValue {
    fn from(number: usize) -> Self {
        Self::Whole(u64::try_from(number).unwrap_or(u64::MAX))
    }
}

impl From<bool> for MetricValue {
    fn from(is: bool) -> Self {
        Self::Whole(u64::from(is))
    }
}

impl From<f64> for MetricValue {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<Histogram> for MetricValue {
    fn from(histogram: Histogram) -> Self {
        Self::Histogram(histogram)
    }
}

/// The format of the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsFormat {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus.
    Classic,
}

impl MetricsFormat {
    /// Returns OpenMetrics if an `Accept` header contains it, or else the classic format, which all clients read.
    pub fn from_accept(header: Option<&str>) -> Self {
        let named = |header: &str| {
            header
                .split(',')
                .any(|kind| kind.trim_start().starts_with("application/openmetrics-text"))
        };
        if header.is_some_and(named) { Self::OpenMetrics } else { Self::Classic }
    }

    /// Returns the media type of the format.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

impl Exposition {
    /// Adds a metric without labels.
    pub(crate) fn add(&mut self, metric: Metric, value: impl Into<MetricValue>) {
        self.families.push((metric, vec![(Labels::new(), value.into())]));
    }

    /// Adds a metric without labels if its value is known.
    pub(crate) fn add_known<V: Into<MetricValue>>(&mut self, metric: Metric, value: Option<V>) {
        if let Some(value) = value {
            self.add(metric, value);
        }
    }

    /// Adds a metric with a value for each set of labels.
    pub(crate) fn add_family<V: Into<MetricValue>>(
        &mut self,
        metric: Metric,
        rows: impl IntoIterator<Item = (Labels, V)>,
    ) {
        let rows = rows.into_iter().map(|(labels, value)| (labels, value.into()));
        self.families.push((metric, rows.collect()));
    }

    /// Returns the text of all families.
    pub(crate) fn write(self, format: MetricsFormat) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_to(&mut text, format);
        text
    }

    fn write_to(&self, text: &mut String, format: MetricsFormat) -> fmt::Result {
        for (metric, rows) in &self.families {
            let Metric { name, kind, help } = metric;
            let (suffix, type_name) = match (kind, format) {
                (MetricKind::Counter, MetricsFormat::Classic) => ("_total", "counter"),
                (MetricKind::Counter, MetricsFormat::OpenMetrics) => ("", "counter"),
                (MetricKind::Info, MetricsFormat::Classic) => ("_info", "gauge"),
                (MetricKind::Info, MetricsFormat::OpenMetrics) => ("", "info"),
                (MetricKind::Gauge, _) => ("", "gauge"),
                (MetricKind::Histogram, _) => ("", "histogram"),
            };
            writeln!(text, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {type_name}")?;
            for (labels, value) in rows {
                match (kind, value) {
                    (_, MetricValue::Histogram(histogram)) => {
                        write_histogram(text, name, labels, histogram)?;
                    }
                    (MetricKind::Counter, value) => {
                        write_sample(text, name, "_total", labels, value)?;
                    }
                    (MetricKind::Info, _) => {
                        write_sample(text, name, "_info", labels, &MetricValue::Whole(1))?;
                    }
                    (_, value) => write_sample(text, name, "", labels, value)?,
                }
            }
        }
        match format {
            MetricsFormat::OpenMetrics => writeln!(text, "# EOF"),
            MetricsFormat::Classic => Ok(()),
        }
    }
}

fn write_histogram(
    text: &mut String,
    name: &str,
    labels: &Labels,
    histogram: &Histogram,
) -> fmt::Result {
    write_sample(text, name, "_sum", labels, &MetricValue::Number(histogram.sum))?;
    write_sample(text, name, "_count", labels, &MetricValue::Whole(histogram.count()))?;
    let mut below = 0;
    for (bound, count) in &histogram.buckets {
        below += count;
        let bound = match *bound {
            f64::INFINITY => "+Inf".to_owned(),
            bound => format!("{bound:?}"),
        };
        let mut labels = labels.clone();
        labels.insert(0, ("le", bound));
        write_sample(text, name, "_bucket", &labels, &MetricValue::Whole(below))?;
    }
    Ok(())
}

fn write_sample(
    text: &mut String,
    name: &str,
    suffix: &str,
    labels: &Labels,
    value: &MetricValue,
) -> fmt::Result {
    write!(text, "{name}{suffix}")?;
    for (index, (label, content)) in labels.iter().enumerate() {
        let content = content.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        write!(text, "{}{label}=\"{content}\"", if index == 0 { '{' } else { ',' })?;
    }
    let end = if labels.is_empty() { "" } else { "}" };
    match value {
        MetricValue::Whole(number) => writeln!(text, "{end} {number}"),
        MetricValue::Number(number) => writeln!(text, "{end} {number:?}"),
        MetricValue::Histogram(histogram) => writeln!(text, "{end} {}", histogram.count()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::names;
    use super::*;

    #[test]
    fn classic_format_is_the_default() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        for (header, format) in [
            (None, MetricsFormat::Classic),
            (Some("*/*"), MetricsFormat::Classic),
            (Some("text/plain;version=0.0.4"), MetricsFormat::Classic),
            (Some(prometheus), MetricsFormat::OpenMetrics),
            (
                Some("text/plain, application/openmetrics-text; version=1.0.0"),
                MetricsFormat::OpenMetrics,
            ),
        ] {
            assert_eq!(MetricsFormat::from_accept(header), format, "{header:?}");
        }
    }

    #[test]
    fn every_kind_of_metric_is_written_with_its_labels() {
        let mut exposition = Exposition::default();
        let listener = |name: &str| vec![("listener", name.to_owned())];
        exposition
            .add_family(names::CHECKS, [(listener("http"), 3_u64), (listener("a\"b\\c\nd"), 0)]);
        exposition.add(names::READY, true);
        exposition.add_family(names::BUILD, [(vec![("version", "1".to_owned())], 1_u64)]);
        let histogram = Histogram { buckets: vec![(0.5, 2), (f64::INFINITY, 1)], sum: 1.5 };
        exposition.add_family(names::CHECK_DURATION, [(listener("http"), histogram)]);
        exposition.add_known(names::CPU, Some(2.5));
        exposition.add_known(names::RESIDENT, None::<u64>);
        let text = exposition.write(MetricsFormat::Classic);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                r#"tidegate_checks_total{listener="http"} 3"#,
                r#"tidegate_checks_total{listener="a\"b\\c\nd"} 0"#,
                "tidegate_ready 1",
                r#"tidegate_build_info{version="1"} 1"#,
                r#"tidegate_check_duration_seconds_sum{listener="http"} 1.5"#,
                r#"tidegate_check_duration_seconds_count{listener="http"} 3"#,
                r#"tidegate_check_duration_seconds_bucket{le="0.5",listener="http"} 2"#,
                r#"tidegate_check_duration_seconds_bucket{le="+Inf",listener="http"} 3"#,
                "process_cpu_seconds_total 2.5",
            ]
        );
    }

    #[test]
    fn family_names_follow_the_format() {
        let text = |format| {
            let mut exposition = Exposition::default();
            exposition.add_family(names::CHECKS, [(Labels::new(), 3_u64)]);
            exposition.add_family(names::BUILD, [(vec![("version", "1".to_owned())], 1_u64)]);
            exposition.add(names::READY, true);
            let text = exposition.write(format);
            let lines = text.lines().filter(|line| !line.starts_with("# HELP ")).map(str::to_owned);
            lines.collect::<Vec<_>>()
        };
        assert_eq!(
            text(MetricsFormat::OpenMetrics),
            [
                "# TYPE tidegate_checks counter",
                "tidegate_checks_total 3",
                "# TYPE tidegate_build info",
                r#"tidegate_build_info{version="1"} 1"#,
                "# TYPE tidegate_ready gauge",
                "tidegate_ready 1",
                "# EOF",
            ]
        );
        assert_eq!(
            text(MetricsFormat::Classic),
            [
                "# TYPE tidegate_checks_total counter",
                "tidegate_checks_total 3",
                "# TYPE tidegate_build_info gauge",
                r#"tidegate_build_info{version="1"} 1"#,
                "# TYPE tidegate_ready gauge",
                "tidegate_ready 1",
            ]
        );
    }
}
