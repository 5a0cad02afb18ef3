//! The keys that tokens are signed with: a secret, a public key, or a set of keys with names.
//!
//! A key belongs to one family of algorithms, and a token that names another is not looked at: a public
//! key is never taken for a secret.

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
const MAX_FILE: usize = 1024 * 1024;

/// Where keys come from.
#[derive(Clone, Debug)]
pub enum KeySource {
    /// A secret of HMAC.
    Secret(Secret),
    /// A file with a secret of HMAC.
    SecretFile(PathBuf),
    /// A PEM file: RSA, EC or Ed25519.
    PublicKey(PathBuf),
    /// A file with a JSON Web Key Set.
    Jwks(PathBuf),
}

/// One key, and what it may verify.
#[derive(Debug)]
pub(crate) struct Key {
    /// Its name in a set of keys.
    id: Option<String>,
    pub(crate) decoding: DecodingKey,
    pub(crate) algorithms: Vec<Algorithm>,
}

/// The active keys. They are read from their file by a background task, never by the thread of a request.
#[derive(Debug)]
pub(crate) struct KeyRing {
    source: KeySource,
    /// The algorithms that may be used; empty for every algorithm of a key.
    wanted: Vec<Algorithm>,
    keys: ArcSwap<Vec<Key>>,
    /// The version of the file that was read last.
    file: Mutex<Option<FileStamp>>,
}

/// The time of the last change of a file, and its length.
type FileStamp = (Option<SystemTime>, u64);

impl KeyRing {
    /// Reads the keys.
    ///
    /// # Errors
    /// A file can't be read, has no key in it, or has none for the algorithms that are wanted.
    pub(crate) fn open(source: KeySource, wanted: Vec<Algorithm>) -> Result<Self, ConfigError> {
        let file = Mutex::new(source.path().and_then(stamp));
        let keys = ArcSwap::from_pointee(source.load(&wanted)?);
        Ok(Self { keys, source, wanted, file })
    }

    /// Returns the file of the keys, if they are in one.
    pub(crate) fn path(&self) -> Option<&Path> {
        self.source.path()
    }

    /// Returns the key for a token that names this key or none.
    ///
    /// In a set a token has to name its key, unless there is only one: if all keys were tried, any client could make
    /// the server verify as many signatures as there are keys.
    pub(crate) fn find(&self, id: Option<&str>) -> Option<FoundKey> {
        let keys = self.keys.load_full();
        let place = match (&self.source, id) {
            (KeySource::Jwks(_), Some(id)) => {
                keys.iter().position(|key| key.id.as_deref() == Some(id))
            }
            _ => (keys.len() == 1).then_some(0),
        };
        place.map(|place| FoundKey { keys, place })
    }

    /// Reads the file again if it has changed. Blocks on the disk.
    pub(crate) fn refresh(&self) {
        let Some(path) = self.source.path() else { return };
        let mut file = self.file.lock();
        let found = stamp(path);
        if found.is_some() && found != *file {
            *file = found;
            self.read_again(path);
        }
    }

    /// Reads the file again, even if it seems unchanged. Blocks on the disk.
    pub(crate) fn reload(&self) {
        let Some(path) = self.source.path() else { return };
        let mut file = self.file.lock();
        *file = stamp(path);
        self.read_again(path);
    }

    /// Replaces the keys by those of the file; keys that can't be used leave the old ones active.
    fn read_again(&self, path: &Path) {
        match self.source.load(&self.wanted) {
            Ok(keys) => {
                let count = keys.len();
                self.keys.store(Arc::new(keys));
                tracing::info!(file = %path.display(), keys = count, "keys for tokens read again");
            }
            Err(error) => {
                tracing::warn!(%error, "keys for tokens not read, going on with those before");
            }
        }
    }
}

/// A key, with the set that it was found in.
#[derive(Debug)]
pub(crate) struct FoundKey {
    keys: Arc<Vec<Key>>,
    place: usize,
}

impl std::ops::Deref for FoundKey {
    type Target = Key;

    fn deref(&self) -> &Key {
        &self.keys[self.place]
    }
}

impl KeySource {
    /// Shortest secret in bytes: a shorter one can be found by trying (RFC 7518 says so too).
    pub const MIN_SECRET: usize = 32;

