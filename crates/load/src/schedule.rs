//! The times at which requests are due.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidegate_core::{Quota, Span, Timestamp};
use tidegate_limiter::Clock;
use tokio::sync::Semaphore;

/// The end of a load: the first bound that is reached.
#[derive(Clone, Copy, Debug)]
pub struct LoadBounds {
    /// Number of requests.
    pub requests: Option<u64>,
    /// Duration.
    pub length: Option<Span>,
}

/// Time after the end during which requests that were due before it may still be sent.
const LATE_SEND_GRACE: Span = Span::SECOND;
/// Permits that wake all waiting connections at the end.
const ALL_WAITERS: usize = 1 << 20;

/// Releases requests: when they are due, or one after another to any idle connection.
///
/// With a rate, request `n` is due `n` intervals after the start, whatever happened to those before it. A connection
/// that takes it late does not change the time at which it was due.
pub(crate) struct SendSchedule {
    clock: Clock,
    started: Timestamp,
    /// The rate of an open loop.
    rate: Option<Quota>,
    /// Number of requests.
    total: u64,
    /// The end of the load.
    ends: Option<Timestamp>,
    /// The end of late sends. Nothing is released after it.
    closes: Option<Timestamp>,
    next: AtomicU64,
    stopped: AtomicBool,
    /// Requests of an open loop that are due and not taken yet.
    due: Semaphore,
    released: AtomicU64,
}

/// A request to be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScheduledSend {
    pub(crate) number: u64,
    /// The time at which it is due.
    pub(crate) due: Timestamp,
}

impl SendSchedule {
    /// Creates a schedule that starts now.
    pub(crate) fn start(clock: Clock, rate: Option<Quota>, bounds: LoadBounds) -> Self {
        let started = clock.now();
        // A request that is due exactly at the end is not sent.
        let by_time = bounds.length.and_then(|length| {
            let last = Span::from_micros(length.as_micros().saturating_sub(1));
            Some(due_within(rate?, last))
        });
        let total = bounds.requests.into_iter().chain(by_time).min().unwrap_or(u64::MAX);
        let ends = bounds.length.map(|length| started + length);
        // Requests that were due may be sent a little late.
        let grace = if rate.is_some() { LATE_SEND_GRACE } else { Span::ZERO };
        Self {
            ends,
            closes: ends.map(|end| end + grace),
            clock,
            started,
            rate,
            total,
            next: AtomicU64::new(0),
            stopped: AtomicBool::new(false),
            due: Semaphore::new(0),
            released: AtomicU64::new(0),
        }
    }

    /// Returns the next request once it is due; `None` after the last. Cancel safe.
    pub(crate) async fn next(&self) -> Option<ScheduledSend> {
        if self.rate.is_some() {
            self.due.acquire().await.ok()?.forget();
        }
        let now = self.clock.now();
        if self.stopped.load(Ordering::Relaxed) || self.closes.is_some_and(|end| now >= end) {
            return None;
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let due = self.rate.map_or(now, |rate| self.started + interval(rate, number));
        (number < self.total).then_some(ScheduledSend { number, due })
    }

    /// Releases the requests that are due. Returns the time until the next one; `None` after the last.
    pub(crate) fn release(&self) -> Option<Span> {
        let rate = self.rate?;
        let now = self.clock.now();
        let due = due_within(rate, now.since(self.started)).min(self.total);
        let before = self.released.swap(due, Ordering::Relaxed);
        self.due.add_permits(usize::try_from(due.saturating_sub(before)).unwrap_or(ALL_WAITERS));
        if due == self.total || self.stopped.load(Ordering::Relaxed) {
            self.due.add_permits(ALL_WAITERS);
            return None;
        }
        Some((self.started + interval(rate, due)).since(now))
    }

    /// Releases no more requests.
    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        self.due.add_permits(ALL_WAITERS);
    }

    /// Returns the number of requests that were due by an instant, if there is a rate.
    pub(crate) fn due_by(&self, now: Timestamp) -> Option<u64> {
        Some(due_within(self.rate?, now.since(self.started)).min(self.total))
    }

    pub(crate) fn started(&self) -> Timestamp {
        self.started
    }

    pub(crate) fn is_paced(&self) -> bool {
        self.rate.is_some()
    }

    /// Returns the part that is done, from 0 to 1.
    pub(crate) fn progress(&self, now: Timestamp) -> f64 {
        let time = self.ends.map(|end| {
            let whole = end.since(self.started).as_micros().max(1);
            now.since(self.started).as_micros() as f64 / whole as f64
        });
        let count = self.next.load(Ordering::Relaxed) as f64 / self.total as f64;
        time.unwrap_or_default().max(count).min(1.0)
    }
}

