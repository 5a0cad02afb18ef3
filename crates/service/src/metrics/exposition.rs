//! Families of labelled values as text, in the format that the client accepts.
//!
//! The two formats differ in the name of a counter's family: OpenMetrics leaves the suffix `_total` to the samples, the
//! classic format has it in the description too. The classic format has no type `info` and no end mark.

use std::fmt::{self, Write};

use super::names::{Kind, Metric};
use crate::stats::latency::Histogram;

/// What labels say, in their order.
pub(crate) type Labels = Vec<(&'static str, String)>;

/// The metrics of one moment.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    families: Vec<(Metric, Vec<(Labels, Value)>)>,
}

#[derive(Debug)]
pub(crate) enum Value {
    Whole(u64),
    Number(f64),
    Histogram(Histogram),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Whole(number)
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Self {
        Self::Whole(u64::try_from(number).unwrap_or(u64::MAX))
    }
}

impl From<bool> for Value {
    fn from(is: bool) -> Self {
        Self::Whole(u64::from(is))
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Self::Number(number)
    }
}

impl From<Histogram> for Value {
    fn from(histogram: Histogram) -> Self {
        Self::Histogram(histogram)
    }
}

/// The formats that Prometheus and its kin ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus.
    Classic,
}

impl Format {
    /// What an `Accept` header asks for: OpenMetrics if it is named, else what everybody reads.
    pub fn accepted(header: Option<&str>) -> Self {
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
    pub(crate) fn one(&mut self, metric: Metric, value: impl Into<Value>) {
        self.families.push((metric, vec![(Labels::new(), value.into())]));
    }

    /// Adds a metric without labels if its value is known.
    pub(crate) fn known<V: Into<Value>>(&mut self, metric: Metric, value: Option<V>) {
        if let Some(value) = value {
            self.one(metric, value);
        }
    }

    /// Adds a metric with a value for each set of labels.
    pub(crate) fn family<V: Into<Value>>(
        &mut self,
        metric: Metric,
        rows: impl IntoIterator<Item = (Labels, V)>,
    ) {
        let rows = rows.into_iter().map(|(labels, value)| (labels, value.into()));
        self.families.push((metric, rows.collect()));
    }

    /// Returns the text of all families.
    pub(crate) fn write(self, format: Format) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write_to(&mut text, format);
        text
    }

    fn write_to(&self, text: &mut String, format: Format) -> fmt::Result {
        for (metric, rows) in &self.families {
            let Metric { name, kind, help } = metric;
            let (suffix, word) = match (kind, format) {
                (Kind::Counter, Format::Classic) => ("_total", "counter"),
                (Kind::Counter, Format::OpenMetrics) => ("", "counter"),
                (Kind::Info, Format::Classic) => ("_info", "gauge"),
                (Kind::Info, Format::OpenMetrics) => ("", "info"),
                (Kind::Gauge, _) => ("", "gauge"),
                (Kind::Histogram, _) => ("", "histogram"),
            };
            writeln!(text, "# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {word}")?;
            for (labels, value) in rows {
                match (kind, value) {
                    (_, Value::Histogram(histogram)) => {
                        write_histogram(text, name, labels, histogram)?;
                    }
                    (Kind::Counter, value) => sample(text, name, "_total", labels, value)?,
                    (Kind::Info, _) => sample(text, name, "_info", labels, &Value::Whole(1))?,
                    (_, value) => sample(text, name, "", labels, value)?,
                }
            }
        }
        match format {
            Format::OpenMetrics => writeln!(text, "# EOF"),
            Format::Classic => Ok(()),
        }
    }
}

fn write_histogram(
    text: &mut String,
    name: &str,
    labels: &Labels,
    histogram: &Histogram,
) -> fmt::Result {
    sample(text, name, "_sum", labels, &Value::Number(histogram.sum))?;
    sample(text, name, "_count", labels, &Value::Whole(histogram.count()))?;
    let mut below = 0;
    for (bound, count) in &histogram.buckets {
        below += count;
        let bound = match *bound {
            f64::INFINITY => "+Inf".to_owned(),
            bound => format!("{bound:?}"),
        };
        let mut labels = labels.clone();
        labels.insert(0, ("le", bound));
        sample(text, name, "_bucket", &labels, &Value::Whole(below))?;
    }
    Ok(())
}

fn sample(
    text: &mut String,
    name: &str,
    suffix: &str,
    labels: &Labels,
    value: &Value,
) -> fmt::Result {
    write!(text, "{name}{suffix}")?;
    for (place, (label, content)) in labels.iter().enumerate() {
        let content = content.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        write!(text, "{}{label}=\"{content}\"", if place == 0 { '{' } else { ',' })?;
    }
    let end = if labels.is_empty() { "" } else { "}" };
    match value {
        Value::Whole(number) => writeln!(text, "{end} {number}"),
        Value::Number(number) => writeln!(text, "{end} {number:?}"),
        Value::Histogram(histogram) => writeln!(text, "{end} {}", histogram.count()),
    }
}

#[cfg(test)]
mod tests {
    use super::super::names;
    use super::*;

    #[test]
    fn the_older_format_is_for_who_does_not_ask() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3";
        for (header, format) in [
            (None, Format::Classic),
            (Some("*/*"), Format::Classic),
            (Some("text/plain;version=0.0.4"), Format::Classic),
            (Some(prometheus), Format::OpenMetrics),
            (Some("text/plain, application/openmetrics-text; version=1.0.0"), Format::OpenMetrics),
        ] {
            assert_eq!(Format::accepted(header), format, "{header:?}");
        }
    }

    #[test]
    fn every_kind_is_written_with_its_labels() {
        let mut exposition = Exposition::default();
        let listener = |name: &str| vec![("listener", name.to_owned())];
        exposition.family(names::CHECKS, [(listener("http"), 3_u64), (listener("a\"b\\c\nd"), 0)]);
        exposition.one(names::READY, true);
        exposition.family(names::BUILD, [(vec![("version", "1".to_owned())], 1_u64)]);
        let histogram = Histogram { buckets: vec![(0.5, 2), (f64::INFINITY, 1)], sum: 1.5 };
        exposition.family(names::CHECK_DURATION, [(listener("http"), histogram)]);
        exposition.known(names::CPU, Some(2.5));
        exposition.known(names::RESIDENT, None::<u64>);
        let text = exposition.write(Format::Classic);
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
    fn families_are_named_as_each_format_has_them() {
        let text = |format| {
            let mut exposition = Exposition::default();
            exposition.family(names::CHECKS, [(Labels::new(), 3_u64)]);
            exposition.family(names::BUILD, [(vec![("version", "1".to_owned())], 1_u64)]);
            exposition.one(names::READY, true);
            let text = exposition.write(format);
            let lines = text.lines().filter(|line| !line.starts_with("# HELP ")).map(str::to_owned);
            lines.collect::<Vec<_>>()
        };
        assert_eq!(
            text(Format::OpenMetrics),
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
            text(Format::Classic),
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
