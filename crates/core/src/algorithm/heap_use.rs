//! The memory that a state allocates.

use crate::algorithm::State;

/// Bytes that a state allocates beside its own size: the entries of a log, or slots in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeapUse {
    /// Bytes that are allocated.
    pub bytes: usize,
    /// Bytes that the next admission adds; 0 if it fits into the allocated ones.
    pub growth: usize,
}

impl HeapUse {
    /// Elements of the first allocation of the standard library's collections. Later ones double it.
    const MIN_CAPACITY: usize = 4;

    /// Returns the use of a collection with `len` elements of type `T`.
    pub(crate) fn of<T>(len: usize, capacity: usize) -> Self {
        let growth = if len < capacity { 0 } else { capacity.max(Self::MIN_CAPACITY) };
        Self { bytes: capacity * size_of::<T>(), growth: growth * size_of::<T>() }
    }
}

impl State {
    /// Returns the memory that the state allocates.
    #[must_use]
    #[inline]
    pub fn heap_use(&self) -> HeapUse {
        match self {
            Self::Log(log) => log.heap_use(),
            Self::Slots(slots) => slots.heap_use(),
            Self::Tokens(_) | Self::Queue(_) | Self::Fixed(_) | Self::Sliding(_) => {
                HeapUse::default()
            }
        }
    }

    /// Releases memory that the state allocated earlier and does not need now.
    pub fn shrink(&mut self) {
        match self {
            Self::Log(log) => log.shrink(),
            Self::Slots(slots) => slots.shrink(),
            Self::Tokens(_) | Self::Queue(_) | Self::Fixed(_) | Self::Sliding(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Algorithm, Limit, Quota, Span, Timestamp};

    #[test]
    fn growth_is_the_difference_that_an_admission_makes() {
        let limits = [
            Limit::new(Algorithm::SlidingLog, Quota::per_minute(1_000)),
            Limit::new(Algorithm::Concurrency { hold: Span::MINUTE }, Quota::in_flight(1_000)),
            Limit::new(Algorithm::TokenBucket, Quota::per_minute(1_000)),
        ];
        for limit in limits.map(Result::unwrap) {
            let mut state = limit.fresh();
            for micros in 1..=1_000 {
                let before = state.heap_use();
                limit.charge(&mut state, Timestamp::from_micros(micros), 1);
                assert_eq!(state.heap_use().bytes, before.bytes + before.growth, "{limit:?}");
            }
        }
    }

    #[test]
    fn log_shrinks_after_its_entries_expire() {
        let limit = Limit::new(Algorithm::SlidingLog, Quota::per_second(1_000)).unwrap();
        let mut state = limit.fresh();
        for micros in 1..=1_000 {
            limit.charge(&mut state, Timestamp::from_micros(micros), 1);
        }
        let full = state.heap_use().bytes;
        state.shrink();
        assert_eq!(state.heap_use().bytes, full);
        limit.charge(&mut state, Timestamp::from_micros(3_000_000), 1);
        state.shrink();
        assert!(state.heap_use().bytes <= 64, "{:?}", state.heap_use());
    }
}
