//! Any text as a path, host and method causes no panic. A canonical path is ASCII, is its own canonical form, and means the
//! same to a decoder that knows nothing of the canonical form.
#![no_main]

use libfuzzer_sys::fuzz_target;
use tidegate_core::canonical::{EncodedSlashes, canonical_host, canonical_path, check_method};

fuzz_target!(|text: &str| {
    let _ = check_method(text);
    if let Ok(host) = canonical_host(text) {
        let again = canonical_host(&host.name).expect("a canonical host is a host");
        assert_eq!(again.name, host.name);
        assert!(host.name.is_ascii());
    }
    for slashes in [EncodedSlashes::Reject, EncodedSlashes::Keep] {
        let Ok(path) = canonical_path(text, slashes) else { continue };
        assert!(path.is_ascii() && path.starts_with('/'), "{path}");
        assert_eq!(canonical_path(&path, slashes).as_deref(), Ok(&*path));
        assert!(!path.contains("//") && !path.contains("/./") && !path.contains("/../"), "{path}");
        if slashes == EncodedSlashes::Reject {
            assert_eq!(resolve(&path), resolve(text));
        }
    }
});

/// Decodes all escapes of a path, and then removes empty segments and dot segments.
fn resolve(path: &str) -> Vec<Vec<u8>> {
    let mut pieces = path.split('%');
    let mut decoded = pieces.next().unwrap_or_default().as_bytes().to_vec();
    for piece in pieces {
        let (digits, rest) = piece.split_at(2);
        decoded.push(u8::from_str_radix(digits, 16).expect("a validated escape"));
        decoded.extend(rest.as_bytes());
    }
    let mut segments = Vec::new();
    for segment in decoded.split(|byte| *byte == b'/') {
        match segment {
            b"" | b"." => {}
            b".." => drop(segments.pop()),
            segment => segments.push(segment.to_vec()),
        }
    }
    segments
}
