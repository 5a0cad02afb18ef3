//! Metrics in the formats of Prometheus, gathered when they are requested.

mod exposition;
mod gather;
mod names;
mod process;

pub use self::exposition::Format;
pub use self::gather::{Sources, short};
pub use self::process::Process;
use crate::stats::ServerCounters;

/// Writes the metrics of this moment.
pub(crate) fn write(counters: &ServerCounters, sources: Sources<'_>, format: Format) -> String {
    gather::gather(counters, sources).write(format)
}
