//! Where documents come from: each source offers what it has to the manager, for ever.

mod files;
mod redis;
mod url;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Span;
use tokio::task::JoinHandle;

pub(super) use self::redis::reconcile;
pub use self::url::NUMBER;
use crate::reload::ReloadSignal;
use crate::rules::manager::RulesManager;
use crate::rules::{RuleSource, RulesConfig};

/// How often a file is looked at, should nobody tell that it changed.
const FILES: Span = Span::from_secs(5);
/// How often another machine is asked, whatever it says by itself.
const ELSEWHERE: Span = Span::from_secs(30);

/// Shortest and longest wait before a source that failed is asked again.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

impl RulesManager {
    /// Starts with the local copy of a source on another machine, and compares it with the source as while
    /// running: the newer of the two is enforced.
    ///
    /// Without a usable document from either the node enforces nothing. It is not ready then, unless the source
    /// answers that there are no rules yet.
    pub async fn begin(self: &Arc<Self>, config: &RulesConfig) {
        if !config.source.is_remote() {
            return;
        }
        self.start_with_copy().await;
        let compared = match &config.source {
            RuleSource::Redis(_) => redis::first(self).await,
            RuleSource::Url(from) => url::first(self, from).await,
            _ => return,
        };
        if let Err(error) = &compared {
            self.away(error);
        }
        if self.update_readiness(compared.is_ok()) {
            tracing::warn!(source = self.source(), "no rules that can be used: not ready");
        }
    }

    /// Follows the sources until they are dropped.
    pub fn follow(
        self: &Arc<Self>,
        config: &RulesConfig,
        reloads: &ReloadSignal,
    ) -> Vec<JoinHandle<()>> {
        let pace = |usual: Span| Duration::from(config.poll.unwrap_or(usual));
        let mut tasks = vec![tokio::spawn(Arc::clone(self).keep_reporting())];
        let file = match &config.source {
            RuleSource::File(path) => Some(path.clone()),
            RuleSource::Redis(_) => {
                let following = redis::follow(Arc::clone(self), pace(ELSEWHERE), reloads.clone());
                tasks.push(tokio::spawn(following));
                None
            }
            RuleSource::Url(from) => {
                let (manager, reloads) = (Arc::clone(self), reloads.clone());
                let following = url::follow(manager, from.clone(), pace(ELSEWHERE), reloads);
                tasks.push(tokio::spawn(following));
                None
            }
            RuleSource::Nothing | RuleSource::Sample | RuleSource::Inline(_) => None,
        };
        if file.is_some() || config.envoy.is_some() {
            let (manager, reloads) = (Arc::clone(self), reloads.clone());
            let following =
                files::follow(manager, file, config.envoy.clone(), pace(FILES), reloads);
            tasks.push(tokio::spawn(following));
        }
        tasks
    }
}

/// Waits that double as long as a source fails.
struct Retry(Duration);

impl Retry {
    fn new() -> Self {
        Self(RETRY.0)
    }

    /// How long to wait after a look: until it is time again, or less if the source could not be asked.
    fn after<E: Display>(
        &mut self,
        looked: Result<(), E>,
        manager: &RulesManager,
        pace: Duration,
    ) -> Duration {
        let Err(error) = looked else {
            *self = Self::new();
            return pace;
        };
        manager.away(&error);
        let wait = self.0;
        self.0 = (wait * 2).min(RETRY.1);
        wait.min(pace)
    }
}
