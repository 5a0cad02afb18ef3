//! Histograms of durations, with counters by thread.

use tidegate_core::Span;

use super::shards::{COUNTERS_PER_LINE, ShardedCounters};

/// The upper bounds of the buckets in microseconds. One more bucket is above the last bound. Two lines of counters hold
/// all buckets and the sum.
pub(crate) const BOUNDS_MICROS: [u64; 14] =
    [10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 1_000_000];

const LINES_PER_HISTOGRAM: usize = 2;
/// Index of the counter that holds the sum of all durations.
const SUM_COUNTER: usize = BOUNDS_MICROS.len() + 1;
const _: () = assert!(SUM_COUNTER < LINES_PER_HISTOGRAM * COUNTERS_PER_LINE);

/// Several histograms, one for each `kind`.
#[derive(Debug)]
pub(crate) struct LatencyHistograms {
    shards: ShardedCounters,
}

impl LatencyHistograms {
    pub(crate) fn new(kinds: usize) -> Self {
        Self { shards: ShardedCounters::new(kinds * LINES_PER_HISTOGRAM) }
    }

    /// Adds `count` durations of `span` each.
    #[inline]
    pub(crate) fn add(&self, kind: usize, span: Span, count: u64) {
        let micros = span.as_micros();
        let bucket = BOUNDS_MICROS.partition_point(|bound| *bound < micros);
        self.count(kind, bucket, count);
        self.count(kind, SUM_COUNTER, micros.saturating_mul(count));
    }

    #[inline]
    fn count(&self, kind: usize, counter: usize, count: u64) {
        self.shards.add(
            kind * LINES_PER_HISTOGRAM + counter / COUNTERS_PER_LINE,
            counter % COUNTERS_PER_LINE,
            count,
        );
    }

    fn total(&self, kind: usize, counter: usize) -> u64 {
        self.shards.total(
            kind * LINES_PER_HISTOGRAM + counter / COUNTERS_PER_LINE,
            counter % COUNTERS_PER_LINE,
        )
    }

    /// Returns the counts of every bucket, summed over the first `kinds` histograms. The bucket above all bounds is last.
    pub(crate) fn buckets(&self, kinds: usize) -> [u64; BOUNDS_MICROS.len() + 1] {
        std::array::from_fn(|bucket| (0..kinds).map(|kind| self.total(kind, bucket)).sum())
    }

    /// Returns the histogram of one kind.
    pub(crate) fn read(&self, kind: usize) -> Histogram {
        let counts = (0..=BOUNDS_MICROS.len()).map(|bucket| self.total(kind, bucket));
        Histogram::from_micros(&BOUNDS_MICROS, counts, self.total(kind, SUM_COUNTER))
    }
}

/// A histogram in seconds. The buckets are not cumulative: each has its upper bound and its own count.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Histogram {
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) sum: f64,
}

impl Histogram {
    /// Returns a histogram from bounds and a sum in microseconds. The last count is that of the bucket above all bounds.
    pub(crate) fn from_micros(
        bounds: &[u64],
        counts: impl IntoIterator<Item = u64>,
        sum: u64,
    ) -> Self {
        let ends = bounds.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
        Self { buckets: ends.zip(counts).collect(), sum: seconds(sum) }
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

/// Converts microseconds to seconds, the unit of Prometheus. Sums above 2^53 lose their last digits, which makes no
/// difference to a rate.
pub(crate) fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bucket_counts_durations_up_to_its_bound() {
        let latency = LatencyHistograms::new(2);
        for micros in [0, 10, 11, 25, 10_000, 10_001, 1_000_000, 1_000_001, 60_000_000] {
            latency.add(1, Span::from_micros(micros), 1);
        }
        latency.add(1, Span::from_micros(3), 4);
        let read = latency.read(1);
        let filled: Vec<(f64, u64)> =
            read.buckets.iter().copied().filter(|(_, count)| *count > 0).collect();
        let expected =
            [(0.00001, 6), (0.000025, 2), (0.01, 1), (0.025, 1), (1.0, 1), (f64::INFINITY, 2)];
        assert_eq!(filled, expected);
        assert_eq!(read.count(), 13);
        assert_eq!(read.sum, seconds(62_020_060));
        assert_eq!(latency.read(0).count(), 0);
    }
}
