//! Penalties for clients that continue after they were denied.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use tidegate_core::{Limit, Quota, Span};

/// A block of a client after too many denied requests.
///
/// ```
/// use tidegate_core::{Algorithm, Limit, Quota, Span};
/// use tidegate_rules::{DenialThreshold, Penalty};
///
/// let penalty = Penalty::new(DenialThreshold::Times(10), Span::MINUTE, Span::HOUR)?;
/// let limit = Limit::new(Algorithm::TokenBucket, Quota::per_second(20))?;
/// assert_eq!(penalty.threshold(&limit, 1), 200);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Penalty {
    after: DenialThreshold,
    within: Span,
    block: Span,
}

/// The number of denied requests that leads to a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialThreshold {
    /// This number.
    Denials(u64),
    /// This many times the capacity of the client's limit.
    Times(u64),
}

impl Penalty {
    /// Creates a penalty that blocks a client for `block` after too many denials within `within`.
    ///
    /// # Errors
    /// One of the numbers is zero or too large.
    pub fn new(after: DenialThreshold, within: Span, block: Span) -> Result<Self, PenaltyError> {
        let (DenialThreshold::Denials(count) | DenialThreshold::Times(count)) = after;
        if count == 0 || count > Quota::MAX_AMOUNT {
            return Err(PenaltyError::After { found: count.to_string() });
        }
        for (field, found) in [("within", within), ("block", block)] {
            if found < Quota::MIN_WINDOW || found > Quota::MAX_WINDOW {
                return Err(PenaltyError::Window { field, found });
            }
        }
        Ok(Self { after, within, block })
    }

    /// Returns the number of denied requests that leads to a block.
    #[must_use]
    pub fn after(&self) -> DenialThreshold {
        self.after
    }

    /// Returns the time within which denied requests are counted.
    #[must_use]
    pub fn within(&self) -> Span {
        self.within
    }

    /// Returns the duration of a block.
    #[must_use]
    pub fn block(&self) -> Span {
        self.block
    }

    /// Returns the number of requests under `limit` that one of `fleet_size` nodes has to deny before it blocks: its
    /// even share of the total, at least one.
    #[must_use]
    pub fn threshold(&self, limit: &Limit, fleet_size: u64) -> u64 {
        let all = match self.after {
            DenialThreshold::Denials(count) => count,
            DenialThreshold::Times(times) => times.saturating_mul(limit.capacity()),
        };
        all.div_ceil(fleet_size.max(1)).clamp(1, Quota::MAX_AMOUNT)
    }

    /// Returns the penalty of a client with this limit: `10 min after 200 denied requests within 60 s (10
    /// times the limit)`.
    #[must_use]
    pub fn describe(&self, limit: &Limit) -> String {
        let (count, within, block) = (self.threshold(limit, 1), self.within, self.block);
        let requests = if count == 1 { "request" } else { "requests" };
        let mut text = format!("{block} after {count} denied {requests} within {within}");
        if let DenialThreshold::Times(times) = self.after {
            text.push_str(&format!(" ({times} times the limit)"));
        }
        text
    }
}

impl FromStr for DenialThreshold {
    type Err = PenaltyError;

    /// Reads `500` or `10x`; underscores may group digits.
    fn from_str(text: &str) -> Result<Self, PenaltyError> {
        let bad = || PenaltyError::After { found: text.chars().take(64).collect() };
        let (digits, kind): (_, fn(u64) -> Self) = match text.strip_suffix('x') {
            Some(digits) => (digits, Self::Times),
            None => (text, Self::Denials),
        };
        if !digits.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(bad());
        }
        let count = digits.replace('_', "").parse().ok();
        count.filter(|count| (1..=Quota::MAX_AMOUNT).contains(count)).map(kind).ok_or_else(bad)
    }
}

/// `500` or `10x`.
impl fmt::Display for DenialThreshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denials(count) => write!(f, "{count}"),
            Self::Times(times) => write!(f, "{times}x"),
        }
    }
}

/// The reason why a penalty is invalid.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum PenaltyError {
    /// The number of denied requests is not a number, or is out of range.
    #[error(
        "penalty.after must be a number of denied requests like 500, or of times the limit like 10x, found {found:?}"
    )]
    After {
        /// The given value.
        found: String,
    },
    /// A length of time is out of range.
    #[error(
        "penalty.{field} must be from {} to {}, found {found}",
        Quota::MIN_WINDOW,
        Quota::MAX_WINDOW
    )]
    Window {
        /// The field.
        field: &'static str,
        /// The given value.
        found: Span,
    },
}

#[cfg(test)]
mod tests {
    use tidegate_core::algorithm::Algorithm;

    use super::*;

    fn limit(amount: u64) -> Limit {
        Limit::new(Algorithm::FixedWindow, Quota::per_minute(amount)).unwrap()
    }

    #[test]
    fn penalty_threshold_is_divided_among_the_nodes() {
        let penalty = Penalty::new(DenialThreshold::Times(10), Span::MINUTE, Span::HOUR).unwrap();
        let shares = |amount| [1, 3, 1_000].map(|nodes| penalty.threshold(&limit(amount), nodes));
        assert_eq!(shares(100), [1_000, 334, 1]);
        // A limit of 0 denies every request, and the first denial reaches the threshold.
        assert_eq!(shares(0), [1, 1, 1]);
        assert_eq!(penalty.threshold(&limit(Quota::MAX_AMOUNT), 1), Quota::MAX_AMOUNT);
        let penalty = Penalty::new(DenialThreshold::Denials(7), Span::MINUTE, Span::HOUR).unwrap();
        assert_eq!(penalty.threshold(&limit(100), 2), 4);
    }

    #[test]
    fn penalty_with_an_invalid_number_is_rejected() {
        for text in ["", "x", "0", "0x", "-1", "+1", "10 x", "1.5x", "10X", "99999999999999999999"]
        {
            assert!(text.parse::<DenialThreshold>().is_err(), "{text:?}");
        }
        assert_eq!("1_000".parse(), Ok(DenialThreshold::Denials(1_000)));
        assert_eq!("10x".parse(), Ok(DenialThreshold::Times(10)));
        assert!(Penalty::new(DenialThreshold::Times(0), Span::MINUTE, Span::HOUR).is_err());
        let error = Penalty::new(DenialThreshold::Times(1), Span::ZERO, Span::HOUR).unwrap_err();
        assert_eq!(error.to_string(), "penalty.within must be from 1 ms to 3650 days, found 0 s");
    }

    #[test]
    fn penalty_description_contains_threshold_window_and_block() {
        let penalty =
            Penalty::new(DenialThreshold::Times(10), Span::MINUTE, Span::from_secs(600)).unwrap();
        assert_eq!(
            penalty.describe(&limit(5)),
            "10 min after 50 denied requests within 60 s (10 times the limit)"
        );
        let penalty = Penalty::new(DenialThreshold::Denials(1), Span::HOUR, Span::DAY).unwrap();
        assert_eq!(penalty.describe(&limit(5)), "24 h after 1 denied request within 60 min");
    }
}
