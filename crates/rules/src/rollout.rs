//! The share of its clients that a rule or an override applies to.
//!
//! The position of a client is a hash of the rule's name and of the values that name the client, and of nothing else:
//! every node computes the same position, before and after a restart. The client is included if
//! the position is below the share, so that a larger share includes all clients of a smaller one.

use std::fmt;
use std::str::FromStr;

use thiserror::Error;
use tidegate_core::Part;

use crate::error::quote;

/// A share of clients, exact to the millionth: `10%`, `0.5%`.
///
/// ```
/// use tidegate_rules::Rollout;
///
/// let tenth: Rollout = "10%".parse()?;
/// assert_eq!(tenth.per_million(), 100_000);
/// assert_eq!(tenth.to_string(), "10%");
/// # Ok::<(), tidegate_rules::RolloutError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rollout {
    per_million: u32,
}

impl Rollout {
    /// No client.
    pub const NO_CLIENTS: Self = Self { per_million: 0 };
    /// Every client.
    pub const ALL_CLIENTS: Self = Self { per_million: MILLION };

    /// Creates a share of `per_million` clients in a million; `None` for more than a million.
    #[must_use]
    pub const fn from_millionths(per_million: u32) -> Option<Self> {
        if per_million <= MILLION { Some(Self { per_million }) } else { None }
    }

    /// Returns the number of clients in a million.
    #[must_use]
    pub const fn per_million(self) -> u32 {
        self.per_million
    }

    /// Returns whether the share includes a client.
    pub(crate) fn includes(self, position: RolloutPosition) -> bool {
        position.0 < self.per_million
    }
}

const MILLION: u32 = 1_000_000;
/// Millionths in one percent.
const MILLIONTHS_PER_PERCENT: u32 = 10_000;
/// Maximum number of digits after the decimal point: the resolution of a millionth in percent.
const MAX_DECIMALS: usize = 4;

/// The position of a client among a million, the same for every share of one rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RolloutPosition(u32);

impl RolloutPosition {
    /// Returns the position of the client that these parts name under a rule.
    ///
    /// Changing the hashed bytes would move every client of every rollout.
    pub(crate) fn of<'p>(rule: &str, parts: impl IntoIterator<Item = Part<'p>>) -> Self {
        let mut hasher = blake3::Hasher::new();
        hasher.update(b"tidegate rollout 1\n");
        Part::first(rule.as_bytes()).hash_into(&mut hasher);
        parts.into_iter().for_each(|part| part.hash_into(&mut hasher));
        let mut prefix = [0; 8];
        hasher.finalize_xof().fill(&mut prefix);
        // The hash as a fraction of its range, in millionths.
        let scaled = (u128::from(u64::from_le_bytes(prefix)) * u128::from(MILLION)) >> 64;
        Self(u32::try_from(scaled).unwrap_or(MILLION - 1))
    }
}

impl FromStr for Rollout {
    type Err = RolloutError;

    /// Reads `10%` or `0.5%`, with at most four digits after the point.
    fn from_str(text: &str) -> Result<Self, RolloutError> {
        let bad = || RolloutError { found: quote(text) };
        let number = text.strip_suffix('%').ok_or_else(bad)?;
        let (whole, decimals) = match number.split_once('.') {
            Some((whole, decimals)) if !decimals.is_empty() => (whole, decimals),
            Some(_) => return Err(bad()),
            None => (number, ""),
        };
        let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(whole) || !digits(decimals) || decimals.len() > MAX_DECIMALS {
            return Err(bad());
        }
        let parts = format!("{decimals:0<MAX_DECIMALS$}").parse().ok();
        let whole =
            whole.parse::<u32>().ok().and_then(|whole| whole.checked_mul(MILLIONTHS_PER_PERCENT));
        let sum = whole.zip(parts).and_then(|(whole, parts)| whole.checked_add(parts));
        sum.and_then(Self::from_millionths).ok_or_else(bad)
    }
}

/// `10%`, `0.5%`.
impl fmt::Display for Rollout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, parts) =
            (self.per_million / MILLIONTHS_PER_PERCENT, self.per_million % MILLIONTHS_PER_PERCENT);
        match parts {
            0 => write!(f, "{whole}%"),
            _ => write!(f, "{whole}.{}%", format!("{parts:0MAX_DECIMALS$}").trim_end_matches('0')),
        }
    }
}

/// The error of a text that is not a share.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "rollout must be from 0% to 100%, like 10% or 0.5%, with at most 4 decimals, found {found}"
)]
pub struct RolloutError {
    /// The given text, in quotes.
    found: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rollout_is_printed_as_it_is_parsed() {
        for (text, per_million) in [
            ("0%", 0),
            ("0.0001%", 1),
            ("0.5%", 5_000),
            ("10%", 100_000),
            ("33.3333%", 333_333),
            ("99.9999%", 999_999),
            ("100%", 1_000_000),
        ] {
            let share: Rollout = text.parse().unwrap();
            assert_eq!((share.per_million(), share.to_string()), (per_million, text.to_owned()));
        }
        assert_eq!("007.50%".parse::<Rollout>().unwrap().to_string(), "7.5%");
        for text in [
            "",
            "%",
            "10",
            "-1%",
            "+1%",
            "1e1%",
            ".5%",
            "5.%",
            "1.2.3%",
            "100.0001%",
            "101%",
            "10 %",
            "0.00001%",
            "10%%",
            "99999999999999999999%",
            "١%",
        ] {
            assert!(text.parse::<Rollout>().is_err(), "{text:?}");
        }
    }

    /// A release must not change the positions: an included client stays included.
    #[test]
    fn rollout_position_of_a_client_is_stable_across_releases() {
        let position =
            |rule, parts: &[Part<'_>]| RolloutPosition::of(rule, parts.iter().copied()).0;
        let second = Part::Value { alternative: 1, value: b"alice" };
        let positions = [
            position("api", &[Part::first(b"alice")]),
            position("api", &[second]),
            position("login", &[Part::first(b"alice")]),
            position("api", &[Part::Absent]),
            position("api", &[Part::first(b"")]),
            position("api", &[Part::first(b"al"), Part::first(b"ice")]),
            position("apialice", &[]),
        ];
        assert_eq!(positions, [135_656, 527_534, 975_240, 236_108, 572_519, 830_431, 568_682]);
    }
}
