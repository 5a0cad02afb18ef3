//! Counters that threads increment without contention.
//!
//! Each thread belongs to a shard. Each shard has a copy of the counters on cache lines of its own, which only its
//! threads write. A total is the sum of the copies.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Most shards. With more threads, several share a shard: increments get slower, and none is lost.
const MAX_SHARDS: usize = 16;

/// Number of counters on one cache line: the counters of a rule, or half a histogram.
pub(crate) const COUNTERS_PER_LINE: usize = 8;

#[derive(Debug, Default)]
#[repr(align(64))]
struct CounterLine([AtomicU64; COUNTERS_PER_LINE]);

/// Lines of counters, with a copy for each shard.
#[derive(Debug)]
pub struct ShardedCounters {
    copies: Box<[Box<[CounterLine]>]>,
}

impl ShardedCounters {
    /// Returns counters that are all zero.
    pub fn new(lines: usize) -> Self {
        let copy = || std::iter::repeat_with(CounterLine::default).take(lines).collect();
        Self { copies: std::iter::repeat_with(copy).take(shard_count()).collect() }
    }

    /// Adds to a counter in the shard of this thread. An unknown line or counter is ignored.
    #[inline]
    pub fn add(&self, line: usize, counter: usize, count: u64) {
        let copy = self.copies.get(current_shard()).and_then(|copy| copy.get(line));
        if let Some(counter) = copy.and_then(|line| line.0.get(counter)) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Resets a line to zero.
    pub(crate) fn clear(&self, line: usize) {
        for counter in self.copies.iter().filter_map(|copy| copy.get(line)).flat_map(|line| &line.0)
        {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// Returns the total of a counter.
    pub fn total(&self, line: usize, counter: usize) -> u64 {
        let copies = self.copies.iter().filter_map(|copy| copy.get(line)?.0.get(counter));
        copies.map(|counter| counter.load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// Returns the number of shards: a power of two, about one per processor.
pub(crate) fn shard_count() -> usize {
    // Computed once: the number of processors may change, the number of copies does not.
    static SHARD_COUNT: LazyLock<usize> = LazyLock::new(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        processors.next_power_of_two().min(MAX_SHARDS)
    });
    *SHARD_COUNT
}

/// Returns the shard of this thread, which is below [`shard_count`].
#[inline]
pub(crate) fn current_shard() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SHARD: usize = NEXT.fetch_add(1, Ordering::Relaxed) % shard_count();
    }
    // The thread-local is already destroyed if the thread is ending; shard 0 is used then.
    SHARD.try_with(|shard| *shard).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn increments_of_many_threads_add_up() {
        let shards = ShardedCounters::new(2);
        std::thread::scope(|scope| {
            for thread in 0..40 {
                let shards = &shards;
                scope.spawn(move || {
                    for _ in 0..1_000 {
                        shards.add(1, thread % COUNTERS_PER_LINE, 2);
                    }
                });
            }
        });
        let totals = (0..COUNTERS_PER_LINE).map(|counter| shards.total(1, counter));
        assert_eq!(totals.sum::<u64>(), 80_000);
        assert_eq!(shards.total(0, 0), 0);
    }

    #[test]
    fn unknown_counter_is_ignored() {
        let shards = ShardedCounters::new(1);
        shards.add(1, 0, 1);
        shards.add(0, COUNTERS_PER_LINE, 1);
        assert_eq!((0..COUNTERS_PER_LINE).map(|counter| shards.total(0, counter)).sum::<u64>(), 0);
    }
}
