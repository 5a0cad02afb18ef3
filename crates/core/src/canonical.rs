//! The canonical form of a request: one spelling of path, host and method.
//!
//! Upstreams decode percent escapes, merge slashes and remove dot segments before they choose a handler. A rule that saw
//! the spelling of the client would be bypassed by another spelling of the same path. So every request is converted to
//! one spelling before rules and routes see it, or rejected if its meaning depends on the upstream.

use std::borrow::Cow;
use std::fmt;

/// The treatment of `%2F` and `%5C` in a path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EncodedSlashes {
    /// The request is rejected: upstreams disagree whether `%2F` separates segments.
    #[default]
    Reject,
    /// They stay as they are, as a part of their segment. For upstreams that do the same, such as registries.
    Keep,
}

impl EncodedSlashes {
    /// The names in a configuration.
    pub const NAMES: [(&str, Self); 2] = [("reject", Self::Reject), ("keep", Self::Keep)];
}

/// The reason why a request has no canonical form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CanonicalError {
    /// The path does not start with a slash.
    NoLeadingSlash,
    /// A percent sign without two hexadecimal digits.
    InvalidEscape,
    /// `%2F` or `%5C`, under [`EncodedSlashes::Reject`].
    EncodedSlash,
    /// A backslash, which some upstreams treat as a slash.
    Backslash,
    /// A control character, as it is or escaped.
    ControlCharacter,
    /// A dot segment with parameters, such as `..;x`, which some upstreams treat as a dot segment.
    DotSegmentParameters,
    /// A method with other characters than upper-case letters, digits and `-_`.
    InvalidMethod,
    /// A host that is neither a name nor an address, or a port that is no number up to 65535.
    InvalidHost,
}

impl CanonicalError {
    /// Returns the error in the form "where: found X, wanted Y".
    #[must_use]
    pub const fn detail(self) -> &'static str {
        match self {
            Self::NoLeadingSlash => "path: found no leading slash, wanted a path like /v1/items",
            Self::InvalidEscape => {
                "path: found a percent sign without two hexadecimal digits, wanted an escape like %20"
            }
            Self::EncodedSlash => {
                "path: found an encoded slash or backslash, wanted a path without %2F and %5C"
            }
            Self::Backslash => "path: found a backslash, wanted a path without it",
            Self::ControlCharacter => {
                "path: found a control character, wanted printable characters"
            }
            Self::DotSegmentParameters => {
                "path: found a dot segment with parameters, wanted a path without it"
            }
            Self::InvalidMethod => "method: found other characters, wanted upper-case letters",
            Self::InvalidHost => "host: found an invalid host, wanted one like example.com:80",
        }
    }

    /// Returns the value of the metric label.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::NoLeadingSlash => "no_leading_slash",
            Self::InvalidEscape => "invalid_escape",
            Self::EncodedSlash => "encoded_slash",
            Self::Backslash => "backslash",
            Self::ControlCharacter => "control_character",
            Self::DotSegmentParameters => "dot_segment_parameters",
            Self::InvalidMethod => "invalid_method",
            Self::InvalidHost => "invalid_host",
        }
    }
}

impl fmt::Display for CanonicalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.detail())
    }
}

impl std::error::Error for CanonicalError {}

/// Returns the canonical form of a path without its query.
///
/// The steps, once and in this order: escapes are validated; characters that a path may contain literally are decoded,
/// all others are escaped with upper-case digits; repeated slashes are merged; dot segments are removed. `%25` stays, so
/// nothing is decoded twice. The result has only ASCII characters, and is its own canonical form.
///
/// RFC 3986 decodes only unreserved characters. Here every `pchar` is decoded, such as `%40` to `@`: upstreams decode all
/// escapes before they choose a handler, so `/@me` and `/%40me` are one path to them.
///
/// ```
/// use tidegate_core::canonical::{EncodedSlashes, canonical_path};
///
/// let canonical = |path| canonical_path(path, EncodedSlashes::Reject);
/// assert_eq!(canonical("//x/%2e%2e/log%69n").as_deref(), Ok("/login"));
/// assert!(canonical("/%2Flogin").is_err());
/// ```
///
/// # Errors
/// The path has no unambiguous meaning: see [`CanonicalError`].
pub fn canonical_path(path: &str, slashes: EncodedSlashes) -> Result<Cow<'_, str>, CanonicalError> {
    if is_canonical(path) {
        return Ok(Cow::Borrowed(path));
    }
    let Some(rest) = path.strip_prefix('/') else {
        return Err(CanonicalError::NoLeadingSlash);
    };
    let mut canonical = String::with_capacity(path.len());
    // The path ends in a slash if its last segment is empty or a dot segment.
    let mut is_folder = true;
    for segment in rest.split('/') {
        let start = canonical.len();
        canonical.push('/');
        push_segment(&mut canonical, segment, slashes)?;
        let decoded = canonical.get(start + 1..).unwrap_or_default();
        is_folder = matches!(decoded, "" | "." | "..");
        match decoded {
            "" | "." => canonical.truncate(start),
            ".." => {
                canonical.truncate(start);
                // Above the root there is nothing to remove.
                canonical.truncate(canonical.rfind('/').unwrap_or(0));
            }
            _ if decoded.starts_with(".;") || decoded.starts_with("..;") => {
                return Err(CanonicalError::DotSegmentParameters);
            }
            _ => {}
        }
    }
    if is_folder {
        canonical.push('/');
    }
    Ok(Cow::Owned(canonical))
}

