//! A text that a fleet shares: every version has a number, an author and a time.
//!
//! It has a connection of its own: a large text must not delay checks.

mod connection;
mod task;
mod version;

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tidegate_core::Timestamp;
use tokio::runtime::Handle;

use self::connection::DocumentConnection;
use self::task::DocumentCommand;
use self::version::{hash_of, number, text};
use super::config::RedisConfig;
use super::open_error::OpenError;
use super::store::RedisStore;
use tidegate_limiter::store::StoreError;

pub use version::{DocumentVersion, DocumentWithText};

/// Most versions that are stored, and most bytes of their texts together; the latest is stored however long it is.
const RETENTION: (usize, usize) = (50, 64 << 20);
/// Longest text in bytes.
const MAX_TEXT: usize = 64 << 20;
/// Longest lifetime of a node's report.
const MAX_REPORT_LIFETIME: Duration = Duration::from_secs(366 * 86_400);
/// Pause before a lost subscription is renewed.
const RESUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);

/// A text that every node of a fleet can read and replace.
///
/// Each version has a number, greater than those before. Of two nodes that replace the same version one wins, and the other
/// receives an error. The last 50 versions are stored, up to 64 MiB of text. Clones share everything.
#[derive(Clone, Debug)]
pub struct RedisDocument {
    connection: Arc<DocumentConnection>,
}

/// The latest version of a document, compared with a known one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LatestVersion {
    /// There is none.
    Nothing,
    /// It is the known one, by number and hash.
    Same,
    /// It is another one.
    Other(DocumentWithText),
}

/// The version that is to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Any version, or none.
    Any,
    /// The one of this number; 0 for none at all.
    Number(u64),
}

/// A version to be put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewVersion<'a> {
    /// The whole text.
    pub text: &'a str,
    /// The author of this version.
    pub by: &'a str,
    /// The reason.
    pub note: &'a str,
    /// The version that it replaces.
    pub expected: Expected,
    /// The new number is greater than this one, even if the server has lost versions.
    pub above: u64,
}

/// The reason why a version was not put.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PutError {
    /// Another version than the expected one is stored. Nothing was changed.
    #[error("another version was expected, found {}", described(.found.as_ref()))]
    Conflict {
        /// The stored version, if any.
        found: Option<DocumentVersion>,
    },
    /// The store did not confirm it.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn described(found: Option<&DocumentVersion>) -> String {
    found.map_or_else(|| "none".to_owned(), |found| format!("{} by {:?}", found.number, found.by))
}

impl RedisStore {
    /// Returns the document of this name on the servers of this store, under its prefix: in a cluster on the server of its
    /// slot, on shards on the first.
    #[must_use]
    pub fn document(&self, name: &str) -> RedisDocument {
        let shared = &self.inner.shared;
        RedisDocument::new(&shared.runtime, shared.config.clone(), name)
    }
}

impl RedisDocument {
    /// Returns the document of this name on servers of its own. Every call tries an unreachable server again.
    ///
    /// # Errors
    /// A server that will never be usable: it is too old, or of another kind.
    pub async fn start(config: RedisConfig, name: &str) -> Result<Self, OpenError> {
        let document = Self::new(&Handle::current(), config, name);
        match document.connection.open().await {
            Err(error) if error.is_final() => return Err(error),
            Err(error) => {
                tracing::warn!(%error, "cannot read the document, starting without it and retrying");
            }
            Ok(()) => {}
        }
        Ok(document)
    }

    fn new(runtime: &Handle, config: RedisConfig, name: &str) -> Self {
        Self { connection: DocumentConnection::new(runtime, config, name) }
    }

    /// Returns the latest version, with its text only if it is not the one of the known number and hash.
    ///
    /// # Errors
    /// The server does not answer, or stores something else.
    pub async fn latest(&self, known: Option<(u64, &str)>) -> Result<LatestVersion, StoreError> {
        let (known, hash) = known.unwrap_or_default();
        let task = DocumentCommand::latest(self.connection.key())
            .argument(known.to_string())
            .argument(hash);
        let answer: Vec<Vec<u8>> = self.connection.run(task).await?;
        let document = match answer.as_slice() {
            [] => return Ok(LatestVersion::Nothing),
            [_] => return Ok(LatestVersion::Same),
            [latest, kept, words] => number(latest).and_then(|latest| {
                DocumentWithText::read(DocumentVersion::read(latest, kept)?, words.clone())
            }),
            _ => Err("its latest version is not one".to_owned()),
        };
        document.map(LatestVersion::Other).map_err(|reason| self.connection.corrupt(&reason))
    }

    /// Puts a version and publishes it, in one step, if the stored version is the expected one. It is sent once.
    ///
    /// # Errors
    /// [`PutError::Conflict`]: another version is stored. [`StoreError::Timeout`] and
    /// [`StoreError::Interrupted`]: it may have been put.
    pub async fn put(&self, new: NewVersion<'_>) -> Result<DocumentVersion, PutError> {
        let NewVersion { text: words, by, note, expected, above } = new;
        self.fits(words)?;
        let expected = match expected {
            Expected::Any => String::new(),
            Expected::Number(number) => number.to_string(),
        };
        let hash = hash_of(words);
        let bytes = u64::try_from(words.len()).unwrap_or(u64::MAX);
        let (by, note) = (by.to_owned(), note.to_owned());
        let mut version =
            DocumentVersion { number: 0, hash, at: Timestamp::EPOCH, by, note, bytes };
        let task = DocumentCommand::put(self.connection.key(), RETENTION)
            .argument(expected)
            .argument(above.to_string())
            .argument(version.write())
            .argument(words);
        let answer: Vec<Vec<u8>> = self.connection.run(task).await?;
        let corrupt = |reason: String| PutError::Store(self.connection.corrupt(&reason));
        let [done, reached, kept] = answer.as_slice() else {
            return Err(corrupt("the answer to a new version is none".to_owned()));
        };
        let reached = number(reached).map_err(corrupt)?;
        if done == b"1" {
            version.number = reached;
            version.at = Timestamp::from_micros(number(kept).map_err(corrupt)?);
            return Ok(version);
        }
        let found = match reached {
            0 => None,
            reached => Some(DocumentVersion::read(reached, kept).map_err(corrupt)?),
        };
        Err(PutError::Conflict { found })
    }

