//! What fuzzers reach: whatever reads a stranger's text. Nobody else should use it.

use crate::transport::resp::rehearse;

/// Sends any bytes to the RESP door, where no decision is made, at once and in pieces.
///
/// # Panics
/// The pieces are answered otherwise than the whole.
pub fn resp(bytes: &[u8]) {
    let whole = rehearse(&[bytes]);
    // The first byte says where to cut.
    let cut = bytes.first().map_or(0, |first| usize::from(*first)) % (bytes.len() + 1);
    let (head, tail) = bytes.split_at(cut);
    assert_eq!(rehearse(&[head, tail]), whole);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(rehearse(&single), whole);
}
