//! Parses single arguments of commands.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use tidegate_core::{escape_bytes, quote};

use crate::resp::reply::RespError;

/// Parses a whole number in a range.
///
/// # Errors
/// The argument is not a number or out of range. The error names the argument by `name`.
pub(crate) fn number(
    name: &str,
    argument: &[u8],
    range: RangeInclusive<i64>,
) -> Result<i64, RespError> {
    let number = std::str::from_utf8(argument).ok().and_then(|text| text.parse().ok());
    number.filter(|number| range.contains(number)).ok_or_else(|| {
        let (found, (first, last)) = (quoted(argument), (range.start(), range.end()));
        RespError::invalid(format_args!(
            "{name}: found {found}, wanted a whole number from {first} to {last}"
        ))
    })
}

/// Parses the cost of a request.
///
/// # Errors
/// The argument is not a number or negative.
pub(crate) fn cost(argument: &[u8]) -> Result<u64, RespError> {
    number("cost", argument, 0..=i64::MAX).map(i64::unsigned_abs)
}

/// Returns an argument as text: a key, rule, client or attribute. Keys of Redis are any bytes, so they are escaped.
pub(crate) fn text<'b>(argument: &Cow<'b, [u8]>) -> Cow<'b, str> {
    match argument {
        Cow::Borrowed(bytes) => escape_bytes(bytes),
        Cow::Owned(bytes) => escape_bytes(bytes).into_owned().into(),
    }
}

/// Quotes an argument for an error message. Long arguments are truncated.
pub(crate) fn quoted(argument: &[u8]) -> String {
    quote(&String::from_utf8_lossy(argument))
}