/// Appends one segment with every character in its canonical spelling.
fn push_segment(
    canonical: &mut String,
    segment: &str,
    slashes: EncodedSlashes,
) -> Result<(), CanonicalError> {
    let mut bytes = segment.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            match byte {
                b'\\' => return Err(CanonicalError::Backslash),
                _ if byte.is_ascii_control() => return Err(CanonicalError::ControlCharacter),
                _ => push_byte(canonical, byte),
            }
            continue;
        }
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        let (Some(high), Some(low)) = (digit(bytes.next()), digit(bytes.next())) else {
            return Err(CanonicalError::InvalidEscape);
        };
        let decoded = u8::try_from(high * 16 + low).map_err(|_| CanonicalError::InvalidEscape)?;
        match decoded {
            b'/' | b'\\' if slashes == EncodedSlashes::Reject => {
                return Err(CanonicalError::EncodedSlash);
            }
            _ if decoded.is_ascii_control() => return Err(CanonicalError::ControlCharacter),
            _ => push_byte(canonical, decoded),
        }
    }
    Ok(())
}

/// Appends a byte of a segment: as it is if a path may contain it, else as an escape.
fn push_byte(canonical: &mut String, byte: u8) {
    const DIGITS: [char; 16] =
        ['0', '1', '2', '3', '4', '5', '6', '7', '8', '9', 'A', 'B', 'C', 'D', 'E', 'F'];
    if is_path_char(byte) {
        canonical.push(char::from(byte));
        return;
    }
    canonical.push('%');
    for digit in [byte >> 4, byte & 15] {
        canonical.extend(DIGITS.get(usize::from(digit)));
    }
}

/// Returns whether a segment may contain this byte as it is (`pchar` of RFC 3986).
const fn is_path_char(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(
            byte,
            b'-' | b'.' | b'_' | b'~' // unreserved
            | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b',' | b';' | b'='
            | b':' | b'@'
        )
}

/// Returns whether a path has no escape, no empty segment and no segment that starts with a dot: then it is canonical.
///
/// Most paths are. Other canonical paths are found canonical by the slow way.
fn is_canonical(path: &str) -> bool {
    let mut after_slash = false;
    for byte in path.bytes() {
        match byte {
            b'/' if !after_slash => after_slash = true,
            b'/' => return false,
            b'.' if after_slash => return false,
            _ if is_path_char(byte) => after_slash = false,
            _ => return false,
        }
    }
    path.starts_with('/')
}

/// Checks that a method has only upper-case letters, digits, `-` and `_`.
///
/// Upstreams disagree about the case of methods: some treat `post` as `POST`.
///
/// # Errors
/// [`CanonicalError::InvalidMethod`].
pub fn check_method(method: &str) -> Result<(), CanonicalError> {
    let is_method_char = |byte: u8| {
        byte.is_ascii_uppercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_')
    };
    match !method.is_empty() && method.bytes().all(is_method_char) {
        true => Ok(()),
        false => Err(CanonicalError::InvalidMethod),
    }
}

/// A host and an optional port, as in a `Host` header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CanonicalHost<'a> {
    /// The name in lower case without a trailing dot, or an address; an IPv6 address has brackets.
    pub name: Cow<'a, str>,
    /// The port, if there is one.
    pub port: Option<u16>,
}

