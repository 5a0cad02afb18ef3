//! Text for bytes of a client that may not be UTF-8.
//!
//! Attributes are text, and clients send bytes. A byte that is not part of valid UTF-8 is written as `\xFF`, with two
//! upper-case hexadecimal digits. A backslash that would begin such a sequence in valid text is written as `\x5C`.
//! Different bytes therefore have different texts, and all other text stays as it is.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns the text for bytes. Bytes that are UTF-8 and contain no escape are borrowed.
///
/// ```
/// use tidegate_core::escape_bytes;
///
/// assert_eq!(escape_bytes("caf\u{e9}".as_bytes()), "caf\u{e9}");
/// assert_eq!(escape_bytes(b"caf\xe9"), r"caf\xE9");
/// assert_eq!(escape_bytes(br"caf\xE9"), r"caf\x5CxE9");
/// ```
#[must_use]
pub fn escape_bytes(bytes: &[u8]) -> Cow<'_, str> {
    match str::from_utf8(bytes) {
        Ok(text) => escape_text(text.into()),
        Err(_) => escape(bytes).into(),
    }
}

/// Returns the same text as [`escape_bytes`] for bytes that are known to be UTF-8.
#[must_use]
pub fn escape_text(text: Cow<'_, str>) -> Cow<'_, str> {
    if contains_escape(text.as_bytes()) { escape(text.as_bytes()).into() } else { text }
}

/// Returns whether [`escape_bytes`] returns the same bytes.
///
/// ```
/// use tidegate_core::is_unescaped;
///
/// assert!(is_unescaped(b"alice") && is_unescaped("caf\u{e9}".as_bytes()));
/// assert!(!is_unescaped(b"caf\xe9") && !is_unescaped(br"caf\xE9"));
/// ```
#[inline]
#[must_use]
pub fn is_unescaped(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let plain_words = words.iter().all(|word| is_plain_word(u64::from_le_bytes(*word)));
    let plain_rest = rest.iter().all(|byte| byte.is_ascii() && *byte != b'\\');
    (plain_words && plain_rest) || (str::from_utf8(bytes).is_ok() && !contains_escape(bytes))
}

/// Returns whether eight bytes are ASCII without a backslash.
#[inline]
fn is_plain_word(word: u64) -> bool {
    const ONES: u64 = 0x0101_0101_0101_0101;
    const HIGH_BITS: u64 = 0x8080_8080_8080_8080;
    // A byte of zero borrows from its high bit. Without high bits in the word, no other byte does before it.
    let backslashes = (word ^ (ONES * 0x5c)).wrapping_sub(ONES);
    (word | backslashes) & HIGH_BITS == 0
}

/// Returns the bytes that a text stands for: the inverse of [`escape_bytes`].
#[must_use]
pub fn unescape(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::with_capacity(text.len()), text);
    while let Some((before, after)) = rest.split_once('\\') {
        bytes.extend(before.as_bytes());
        let is_escape = rest.get(before.len()..).map(str::as_bytes).is_some_and(starts_with_escape);
        let digits = after.get(1..3).filter(|_| is_escape);
        match digits.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(b'\\');
                rest = after;
            }
        }
    }
    bytes.extend(rest.as_bytes());
    bytes
}

fn contains_escape(bytes: &[u8]) -> bool {
    // Almost no text contains a backslash, and the search for one byte is fast.
    bytes.contains(&b'\\') && bytes.windows(4).any(starts_with_escape)
}

/// Returns whether bytes start with a sequence that [`escape`] writes.
fn starts_with_escape(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [b'\\', b'x', b'5', b'C', ..]
            | [b'\\', b'x', b'8' | b'9' | b'A'..=b'F', b'0'..=b'9' | b'A'..=b'F', ..]
    )
}

#[cold]
fn escape(bytes: &[u8]) -> String {
    let mut escaped = String::with_capacity(bytes.len() + 16);
    for chunk in bytes.utf8_chunks() {
        let mut rest = chunk.valid();
        while let Some((before, after)) = rest.split_once('\\') {
            let begins_escape = rest.get(before.len()..).map(str::as_bytes);
            escaped.push_str(before);
            escaped.push_str(match begins_escape.is_some_and(starts_with_escape) {
                true => r"\x5C",
                false => r"\",
            });
            rest = after;
        }
        escaped.push_str(rest);
        for byte in chunk.invalid() {
            // Writing to a string can't fail.
            let _ = write!(escaped, r"\x{byte:02X}");
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Generates bytes of which many are escapes, parts of escapes, or not UTF-8.
    fn escape_like_bytes() -> impl Strategy<Value = Vec<u8>> {
        let pieces: [&[u8]; 14] = [
            b"\\",
            b"x",
            b"5",
            b"C",
            b"F",
            b"f",
            b"8",
            b"\\x5C",
            b"\\xFF",
            b"\\x7F",
            b"\xff",
            b"\xc3",
            "\u{e9}".as_bytes(),
            "\u{fffd}".as_bytes(),
        ];
        let piece = prop_oneof![
            8 => proptest::sample::select(pieces.to_vec()).prop_map(<[u8]>::to_vec),
            1 => proptest::collection::vec(any::<u8>(), 0..4),
        ];
        proptest::collection::vec(piece, 0..12).prop_map(|pieces| pieces.concat())
    }

    proptest! {
        #[test]
        fn text_determines_the_bytes(bytes in escape_like_bytes()) {
            prop_assert_eq!(unescape(&escape_bytes(&bytes)), bytes);
        }

        #[test]
        fn only_unescaped_bytes_are_their_own_text(
            bytes in prop_oneof![escape_like_bytes(), "[ -~]{0,40}".prop_map(String::into_bytes)],
        ) {
            prop_assert_eq!(is_unescaped(&bytes), escape_bytes(&bytes).as_bytes() == bytes);
        }

        #[test]
        fn different_bytes_have_different_texts(
            one in escape_like_bytes(),
            other in escape_like_bytes(),
        ) {
            prop_assert_eq!(escape_bytes(&one) == escape_bytes(&other), one == other);
        }

        #[test]
        fn text_without_an_escape_is_borrowed(text in "[^\\\\]*") {
            prop_assert!(matches!(escape_bytes(text.as_bytes()), Cow::Borrowed(same) if same == text));
        }

        #[test]
        fn text_and_its_bytes_have_the_same_escape(bytes in escape_like_bytes()) {
            if let Ok(text) = str::from_utf8(&bytes) {
                prop_assert_eq!(escape_text(text.into()), escape_bytes(&bytes));
                prop_assert_eq!(escape_text(text.to_owned().into()), escape_bytes(&bytes));
            }
        }
    }

    #[test]
    fn only_bytes_that_are_not_utf8_and_escapes_in_text_change() {
        for (bytes, text) in [
            (&b""[..], ""),
            (b"\xff", r"\xFF"),
            (b"\xfe", r"\xFE"),
            (b"a\x80b", r"a\x80b"),
            (b"\xf0\x9f\x8c", r"\xF0\x9F\x8C"),
            (br"\xFF", r"\x5CxFF"),
            (br"\x5C", r"\x5Cx5C"),
            (b"\\x\xff", r"\x\xFF"),
            (b"\\x8\xff", r"\x8\xFF"),
            (br"CORP\xavier \xff \x41 \x7F \\", r"CORP\xavier \xff \x41 \x7F \\"),
        ] {
            assert_eq!(escape_bytes(bytes), text);
        }
    }
}