    fn path(&self) -> Option<&Path> {
        match self {
            Self::Secret(_) => None,
            Self::SecretFile(path) | Self::PublicKey(path) | Self::Jwks(path) => Some(path),
        }
    }

    fn load(&self, wanted: &[Algorithm]) -> Result<Vec<Key>, ConfigError> {
        let unusable =
            |path: &Path, reason: String| ConfigError::Unreadable { path: path.to_owned(), reason };
        let keys = match self {
            Self::Secret(secret) => Vec::from_iter(Key::secret(secret.reveal(), wanted)),
            Self::SecretFile(path) => {
                let text = read_file(path, MAX_FILE)?;
                let secret = text.trim_end_matches(['\r', '\n']);
                if secret.len() < Self::MIN_SECRET {
                    let (least, found) = (Self::MIN_SECRET, secret.len());
                    let reason =
                        format!("a secret of {least} bytes or more is wanted, found {found}");
                    return Err(unusable(path, reason));
                }
                Vec::from_iter(Key::secret(secret, wanted))
            }
            Self::PublicKey(path) => {
                let pem = read_file(path, MAX_FILE)?;
                let decoding = public_key(pem.as_bytes()).ok_or_else(|| {
                    unusable(path, "a PEM public key (RSA, EC or Ed25519) is wanted".to_owned())
                })?;
                Vec::from_iter(Key::of(None, decoding, None, wanted))
            }
            Self::Jwks(path) => {
                let set: KeySet = serde_json::from_str(&read_file(path, MAX_FILE)?)
                    .map_err(|error| unusable(path, format!("a JWK set is wanted: {error}")))?;
                set.keys.into_iter().filter_map(|key| Key::named(key, wanted)).collect()
            }
        };
        match (keys.is_empty(), self.path()) {
            (true, Some(path)) => {
                let reason = format!("no key that can verify {} found", listed(wanted));
                Err(unusable(path, reason))
            }
            _ => Ok(keys),
        }
    }
}

impl Key {
    /// The key with the algorithms that it is for and that are wanted; `None` if there are none.
    fn of(
        id: Option<String>,
        decoding: DecodingKey,
        only: Option<Algorithm>,
        wanted: &[Algorithm],
    ) -> Option<Self> {
        let family = decoding.family();
        let algorithms: Vec<Algorithm> = (family.algorithms().iter().copied())
            .filter(|algorithm| wanted.is_empty() || wanted.contains(algorithm))
            .filter(|algorithm| only.is_none_or(|only| only == *algorithm))
            .collect();
        (!algorithms.is_empty()).then_some(Self { id, decoding, algorithms })
    }

    fn secret(secret: &str, wanted: &[Algorithm]) -> Option<Self> {
        Self::of(None, DecodingKey::from_secret(secret.as_bytes()), None, wanted)
    }

    /// A key of a set; `None` for one that is for encrypting or that nothing here can use.
    fn named(key: serde_json::Value, wanted: &[Algorithm]) -> Option<Self> {
        let jwk: Jwk = serde_json::from_value(key).ok()?;
        let about = &jwk.common;
        if !matches!(about.public_key_use, None | Some(PublicKeyUse::Signature)) {
            return None;
        }
        let only = match about.key_algorithm {
            Some(algorithm) => Some(Algorithm::try_from(algorithm).ok()?),
            None => None,
        };
        Self::of(about.key_id.clone(), DecodingKey::from_jwk(&jwk).ok()?, only, wanted)
    }
}

/// A JWK set, its keys still unread: one of a kind that nobody here knows does not spoil the others.
#[derive(Deserialize)]
struct KeySet {
    keys: Vec<serde_json::Value>,
}

fn public_key(pem: &[u8]) -> Option<DecodingKey> {
    DecodingKey::from_rsa_pem(pem)
        .or_else(|_| DecodingKey::from_ec_pem(pem))
        .or_else(|_| DecodingKey::from_ed_pem(pem))
        .ok()
}

fn listed(wanted: &[Algorithm]) -> String {
    if wanted.is_empty() {
        return "anything".to_owned();
    }
    let names: Vec<String> = wanted.iter().map(|algorithm| format!("{algorithm:?}")).collect();
    names.join(", ")
}

fn stamp(path: &Path) -> Option<FileStamp> {
    let about = std::fs::metadata(path).ok()?;
    Some((about.modified().ok(), about.len()))
}
