//! Bearer tokens and sessions. Rules count by the hash of such a secret, so the secret itself is never stored or logged.

use std::borrow::Cow;

use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;
use tidegate_core::escape_bytes;
use tidegate_limiter::tower::AmbiguousValue;

/// Returns the token in `Authorization: Bearer`. Bytes that are not UTF-8 are escaped.
///
/// # Errors
/// The header occurs several times. Servers differ in the one that they use.
pub(crate) fn read_token(head: &Parts) -> Result<Option<Cow<'_, str>>, AmbiguousValue> {
    let mut values = head.headers.get_all(AUTHORIZATION).iter();
    let (first, second) = (values.next(), values.next());
    if second.is_some() {
        return Err(AmbiguousValue);
    }
    Ok(first.and_then(|value| match escape_bytes(value.as_bytes()) {
        Cow::Borrowed(value) => strip_scheme(value).map(Cow::Borrowed),
        Cow::Owned(value) => strip_scheme(&value).map(|token| token.to_owned().into()),
    }))
}

/// Returns the token after `Bearer`, which may be in upper or lower case.
pub(crate) fn strip_scheme(value: &str) -> Option<&str> {
    let (scheme, token) = value.trim_ascii().split_once(' ')?;
    let token = token.trim_ascii_start();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// Returns 128 bits of a cryptographic hash in hexadecimal, the same on every node.
pub(crate) fn hash_secret(secret: &str) -> String {
    let hash = blake3::derive_key("tidegate 2026 session", secret.as_bytes());
    hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bearer_scheme_is_matched_in_any_case() {
        for value in ["Bearer s3cret", "bearer  s3cret", " BEARER s3cret "] {
            assert_eq!(strip_scheme(value), Some("s3cret"), "{value:?}");
        }
        for value in ["s3cret", "Basic s3cret", "Bearer", "Bearer ", "Bearers 3cret"] {
            assert_eq!(strip_scheme(value), None, "{value:?}");
        }
    }

    #[test]
    fn token_that_is_not_utf8_is_read() {
        let token = |value: &[u8]| {
            let request = hyper::Request::get("/").header(AUTHORIZATION, value).body(()).unwrap();
            read_token(&request.into_parts().0).unwrap().map(Cow::into_owned)
        };
        assert_eq!(token(b"Bearer a\xff").as_deref(), Some(r"a\xFF"));
        assert_eq!(token(b"Bearer a\xfe").as_deref(), Some(r"a\xFE"));
        assert_eq!(token(b"Basic \xff"), None);
    }

    #[test]
    fn hash_is_stable_and_does_not_contain_the_secret() {
        assert_eq!(hash_secret("s3cret"), hash_secret("s3cret"));
        assert_ne!(hash_secret("s3cret"), hash_secret("s3creu"));
        assert_eq!(hash_secret("s3cret").len(), 32);
        assert!(!hash_secret("s3cret").contains("s3cret"));
    }
}
