//! The keys that verify tokens: a secret, a public key, or a set of keys with ids.
//!
//! A key belongs to one family of algorithms, and a token with an algorithm of another family is rejected. So a public
//! key is never used as an HMAC secret.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use arc_swap::ArcSwap;
use jsonwebtoken::jwk::{Jwk, PublicKeyUse};
use jsonwebtoken::{Algorithm, DecodingKey};
use parking_lot::Mutex;
use serde::Deserialize;
use tidegate_redis::Secret;

use crate::config_error::{ConfigError, read_file};

/// Longest file with a key or keys, in bytes.
const MAX_FILE_BYTES: usize = 1024 * 1024;

/// The source of the keys.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// An HMAC secret.
    Secret(Secret),
    /// A file with an HMAC secret.
    SecretFile(PathBuf),
    /// A PEM file: RSA, EC or Ed25519.
    PublicKey(PathBuf),
    /// A file with a JSON Web VerificationKey Set.
    Jwks(PathBuf),
}

/// A key, with the algorithms that it may verify.
#[derive(Debug)]
pub(crate) struct VerificationKey {
    /// The id in a set of keys.
    id: Option<String>,
    pub(crate) decoding: DecodingKey,
    pub(crate) algorithms: Vec<Algorithm>,
}

/// The active keys. They are read from their file by a background task, never by the thread of a request.
#[derive(Debug)]
pub(crate) struct KeyRing {
    source: KeySource,
    /// The accepted algorithms; empty for every algorithm of a key.
    accepted: Vec<Algorithm>,
    keys: ArcSwap<Vec<VerificationKey>>,
    /// The version of the file that was read last.
    file: Mutex<Option<FileStamp>>,
}

/// The time of the last change of a file, and its length.
type FileStamp = (Option<SystemTime>, u64);

impl KeyRing {
    /// Reads the keys.
    ///
    /// # Errors
    /// A file can't be read, has no key, or no key for the accepted algorithms.
    pub(crate) fn open(source: KeySource, accepted: Vec<Algorithm>) -> Result<Self, ConfigError> {
        let file = Mutex::new(source.path().and_then(file_stamp));
        let keys = ArcSwap::from_pointee(source.load(&accepted)?);
        Ok(Self { keys, source, accepted, file })
    }

    /// Returns the file of the keys, if they are in one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.source.path()
    }

    /// Returns the key for a token with this key id, or without one.
    ///
    /// In a set of several keys a token needs an id. If all keys were tried, any client could make the server verify as
    /// many signatures as there are keys.
    pub(crate) fn find(&self, id: Option<&str>) -> Option<FoundKey> {
        let keys = self.keys.load_full();
        let index = match (&self.source, id) {
            (KeySource::Jwks(_), Some(id)) => {
                keys.iter().position(|key| key.id.as_deref() == Some(id))
            }
            _ => (keys.len() == 1).then_some(0),
        };
        index.map(|index| FoundKey { keys, index })
    }

    /// Reads the file again if its time or length has changed. Blocks on the disk.
    pub(crate) fn refresh(&self) {
        let Some(path) = self.source.path() else { return };
        let mut file = self.file.lock();
        let found = file_stamp(path);
        if found.is_some() && found != *file {
            *file = found;
            self.replace_keys(path);
        }
    }

    /// Reads the file again, even if it seems unchanged. Blocks on the disk.
    pub(crate) fn reload(&self) {
        let Some(path) = self.source.path() else { return };
        let mut file = self.file.lock();
        *file = file_stamp(path);
        self.replace_keys(path);
    }

    /// Replaces the keys by those of the file. If the file is invalid, the old keys stay.
    fn replace_keys(&self, path: &Path) {
        match self.source.load(&self.accepted) {
            Ok(keys) => {
                let count = keys.len();
                self.keys.store(Arc::new(keys));
                tracing::info!(file = %path.display(), keys = count, "keys for tokens read again");
            }
            Err(error) => {
                tracing::warn!(%error, "keys for tokens not read, the old keys stay");
            }
        }
    }
}

/// A key, with the set that it was found in.
#[derive(Debug)]
pub(crate) struct FoundKey {
    keys: Arc<Vec<VerificationKey>>,
    index: usize,
}

impl std::ops::Deref for FoundKey {
    type Target = VerificationKey;

    fn deref(&self) -> &VerificationKey {
        &self.keys[self.index]
    }
}

