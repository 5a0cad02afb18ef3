//! Quotas: an amount per window, and their text form.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;

use crate::time::Span;

/// An amount per window, and optionally the part of it that may be spent at once.
///
/// ```
/// use tidegate_core::{Quota, Span};
///
/// let quota: Quota = "250 per 15 minutes".parse()?;
/// assert_eq!(quota, Quota::per(250, Span::MINUTE.checked_mul(15).unwrap()));
/// assert_eq!("100/s".parse::<Quota>()?.burst(200), Quota::per_second(100).burst(200));
/// # Ok::<(), tidegate_core::QuotaError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Quota {
    amount: u64,
    window: Span,
    burst: Option<u64>,
}

impl Quota {
    /// The shortest and the longest time after which a slot in flight expires unless it is renewed.
    pub const SLOT_TTL_RANGE: (Span, Span) = (Span::SECOND, Span::HOUR);
    /// The largest amount and burst: sums of two still fit the 53 bits that Lua counts exactly.
    pub const MAX_AMOUNT: u64 = 1 << 52;
    /// The shortest window: Redis expires keys by the millisecond.
    pub const MIN_WINDOW: Span = Span::from_millis(1);
    /// The longest window, ten years.
    pub const MAX_WINDOW: Span = Span::from_secs(3_650 * 86_400);
    /// The longest a bucket may take to fill, a hundred years: its end then still fits 53 bits.
    pub const MAX_FILL: Span = Span::from_secs(36_500 * 86_400);

    /// Returns a quota of `amount` per `window`, in the sense of the algorithm that counts it.
    #[must_use]
    pub const fn per(amount: u64, window: Span) -> Self {
        Self { amount, window, burst: None }
    }

    /// Returns a quota of `amount` per second.
    #[must_use]
    pub const fn per_second(amount: u64) -> Self {
        Self::per(amount, Span::SECOND)
    }

    /// Returns a quota of `amount` per minute.
    #[must_use]
    pub const fn per_minute(amount: u64) -> Self {
        Self::per(amount, Span::MINUTE)
    }

    /// Returns a quota of `amount` per hour.
    #[must_use]
    pub const fn per_hour(amount: u64) -> Self {
        Self::per(amount, Span::HOUR)
    }

    /// Returns a quota of `amount` per day of 24 hours.
    #[must_use]
    pub const fn per_day(amount: u64) -> Self {
        Self::per(amount, Span::DAY)
    }

    /// Returns a quota of `amount` in flight at any instant.
    #[must_use]
    pub const fn in_flight(amount: u64) -> Self {
        Self::per(amount, Span::ZERO)
    }

    /// Returns whether the amount is for an instant and not for a window.
    #[must_use]
    pub const fn is_in_flight(&self) -> bool {
        self.window.is_zero()
    }

    /// Returns the same quota with a burst. Only a token bucket has one.
    #[must_use]
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Returns the amount per window.
    #[must_use]
    pub const fn amount(&self) -> u64 {
        self.amount
    }

    /// Returns the window; zero for a quota [in flight](Self::in_flight).
    #[must_use]
    pub const fn window(&self) -> Span {
        self.window
    }

    /// Returns the burst, if one was set.
    #[must_use]
    pub const fn explicit_burst(&self) -> Option<u64> {
        self.burst
    }

    /// Checks that every store can count this quota exactly.
    ///
    /// # Errors
    /// The field that is out of range, with the value found and the values allowed.
    pub fn validate(&self) -> Result<(), QuotaError> {
        if self.window < Self::MIN_WINDOW || self.window > Self::MAX_WINDOW {
            return Err(QuotaError::Window { found: self.window });
        }
        if self.amount > Self::MAX_AMOUNT {
            return Err(QuotaError::Amount { found: self.amount });
        }
        let Some(burst) = self.burst else {
            return Ok(());
        };
        if burst == 0 || burst > Self::MAX_AMOUNT {
            return Err(QuotaError::Burst { found: burst });
        }
        if self.amount == 0 {
            return Err(QuotaError::BurstOfNothing { found: burst });
        }
        let fill =
            u128::from(burst) * u128::from(self.window.as_micros()) / u128::from(self.amount);
        if fill > u128::from(Self::MAX_FILL.as_micros()) {
            return Err(QuotaError::Fill { burst, amount: self.amount, window: self.window });
        }
        Ok(())
    }
}