    /// Restores a version under its own number on a server that lost it: only if the stored version has a lower number, or
    /// there is none. Returns whether it did.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn restore(&self, document: &DocumentWithText) -> Result<bool, StoreError> {
        let DocumentWithText { version, text: words } = document;
        self.fits(words)?;
        let version = DocumentVersion { hash: hash_of(words), ..version.clone() };
        let task = DocumentCommand::restore(self.connection.key(), RETENTION)
            .argument(version.number.to_string())
            .argument(version.at.as_micros().to_string())
            .argument(version.write())
            .argument(words);
        let done: u8 = self.connection.run(task).await?;
        Ok(done == 1)
    }

    /// Returns the newest versions without their texts, the latest first.
    ///
    /// # Errors
    /// The server does not answer, or stores something else.
    pub async fn history(&self, most: usize) -> Result<Vec<DocumentVersion>, StoreError> {
        let task = DocumentCommand::history(self.connection.key())
            .argument(most.min(RETENTION.0).to_string());
        let answer: Vec<Vec<u8>> = self.connection.run(task).await?;
        let (versions, _) = answer.as_chunks::<2>();
        let read = |[place, kept]: &[Vec<u8>; 2]| DocumentVersion::read(number(place)?, kept);
        let versions: Result<_, String> = versions.iter().map(read).collect();
        versions.map_err(|reason| self.connection.corrupt(&reason))
    }

    /// Returns a version by its number, if it is still stored.
    ///
    /// # Errors
    /// The server does not answer, or stores something else.
    pub async fn version(&self, number: u64) -> Result<Option<DocumentWithText>, StoreError> {
        let task = DocumentCommand::version(self.connection.key(), number);
        let answer: (Option<Vec<u8>>, Option<Vec<u8>>) = self.connection.run(task).await?;
        let (Some(kept), Some(words)) = answer else { return Ok(None) };
        let document = DocumentVersion::read(number, &kept)
            .and_then(|version| DocumentWithText::read(version, words))
            .map_err(|reason| self.connection.corrupt(&reason))?;
        Ok(Some(document))
    }

    /// Stores the report of a node for all others, until its next report or the end of the lifetime.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn report(
        &self,
        node: &str,
        words: &str,
        lifetime: Duration,
    ) -> Result<(), StoreError> {
        let lifetime = lifetime.min(MAX_REPORT_LIFETIME).as_micros().to_string();
        let task = DocumentCommand::report(self.connection.key())
            .argument(node)
            .argument(words)
            .argument(lifetime);
        let _: u8 = self.connection.run(task).await?;
        Ok(())
    }

    /// Returns the last report of each node with its time by the server's clock, in the order of their names. Expired reports
    /// are left out.
    ///
    /// # Errors
    /// The server does not answer, or stores something else.
    pub async fn reports(&self) -> Result<Vec<(String, String, Timestamp)>, StoreError> {
        let answer: Vec<Vec<u8>> =
            self.connection.run(DocumentCommand::reports(self.connection.key())).await?;
        let (reports, _) = answer.as_chunks::<3>();
        let read = |[node, words, at]: &[Vec<u8>; 3]| {
            let at = Timestamp::from_micros(number(at)?);
            Ok((text(node.clone())?, text(words.clone())?, at))
        };
        let reports: Result<Vec<_>, String> = reports.iter().map(read).collect();
        let mut reports = reports.map_err(|reason| self.connection.corrupt(&reason))?;
        reports.sort_unstable();
        Ok(reports)
    }

    /// Calls `on_change` whenever a version was put, and after every subscription: one may have been missed before. Never
    /// returns.
    ///
    /// A message can get lost: read the [`latest`](Self::latest) version at intervals as well.
    #[allow(clippy::disallowed_methods, reason = "subscribing again has its own pace")]
    pub async fn follow(&self, on_change: impl Fn() + Send) {
        loop {
            match self.connection.subscribe().await {
                Ok(mut subscription) => {
                    on_change();
                    let lost = loop {
                        match subscription.next().await {
                            Ok(()) => on_change(),
                            Err(lost) => break lost,
                        }
                    };
                    tracing::debug!(
                        reason = lost,
                        "subscription to document versions lost, retrying"
                    );
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot subscribe to document versions, retrying");
                }
            }
            tokio::time::sleep(RESUBSCRIBE_PAUSE).await;
        }
    }

    fn fits(&self, words: &str) -> Result<(), StoreError> {
        if words.len() <= MAX_TEXT {
            return Ok(());
        }
        let reason = format!("a text must be at most {MAX_TEXT} bytes, found {}", words.len());
        Err(self.connection.unavailable(&reason))
    }
}