/// Parses a `Host` header or the authority of a target, without user information.
///
/// # Errors
/// [`CanonicalError::InvalidHost`]: an empty name or label, a character that no host has, more than one trailing dot, an
/// invalid IPv6 address, or a port that is no number up to 65535.
pub fn canonical_host(host: &str) -> Result<CanonicalHost<'_>, CanonicalError> {
    let invalid = CanonicalError::InvalidHost;
    let (name, port) = if host.starts_with('[') {
        let end = host.find(']').ok_or(invalid)?;
        let (name, rest) = host.split_at(end + 1);
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        let address: std::net::Ipv6Addr =
            address.and_then(|address| address.parse().ok()).ok_or(invalid)?;
        (Cow::Owned(format!("[{address}]")), rest)
    } else {
        let end = host.find(':').unwrap_or(host.len());
        let (name, rest) = host.split_at(end);
        (canonical_name(name)?, rest)
    };
    let port = match port.strip_prefix(':') {
        None if port.is_empty() => None,
        None => return Err(invalid),
        // An empty port is the default port (RFC 3986, section 3.2.3).
        Some("") => None,
        Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
            Some(digits.parse().map_err(|_| invalid)?)
        }
        Some(_) => return Err(invalid),
    };
    Ok(CanonicalHost { name, port })
}

