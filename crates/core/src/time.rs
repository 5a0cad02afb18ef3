//! Instants and lengths of time in whole microseconds, the grain that Redis `TIME` has too.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time: microseconds since the Unix epoch, as the store sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);

    /// The instant `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The instant `seconds` seconds after the Unix epoch; the last instant there is if that overflows.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Seconds since the Unix epoch, rounded up: never earlier than the instant itself.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// How long after `earlier` this is; zero when it is not after.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;

    /// Stops at the last instant there is.
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;

    /// Stops at the epoch.
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// A length of time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// The smallest span there is.
    pub const MICROSECOND: Self = Self(1);
    /// One second.
    pub const SECOND: Self = Self(1_000_000);
    /// Sixty seconds.
    pub const MINUTE: Self = Self(60 * 1_000_000);
    /// Sixty minutes.
    pub const HOUR: Self = Self(3_600 * 1_000_000);
    /// Twenty-four hours.
    pub const DAY: Self = Self(86_400 * 1_000_000);

    /// A span of `micros` microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// A span of `millis` milliseconds, at most what fits.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// A span of `seconds` seconds, at most what fits.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// This span `count` times; `None` when that does not fit.
    #[must_use]
    pub const fn checked_mul(self, count: u64) -> Option<Self> {
        match self.0.checked_mul(count) {
            Some(micros) => Some(Self(micros)),
            None => None,
        }
    }

    /// What is left of this span after another one; nothing when that is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Length in microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Length in whole seconds, rounded up: a client that waits this long does not come too early.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Whether this is no time at all.
    #[must_use]
    pub const fn is_zero(self) -> bool {
        self.0 == 0
    }
}

impl From<Span> for Duration {
    fn from(span: Span) -> Self {
        Self::from_micros(span.0)
    }
}

impl From<Duration> for Span {
    /// Rounds up to the next microsecond and stops at the longest span there is.
    fn from(duration: Duration) -> Self {
        Self(u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX))
    }
}

/// Prints the largest unit that leaves a whole number, above one for units over a second: `90 s`,
/// `60 s`, `15 min`, `24 h`.
impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [(u64, &str); 5] = [
            (Span::DAY.0, "days"),
            (Span::HOUR.0, "h"),
            (Span::MINUTE.0, "min"),
            (Span::SECOND.0, "s"),
            (1_000, "ms"),
        ];
        for (micros, unit) in UNITS {
            let count = self.0 / micros;
            let smallest = micros <= Self::SECOND.0 && count == 1;
            if self.0.is_multiple_of(micros) && (count > 1 || smallest) {
                return write!(f, "{count} {unit}");
            }
        }
        if self.0 == 0 { write!(f, "0 s") } else { write!(f, "{} us", self.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_print_in_the_unit_people_would_say() {
        let shown = |micros| Span::from_micros(micros).to_string();
        assert_eq!(shown(0), "0 s");
        assert_eq!(shown(1), "1 us");
        assert_eq!(shown(1_000), "1 ms");
        assert_eq!(shown(1_001), "1001 us");
        assert_eq!(shown(150_000), "150 ms");
        assert_eq!(shown(1_000_000), "1 s");
        assert_eq!(shown(60_000_000), "60 s");
        assert_eq!(shown(90_000_000), "90 s");
        assert_eq!(shown(900_000_000), "15 min");
        assert_eq!(shown(86_400_000_000), "24 h");
        assert_eq!(shown(30 * 86_400_000_000), "30 days");
    }

    #[test]
    fn seconds_are_rounded_up_so_that_nobody_comes_too_early() {
        assert_eq!(Span::from_micros(1).as_secs_ceil(), 1);
        assert_eq!(Span::from_micros(1_000_000).as_secs_ceil(), 1);
        assert_eq!(Span::from_micros(1_000_001).as_secs_ceil(), 2);
        assert_eq!(Timestamp::from_micros(1_000_001).as_secs_ceil(), 2);
    }

    #[test]
    fn arithmetic_stops_at_the_ends_of_time() {
        let last = Timestamp::from_micros(u64::MAX);
        assert_eq!(last + Span::SECOND, last);
        assert_eq!(Timestamp::EPOCH - Span::SECOND, Timestamp::EPOCH);
        assert_eq!(Timestamp::EPOCH.since(last), Span::ZERO);
        assert_eq!(Span::from(Duration::from_nanos(1)), Span::MICROSECOND);
    }
}