impl KeySource {
    /// Shortest secret in bytes, as in RFC 7518: a shorter one can be found by brute force.
    pub const MIN_SECRET_BYTES: usize = 32;

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Secret(_) => None,
            Self::SecretFile(path) | Self::PublicKey(path) | Self::Jwks(path) => Some(path),
        }
    }

    fn load(&self, accepted: &[Algorithm]) -> Result<Vec<VerificationKey>, ConfigError> {
        let unusable =
            |path: &Path, reason: String| ConfigError::Unreadable { path: path.to_owned(), reason };
        let keys = match self {
            Self::Secret(secret) => {
                Vec::from_iter(VerificationKey::secret(secret.reveal(), accepted))
            }
            Self::SecretFile(path) => {
                let text = read_file(path, MAX_FILE_BYTES)?;
                let secret = text.trim_end_matches(['\r', '\n']);
                if secret.len() < Self::MIN_SECRET_BYTES {
                    let (least, found) = (Self::MIN_SECRET_BYTES, secret.len());
                    let reason =
                        format!("a secret of {least} bytes or more is wanted, found {found}");
                    return Err(unusable(path, reason));
                }
                Vec::from_iter(VerificationKey::secret(secret, accepted))
            }
            Self::PublicKey(path) => {
                let pem = read_file(path, MAX_FILE_BYTES)?;
                let decoding = public_key(pem.as_bytes()).ok_or_else(|| {
                    unusable(path, "a PEM public key (RSA, EC or Ed25519) is wanted".to_owned())
                })?;
                Vec::from_iter(VerificationKey::new(None, decoding, None, accepted))
            }
            Self::Jwks(path) => {
                let set: JwkSet = serde_json::from_str(&read_file(path, MAX_FILE_BYTES)?)
                    .map_err(|error| unusable(path, format!("a JWK set is wanted: {error}")))?;
                let keys = set.keys.into_iter();
                keys.filter_map(|key| VerificationKey::from_jwk(key, accepted)).collect()
            }
        };
        match (keys.is_empty(), self.path()) {
            (true, Some(path)) => {
                let names = algorithm_names(accepted);
                let reason = format!("no key that can verify {names} found");
                Err(unusable(path, reason))
            }
            _ => Ok(keys),
        }
    }
}

impl VerificationKey {
    /// Returns a key with those of its algorithms that are accepted; `None` if there are none.
    fn new(
        id: Option<String>,
        decoding: DecodingKey,
        only: Option<Algorithm>,
        accepted: &[Algorithm],
    ) -> Option<Self> {
        let family = decoding.family();
        let algorithms: Vec<Algorithm> = (family.algorithms().iter().copied())
            .filter(|algorithm| accepted.is_empty() || accepted.contains(algorithm))
            .filter(|algorithm| only.is_none_or(|only| only == *algorithm))
            .collect();
        (!algorithms.is_empty()).then_some(Self { id, decoding, algorithms })
    }

    fn secret(secret: &str, accepted: &[Algorithm]) -> Option<Self> {
        Self::new(None, DecodingKey::from_secret(secret.as_bytes()), None, accepted)
    }

    /// Returns a key of a set; `None` for one that is for encryption or of an unknown kind.
    fn from_jwk(key: serde_json::Value, accepted: &[Algorithm]) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(key).ok()?;
        let parameters = &jwk.common;
        if !matches!(parameters.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let only = match parameters.key_algorithm {
            Some(algorithm) => Some(Algorithm::try_from(algorithm).ok()?),
            None => None,
        };
        Self::new(parameters.key_id.clone(), DecodingKey::from_jwk(&jwk).ok()?, only, accepted)
    }
}

/// A JWK set. Its keys are parsed one by one: a key of an unknown kind is skipped.
#[derive(Deserialize)]
struct JwkSet {
    keys: Vec<serde_json::Value>,
}

fn public_key(pem: &[u8]) -> Option<DecodingKey> {
    DecodingKey::from_rsa_pem(pem)
        .or_else(|_| DecodingKey::from_ec_pem(pem))
        .or_else(|_| DecodingKey::from_ed_pem(pem))
        .ok()
}

fn algorithm_names(accepted: &[Algorithm]) -> String {
    if accepted.is_empty() {
        return "anything".to_owned();
    }
    let names: Vec<String> = accepted.iter().map(|algorithm| format!("{algorithm:?}")).collect();
    names.join(", ")
}

fn file_stamp(path: &Path) -> Option<FileStamp> {
    let metadata = std::fs::metadata(path).ok()?;
    Some((metadata.modified().ok(), metadata.len()))
}
