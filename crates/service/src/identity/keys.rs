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
use tidegate_core::{Span, Timestamp};
use tidegate_redis::Secret;

use crate::config_error::{ConfigError, read_file};

/// Longest file with a key or keys, in bytes.
const MAX_FILE: usize = 1024 * 1024;
/// How often a file is looked at for a change.
const LOOK: Span = Span::from_secs(10);
/// How often it is when tokens name a key that is not there: it may be new.
const LOOK_AGAIN: Span = Span::SECOND;

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
    pub(super) decoding: DecodingKey,
    pub(super) algorithms: Vec<Algorithm>,
}

/// The keys in force. A file that has changed is read again; one that can't be read changes nothing.
#[derive(Debug)]
pub(super) struct KeyRing {
    source: KeySource,
    /// What may be used at all; empty for whatever a key can do.
    wanted: Vec<Algorithm>,
    keys: ArcSwap<Vec<Key>>,
    looked: Mutex<Looked>,
}

#[derive(Debug)]
struct Looked {
    at: Timestamp,
    file: Option<Stamp>,
}

/// What tells one version of a file from the next.
type Stamp = (Option<SystemTime>, u64);

impl KeyRing {
    /// Reads the keys.
    ///
    /// # Errors
    /// A file can't be read, has no key in it, or has none for the algorithms that are wanted.
    pub(super) fn open(
        source: KeySource,
        wanted: Vec<Algorithm>,
        now: Timestamp,
    ) -> Result<Self, ConfigError> {
        let looked = Looked { at: now, file: source.path().and_then(stamp) };
        let keys = source.load(&wanted)?;
        Ok(Self { keys: ArcSwap::from_pointee(keys), source, wanted, looked: Mutex::new(looked) })
    }

    /// The key for a token that names this key or none.
    ///
    /// In a set a token has to name its key, unless there is only one: trying them all would let
    /// anybody make us verify as many signatures as there are keys.
    pub(super) fn find(&self, id: Option<&str>, now: Timestamp) -> Option<Found> {
        self.look(now, LOOK);
        let found = self.active_rules(id);
        if found.is_none() && self.look(now, LOOK_AGAIN) {
            return self.active_rules(id);
        }
        found
    }

    fn active_rules(&self, id: Option<&str>) -> Option<Found> {
        let keys = self.keys.load_full();
        let place = match (&self.source, id) {
            (KeySource::Jwks(_), Some(id)) => {
                keys.iter().position(|key| key.id.as_deref() == Some(id))
            }
            _ => (keys.len() == 1).then_some(0),
        };
        place.map(|place| Found { keys, place })
    }

    /// Reads the file again if it has changed since the last look, which is at least so long ago.
    /// Whether there are other keys now.
    fn look(&self, now: Timestamp, every: Span) -> bool {
        let Some(path) = self.source.path() else { return false };
        // Whoever is looking already looks for all.
        let Some(mut looked) = self.looked.try_lock() else { return false };
        if now.since(looked.at) < every {
            return false;
        }
        looked.at = now;
        let found = stamp(path);
        if found.is_none() || found == looked.file {
            return false;
        }
        looked.file = found;
        self.read_again(path)
    }

    /// Reads the file again, whether or not it seems to have changed.
    pub(super) fn reload(&self, now: Timestamp) {
        let Some(path) = self.source.path() else { return };
        let mut looked = self.looked.lock();
        *looked = Looked { at: now, file: stamp(path) };
        self.read_again(path);
    }

    /// Replaces the keys by those of the file; keys that can't be used leave the old ones active. Returns
    /// whether they were replaced.
    fn read_again(&self, path: &Path) -> bool {
        match self.source.load(&self.wanted) {
            Ok(keys) => {
                let count = keys.len();
                self.keys.store(Arc::new(keys));
                tracing::info!(file = %path.display(), keys = count, "keys for tokens read again");
                true
            }
            Err(error) => {
                tracing::warn!(%error, "keys for tokens not read, going on with those before");
                false
            }
        }
    }
}

/// A key among those that were in force when it was asked for.
#[derive(Debug)]
pub(crate) struct Found {
    keys: Arc<Vec<Key>>,
    place: usize,
}

impl std::ops::Deref for Found {
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

fn stamp(path: &Path) -> Option<Stamp> {
    let about = std::fs::metadata(path).ok()?;
    Some((about.modified().ok(), about.len()))
}
