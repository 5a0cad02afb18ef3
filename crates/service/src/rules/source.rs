//! Sources of documents. A source offers its document to the manager after every change.

mod files;
mod redis;
mod url;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tidegate_core::Span;
use tokio::task::JoinHandle;

pub(crate) use self::redis::reconcile;
pub use self::url::RULES_VERSION_HEADER;
use crate::reload::ReloadSignal;
use crate::rules::manager::RulesManager;
use crate::rules::{RuleSource, RulesConfig};

/// Time between two reads of a file, for file systems that report no changes.
const FILE_INTERVAL: Span = Span::from_secs(5);
/// Time between two requests to a source on another machine, which may report changes earlier.
const REMOTE_INTERVAL: Span = Span::from_secs(30);

/// First wait before a failed read of a source is repeated. Every further failure doubles it.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(500);
/// Longest wait before a failed read of a source is repeated.
const MAX_RETRY_DELAY: Duration = Duration::from_secs(30);

/// Activates the local copy of a remote source, then reads the source once. The newer of the two documents is active
/// afterwards.
///
/// If neither has a valid document, no rule is active. The node is not ready then, unless the source is reachable and
/// has no rules yet.
pub async fn start_from_source(manager: &Arc<RulesManager>, config: &RulesConfig) {
    if !config.source.is_remote() {
        return;
    }
    manager.start_with_copy().await;
    let first_read = match &config.source {
        RuleSource::Redis(_) => redis::read_once(manager).await,
        RuleSource::Url(url) => url::read_once(manager, url).await,
        _ => return,
    };
    if let Err(error) = &first_read {
        manager.mark_unreachable(error);
    }
    if manager.update_readiness(first_read.is_ok()) {
        tracing::warn!(source = manager.source(), "no valid rules, the node is not ready");
    }
}

/// Follows the sources until the returned tasks are aborted.
pub fn follow_sources(
    manager: &Arc<RulesManager>,
    config: &RulesConfig,
    reloads: &ReloadSignal,
) -> Vec<JoinHandle<()>> {
    let interval = |default: Span| Duration::from(config.poll.unwrap_or(default));
    let mut tasks = vec![tokio::spawn(Arc::clone(manager).report_loop())];
    let file = match &config.source {
        RuleSource::File(path) => Some(path.clone()),
        RuleSource::Redis(_) => {
            let interval = interval(REMOTE_INTERVAL);
            let task = redis::follow(Arc::clone(manager), interval, reloads.clone());
            tasks.push(tokio::spawn(task));
            None
        }
        RuleSource::Url(url) => {
            let (manager, reloads) = (Arc::clone(manager), reloads.clone());
            let task = url::follow(manager, url.clone(), interval(REMOTE_INTERVAL), reloads);
            tasks.push(tokio::spawn(task));
            None
        }
        RuleSource::Nothing | RuleSource::Sample | RuleSource::Inline(_) => None,
    };
    if file.is_some() || config.envoy.is_some() {
        let (manager, reloads) = (Arc::clone(manager), reloads.clone());
        let interval = interval(FILE_INTERVAL);
        let task = files::follow(manager, file, config.envoy.clone(), interval, reloads);
        tasks.push(tokio::spawn(task));
    }
    tasks
}

/// The delay before the next read of a source: doubled by every failure, reset by a success.
struct RetryBackoff(Duration);

impl RetryBackoff {
    fn new() -> Self {
        Self(MIN_RETRY_DELAY)
    }

    /// Returns the wait after a read: `interval` after a success, at most that after a failure. Records a failure in the
    /// status of the source.
    fn next_delay<E: Display>(
        &mut self,
        result: Result<(), E>,
        manager: &RulesManager,
        interval: Duration,
    ) -> Duration {
        let Err(error) = result else {
            *self = Self::new();
            return interval;
        };
        manager.mark_unreachable(&error);
        let delay = self.0;
        self.0 = (delay * 2).min(MAX_RETRY_DELAY);
        delay.min(interval)
    }
}
