//! Metrics as they are told: families of labelled values, written in the format that was asked for.

use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::classic;
use super::latency::Histogram;
use super::names::{Kind, Metric};

/// What labels say, in their order.
pub(super) type Labels = Vec<(&'static str, String)>;

/// The metrics of one moment.
#[derive(Debug, Default)]
pub(super) struct Exposition {
    families: Vec<(Metric, Vec<(Labels, Value)>)>,
}

#[derive(Debug)]
pub(super) enum Value {
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
pub(crate) enum Format {
    OpenMetrics,
    Classic,
}

impl Format {
    /// What an `Accept` header asks for: OpenMetrics if it is named, else what everybody reads.
    pub(crate) fn accepted(header: Option<&str>) -> Self {
        let named = |header: &str| {
            header
                .split(',')
                .any(|kind| kind.trim_start().starts_with("application/openmetrics-text"))
        };
        if header.is_some_and(named) { Self::OpenMetrics } else { Self::Classic }
    }

    pub(crate) const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Classic => classic::TYPE,
        }
    }
}

impl Exposition {
    /// Adds a metric without labels.
    pub(super) fn one(&mut self, metric: Metric, value: impl Into<Value>) {
        self.families.push((metric, vec![(Labels::new(), value.into())]));
    }

    /// Adds a metric without labels if its value is known.
    pub(super) fn known<V: Into<Value>>(&mut self, metric: Metric, value: Option<V>) {
        if let Some(value) = value {
            self.one(metric, value);
        }
    }

    /// Adds a metric with a value for each set of labels.
    pub(super) fn family<V: Into<Value>>(
        &mut self,
        metric: Metric,
        rows: impl IntoIterator<Item = (Labels, V)>,
    ) {
        let rows = rows.into_iter().map(|(labels, value)| (labels, value.into()));
        self.families.push((metric, rows.collect()));
    }

    /// The text.
    pub(super) fn write(self, format: Format) -> String {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut text = String::new();
        // A string takes whatever is written to it.
        let _ = text::encode(&mut text, &registry);
        match format {
            Format::OpenMetrics => text,
            Format::Classic => classic::of(&text),
        }
    }
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for (metric, rows) in &self.families {
            let kind = match metric.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
                Kind::Info => MetricType::Info,
            };
            let mut family = encoder.encode_descriptor(metric.name, metric.help, None, kind)?;
            for (labels, value) in rows {
                match metric.kind {
                    Kind::Info => family.encode_info(labels)?,
                    kind if labels.is_empty() => encode(&mut family, kind, value)?,
                    kind => encode(&mut family.encode_family(labels)?, kind, value)?,
                }
            }
        }
        Ok(())
    }
}

fn encode(encoder: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Whole(number)) => {
            encoder.encode_counter::<NoLabelSet, u64, u64>(number, None)
        }
        (Kind::Counter, Value::Number(number)) => {
            encoder.encode_counter::<NoLabelSet, f64, f64>(number, None)
        }
        (_, Value::Whole(number)) => encoder.encode_gauge(number),
        (_, Value::Number(number)) => encoder.encode_gauge(number),
        (_, Value::Histogram(histogram)) => {
            let Histogram { buckets, sum } = histogram;
            encoder.encode_histogram::<NoLabelSet>(*sum, histogram.count(), buckets, None)
        }
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
        let door = |name: &str| vec![("door", name.to_owned())];
        exposition.family(names::CHECKS, [(door("http"), 3_u64), (door("a\"b\\c\nd"), 0)]);
        exposition.one(names::READY, true);
        exposition.family(names::BUILD, [(vec![("version", "1".to_owned())], 1_u64)]);
        let histogram = Histogram { buckets: vec![(0.5, 2), (f64::INFINITY, 1)], sum: 1.5 };
        exposition.family(names::CHECK_DURATION, [(door("http"), histogram)]);
        exposition.known(names::CPU, Some(2.5));
        exposition.known(names::RESIDENT, None::<u64>);
        let text = exposition.write(Format::Classic);
        let samples: Vec<&str> = text.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            samples,
            [
                r#"tidegate_checks_total{door="http"} 3"#,
                r#"tidegate_checks_total{door="a\"b\\c\nd"} 0"#,
                "tidegate_ready 1",
                r#"tidegate_build_info{version="1"} 1"#,
                r#"tidegate_check_duration_seconds_sum{door="http"} 1.5"#,
                r#"tidegate_check_duration_seconds_count{door="http"} 3"#,
                r#"tidegate_check_duration_seconds_bucket{le="0.5",door="http"} 2"#,
                r#"tidegate_check_duration_seconds_bucket{le="+Inf",door="http"} 3"#,
                "process_cpu_seconds_total 2.5",
            ]
        );
    }
}
