//! Parsers of argument values that several commands use.

use tidegate_core::quota::window_of;
use tidegate_core::{Quota, Span};

/// Parses a time: `10s`, `2m`.
pub(crate) fn length(text: &str) -> Result<Span, String> {
    window_of(text.trim()).map_err(|error| error.to_string())
}

/// Parses a number of requests in a time: `5000`, `5000/s`, `300 per minute`.
pub(crate) fn rate(text: &str) -> Result<Quota, String> {
    let text = text.trim();
    let quota = match text.parse() {
        Ok(per_second) => Quota::per_second(per_second),
        Err(_) => text.parse::<Quota>().map_err(|error| error.to_string())?,
    };
    if quota.is_in_flight() || quota.amount() == 0 || quota.validate().is_err() {
        return Err("a number of requests in a time is wanted, like 90/s".to_owned());
    }
    Ok(quota)
}
