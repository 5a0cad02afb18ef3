//! Bearer tokens and sessions. Rules count by the hash of such a secret, so the secret itself is never stored or logged.

use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;

/// Returns the token in `Authorization: Bearer`.
pub(crate) fn read_token(head: &Parts) -> Option<&str> {
    strip_scheme(head.headers.get(AUTHORIZATION)?.to_str().ok()?)
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
    fn hash_is_stable_and_does_not_contain_the_secret() {
        assert_eq!(hash_secret("s3cret"), hash_secret("s3cret"));
        assert_ne!(hash_secret("s3cret"), hash_secret("s3creu"));
        assert_eq!(hash_secret("s3cret").len(), 32);
        assert!(!hash_secret("s3cret").contains("s3cret"));
    }
}
