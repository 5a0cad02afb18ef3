//! The clock, the only module that reads the system time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidegate_core::{Span, Timestamp};
use tokio::sync::watch;

/// A clock to read and to sleep on. Clones show the same time.
///
/// The system clock is monotonic: it reads the wall time once, when it is created, and adds the time that passes. A
/// step of the wall clock therefore neither refills nor locks a client's limit. On Linux, time that the machine is
/// suspended counts.
#[derive(Clone, Debug)]
pub struct Clock(ClockSource);

#[derive(Clone, Debug)]
enum ClockSource {
    System(ClockAnchor),
    Cached(Arc<AtomicU64>),
    Manual(Arc<watch::Sender<Timestamp>>),
}

/// The wall time at one instant of the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct ClockAnchor {
    uptime: Duration,
    wall: Timestamp,
}

/// Returns the time since the machine booted, including time that it was suspended.
#[cfg(target_os = "linux")]
#[inline]
fn uptime() -> Duration {
    let up = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(up.tv_sec), u32::try_from(up.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

/// Returns the time since the first call in this process.
#[cfg(not(target_os = "linux"))]
#[allow(clippy::disallowed_methods, reason = "this is the clock that other code reads")]
fn uptime() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

impl ClockAnchor {
    #[allow(clippy::disallowed_methods, reason = "this is the clock that other code reads")]
    fn read() -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { uptime: uptime(), wall: Timestamp::EPOCH + Span::from(wall) }
    }

    #[inline]
    fn now(&self) -> Timestamp {
        // Rounded down: rounding up would run ahead of real time.
        let passed = uptime().saturating_sub(self.uptime);
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
    /// Creates a clock that reads the system time with each call.
    #[must_use]
    pub fn system() -> Self {
        Self(ClockSource::System(ClockAnchor::read()))
    }

    /// Creates a clock that a thread updates each `every`. It is cheaper to read, and never ahead of the system time.
    ///
    /// The thread ends when the last clone is dropped.
    #[must_use]
    pub fn cached(every: Duration) -> Self {
        let anchor = ClockAnchor::read();
        let micros = Arc::new(AtomicU64::new(anchor.now().as_micros()));
        let weak = Arc::downgrade(&micros);
        let ticker = std::thread::Builder::new().name("tidegate-clock".into()).spawn(move || {
            while let Some(micros) = weak.upgrade() {
                micros.store(anchor.now().as_micros(), Ordering::Relaxed);
                drop(micros);
                std::thread::park_timeout(every);
            }
        });
        match ticker {
            Ok(_) => Self(ClockSource::Cached(micros)),
            // Without a thread, each call reads the system time.
            Err(_) => Self(ClockSource::System(anchor)),
        }
    }

    /// Returns a clock of the same time that does not lag.
    #[must_use]
    pub(crate) fn uncached(&self) -> Self {
        match &self.0 {
            ClockSource::Cached(_) => Self::system(),
            ClockSource::System(_) | ClockSource::Manual(_) => self.clone(),
        }
    }

    /// Returns the current time. It never runs backwards.
    #[inline]
    #[must_use]
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            ClockSource::System(anchor) => anchor.now(),
            ClockSource::Cached(micros) => Timestamp::from_micros(micros.load(Ordering::Relaxed)),
            ClockSource::Manual(time) => *time.borrow(),
        }
    }

    /// Waits for a time. Cancel safe.
    #[allow(clippy::disallowed_methods, reason = "this is the clock that other code sleeps on")]
    pub async fn sleep(&self, span: Span) {
        match &self.0 {
            ClockSource::Manual(_) => self.sleep_until(self.now() + span).await,
            // `sleep_until` would read the clock twice more.
            ClockSource::System(_) | ClockSource::Cached(_) => {
                tokio::time::sleep(span.into()).await;
            }
        }
    }

    /// Waits until the clock shows `instant` or later. Cancel safe.
    #[allow(clippy::disallowed_methods, reason = "this is the clock that other code sleeps on")]
    pub async fn sleep_until(&self, instant: Timestamp) {
        if let ClockSource::Manual(time) = &self.0 {
            // This clock owns the sender, so the wait can't fail.
            let _ = time.subscribe().wait_for(|now| *now >= instant).await;
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

/// A clock that a test moves by hand.
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
/// # Ok::<(), tidegate::error::QuotaError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ManualClock {
    time: Arc<watch::Sender<Timestamp>>,
}

impl Default for ManualClock {
    /// Starts at 2026-01-01T00:00:00Z.
    fn default() -> Self {
        Self::starting_at(Timestamp::from_secs(1_767_225_600))
    }
}

impl ManualClock {
    /// Creates a clock that shows `start` until it is advanced.
    #[must_use]
    pub fn starting_at(start: Timestamp) -> Self {
        Self { time: Arc::new(watch::Sender::new(start)) }
    }

    /// Returns the clock for a limiter or store.
    #[must_use]
    pub fn clock(&self) -> Clock {
        Clock(ClockSource::Manual(Arc::clone(&self.time)))
    }

    /// Moves the time forward, and wakes the tasks that wait for it.
    pub fn advance(&self, span: Span) {
        self.time.send_modify(|now| *now = *now + span);
    }

    /// Returns the time that the clock shows.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        *self.time.borrow()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_time_never_runs_backwards() {
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
    async fn cached_clock_advances_with_the_system_time() {
        let cached = Clock::cached(Duration::from_millis(1));
        let target = cached.now() + Span::from_millis(5);
        cached.sleep_until(target).await;
        assert!(cached.now() >= target);
    }

    #[tokio::test]
    async fn sleep_ends_when_a_manual_clock_passes_its_instant() {
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
