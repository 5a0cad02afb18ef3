//! What single arguments of commands have to be.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use crate::resp::reply::Refusal;
use tidegate_core::quote;

/// A whole number in a range.
///
/// # Errors
/// Where it stands, what was found and what is wanted.
pub(super) fn number(
    place: &str,
    argument: &[u8],
    range: RangeInclusive<i64>,
) -> Result<i64, Refusal> {
    let number = std::str::from_utf8(argument).ok().and_then(|text| text.parse().ok());
    number.filter(|number| range.contains(number)).ok_or_else(|| {
        let (found, (first, last)) = (shown(argument), (range.start(), range.end()));
        Refusal::error(format_args!(
            "{place}: found {found}, wanted a whole number from {first} to {last}"
        ))
    })
}

/// What a request costs.
///
/// # Errors
/// It is no number, or less than nothing.
pub(super) fn cost(argument: &[u8]) -> Result<u64, Refusal> {
    number("cost", argument, 0..=i64::MAX).map(i64::unsigned_abs)
}

/// Text in UTF-8: keys, rules, clients and attributes are that.
///
/// # Errors
/// It is something else.
pub(super) fn text<'b>(place: &str, argument: Cow<'b, [u8]>) -> Result<Cow<'b, str>, Refusal> {
    let text = match argument {
        Cow::Borrowed(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Cow::Owned(bytes) => String::from_utf8(bytes).ok().map(Cow::Owned),
    };
    text.ok_or_else(|| {
        Refusal::error(format_args!("{place}: found other bytes, wanted text in UTF-8"))
    })
}

/// A client's own words, in quotes, cut if they are long.
pub(super) fn shown(argument: &[u8]) -> String {
    quote(&String::from_utf8_lossy(argument))
}
