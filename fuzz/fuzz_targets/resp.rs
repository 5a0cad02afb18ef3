//! Any bytes on a RESP connection: answered or refused, never a panic, and the same in any pieces.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_server::fuzzing::resp;

fuzz_target!(|bytes: &[u8]| {
    let whole = resp::replies(&[bytes]);
    assert!(whole.len() <= 64 * 1024 * (1 + bytes.len()));
    // The first byte says where to cut.
    let cut = bytes.first().map_or(0, |first| usize::from(*first)) % (bytes.len() + 1);
    let (head, tail) = bytes.split_at(cut);
    assert_eq!(resp::replies(&[head, tail]), whole);
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(resp::replies(&single), whole);
});
