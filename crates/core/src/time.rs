//! Instants and lengths of time in whole microseconds, the resolution of Redis `TIME`.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

/// A point in time: microseconds since the Unix epoch, by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// 1970-01-01T00:00:00Z.
    pub const EPOCH: Self = Self(0);

    /// Returns the instant `micros` microseconds after the Unix epoch.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns the instant `seconds` seconds after the Unix epoch; the last possible instant if that overflows.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// Returns the microseconds since the Unix epoch.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the seconds since the Unix epoch, rounded up: never earlier than the instant itself.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Returns the time since `earlier`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Span {
        Span(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Span> for Timestamp {
    type Output = Self;

    /// Saturates at the last possible instant.
    fn add(self, span: Span) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl Sub<Span> for Timestamp {
    type Output = Self;

    /// Saturates at the epoch.
    fn sub(self, span: Span) -> Self {
        Self(self.0.saturating_sub(span.0))
    }
}

/// A length of time in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(u64);

impl Span {
    /// No time.
    pub const ZERO: Self = Self(0);
    /// The shortest span.
    pub const MICROSECOND: Self = Self(1);
    /// One second.
    pub const SECOND: Self = Self(1_000_000);
    /// Sixty seconds.
    pub const MINUTE: Self = Self(60 * 1_000_000);
    /// Sixty minutes.
    pub const HOUR: Self = Self(3_600 * 1_000_000);
    /// Twenty-four hours.
    pub const DAY: Self = Self(86_400 * 1_000_000);

    /// Returns a span of `micros` microseconds.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// Returns a span of `millis` milliseconds; the longest span if that overflows.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Returns a span of `seconds` seconds; the longest span if that overflows.
    #[must_use]
    pub const fn from_secs(seconds: u64) -> Self {
        Self(seconds.saturating_mul(1_000_000))
    }

    /// Returns this span multiplied by `count`; `None` if that overflows.
    #[must_use]
    pub const fn checked_mul(self, count: u64) -> Option<Self> {
        match self.0.checked_mul(count) {
            Some(micros) => Some(Self(micros)),
            None => None,
        }
    }

    /// Returns this span minus another one; zero if that is longer.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }

    /// Returns the length in microseconds.
    #[must_use]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the length in whole seconds, rounded up: a client that waits this long does not retry too early.
    #[must_use]
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Returns whether the span is zero.
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
    /// Rounds up to the next microsecond, and saturates at the longest span.
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
    fn spans_print_in_the_largest_whole_unit() {
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
    fn seconds_are_rounded_up() {
        assert_eq!(Span::from_micros(1).as_secs_ceil(), 1);
        assert_eq!(Span::from_micros(1_000_000).as_secs_ceil(), 1);
        assert_eq!(Span::from_micros(1_000_001).as_secs_ceil(), 2);
        assert_eq!(Timestamp::from_micros(1_000_001).as_secs_ceil(), 2);
    }

    #[test]
    fn arithmetic_saturates() {
        let last = Timestamp::from_micros(u64::MAX);
        assert_eq!(last + Span::SECOND, last);
        assert_eq!(Timestamp::EPOCH - Span::SECOND, Timestamp::EPOCH);
        assert_eq!(Timestamp::EPOCH.since(last), Span::ZERO);
        assert_eq!(Span::from(Duration::from_nanos(1)), Span::MICROSECOND);
    }
}
