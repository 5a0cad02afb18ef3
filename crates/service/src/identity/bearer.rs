//! Secrets that name a session: known by what they hash to, so that rules can count by them and nobody
//! can read them anywhere.

use hyper::header::AUTHORIZATION;
use hyper::http::request::Parts;

/// The token after `Authorization: Bearer`.
pub(crate) fn token(head: &Parts) -> Option<&str> {
    strip(head.headers.get(AUTHORIZATION)?.to_str().ok()?)
}

/// What follows `Bearer`, in any case.
pub(crate) fn strip(value: &str) -> Option<&str> {
    let (scheme, token) = value.trim_ascii().split_once(' ')?;
    let token = token.trim_ascii_start();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

/// 128 bits of a hash, the same on every node. Nobody finds the secret by it, or another with the
/// same hash.
pub(crate) fn hashed(secret: &str) -> String {
    let hash = blake3::derive_key("tidegate 2026 session", secret.as_bytes());
    hash[..16].iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bearer_token_is_found_whatever_its_spelling() {
        for value in ["Bearer s3cret", "bearer  s3cret", " BEARER s3cret "] {
            assert_eq!(strip(value), Some("s3cret"), "{value:?}");
        }
        for value in ["s3cret", "Basic s3cret", "Bearer", "Bearer ", "Bearers 3cret"] {
            assert_eq!(strip(value), None, "{value:?}");
        }
    }

    #[test]
    fn a_hash_is_always_the_same_and_tells_nothing() {
        assert_eq!(hashed("s3cret"), hashed("s3cret"));
        assert_ne!(hashed("s3cret"), hashed("s3creu"));
        assert_eq!(hashed("s3cret").len(), 32);
        assert!(!hashed("s3cret").contains("s3cret"));
    }
}
