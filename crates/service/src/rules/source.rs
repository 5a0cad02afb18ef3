//! Sources of documents. Each offers its document to the manager when it changes.

mod files;
mod redis;
mod url;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Span;
use tokio::task::JoinHandle;

pub(crate) use self::redis::reconcile;
pub use self::url::NUMBER;
use crate::reload::ReloadSignal;
use crate::rules::manager::RulesManager;
use crate::rules::{RuleSource, RulesConfig};

/// Time between two reads of a file, for file systems that report no changes.
const FILE_INTERVAL: Span = Span::from_secs(5);
/// Time between two requests to a source on another machine, which may report changes earlier.
const REMOTE_INTERVAL: Span = Span::from_secs(30);

/// Shortest and longest wait before a source that failed is asked again.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// Starts with the local copy of a source on another machine, and compares it with the source as while running: the
/// newer of the two is activated.
///
/// Without a usable document from either, no rule is active. The node is not ready then, unless the source answers that
/// there are no rules yet.
pub async fn start_from_source(manager: &Arc<RulesManager>, config: &RulesConfig) {
    if !config.source.is_remote() {
        return;
    }
    manager.start_with_copy().await;
    let compared = match &config.source {
        RuleSource::Redis(_) => redis::first(manager).await,
        RuleSource::Url(from) => url::first(manager, from).await,
        _ => return,
    };
    if let Err(error) = &compared {
        manager.away(error);
    }
    if manager.update_readiness(compared.is_ok()) {
        tracing::warn!(source = manager.source(), "no rules that can be used: not ready");
    }
}

/// Follows the sources until the returned tasks are aborted.
pub fn follow_sources(
    manager: &Arc<RulesManager>,
    config: &RulesConfig,
    reloads: &ReloadSignal,
) -> Vec<JoinHandle<()>> {
    let interval = |default: Span| Duration::from(config.poll.unwrap_or(default));
    let mut tasks = vec![tokio::spawn(Arc::clone(manager).keep_reporting())];
    let file = match &config.source {
        RuleSource::File(path) => Some(path.clone()),
        RuleSource::Redis(_) => {
            let interval = interval(REMOTE_INTERVAL);
            let following = redis::follow(Arc::clone(manager), interval, reloads.clone());
            tasks.push(tokio::spawn(following));
            None
        }
        RuleSource::Url(from) => {
            let (manager, reloads) = (Arc::clone(manager), reloads.clone());
            let following = url::follow(manager, from.clone(), interval(REMOTE_INTERVAL), reloads);
            tasks.push(tokio::spawn(following));
            None
        }
        RuleSource::Nothing | RuleSource::Sample | RuleSource::Inline(_) => None,
    };
    if file.is_some() || config.envoy.is_some() {
        let (manager, reloads) = (Arc::clone(manager), reloads.clone());
        let interval = interval(FILE_INTERVAL);
        let following = files::follow(manager, file, config.envoy.clone(), interval, reloads);
        tasks.push(tokio::spawn(following));
    }
    tasks
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
