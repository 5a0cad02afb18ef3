//! Versions of a document, and their stored form.

use serde::{Deserialize, Serialize};
use tidegate_core::Timestamp;

/// The metadata of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentVersion {
    /// Starts at 1 and grows with every version.
    pub number: u64,
    /// The first 16 hexadecimal digits of the BLAKE3 hash of its text.
    pub hash: String,
    /// The time when it was put, by the server's clock.
    pub at: Timestamp,
    /// The author.
    pub by: String,
    /// The reason.
    pub note: String,
    /// The length of its text.
    pub bytes: u64,
}

/// A version and its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentWithText {
    /// The metadata.
    pub version: DocumentVersion,
    /// The whole text.
    pub text: String,
}

/// The part of a version that is stored as JSON. A later release may add fields.
#[derive(Deserialize, Serialize)]
struct VersionMetadata {
    by: String,
    note: String,
    bytes: u64,
}

impl DocumentVersion {
    /// Returns the stored form without the time, which the server adds: the hash, and metadata as JSON.
    pub(crate) fn write(&self) -> String {
        let words =
            VersionMetadata { by: self.by.clone(), note: self.note.clone(), bytes: self.bytes };
        format!("{} {}", self.hash, serde_json::to_string(&words).unwrap_or_default())
    }

    /// Reads the stored form: the time, the hash, and metadata as JSON.
    pub(crate) fn read(number: u64, kept: &[u8]) -> Result<Self, String> {
        let read = || {
            let mut parts = std::str::from_utf8(kept).ok()?.splitn(3, ' ');
            let at = Timestamp::from_micros(parts.next()?.parse().ok()?);
            let hash = parts.next()?.to_owned();
            let VersionMetadata { by, note, bytes } = serde_json::from_str(parts.next()?).ok()?;
            Some(Self { number, hash, at, by, note, bytes })
        };
        read().ok_or_else(|| format!("version {number} has invalid metadata (author and time)"))
    }
}

impl DocumentWithText {
    /// Returns a version with its stored text, if the hash is that of the text.
    pub(crate) fn read(version: DocumentVersion, words: Vec<u8>) -> Result<Self, String> {
        let words = text(words)?;
        if hash_of(&words) == version.hash {
            return Ok(Self { version, text: words });
        }
        let DocumentVersion { number, hash, .. } = version;
        Err(format!("version {number} must have hash {hash}, found {}", hash_of(&words)))
    }
}

/// Returns the first 16 hexadecimal digits of the BLAKE3 hash.
pub(crate) fn hash_of(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().chars().take(16).collect()
}

pub(crate) fn number(digits: &[u8]) -> Result<u64, String> {
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number.ok_or_else(|| "a number is wanted, found something else".to_owned())
}

pub(crate) fn text(bytes: Vec<u8>) -> Result<String, String> {
    String::from_utf8(bytes).map_err(|_| "a text is wanted, found bytes that are none".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn version(by: &str, note: &str) -> DocumentVersion {
        let (by, note) = (by.to_owned(), note.to_owned());
        let (hash, at) = (hash_of("rules: []"), Timestamp::from_secs(1_700_000_000));
        DocumentVersion { number: 7, hash, at, by, note, bytes: 9 }
    }

    #[test]
    fn version_metadata_round_trips() {
        for words in ["", "ann", "a b  c", "line\nbreak", "{\"by\": 1}", "ünïcode \u{0}"] {
            let version = version(words, words);
            let kept = format!("{} {}", version.at.as_micros(), version.write());
            assert_eq!(DocumentVersion::read(7, kept.as_bytes()), Ok(version));
        }
    }

    #[test]
    fn invalid_version_is_an_error() {
        for kept in ["", "1", "1 ab", "x ab {}", "1 ab {}", "1 ab {\"by\":1}", "\u{0}"] {
            assert!(DocumentVersion::read(7, kept.as_bytes()).is_err(), "{kept:?}");
        }
        assert!(DocumentVersion::read(7, &[0xff]).is_err());
        assert!(DocumentWithText::read(version("", ""), vec![0xff]).is_err());
        let other = DocumentWithText::read(version("", ""), b"rules: {}".to_vec()).unwrap_err();
        assert!(other.starts_with("version 7 must have hash "), "{other}");
        assert!(DocumentWithText::read(version("", ""), b"rules: []".to_vec()).is_ok());
    }
}
