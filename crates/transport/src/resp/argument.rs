//! Parses single arguments of commands.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use tidegate_core::quote;

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
        RespError::error(format_args!(
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

/// Parses a text: a key, rule, client or attribute.
///
/// # Errors
/// The argument is not valid UTF-8.
pub(crate) fn text<'b>(name: &str, argument: Cow<'b, [u8]>) -> Result<Cow<'b, str>, RespError> {
    let text = match argument {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    };
    text.ok_or_else(|| {
        RespError::error(format_args!("{name}: found other bytes, wanted text in UTF-8"))
    })
}

/// Quotes an argument for an error message. Long arguments are truncated.
pub(crate) fn quoted(argument: &[u8]) -> String {
    quote(&String::from_utf8_lossy(argument))
}
