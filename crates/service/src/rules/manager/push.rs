//! Rules that an operator pushes: validated on this node, stored in Redis, activated by every node.

use std::sync::Arc;

use thiserror::Error;
use tidegate_limiter::StoreError;
use tidegate_redis::{
    DocumentVersion, DocumentWithText, Expected, NewVersion, PutError, RedisDocument,
};

use crate::config_error::ConfigError;
use crate::rules::low_priority::spawn_low_priority;
use crate::rules::manager::{RuleInputs, RulesManager};
use crate::rules::source::reconcile;
use crate::rules::{NativeRules, ParsedRules, RulesDocument};

/// The reason why rules were not pushed. Nothing was changed, except perhaps after [`Store`](Self::Store).
#[derive(Debug, Error)]
pub enum PushError {
    /// The source of the rules can't be written.
    #[error("rules come from {source_name} on this server and can't be pushed to it")]
    ReadOnlySource {
        /// The name of the source.
        source_name: String,
    },
    /// The rules have errors.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// Another version is active than the caller expected.
    #[error("{}", describe_conflict(.found.as_ref()))]
    Conflict {
        /// The latest version.
        found: Option<DocumentVersion>,
    },
    /// The store did not confirm the push. It may have been stored.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn describe_conflict(found: Option<&DocumentVersion>) -> String {
    match found {
        Some(found) => format!("rules are at version {} by now", found.number),
        None => "there are no rules yet".to_owned(),
    }
}

impl RulesManager {
    /// Validates a document, stores it for all nodes, and activates it on this one.
    ///
    /// # Errors
    /// The document is invalid, another version was pushed before, or the store did not confirm it.
    pub async fn push(
        self: &Arc<Self>,
        text: &str,
        by: &str,
        note: &str,
        expected: Expected,
    ) -> Result<DocumentVersion, PushError> {
        let shared = self.shared()?;
        self.validate(text).await?;
        // Restores a version that Redis lost, before the expected version is compared with the stored one.
        reconcile(self, shared).await?;
        let newest = self.newest_document().await;
        let above = newest.and_then(|newest| newest.number).unwrap_or_default();
        let new_version = NewVersion { text, by, note, expected, above };
        let version = shared.put(new_version).await.map_err(|error| match error {
            PutError::Conflict { found } => PushError::Conflict { found },
            PutError::Store(error) => PushError::Store(error),
        })?;
        tracing::info!(version = version.number, by, note, "rules pushed");
        let document = DocumentWithText { version: version.clone(), text: text.to_owned() };
        // The other nodes are notified by Redis.
        self.offer(RulesDocument::from_redis(self.source(), document)).await?;
        Ok(version)
    }

    /// Parses a document as a push would, without activating it.
    ///
    /// # Errors
    /// The document is invalid; the error lists everything that is wrong with it.
    pub async fn validate(self: &Arc<Self>, text: &str) -> Result<ParsedRules, ConfigError> {
        let document = RulesDocument::new("rules", text);
        let envoy = self.inputs.lock().await.envoy.clone();
        let next = RuleInputs { native: NativeRules::Document(document), envoy };
        let manager = Arc::clone(self);
        spawn_low_priority(move || manager.parse(&next)?.with_internal_rules()).await?
    }

    /// Returns the shared document that rules are pushed to.
    ///
    /// # Errors
    /// [`PushError::ReadOnlySource`]: the rules do not come from Redis.
    pub fn shared(&self) -> Result<&RedisDocument, PushError> {
        let read_only = || PushError::ReadOnlySource { source_name: self.source.clone() };
        self.shared.as_ref().ok_or_else(read_only)
    }
}
