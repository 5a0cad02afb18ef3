//! How long things took: a histogram that is cheap to add to.

use tidegate_core::Span;

use super::shards::{PER_LINE, Shards};

/// The upper ends of the buckets in microseconds; above the last there is one more. Two lines of
/// counters hold these, the one above and the sum.
pub(crate) const BOUNDS: [u64; 14] =
    [10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 1_000_000];

const LINES: usize = 2;
const SUM: usize = BOUNDS.len() + 1;
const _: () = assert!(SUM < LINES * PER_LINE);

/// One histogram for each of several kinds of a thing.
#[derive(Debug)]
pub(crate) struct Latency {
    shards: Shards,
}

impl Latency {
    pub(crate) fn new(kinds: usize) -> Self {
        Self { shards: Shards::new(kinds * LINES) }
    }

    /// Adds `count` things that took `span` each.
    #[inline]
    pub(crate) fn add(&self, kind: usize, span: Span, count: u64) {
        let micros = span.as_micros();
        let bucket = BOUNDS.partition_point(|bound| *bound < micros);
        self.count(kind, bucket, count);
        self.count(kind, SUM, micros.saturating_mul(count));
    }

    #[inline]
    fn count(&self, kind: usize, counter: usize, count: u64) {
        self.shards.add(kind * LINES + counter / PER_LINE, counter % PER_LINE, count);
    }

    fn total(&self, kind: usize, counter: usize) -> u64 {
        self.shards.total(kind * LINES + counter / PER_LINE, counter % PER_LINE)
    }

    /// What every bucket holds of all `kinds`, the one above all bounds last.
    pub(crate) fn buckets(&self, kinds: usize) -> [u64; BOUNDS.len() + 1] {
        std::array::from_fn(|bucket| (0..kinds).map(|kind| self.total(kind, bucket)).sum())
    }

    pub(crate) fn read(&self, kind: usize) -> Histogram {
        let counts = (0..=BOUNDS.len()).map(|bucket| self.total(kind, bucket));
        Histogram::of(&BOUNDS, counts, self.total(kind, SUM))
    }
}

/// A histogram as it is told: in seconds, each bucket with its own count.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Histogram {
    pub(crate) buckets: Vec<(f64, u64)>,
    pub(crate) sum: f64,
}

impl Histogram {
    /// From bounds and a sum in microseconds. The last count is what lies above all bounds.
    pub(crate) fn of(bounds: &[u64], counts: impl IntoIterator<Item = u64>, sum: u64) -> Self {
        let ends = bounds.iter().map(|bound| seconds(*bound)).chain([f64::INFINITY]);
        Self { buckets: ends.zip(counts).collect(), sum: seconds(sum) }
    }

    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }
}

/// Microseconds as Prometheus wants them. Sums beyond 2^53 lose their last digits, which no rate shows.
pub(crate) fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_what_took_at_most_its_bound() {
        let latency = Latency::new(2);
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
