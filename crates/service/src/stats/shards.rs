//! Counters that threads add to without meeting each other.
//!
//! Each thread has a place, and each place a copy of the counters on cache lines of its own. A copy is
//! only ever written by the threads of its place; who wants a total adds the copies up.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Most copies; threads beyond share them, which costs time and no counts.
const MOST: usize = 16;

/// Counters that belong together, on one cache line: of a rule, or half a histogram.
pub(crate) const PER_LINE: usize = 8;

#[derive(Debug, Default)]
#[repr(align(64))]
struct Line([AtomicU64; PER_LINE]);

/// A number of lines for each place.
#[derive(Debug)]
pub struct Shards {
    copies: Box<[Box<[Line]>]>,
}

impl Shards {
    /// All zero.
    pub fn new(lines: usize) -> Self {
        let copy = || std::iter::repeat_with(Line::default).take(lines).collect();
        Self { copies: std::iter::repeat_with(copy).take(places()).collect() }
    }

    /// Adds to a counter of this thread's copy. A line or counter that is not there counts nothing.
    #[inline]
    pub fn add(&self, line: usize, counter: usize, count: u64) {
        let copy = self.copies.get(place()).and_then(|copy| copy.get(line));
        if let Some(counter) = copy.and_then(|line| line.0.get(counter)) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// Begins a line anew.
    pub(crate) fn clear(&self, line: usize) {
        for counter in self.copies.iter().filter_map(|copy| copy.get(line)).flat_map(|line| &line.0)
        {
            counter.store(0, Ordering::Relaxed);
        }
    }

    /// A counter's total.
    pub fn total(&self, line: usize, counter: usize) -> u64 {
        let copies = self.copies.iter().filter_map(|copy| copy.get(line)?.0.get(counter));
        copies.map(|counter| counter.load(Ordering::Relaxed)).fold(0, u64::wrapping_add)
    }
}

/// How many places there are: a power of two, about one per processor.
pub(crate) fn places() -> usize {
    // Asked once: how many processors there are may change, the copies do not.
    static PLACES: LazyLock<usize> = LazyLock::new(|| {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        processors.next_power_of_two().min(MOST)
    });
    *PLACES
}

/// This thread's place, below [`places`].
#[inline]
pub(crate) fn place() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static PLACE: usize = NEXT.fetch_add(1, Ordering::Relaxed) % places();
    }
    // A thread that is ending has no place any more, and takes the first.
    PLACE.try_with(|place| *place).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_many_threads_add_is_all_there() {
        let shards = Shards::new(2);
        std::thread::scope(|scope| {
            for thread in 0..40 {
                let shards = &shards;
                scope.spawn(move || {
                    for _ in 0..1_000 {
                        shards.add(1, thread % PER_LINE, 2);
                    }
                });
            }
        });
        let totals = (0..PER_LINE).map(|counter| shards.total(1, counter));
        assert_eq!(totals.sum::<u64>(), 80_000);
        assert_eq!(shards.total(0, 0), 0);
    }

    #[test]
    fn a_counter_that_is_not_there_counts_nothing() {
        let shards = Shards::new(1);
        shards.add(1, 0, 1);
        shards.add(0, PER_LINE, 1);
        assert_eq!((0..PER_LINE).map(|counter| shards.total(0, counter)).sum::<u64>(), 0);
    }
}