/// `100 per 60 s`, with the burst when there is one, or `20 in flight`.
impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_in_flight() {
            return write!(f, "{} in flight", self.amount);
        }
        write!(f, "{} per {}", self.amount, self.window)?;
        match self.burst {
            Some(burst) => write!(f, ", burst {burst}"),
            None => Ok(()),
        }
    }
}

/// The error of a limit that can't be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum QuotaError {
    /// The text is not a limit.
    #[error(
        "limit must read like \"100 per minute\", \"100/s\" or \"20 in flight\", found {found:?}"
    )]
    Text {
        /// The text as it was written, cut if it is long.
        found: String,
    },
    /// The text does not start with a number.
    #[error("limit must start with a whole number up to {}, found {found:?}", Quota::MAX_AMOUNT)]
    Number {
        /// The text in its place.
        found: String,
    },
    /// The unit of time is unknown.
    #[error(
        "unit of time must be ms, second, minute, hour, day, week, month (30 days) or year (365 days), found {found:?}"
    )]
    Unit {
        /// The word that is no unit.
        found: String,
    },
    /// The window text is not a length of time.
    #[error("window must read like \"15m\" or \"15 minutes\", found {found:?}")]
    WindowText {
        /// The text as it was written, cut if it is long.
        found: String,
    },
    /// The window is too short or too long.
    #[error("window must be from {} to {}, found {found}", Quota::MIN_WINDOW, Quota::MAX_WINDOW)]
    Window {
        /// The given window.
        found: Span,
    },
    /// The amount can't be counted exactly.
    #[error("amount must be at most {}, found {found}", Quota::MAX_AMOUNT)]
    Amount {
        /// The given amount.
        found: u64,
    },
    /// The burst is zero or can't be counted exactly.
    #[error("burst must be from 1 to {}, found {found}", Quota::MAX_AMOUNT)]
    Burst {
        /// The given burst.
        found: u64,
    },
    /// A limit of zero never refills a burst.
    #[error("a limit of 0 can't have a burst, found burst {found}")]
    BurstOfNothing {
        /// The given burst.
        found: u64,
    },
    /// The bucket would take too long to fill.
    #[error(
        "a burst of {burst} at {amount} per {window} takes more than {} to refill",
        Quota::MAX_FILL
    )]
    Fill {
        /// The given burst.
        burst: u64,
        /// The amount per window.
        amount: u64,
        /// The window.
        window: Span,
    },
    /// The algorithm has no burst.
    #[error("burst needs algorithm token_bucket, found {algorithm}")]
    NoBurst {
        /// The given algorithm.
        algorithm: &'static str,
    },
    /// The algorithm has no queue.
    #[error("queue needs algorithm leaky_bucket, found {algorithm}")]
    NoQueue {
        /// The given algorithm.
        algorithm: &'static str,
    },
    /// The queue is too long to count exactly.
    #[error("queue must be less than {}, found {found}", Quota::MAX_AMOUNT)]
    Queue {
        /// The given queue.
        found: u64,
    },
    /// The amount is too large for a log, which stores every admission.
    #[error(
        "sliding_log remembers each request, so its amount must be at most {max}, found {found} (sliding_window has no such bound)"
    )]
    LogTooLong {
        /// The given amount.
        found: u64,
        /// The most a log may hold.
        max: u64,
    },
    /// The limit is in flight, and the algorithm counts per window.
    #[error("a limit in flight needs algorithm concurrency, found {algorithm}")]
    InFlight {
        /// The given algorithm.
        algorithm: &'static str,
    },
    /// The limit is for a window, and slots are counted at each instant.
    #[error("concurrency needs a limit like \"20 in flight\", found {found}")]
    NotInFlight {
        /// The given limit.
        found: Quota,
    },
    /// The amount is too large: every slot is stored.
    #[error("concurrency remembers each slot, so at most {max} can be in flight, found {found}")]
    TooManySlots {
        /// The given amount.
        found: u64,
        /// The most that can be in flight.
        max: u64,
    },
    /// The hold is too short or too long.
    #[error(
        "hold must be from {} to {}, found {found}",
        Quota::SLOT_TTL_RANGE.0,
        Quota::SLOT_TTL_RANGE.1
    )]
    Hold {
        /// The given hold.
        found: Span,
    },
    /// The algorithm holds no slots.
    #[error("hold needs algorithm concurrency, found {algorithm}")]
    NoHold {
        /// The given algorithm.
        algorithm: &'static str,
    },
}

