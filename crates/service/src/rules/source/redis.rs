//! Rules in Redis: compared with those of this node at the start, on every notification, and at intervals.

use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Timestamp;
use tidegate_limiter::StoreError;
use tidegate_redis::{DocumentVersion, Draft, Edition, Expected, Latest, PutError, RedisDocument};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::Retry;
use crate::reload::ReloadSignal;
use crate::rules::RulesDocument;
use crate::rules::manager::RulesManager;

/// Longest time that a start waits for the first answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Most comparisons in a row. One more is needed only after another node changed the document meanwhile.
const MAX_COMPARISONS: usize = 16;

impl RulesDocument {
    /// The version that Redis has.
    pub(crate) fn shared(source: &str, edition: Edition) -> Self {
        let Edition { version, text } = edition;
        Self {
            number: Some(version.number),
            by: version.by,
            note: version.note,
            at: Some(version.at),
            ..Self::new(source, &text)
        }
    }

    /// The same version for Redis, with its author, note and time.
    fn edition(&self) -> Edition {
        let version = DocumentVersion {
            number: self.number.unwrap_or_default(),
            hash: self.hash.to_string(),
            at: self.at.unwrap_or(Timestamp::EPOCH),
            by: self.by.clone(),
            note: self.note.clone(),
            bytes: u64::try_from(self.text.len()).unwrap_or(u64::MAX),
        };
        Edition { version, text: self.text.to_string() }
    }
}

/// Compares with Redis once, at the start.
pub(crate) async fn first(manager: &Arc<RulesManager>) -> Result<(), String> {
    let shared = manager.shared().map_err(|error| error.to_string())?;
    match timeout(PATIENCE, reconcile(manager, shared)).await {
        Ok(compared) => compared.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}

pub(crate) async fn follow(manager: Arc<RulesManager>, pace: Duration, mut reloads: ReloadSignal) {
    let Ok(shared) = manager.shared() else { return };
    let news = Notify::new();
    let listening = shared.follow(|| news.notify_one());
    let looking = async {
        let mut retry = Retry::new();
        let mut is_reload = false;
        loop {
            let before = manager.version().number;
            let wait = retry.after(reconcile(&manager, shared).await, &manager, pace);
            if is_reload {
                manager.log_reload(before);
            }
            is_reload = tokio::select! {
                () = reloads.next() => true,
                _ = timeout(wait, news.notified()) => false,
            };
        }
    };
    tokio::join!(listening, looking);
}

/// Makes this node and Redis have the newer of their documents.
///
/// The higher version number wins. A node that has it restores it to Redis; the script there accepts it only over a
/// lower number, so of racing nodes one restores. Two documents of the same number, which exist only after Redis lost
/// the first of them, are settled by giving the one that was pushed later a number that neither had.
///
/// # Errors
/// Redis did not answer.
pub(crate) async fn reconcile(
    manager: &Arc<RulesManager>,
    shared: &RedisDocument,
) -> Result<(), StoreError> {
    for _ in 0..MAX_COMPARISONS {
        let own = manager.newest().await;
        let known = own.as_ref().and_then(|own| Some((own.number?, &*own.hash)));
        match (shared.latest(known).await?, own) {
            (Latest::Same, _) => manager.unchanged(),
            (Latest::Nothing, None) => manager.no_rules(),
            (Latest::Nothing, Some(own)) => {
                restore(manager, shared, &own, None).await?;
                continue;
            }
            (Latest::Other(found), own) => {
                let found = RulesDocument::shared(manager.source(), found);
                match own {
                    Some(own) if own.number > found.number => {
                        restore(manager, shared, &own, found.number).await?;
                        continue;
                    }
                    Some(own) if own.number == found.number => {
                        renumber(manager, shared, &own, &found).await?;
                        continue;
                    }
                    // A document that can't be used was logged, and is remembered.
                    _ => drop(manager.take(found).await),
                }
            }
        }
        break;
    }
    manager.update_readiness(true);
    Ok(())
}

/// Gives Redis back a version that it lost, under its own number.
async fn restore(
    manager: &RulesManager,
    shared: &RedisDocument,
    own: &RulesDocument,
    found: Option<u64>,
) -> Result<(), StoreError> {
    if shared.restore(&own.edition()).await? {
        tracing::warn!(
            source = manager.source(),
            version = own.number,
            found,
            "redis lost the latest rules, this node restored them"
        );
    }
    Ok(())
}

/// Settles which of two documents with one number is enforced: the one that was pushed later, by the time of the Redis
/// that numbered it, then the one of the greater hash. It gets the next number, so that a client that read the
/// other one under the old number can't replace it unseen.
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
    let draft = Draft {
        text: &kept.text,
        by: &kept.by,
        note: note.trim_start(),
        expected: Expected::Number(number),
        above: number,
    };
    match shared.put(draft).await {
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
        // Another node was faster, the next comparison shows its result.
        Err(PutError::Conflict { .. }) => Ok(()),
        Err(PutError::Store(error)) => Err(error),
    }
}