/// Returns the time from the first request to the request of this number.
fn interval(rate: Quota, number: u64) -> Span {
    let micros = u128::from(number) * u128::from(rate.window().as_micros());
    let micros = micros / u128::from(rate.amount().max(1));
    Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// Returns the number of requests that are due within a time from the start. The first is due at once.
fn due_within(rate: Quota, passed: Span) -> u64 {
    // Rounding matches `interval`, which rounds down to whole microseconds.
    let parts = (u128::from(passed.as_micros()) + 1) * u128::from(rate.amount().max(1)) - 1;
    let last = parts / u128::from(rate.window().as_micros().max(1));
    u64::try_from(last).unwrap_or(u64::MAX).saturating_add(1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tidegate_limiter::ManualClock;

    use super::*;
    use crate::reply::LoadReply;
    use crate::stats::LoadStats;

    const NO_BOUNDS: LoadBounds = LoadBounds { requests: None, length: None };

    #[tokio::test]
    async fn stall_counts_in_the_latency_of_the_requests_behind_it() {
        let time = ManualClock::default();
        let bounds = LoadBounds { requests: Some(100), ..NO_BOUNDS };
        let schedule = SendSchedule::start(time.clock(), Some(Quota::per_second(1_000)), bounds);
        let mut stats = LoadStats::default();
        // One connection: the first reply takes 50 ms, the later ones no time.
        assert_eq!(schedule.release(), Some(Span::from_millis(1)));
        let first = schedule.next().await.unwrap();
        let sent = time.now();
        time.advance(Span::from_millis(50));
        stats.add(&first, sent, time.now(), Ok(LoadReply::Allowed));
        schedule.release();
        for number in 1..=50 {
            let scheduled = schedule.next().await.unwrap();
            assert_eq!(
                (scheduled.number, scheduled.due),
                (number, sent + Span::from_millis(number))
            );
            stats.add(&scheduled, time.now(), time.now(), Ok(LoadReply::Allowed));
        }
        // 50, 49, …, 0 ms: half of them waited for 25 ms and more.
        let half = stats.latency().value_at_quantile(0.5);
        assert!((25_000..=25_050).contains(&half), "{half}");
        assert_eq!(stats.late().max().div_ceil(1_000), 50);
        // The next request is not due yet.
        assert!(futures_util::FutureExt::now_or_never(schedule.next()).is_none());
    }

    #[tokio::test]
    async fn without_a_rate_a_request_is_due_when_a_connection_is_idle() {
        let time = ManualClock::default();
        let bounds = LoadBounds { requests: Some(2), ..NO_BOUNDS };
        let schedule = SendSchedule::start(time.clock(), None, bounds);
        for number in 0..2 {
            time.advance(Span::from_millis(7));
            assert_eq!(schedule.next().await, Some(ScheduledSend { number, due: time.now() }));
        }
        assert_eq!(schedule.next().await, None);
        assert_eq!(schedule.due_by(time.now()), None);
    }

    #[tokio::test]
    async fn due_requests_are_released_until_the_late_send_grace_ends() {
        let time = ManualClock::default();
        let bounds = LoadBounds { length: Some(Span::SECOND), ..NO_BOUNDS };
        let schedule = SendSchedule::start(time.clock(), Some(Quota::per_second(10)), bounds);
        schedule.release();
        assert!(schedule.next().await.is_some());
        time.advance(Span::from_millis(1_500));
        assert_eq!(schedule.release(), None);
        let late = schedule.next().await.unwrap();
        assert_eq!(time.now().since(late.due), Span::from_millis(1_400));
        time.advance(Span::SECOND);
        assert_eq!(schedule.next().await, None);
        assert_eq!(schedule.due_by(time.now()), Some(10));
    }

    #[tokio::test]
    async fn stop_ends_a_wait_for_the_next_request() {
        let time = ManualClock::default();
        let schedule = SendSchedule::start(time.clock(), Some(Quota::per_minute(1)), NO_BOUNDS);
        schedule.release();
        assert!(schedule.next().await.is_some());
        let (next, ()) = tokio::join!(schedule.next(), async { schedule.stop() });
        assert_eq!(next, None);
    }

    proptest! {
        #[test]
        fn request_is_released_when_it_is_due_and_not_before(
            amount in 1_u64..2_000_000, seconds in 1_u64..90, number in 0_u64..1_000_000,
        ) {
            let rate = Quota::per(amount, Span::from_secs(seconds));
            let at = interval(rate, number);
            prop_assert!(due_within(rate, at) > number);
            if let Some(before) = at.as_micros().checked_sub(1) {
                prop_assert!(due_within(rate, Span::from_micros(before)) <= number);
            }
        }
    }
}