/// Longest part of a text that an error quotes, in characters.
const MAX_ECHOED_CHARS: usize = 64;

fn echo(text: &str) -> String {
    if text.chars().count() <= MAX_ECHOED_CHARS {
        return text.to_owned();
    }
    text.chars().take(MAX_ECHOED_CHARS).chain(['…']).collect()
}

impl FromStr for Quota {
    type Err = QuotaError;

    /// Parses `100 per minute`, `100/s`, `250 per 15 minutes`, `20 in flight`; underscores may group digits.
    fn from_str(text: &str) -> Result<Self, QuotaError> {
        let not_a_limit = || QuotaError::Text { found: echo(text) };
        let trimmed = text.trim();
        let (amount, window) = match trimmed.split_once('/') {
            Some(halves) => halves,
            None => {
                let (amount, rest) =
                    trimmed.split_once(char::is_whitespace).ok_or_else(not_a_limit)?;
                let rest = rest.trim_start();
                if rest.split_whitespace().eq(["in", "flight"]) {
                    return Ok(Self::in_flight(number(amount)?));
                }
                let window = rest.strip_prefix("per").ok_or_else(not_a_limit)?;
                if !window.starts_with(char::is_whitespace) {
                    return Err(not_a_limit());
                }
                (amount, window)
            }
        };
        let amount = number(amount.trim())?;
        let window = match window_of(window.trim()) {
            Err(QuotaError::WindowText { .. }) => return Err(not_a_limit()),
            other => other?,
        };
        let quota = Self::per(amount, window);
        quota.validate()?;
        Ok(quota)
    }
}

fn number(text: &str) -> Result<u64, QuotaError> {
    let bad = || QuotaError::Number { found: echo(text) };
    if !text.starts_with(|c: char| c.is_ascii_digit())
        || !text.chars().all(|c| c.is_ascii_digit() || c == '_')
    {
        return Err(bad());
    }
    let digits: String = text.chars().filter(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|&amount| amount <= Quota::MAX_AMOUNT).ok_or_else(bad)
}

/// Parses `second`, `15m` or `15 minutes` as a length of time above zero.
///
/// # Errors
/// The text is not a length of time, the unit is unknown, or the window is zero or too long.
pub fn window_of(text: &str) -> Result<Span, QuotaError> {
    let split = text.find(|c: char| !(c.is_ascii_digit() || c == '_')).unwrap_or(text.len());
    let (count, unit) = text.split_at(split);
    let unit = unit.trim();
    if unit.is_empty() {
        return Err(QuotaError::WindowText { found: echo(text) });
    }
    let micros = unit_micros(unit).ok_or_else(|| QuotaError::Unit { found: echo(unit) })?;
    let count = if count.is_empty() {
        1
    } else {
        number(count).map_err(|_| QuotaError::WindowText { found: echo(text) })?
    };
    let found = Span::from_micros(micros.saturating_mul(count));
    if found < Quota::MIN_WINDOW || found > Quota::MAX_WINDOW {
        return Err(QuotaError::Window { found });
    }
    Ok(found)
}

/// The names of each unit of time, and its length.
pub const UNITS: [(&[&str], Span); 8] = [
    (&["ms", "millisecond", "milliseconds"], Span::from_millis(1)),
    (&["s", "sec", "secs", "second", "seconds"], Span::SECOND),
    (&["m", "min", "mins", "minute", "minutes"], Span::MINUTE),
    (&["h", "hr", "hour", "hours"], Span::HOUR),
    (&["d", "day", "days"], Span::DAY),
    (&["w", "week", "weeks"], Span::from_secs(7 * 86_400)),
    (&["month", "months"], Span::from_secs(30 * 86_400)),
    (&["y", "year", "years"], Span::from_secs(365 * 86_400)),
];

