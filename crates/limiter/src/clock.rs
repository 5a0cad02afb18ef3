//! The only place that reads a clock or waits for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_core::{Span, Timestamp};
use tokio::sync::watch;

/// Tells the time, and waits for it. Clones show the same time.
///
/// The real clock is monotonic: it takes wall time once, when it is made, and counts from there, so
/// that a step of the wall clock neither frees nor locks out anybody. It goes on while the machine
/// sleeps, where the system has such a clock.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System(Anchor),
    Cached(Arc<AtomicU64>),
    Manual(Arc<watch::Sender<Timestamp>>),
}

#[derive(Clone, Copy, Debug)]
struct Anchor {
    started: Duration,
    wall: Timestamp,
}

/// How long the machine has been up, sleep included.
#[cfg(target_os = "linux")]
#[inline]
fn uptime() -> Duration {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(up.tv_sec), u32::try_from(up.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

/// How long this process has been asking.
#[cfg(not(target_os = "linux"))]
#[allow(clippy::disallowed_methods, reason = "this is the clock that others ask")]
fn uptime() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

impl Anchor {
    #[allow(clippy::disallowed_methods, reason = "this is the clock that others ask")]
    fn take() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { started: uptime(), wall: Timestamp::EPOCH + Span::from(wall) }
    }

    #[inline]
    fn now(&self) -> Timestamp {
        // Whole microseconds that have passed: rounding up would run ahead of real time.
        let passed = uptime().saturating_sub(self.started);
        let micros = u64::try_from(passed.as_micros()).unwrap_or(u64::MAX);
        self.wall + Span::from_micros(micros)
    }
}

impl Default for Clock {
    fn default() -> Self {
        Self::system()
    }
}

impl Clock {
    /// The real time, read afresh each time.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System(Anchor::take()))
    }

    /// The real time as a thread noted it at most `every` ago: cheaper to ask, never ahead.
    ///
    /// The thread ends when the last clone is gone.
    #[must_use]
    pub fn cached(every: Duration) -> Self {
        let anchor = Anchor::take();
        let shown = Arc::new(AtomicU64::new(anchor.now().as_micros()));
        let held = Arc::downgrade(&shown);
        let ticker = std::thread::Builder::new().name("tidegate-clock".into()).spawn(move || {
            while let Some(shown) = held.upgrade() {
                shown.store(anchor.now().as_micros(), Ordering::Relaxed);
                drop(shown);
                std::thread::park_timeout(every);
            }
        });
        match ticker {
            Ok(_) => Self(Source::Cached(shown)),
            // Without a thread to note it, the time is read afresh.
            Err(_) => Self(Source::System(anchor)),
        }
    }

    /// The same time, read afresh: for who may not be late.
    #[must_use]
    pub(crate) fn afresh(&self) -> Self {
        match &self.0 {
            Source::Cached(_) => Self::system(),
            Source::System(_) | Source::Manual(_) => self.clone(),
        }
    }

    /// The time now, never earlier than it was before.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System(anchor) => anchor.now(),
            Source::Cached(shown) => Timestamp::from_micros(shown.load(Ordering::Relaxed)),
            Source::Manual(shown) => *shown.borrow(),
        }
    }

    /// Returns when a while has passed. Safe to drop at any point.
    #[allow(clippy::disallowed_methods, reason = "this is the clock that others wait on")]
    pub async fn sleep(&self, span: Span) {
        match &self.0 {
            Source::Manual(_) => self.sleep_until(self.now() + span).await,
            // Not by instants: the clock would be read twice more.
            Source::System(_) | Source::Cached(_) => tokio::time::sleep(span.into()).await,
        }
    }

    /// Returns once the clock shows `instant` or later. Safe to drop at any point.
    #[allow(clippy::disallowed_methods, reason = "this is the clock that others wait on")]
    pub async fn sleep_until(&self, instant: Timestamp) {
        if let Source::Manual(shown) = &self.0 {
            // The sender lives as long as this clock does, so waiting can't fail.
            let _ = shown.subscribe().wait_for(|now| *now >= instant).await;
            return;
        }
        loop {
            let left = instant.since(self.now());
            if left.is_zero() {
                return;
            }
            tokio::time::sleep(left.into()).await;
        }
    }
}

/// A clock that moves when a test says so.
///
/// ```
/// use tidegate::{Limiter, ManualClock, Quota, Span};
///
/// let time = ManualClock::default();
/// let logins = Limiter::per_key_on(Quota::per_minute(1), time.clock())?;
/// assert!(logins.check("alice").is_allowed());
/// assert!(!logins.check("alice").is_allowed());
/// time.advance(Span::MINUTE);
/// assert!(logins.check("alice").is_allowed());
/// # Ok::<(), tidegate::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    shown: Arc<watch::Sender<Timestamp>>,
}

impl Default for ManualClock {
    /// Starts on 2026-01-01T00:00:00Z.
    fn default() -> Self {
        Self::starting_at(Timestamp::from_secs(1_767_225_600))
    }
}

impl ManualClock {
    /// A clock that shows `start` until it is moved.
    #[must_use]
    pub fn starting_at(start: Timestamp) -> Self {
        Self { shown: Arc::new(watch::Sender::new(start)) }
    }

    /// The clock to hand to a limiter or store.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock(Source::Manual(Arc::clone(&self.shown)))
    }

    /// Moves time forward, and wakes who waited for it.
    pub fn advance(&self, span: Span) {
        self.shown.send_modify(|now| *now = *now + span);
    }

    /// The time shown.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        *self.shown.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_time_never_runs_backwards() {
        for clock in [Clock::system(), Clock::cached(Duration::from_micros(50))] {
            let mut last = clock.now();
            for _ in 0..100_000 {
                let now = clock.now();
                assert!(now >= last);
                last = now;
            }
        }
    }

    #[tokio::test]
    async fn a_cached_clock_moves_and_is_never_ahead_of_the_real_one() {
        let cached = Clock::cached(Duration::from_millis(1));
        let target = cached.now() + Span::from_millis(5);
        cached.sleep_until(target).await;
        assert!(cached.now() >= target);
    }

    #[tokio::test]
    async fn a_sleeper_wakes_when_a_manual_clock_passes_its_instant() {
        let time = ManualClock::default();
        let clock = time.clock();
        let target = time.now() + Span::MINUTE;
        let sleeper = tokio::spawn(async move { clock.sleep_until(target).await });
        time.advance(Span::SECOND);
        assert!(!sleeper.is_finished());
        time.advance(Span::MINUTE);
        sleeper.await.unwrap();
    }
}
