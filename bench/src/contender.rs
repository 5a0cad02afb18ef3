//! Rate limiters of one process, with one limit for each key.

use std::num::NonZeroU32;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use governor::DefaultKeyedRateLimiter;
use throttlecrab::{PeriodicStore, RateLimiter};
use tidegate::{Clock, Limiter, MemoryStore, PerKey, Quota};

use crate::bare_table::BareTable;
use crate::keys::Key;
use crate::measure;

/// Precision of the cached clock.
const CLOCK_INTERVAL: Duration = Duration::from_millis(1);

/// An amount per window, for every contender.
#[derive(Clone, Copy, Debug)]
pub struct ContenderLimit {
    /// Requests per window.
    pub amount: u32,
    /// Length of the window.
    pub window: Duration,
}

impl ContenderLimit {
    /// 1,000 per minute.
    pub const DEFAULT: Self = Self { amount: 1_000, window: Duration::from_secs(60) };

    fn tidegate_quota(self) -> Quota {
        Quota::per(self.amount.into(), self.window.into())
    }

    fn governor_quota(self) -> governor::Quota {
        let amount = NonZeroU32::new(self.amount).expect("above zero");
        let each = self.window / self.amount;
        governor::Quota::with_period(each).expect("above zero").allow_burst(amount)
    }
}

/// A rate limiter that several threads can use.
pub trait Contender: Sync {
    /// Returns the name in the tables.
    fn name(&self) -> &'static str;

    /// Checks each key once. Returns the number of admitted checks.
    fn check_all(&self, keys: &[Key]) -> usize;

    /// Returns whether several threads can use it at once.
    fn is_shared(&self) -> bool {
        true
    }

    /// Returns the nanoseconds per decision and thread while every thread checks its own keys.
    fn measure(&self, threads: &[Vec<Key>]) -> f64 {
        measure::threads_nanos(threads, |keys| self.check_all(keys))
    }
}

/// Tidegate, one check at a time or in batches.
#[derive(Debug)]
pub struct Tidegate {
    name: &'static str,
    /// The limiter.
    pub handle: PerKey<MemoryStore>,
    batch: Option<usize>,
}

impl Tidegate {
    /// Makes a limiter. With a batch size, checks are passed in batches.
    ///
    /// # Panics
    /// The limit is invalid.
    #[must_use]
    pub fn new(
        limit: ContenderLimit,
        name: &'static str,
        clock: Clock,
        batch: Option<usize>,
    ) -> Self {
        let handle = Limiter::per_key_on(limit.tidegate_quota(), clock);
        Self { name, handle: handle.expect("the quota is valid"), batch }
    }

    /// Makes a limiter that reads the clock for each check.
    #[must_use]
    pub fn with_system_clock(limit: ContenderLimit) -> Self {
        Self::new(limit, "Tidegate, clock read each time", Clock::system(), None)
    }

    /// Makes a limiter with a clock that is read once per millisecond.
    #[must_use]
    pub fn with_cached_clock(limit: ContenderLimit) -> Self {
        Self::new(limit, "Tidegate, cached clock", Clock::cached(CLOCK_INTERVAL), None)
    }

    /// Makes a limiter that takes batches of 16.
    #[must_use]
    pub fn with_batches_of_16(limit: ContenderLimit) -> Self {
        Self::new(limit, "Tidegate, batches of 16", Clock::system(), Some(16))
    }

    /// Makes a limiter that takes batches of 256.
    #[must_use]
    pub fn with_batches_of_256(limit: ContenderLimit) -> Self {
        Self::new(limit, "Tidegate, batches of 256", Clock::system(), Some(256))
    }
}

impl Contender for Tidegate {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check_all(&self, keys: &[Key]) -> usize {
        match self.batch {
            None => keys.iter().filter(|key| self.handle.check(key).is_allowed()).count(),
            Some(size) => {
                let batches = keys.chunks(size);
                batches
                    .map(|batch| {
                        let outcomes = self.handle.check_many(batch);
                        outcomes.iter().filter(|outcome| outcome.is_allowed()).count()
                    })
                    .sum()
            }
        }
    }
}

/// governor with its default hash and clock.
#[derive(Debug)]
pub struct Governor(pub DefaultKeyedRateLimiter<Key>);

impl Governor {
    /// Makes a limiter.
    #[must_use]
    pub fn new(limit: ContenderLimit) -> Self {
        Self(governor::RateLimiter::keyed(limit.governor_quota()))
    }
}

impl Contender for Governor {
    fn name(&self) -> &'static str {
        "governor 0.10.4"
    }

    fn check_all(&self, keys: &[Key]) -> usize {
        keys.iter().filter(|key| self.0.check_key(key).is_ok()).count()
    }
}

/// throttlecrab behind a mutex, because its limiter requires exclusive access.
pub struct Throttlecrab {
    limiter: Mutex<RateLimiter<PeriodicStore>>,
    limit: ContenderLimit,
}

impl std::fmt::Debug for Throttlecrab {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Throttlecrab").finish_non_exhaustive()
    }
}

impl Throttlecrab {
    /// Makes a limiter.
    #[must_use]
    pub fn new(limit: ContenderLimit) -> Self {
        Self { limiter: Mutex::new(RateLimiter::new(PeriodicStore::new())), limit }
    }
}

impl Contender for Throttlecrab {
    fn name(&self) -> &'static str {
        "throttlecrab 0.4.40, periodic"
    }

    #[allow(clippy::disallowed_methods, reason = "its interface takes the current time")]
    fn check_all(&self, keys: &[Key]) -> usize {
        let (amount, seconds) = (i64::from(self.limit.amount), self.limit.window.as_secs() as i64);
        let admitted = keys.iter().filter(|key| {
            let text = std::str::from_utf8(&key[..]).unwrap_or_default();
            let mut limiter = self.limiter.lock().expect("no thread panics while holding the lock");
            let answer = limiter.rate_limit(text, amount, amount, seconds, 1, SystemTime::now());
            answer.is_ok_and(|(allowed, _)| allowed)
        });
        admitted.count()
    }
}

/// The bare table, in batches of 256.
#[derive(Debug)]
pub struct BareTableContender(Mutex<BareTable>);

impl BareTableContender {
    /// Makes a table for this number of keys.
    #[must_use]
    pub fn new(limit: ContenderLimit, keys: usize) -> Self {
        Self(Mutex::new(BareTable::new(keys, limit.amount, limit.window)))
    }
}

impl Contender for BareTableContender {
    fn name(&self) -> &'static str {
        "bare table, batches of 256"
    }

    fn check_all(&self, keys: &[Key]) -> usize {
        self.0.lock().expect("no thread panics while holding the lock").check_all(keys, 256)
    }

    fn is_shared(&self) -> bool {
        false
    }
}
