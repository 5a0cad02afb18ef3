//! Rules in Redis, which are compared with those of this node at the start, on every notification, and at intervals.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_limiter::StoreError;
use tidegate_redis::{
    DocumentVersion, DocumentWithText, Expected, LatestVersion, NewVersion, PutError, RedisDocument,
};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::RetryBackoff;
use crate::reload::ReloadSignal;
use crate::rules::RulesDocument;
use crate::rules::manager::RulesManager;

/// Longest time that a start waits for the first reply.
const FIRST_REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Most comparisons in a row. A comparison is repeated only if another node has changed the document meanwhile.
const MAX_COMPARISONS: usize = 16;

impl RulesDocument {
    /// Returns the document of a version that Redis has.
    pub(crate) fn from_redis(source: &str, document: DocumentWithText) -> Self {
        let DocumentWithText { version, text } = document;
        Self {
            number: Some(version.number),
            by: version.by,
            note: version.note,
            at: Some(version.at),
            ..Self::new(source, &text)
        }
    }

    /// Returns the version as Redis stores it, with its author, note and time.
    fn to_redis(&self) -> DocumentWithText {
        let version = DocumentVersion {
            number: self.number.unwrap_or_default(),
            hash: self.hash.to_string(),
            at: self.at.unwrap_or(Timestamp::EPOCH),
            by: self.by.clone(),
            note: self.note.clone(),
            bytes: u64::try_from(self.text.len()).unwrap_or(u64::MAX),
        };
        DocumentWithText { version, text: self.text.to_string() }
    }
}

/// Compares with Redis once, for the start of the server.
pub(crate) async fn read_once(manager: &Arc<RulesManager>) -> Result<(), String> {
    let shared = manager.shared().map_err(|error| error.to_string())?;
    match timeout(FIRST_REPLY_TIMEOUT, reconcile(manager, shared)).await {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no reply within {FIRST_REPLY_TIMEOUT:?}")),
    }
}

/// Compares with Redis on every notification, on every reload, and after `interval` without either.
pub(crate) async fn follow(
    manager: Arc<RulesManager>,
    interval: Duration,
    mut reloads: ReloadSignal,
) {
    let Ok(shared) = manager.shared() else { return };
    let published = Notify::new();
    let subscription = shared.follow(|| published.notify_one());
    let comparisons = async {
        let mut backoff = RetryBackoff::new();
        let mut is_reload = false;
        loop {
            let before = manager.version().number;
            let result = reconcile(&manager, shared).await;
            let delay = backoff.next_delay(result, &manager, interval);
            if is_reload {
                manager.log_reload(before);
            }
            is_reload = tokio::select! {
                () = reloads.next() => true,
                _ = timeout(delay, published.notified()) => false,
            };
        }
    };
    tokio::join!(subscription, comparisons);
}

/// Compares the document of this node with that of Redis, and gives the newer one to both.
///
/// The higher version number wins. If this node has it, the node restores it to Redis. The script there replaces only a
/// lower number, so one of several racing nodes restores it. Two documents have the same number only if Redis lost the
/// first of them. Then the one that was pushed later gets a new number.
///
/// # Errors
/// Redis did not reply.
pub(crate) async fn reconcile(
    manager: &Arc<RulesManager>,
    shared: &RedisDocument,
) -> Result<(), StoreError> {
    for _ in 0..MAX_COMPARISONS {
        let own = manager.newest_document().await;
        let known = own.as_ref().and_then(|own| Some((own.number?, &*own.hash)));
        match (shared.latest(known).await?, own) {
            (LatestVersion::Same, _) => manager.mark_unchanged(),
            (LatestVersion::Nothing, None) => manager.mark_empty(),
            (LatestVersion::Nothing, Some(own)) => {
                restore(manager, shared, &own, None).await?;
                continue;
            }
            (LatestVersion::Other(found), own) => {
                let found = RulesDocument::from_redis(manager.source(), found);
                match own {
                    Some(own) if own.number > found.number => {
                        restore(manager, shared, &own, found.number).await?;
                        continue;
                    }
                    Some(own) if own.number == found.number => {
                        renumber(manager, shared, &own, &found).await?;
                        continue;
                    }
                    // The manager logs an invalid document, and stores it as rejected.
                    _ => drop(manager.offer(found).await),
                }
            }
        }
        break;
    }
    manager.update_readiness(true);
    Ok(())
}

/// Restores a version that Redis lost, under the same number.
async fn restore(
    manager: &RulesManager,
    shared: &RedisDocument,
    own: &RulesDocument,
    found: Option<u64>,
) -> Result<(), StoreError> {
    if shared.restore(&own.to_redis()).await? {
        tracing::warn!(
            source = manager.source(),
            version = own.number,
            found,
            "redis lost the latest rules, this node restored them"
        );
    }
    Ok(())
}

/// Chooses between two documents of one number, and gives the chosen one the next number.
///
/// The document that was pushed later is chosen, by the clock of the Redis that numbered it; of two pushed at the same
/// time, the one with the greater hash. The new number protects it: a client that has read the other document under the
/// old number gets a conflict when it pushes.
async fn renumber(
    manager: &RulesManager,
    shared: &RedisDocument,
    own: &RulesDocument,
    found: &RulesDocument,
) -> Result<(), StoreError> {
    let number = found.number.unwrap_or_default();
    let order = |document: &RulesDocument| (document.at, Arc::clone(&document.hash));
    let (kept, dropped) = if order(own) > order(found) { (own, found) } else { (found, own) };
    let note = format!("{} (version {number} again: two documents had it)", kept.note);
    let new_version = NewVersion {
        text: &kept.text,
        by: &kept.by,
        note: note.trim_start(),
        expected: Expected::Number(number),
        above: number,
    };
    match shared.put(new_version).await {
        Ok(version) => {
            tracing::error!(
                source = manager.source(),
                version = number,
                kept = %kept.hash,
                kept_by = kept.by,
                dropped = %dropped.hash,
                dropped_by = dropped.by,
                renumbered = version.number,
                "two documents had one version after redis lost rules; the later one stays, with a new number"
            );
            Ok(())
        }
        // Another node renumbered it first; the next comparison reads its result.
        Err(PutError::Conflict { .. }) => Ok(()),
        Err(PutError::Store(error)) => Err(error),
    }
}