fn unit_micros(unit: &str) -> Option<u64> {
    let spelled = |words: &[&str]| words.iter().any(|word| word.eq_ignore_ascii_case(unit));
    UNITS.iter().find(|(words, _)| spelled(words)).map(|(_, span)| span.as_micros())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Quota, String> {
        text.parse::<Quota>().map_err(|error| error.to_string())
    }

    #[test]
    fn limits_parse_in_every_documented_form() {
        let minutes = |count| Span::MINUTE.checked_mul(count).unwrap();
        for (text, quota) in [
            ("100 per minute", Quota::per_minute(100)),
            ("100/s", Quota::per_second(100)),
            ("100 / s", Quota::per_second(100)),
            ("100/15m", Quota::per(100, minutes(15))),
            ("250 per 15 minutes", Quota::per(250, minutes(15))),
            ("  1_000_000   per  Day ", Quota::per_day(1_000_000)),
            ("5 per 100ms", Quota::per(5, Span::from_millis(100))),
            ("1000000000000 per month", Quota::per(1_000_000_000_000, Span::from_secs(2_592_000))),
            ("10 per year", Quota::per(10, Span::from_secs(31_536_000))),
            ("0 per minute", Quota::per_minute(0)),
            ("20 in flight", Quota::in_flight(20)),
            (" 1_000  in   flight ", Quota::in_flight(1_000)),
        ] {
            assert_eq!(read(text), Ok(quota), "{text:?}");
        }
    }

    #[test]
    fn error_of_a_malformed_limit_names_the_found_and_the_wanted_text() {
        for (text, error) in [
            ("", r#"limit must read like "100 per minute", "100/s" or "20 in flight", found """#),
            (
                "100",
                r#"limit must read like "100 per minute", "100/s" or "20 in flight", found "100""#,
            ),
            (
                "100 perminute",
                r#"limit must read like "100 per minute", "100/s" or "20 in flight", found "100 perminute""#,
            ),
            (
                "100 per",
                r#"limit must read like "100 per minute", "100/s" or "20 in flight", found "100 per""#,
            ),
            (
                "100/15",
                r#"limit must read like "100 per minute", "100/s" or "20 in flight", found "100/15""#,
            ),
            (
                "-1 per minute",
                r#"limit must start with a whole number up to 4503599627370496, found "-1""#,
            ),
            (
                "1.5/s",
                r#"limit must start with a whole number up to 4503599627370496, found "1.5""#,
            ),
            (
                "99999999999999999999/s",
                r#"limit must start with a whole number up to 4503599627370496, found "99999999999999999999""#,
            ),
            (
                "100 per fortnight",
                r#"unit of time must be ms, second, minute, hour, day, week, month (30 days) or year (365 days), found "fortnight""#,
            ),
            ("100 per 0s", "window must be from 1 ms to 3650 days, found 0 s"),
            ("100 per 11 years", "window must be from 1 ms to 3650 days, found 4015 days"),
        ] {
            assert_eq!(read(text), Err(error.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn quotas_that_a_store_cannot_count_exactly_are_rejected() {
        let error_of = |quota: Quota| quota.validate().unwrap_err().to_string();
        assert_eq!(
            error_of(Quota::per_second(u64::MAX)),
            "amount must be at most 4503599627370496, found 18446744073709551615"
        );
        assert_eq!(
            error_of(Quota::per_second(1).burst(0)),
            "burst must be from 1 to 4503599627370496, found 0"
        );
        assert_eq!(
            error_of(Quota::per_day(1).burst(40_000)),
            "a burst of 40000 at 1 per 24 h takes more than 36500 days to refill"
        );
        assert_eq!(
            error_of(Quota::per_second(0).burst(1)),
            "a limit of 0 can't have a burst, found burst 1"
        );
        assert_eq!(Quota::per(1_000_000_000_000, Span::from_secs(2_592_000)).validate(), Ok(()));
        assert_eq!(Quota::per_second(10_000_000).burst(20_000_000).validate(), Ok(()));
    }

    #[test]
    fn errors_truncate_long_texts() {
        let error = "x".repeat(10_000).parse::<Quota>().unwrap_err().to_string();
        assert!(error.len() < 200, "{error}");
    }
}
