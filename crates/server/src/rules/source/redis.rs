//! Rules in Redis: told at once when they change, and looked at now and then in any case.

use std::sync::Arc;
use std::time::Duration;

use tidegate::{DocumentVersion, Edition, Latest, RedisDocument, StoreError};
use tokio::sync::Notify;
use tokio::time::timeout;

use super::Retry;
use crate::rules::Document;
use crate::rules::keeper::Keeper;

/// How long a start waits for the first rules.
const PATIENCE: Duration = Duration::from_secs(5);

/// The number and hash of what was last offered, fit or not.
type Seen = Option<(u64, String)>;

impl Document {
    /// What Redis has.
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
}

/// Asks for the rules once.
pub(super) async fn first(keeper: &Arc<Keeper>) -> Result<(), String> {
    let shared = keeper.shared().map_err(|error| error.to_string())?;
    match timeout(PATIENCE, look(keeper, shared, &mut None)).await {
        Ok(Ok(())) if keeper.version().number == 0 && keeper.standing().problem.is_none() => {
            tracing::warn!(source = keeper.source(), "no rules there yet: everything is allowed");
            Ok(())
        }
        Ok(Ok(())) if keeper.version().number == 0 => {
            Err("the rules there can't be used".to_owned())
        }
        Ok(looked) => looked.map_err(|error| error.to_string()),
        Err(_) => Err(format!("no answer within {PATIENCE:?}")),
    }
}

pub(super) async fn follow(keeper: Arc<Keeper>, pace: Duration) {
    let Ok(shared) = keeper.shared() else { return };
    let news = Notify::new();
    let listening = shared.follow(|| news.notify_one());
    let looking = async {
        let version = keeper.version();
        let text = version.text.as_deref().filter(|_| version.number > 0);
        let mut seen = text.map(|text| (version.number, hashed(text)));
        let mut retry = Retry::new();
        loop {
            let wait = retry.after(look(&keeper, shared, &mut seen).await, &keeper, pace);
            let _ = timeout(wait, news.notified()).await;
        }
    };
    tokio::join!(listening, looking);
}

/// Takes up what Redis has, or gives it back what it lost.
async fn look(
    keeper: &Arc<Keeper>,
    shared: &RedisDocument,
    seen: &mut Seen,
) -> Result<(), StoreError> {
    let known = seen.as_ref().map(|(number, hash)| (*number, hash.as_str()));
    let number = keeper.version().number;
    match shared.latest(known).await? {
        Latest::Same => keeper.unchanged(),
        Latest::Nothing => put_back(keeper, shared).await?,
        Latest::Other(edition) if edition.version.number < number => {
            put_back(keeper, shared).await?;
        }
        Latest::Other(edition) => {
            *seen = Some((edition.version.number, edition.version.hash.clone()));
            // What is wrong with it was told, and is told until there is another.
            let _ = keeper.take(Document::shared(keeper.source(), edition)).await;
        }
    }
    keeper.await_rules(false);
    Ok(())
}

/// Gives Redis back what it lost: rules never go back to what they were, nor to none.
async fn put_back(keeper: &Keeper, shared: &RedisDocument) -> Result<(), StoreError> {
    let version = keeper.version();
    let Some(text) = version.text.filter(|_| version.number > 0) else {
        keeper.unchanged();
        return Ok(());
    };
    let edition = Edition {
        version: DocumentVersion {
            number: version.number,
            hash: hashed(&text),
            at: version.at.unwrap_or(version.loaded),
            by: version.by,
            note: version.note,
            bytes: u64::try_from(text.len()).unwrap_or(u64::MAX),
        },
        text: text.to_string(),
    };
    if shared.restore(&edition).await? {
        tracing::warn!(version = version.number, "redis lost the rules, they were put back");
    }
    keeper.settled(version.number);
    Ok(())
}

/// As the document's version has it.
fn hashed(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex().as_str()[..16].to_owned()
}