/// Returns a host name in lower case without its trailing dot.
fn canonical_name(name: &str) -> Result<Cow<'_, str>, CanonicalError> {
    const MAX_NAME_BYTES: usize = 253;
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_name_char = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    let is_label = |label: &str| !label.is_empty() && label.bytes().all(is_name_char);
    if name.len() > MAX_NAME_BYTES || !name.split('.').all(is_label) {
        return Err(CanonicalError::InvalidHost);
    }
    Ok(match name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        true => Cow::Owned(name.to_ascii_lowercase()),
        false => Cow::Borrowed(name),
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn canonical(path: &str) -> Result<String, CanonicalError> {
        canonical_path(path, EncodedSlashes::Reject).map(Cow::into_owned)
    }

    #[test]
    fn spellings_of_one_path_have_one_canonical_form() {
        for spelling in [
            "/login",
            "//login",
            "/./login",
            "/x/../login",
            "/%2e/login",
            "/x/%2E%2e/login",
            "/../login",
            "/%6Cogin",
            "/l%6fgin",
            "///x//..///login",
            "/x/y/../../login",
            "/.//login",
        ] {
            assert_eq!(canonical(spelling).as_deref(), Ok("/login"), "{spelling}");
        }
        for (spelling, expected) in [
            ("/", "/"),
            ("//", "/"),
            ("/..", "/"),
            ("/a/", "/a/"),
            ("/a/.", "/a/"),
            ("/a/..", "/"),
            ("/a/b/..", "/a/"),
            ("/a//", "/a/"),
            ("/.well-known/x", "/.well-known/x"),
            ("/...", "/..."),
            ("/a..b", "/a..b"),
            // Escapes are decoded once.
            ("/%252e%252e/x", "/%252e%252e/x"),
            ("/%25", "/%25"),
            ("/a%21b%3b%40", "/a!b;@"),
            ("/a b\"<>^`{|}?", "/a%20b%22%3C%3E%5E%60%7B%7C%7D%3F"),
            ("/caf\u{e9}", "/caf%C3%A9"),
            ("/caf%c3%a9", "/caf%C3%A9"),
            ("/%ff", "/%FF"),
            ("/a;v=1/b", "/a;v=1/b"),
            ("/LOGIN", "/LOGIN"),
        ] {
            assert_eq!(canonical(spelling).as_deref(), Ok(expected), "{spelling}");
        }
    }

    #[test]
    fn paths_with_several_meanings_are_rejected() {
        for (path, error) in [
            ("", CanonicalError::NoLeadingSlash),
            ("login", CanonicalError::NoLeadingSlash),
            ("*", CanonicalError::NoLeadingSlash),
            ("/%zz", CanonicalError::InvalidEscape),
            ("/%", CanonicalError::InvalidEscape),
            ("/%4", CanonicalError::InvalidEscape),
            ("/%+4", CanonicalError::InvalidEscape),
            ("/%2Flogin", CanonicalError::EncodedSlash),
            ("/a%5cb", CanonicalError::EncodedSlash),
            ("/a\\b", CanonicalError::Backslash),
            ("/a%00", CanonicalError::ControlCharacter),
            ("/a\u{7f}", CanonicalError::ControlCharacter),
            ("/a%0d%0a", CanonicalError::ControlCharacter),
            ("/a/..;/b", CanonicalError::DotSegmentParameters),
            ("/a/%2e;x/b", CanonicalError::DotSegmentParameters),
        ] {
            assert_eq!(canonical(path), Err(error), "{path:?}");
        }
    }

    #[test]
    fn kept_encoded_slashes_stay_inside_their_segment() {
        let keep = |path| canonical_path(path, EncodedSlashes::Keep).map(Cow::into_owned);
        assert_eq!(keep("/group%2fproject/../x").as_deref(), Ok("/x"));
        assert_eq!(keep("/%2e%2e%2fadmin").as_deref(), Ok("/..%2Fadmin"));
        assert_eq!(keep("/a%5cb").as_deref(), Ok("/a%5Cb"));
        assert_eq!(keep("/a\\b"), Err(CanonicalError::Backslash));
    }

    #[test]
    fn methods_have_upper_case_letters() {
        for method in ["GET", "M-SEARCH", "VERSION_CONTROL2"] {
            assert_eq!(check_method(method), Ok(()), "{method}");
        }
        for method in ["post", "Get", "", "GE T", "GET\u{e9}"] {
            assert_eq!(check_method(method), Err(CanonicalError::InvalidMethod), "{method}");
        }
    }

    #[test]
    fn hosts_have_one_spelling_or_are_rejected() {
        for (host, name, port) in [
            ("shop.example", "shop.example", None),
            ("SHOP.example.:8080", "shop.example", Some(8080)),
            ("shop.example:", "shop.example", None),
            ("192.0.2.7:80", "192.0.2.7", Some(80)),
            ("[2001:DB8::1]:80", "[2001:db8::1]", Some(80)),
            ("my_service", "my_service", None),
        ] {
            let expected = CanonicalHost { name: name.into(), port };
            assert_eq!(canonical_host(host), Ok(expected), "{host}");
        }
        for host in [
            "",
            ".",
            ":80",
            ":80:80",
            "shop.example:x",
            "shop.example..",
            "shop..example",
            "shop.example:65536",
            "shop.example:+80",
            "shop.example:80:80",
            "[::1",
            "[[::1]",
            "[::1]]",
            "[::1]x",
            "[x]",
            "::1",
            "a b",
            "user@shop.example",
            "shop.example/x",
            "caf\u{e9}.example",
        ] {
            assert_eq!(canonical_host(host), Err(CanonicalError::InvalidHost), "{host}");
        }
    }

    /// Generates paths from the pieces that upstreams decode or remove.
    fn path() -> impl Strategy<Value = String> {
        let pieces = [
            "/", "/", ".", "..", "%2e", "%2E", "%2f", "%5c", "%25", "%", "%4", "a", "B", "%61",
            "%41", ";", "%3b", "\u{e9}", "%c3%a9", "%C3", "\\", "\u{0}", "%00", " ", "%20", "~",
            "%7e", "!",
        ];
        let pieces = proptest::collection::vec(proptest::sample::select(pieces.to_vec()), 0..12);
        pieces.prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    /// Decodes and resolves a path as an upstream does that decodes every escape first.
    fn resolved_by_upstream(path: &str) -> Vec<Vec<u8>> {
        let mut decoded = Vec::new();
        let bytes = path.as_bytes();
        let mut index = 0;
        while index < bytes.len() {
            let escape = bytes.get(index + 1..index + 3).filter(|_| bytes[index] == b'%');
            let escape = escape.and_then(|digits| std::str::from_utf8(digits).ok());
            match escape.and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
                Some(byte) => {
                    decoded.push(byte);
                    index += 3;
                }
                None => {
                    decoded.push(bytes[index]);
                    index += 1;
                }
            }
        }
        let mut segments: Vec<Vec<u8>> = Vec::new();
        for segment in decoded.split(|byte| *byte == b'/') {
            match segment {
                b"" | b"." => {}
                b".." => drop(segments.pop()),
                segment => segments.push(segment.to_vec()),
            }
        }
        segments
    }

    proptest! {
        #[test]
        fn canonical_form_is_its_own_canonical_form(path in path(), keep: bool) {
            let slashes = if keep { EncodedSlashes::Keep } else { EncodedSlashes::Reject };
            if let Ok(once) = canonical_path(&path, slashes) {
                prop_assert!(once.is_ascii() && once.starts_with('/'), "{}", once);
                let twice = canonical_path(&once, slashes);
                prop_assert_eq!(twice.as_deref(), Ok(&*once));
            }
        }

        #[test]
        fn canonical_form_means_the_same_to_an_upstream_that_decodes_first(path in path()) {
            if let Ok(canonical) = canonical_path(&path, EncodedSlashes::Reject) {
                prop_assert_eq!(resolved_by_upstream(&canonical), resolved_by_upstream(&path));
            }
        }

        #[test]
        fn paths_that_an_upstream_treats_alike_have_one_canonical_form(first in path(), second in path()) {
            let (Ok(a), Ok(b)) =
                (canonical_path(&first, EncodedSlashes::Reject), canonical_path(&second, EncodedSlashes::Reject))
            else {
                return Ok(());
            };
            let alike = resolved_by_upstream(&first) == resolved_by_upstream(&second);
            prop_assert_eq!(alike, a.trim_end_matches('/') == b.trim_end_matches('/'), "{} {}", a, b);
        }
    }
}
