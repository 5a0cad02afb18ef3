//! A text that a fleet shares: every version has a number, an author and an instant.
//!
//! It travels on connections of its own: a large one must not stand in the way of checks. What it says
//! is nobody's business here.

mod link;
mod task;
mod version;

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tidegate_core::Timestamp;

use self::link::Line;
use self::task::Task;
use self::version::{hash_of, number, text};
use super::RedisStore;
use super::config::RedisConfig;
use super::connect::OpenError;
use crate::store::StoreError;

pub use version::{DocumentVersion, Edition};

/// Most versions that are kept, and most bytes that their texts have together; the latest is kept
/// however long it is.
const KEPT: (usize, usize) = (50, 64 << 20);
/// Longest text.
const LONGEST: usize = 64 << 20;
/// Longest that what a node said of itself is kept.
const LONGEST_LIFETIME: Duration = Duration::from_secs(366 * 86_400);
/// How long to wait before listening again.
const PAUSE: Duration = Duration::from_secs(1);

/// A text that every node of a fleet can read and replace.
///
/// Each version has a number, greater than those before. Of two who replace the same version one wins,
/// and the other is told. The last 50 versions are kept, up to 64 MiB of text. Clones share
/// everything.
#[derive(Clone, Debug)]
pub struct RedisDocument {
    line: Arc<Line>,
}

/// What became of a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Latest {
    /// There is none.
    Nothing,
    /// It is the one that is known: its number and its hash are.
    Same,
    /// It is another one.
    Other(Edition),
}

/// Which version is to be replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Whichever is there.
    Any,
    /// The one of this number; 0 for none at all.
    Number(u64),
}

/// A version to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Draft<'a> {
    /// All of it.
    pub text: &'a str,
    /// Who puts it.
    pub by: &'a str,
    /// Why.
    pub note: &'a str,
    /// Which version it replaces.
    pub expected: Expected,
    /// The new number is greater than this, whatever the server has forgotten.
    pub above: u64,
}

/// Why a version was not put.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PutError {
    /// Another version than the expected one is there. Nothing was changed.
    #[error("another version was expected, found {}", described(.found.as_ref()))]
    Conflict {
        /// The one that is there, if any.
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
    /// The document of this name on the servers of this store, under its prefix: in a cluster on the
    /// node that serves its slot, on shards on the first.
    #[must_use]
    pub fn document(&self, name: &str) -> RedisDocument {
        RedisDocument::new(self.inner.shared.config.clone(), name)
    }
}

impl RedisDocument {
    /// The document of this name on servers of its own. A server that is away is tried again whenever
    /// the document is asked for.
    ///
    /// # Errors
    /// A server that answered and never will do: it is too old, or of another kind.
    pub async fn start(config: RedisConfig, name: &str) -> Result<Self, OpenError> {
        let document = Self::new(config, name);
        match document.line.open().await {
            Err(error) if error.is_final() => return Err(error),
            Err(error) => tracing::warn!(%error, "starting without the document, trying on"),
            Ok(()) => {}
        }
        Ok(document)
    }

    fn new(config: RedisConfig, name: &str) -> Self {
        Self { line: Arc::new(Line::new(config, name)) }
    }

    /// The latest version, with its text only if it is not the one of the known number and hash.
    ///
    /// # Errors
    /// The server does not say, or what it has is none.
    pub async fn latest(&self, known: Option<(u64, &str)>) -> Result<Latest, StoreError> {
        let (known, hash) = known.unwrap_or_default();
        let task = Task::latest(self.line.key()).argument(known.to_string()).argument(hash);
        let answer: Vec<Vec<u8>> = self.line.run(task).await?;
        let edition = match answer.as_slice() {
            [] => return Ok(Latest::Nothing),
            [_] => return Ok(Latest::Same),
            [latest, kept, words] => number(latest).and_then(|latest| {
                Edition::read(DocumentVersion::read(latest, kept)?, words.clone())
            }),
            _ => Err("its latest version is not one".to_owned()),
        };
        edition.map(Latest::Other).map_err(|reason| self.line.corrupt(&reason))
    }

