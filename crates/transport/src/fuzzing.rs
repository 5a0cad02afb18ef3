//! Entry points of the fuzz targets: parsers of this crate that read bytes of clients.

use crate::http;
use crate::resp::rehearse;

/// Parses any bytes as RESP commands, at once and in pieces. No decision is made.
///
/// # Panics
/// The replies to the pieces differ from those to the whole.
pub fn resp(bytes: &[u8]) {
    let whole = rehearse(&[bytes]);
    let cut = bytes.first().map_or(0, |first| usize::from(*first)) % (bytes.len() + 1);
    let (head, tail) = bytes.split_at(cut);
    assert_eq!(rehearse(&[head, tail]), whole);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(rehearse(&single), whole);
}

/// Reads any bytes as the body of a check, a batch or a call of Envoy's.
///
/// # Panics
/// An error has no path, or its text is too long.
pub fn check_json(body: &[u8]) {
    for fault in http::rehearse(body) {
        assert!(!fault.path.is_empty() && !fault.wanted.is_empty(), "{fault:?}");
        assert!(fault.to_string().len() < 2_048, "{} bytes are told", fault.to_string().len());
    }
}
