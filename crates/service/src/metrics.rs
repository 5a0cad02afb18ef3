//! Metrics in the formats of Prometheus, gathered when they are requested.

mod exposition;
mod gather;
mod names;
mod process;

pub use self::exposition::MetricsFormat;
pub use self::gather::{MetricSources, redis_server_label};
pub use self::process::ProcessStats;
use crate::stats::ServerCounters;

/// Returns the text of the current metrics.
pub(crate) fn write(
    counters: &ServerCounters,
    sources: MetricSources<'_>,
    format: MetricsFormat,
) -> String {
    gather::gather(counters, sources).write(format)
}
