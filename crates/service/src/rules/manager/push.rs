//! Rules that an operator pushes: checked here, stored for all, in force everywhere.

use std::sync::Arc;

use thiserror::Error;
use tidegate_limiter::StoreError;
use tidegate_redis::{DocumentVersion, Draft, Edition, Expected, PutError, RedisDocument};

use crate::config_error::ConfigError;
use crate::rules::low_priority::spawn_low_priority;
use crate::rules::manager::{RuleInputs, RulesManager};
use crate::rules::source::reconcile;
use crate::rules::{NativeRules, Rules, RulesDocument};

/// Why rules were not pushed. Nothing changed anywhere, unless the store did not confirm it.
#[derive(Debug, Error)]
pub enum PushError {
    /// The source of the rules can't be written.
    #[error("rules come from {source_name} on this server and can't be pushed to it")]
    Elsewhere {
        /// The name of the source.
        source_name: String,
    },
    /// The rules have errors.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// Another version is active than the caller expected.
    #[error("{}", met(.found.as_ref()))]
    Conflict {
        /// The latest version.
        found: Option<DocumentVersion>,
    },
    /// The store did not confirm the push.
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn met(found: Option<&DocumentVersion>) -> String {
    match found {
        Some(found) => format!("rules are at version {} by now", found.number),
        None => "there are no rules yet".to_owned(),
    }
}

impl RulesManager {
    /// Checks a document whole, stores it for all nodes, and puts it in force on this one.
    ///
    /// # Errors
    /// It can't be used, another one came first, or the store did not confirm it.
    pub async fn push(
        self: &Arc<Self>,
        text: &str,
        by: &str,
        note: &str,
        expected: Expected,
    ) -> Result<DocumentVersion, PushError> {
        let shared = self.shared()?;
        self.checked(text).await?;
        // Redis gets back what it lost before the push is compared with what it has.
        reconcile(self, shared).await?;
        let above = self.newest().await.and_then(|newest| newest.number).unwrap_or_default();
        let draft = Draft { text, by, note, expected, above };
        let version = shared.put(draft).await.map_err(|error| match error {
            PutError::Conflict { found } => PushError::Conflict { found },
            PutError::Store(error) => PushError::Store(error),
        })?;
        tracing::info!(version = version.number, by, note, "rules pushed");
        let edition = Edition { version: version.clone(), text: text.to_owned() };
        // The others hear of it. What was just checked is fit.
        self.take(RulesDocument::shared(self.source(), edition)).await?;
        Ok(version)
    }

    /// The rules of a document, as they would come into force here.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub async fn checked(&self, text: &str) -> Result<Rules, ConfigError> {
        let document = RulesDocument::new("rules", text);
        let envoy = self.inputs.lock().await.envoy.clone();
        let next = RuleInputs { own: NativeRules::Written(document), envoy };
        spawn_low_priority(move || Rules::of(&next.own, next.envoy.as_deref())?.complete()).await?
    }

    /// Where rules are pushed to.
    ///
    /// # Errors
    /// They come from somewhere else.
    pub fn shared(&self) -> Result<&RedisDocument, PushError> {
        let elsewhere = || PushError::Elsewhere { source_name: self.source.clone() };
        self.shared.as_ref().ok_or_else(elsewhere)
    }
}