    /// Puts a version and tells everybody who follows, in one step: if it is the expected one that is
    /// there, and else not at all. It is sent once.
    ///
    /// # Errors
    /// [`PutError::Conflict`]: somebody else was faster. [`StoreError::Timeout`] and
    /// [`StoreError::Interrupted`]: it may have been put.
    pub async fn put(&self, draft: Draft<'_>) -> Result<DocumentVersion, PutError> {
        let Draft { text: words, by, note, expected, above } = draft;
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
        let task = Task::put(self.line.key(), KEPT)
            .argument(expected)
            .argument(above.to_string())
            .argument(version.write())
            .argument(words);
        let answer: Vec<Vec<u8>> = self.line.run(task).await?;
        let corrupt = |reason: String| PutError::Store(self.line.corrupt(&reason));
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

    /// Puts a version back under its own number, for a server that lost it: only if what is there has a
    /// lower number, or nothing is. Whether it did.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn restore(&self, edition: &Edition) -> Result<bool, StoreError> {
        let Edition { version, text: words } = edition;
        self.fits(words)?;
        let version = DocumentVersion { hash: hash_of(words), ..version.clone() };
        let task = Task::restore(self.line.key(), KEPT)
            .argument(version.number.to_string())
            .argument(version.at.as_micros().to_string())
            .argument(version.write())
            .argument(words);
        let done: u8 = self.line.run(task).await?;
        Ok(done == 1)
    }

    /// The newest versions without their texts, the latest first.
    ///
    /// # Errors
    /// The server does not say, or what it has are none.
    pub async fn history(&self, most: usize) -> Result<Vec<DocumentVersion>, StoreError> {
        let task = Task::history(self.line.key()).argument(most.min(KEPT.0).to_string());
        let answer: Vec<Vec<u8>> = self.line.run(task).await?;
        let (versions, _) = answer.as_chunks::<2>();
        let read = |[place, kept]: &[Vec<u8>; 2]| DocumentVersion::read(number(place)?, kept);
        let versions: Result<_, String> = versions.iter().map(read).collect();
        versions.map_err(|reason| self.line.corrupt(&reason))
    }

    /// A version by its number, if it is still kept.
    ///
    /// # Errors
    /// The server does not say, or what it has is none.
    pub async fn edition(&self, number: u64) -> Result<Option<Edition>, StoreError> {
        let task = Task::edition(self.line.key(), number);
        let answer: (Option<Vec<u8>>, Option<Vec<u8>>) = self.line.run(task).await?;
        let (Some(kept), Some(words)) = answer else { return Ok(None) };
        let edition = DocumentVersion::read(number, &kept)
            .and_then(|version| Edition::read(version, words))
            .map_err(|reason| self.line.corrupt(&reason))?;
        Ok(Some(edition))
    }

    /// Lets everybody see what a node says of itself, until it says something else or the lifetime is
    /// over.
    ///
    /// # Errors
    /// The server did not confirm it.
    pub async fn report(
        &self,
        node: &str,
        words: &str,
        lifetime: Duration,
    ) -> Result<(), StoreError> {
        let lifetime = lifetime.min(LONGEST_LIFETIME).as_micros().to_string();
        let task = Task::report(self.line.key()).argument(node).argument(words).argument(lifetime);
        let _: u8 = self.line.run(task).await?;
        Ok(())
    }

    /// What each node last said of itself, and when, by the server's clock; in the order of their
    /// names. Those whose lifetime is over are not among them.
    ///
    /// # Errors
    /// The server does not say, or what it has are no reports.
    pub async fn reports(&self) -> Result<Vec<(String, String, Timestamp)>, StoreError> {
        let answer: Vec<Vec<u8>> = self.line.run(Task::reports(self.line.key())).await?;
        let (reports, _) = answer.as_chunks::<3>();
        let read = |[node, words, at]: &[Vec<u8>; 3]| {
            let at = Timestamp::from_micros(number(at)?);
            Ok((text(node.clone())?, text(words.clone())?, at))
        };
        let reports: Result<Vec<_>, String> = reports.iter().map(read).collect();
        let mut reports = reports.map_err(|reason| self.line.corrupt(&reason))?;
        reports.sort_unstable();
        Ok(reports)
    }

    /// Calls `heard` whenever a version was put, and each time that listening begins anew: then one may
    /// have been missed. Goes on for ever.
    ///
    /// A word can get lost: whoever must know looks at the [`latest`](Self::latest) version now and
    /// then as well.
    #[allow(clippy::disallowed_methods, reason = "listening again has its own pace")]
    pub async fn follow(&self, heard: impl Fn() + Send) {
        loop {
            match self.line.subscribe().await {
                Ok(mut subscription) => {
                    heard();
                    let lost = loop {
                        match subscription.next().await {
                            Ok(_) => heard(),
                            Err(lost) => break lost,
                        }
                    };
                    tracing::debug!(reason = lost, "no longer listening for versions, trying on");
                }
                Err(error) => tracing::debug!(%error, "can't listen for versions, trying on"),
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    fn fits(&self, words: &str) -> Result<(), StoreError> {
        if words.len() <= LONGEST {
            return Ok(());
        }
        let reason = format!("a text must be at most {LONGEST} bytes, found {}", words.len());
        Err(self.line.unavailable(&reason))
    }
}
