//! Entry points of the fuzz targets: parsers of this crate that read bytes of clients.

use crate::http;
use crate::resp::parse_only;

/// Parses any bytes as RESP commands, in one piece and in several. No decision is made.
///
/// # Panics
/// The replies to the pieces differ from those to the whole.
pub fn resp(bytes: &[u8]) {
    let whole = parse_only(&[bytes]);
    let cut = bytes.first().map_or(0, |first| usize::from(*first)) % (bytes.len() + 1);
    let (head, tail) = bytes.split_at(cut);
    assert_eq!(parse_only(&[head, tail]), whole);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(parse_only(&single), whole);
}

/// Parses any bytes as the body of a check, a batch, an Envoy rate limit call and a slot call.
///
/// # Panics
/// An error has no path, or its text is too long.
pub fn check_json(body: &[u8]) {
    for error in http::parse_only(body) {
        assert!(!error.path.is_empty() && !error.wanted.is_empty(), "{error:?}");
        assert!(error.to_string().len() < 2_048, "error of {} bytes", error.to_string().len());
    }
}
