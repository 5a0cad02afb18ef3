//! Where documents come from: each source offers what it has to the keeper, for ever.

mod files;
mod redis;
mod url;

pub(crate) use self::url::NUMBER;

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use tidegate::Span;
use tokio::task::JoinHandle;

use super::keeper::Keeper;
use crate::config::{RuleSource, RulesConfig};

/// How often a file is looked at, should nobody tell that it changed.
const FILES: Span = Span::from_secs(5);
/// How often another machine is asked, whatever it says by itself.
const ELSEWHERE: Span = Span::from_secs(30);

/// Shortest and longest wait before a source that failed is asked again.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

impl Keeper {
    /// Looks for the first rules of a source on another machine; without them, for those that were
    /// kept here. Without either it waits for them, and the node is not ready.
    pub(crate) async fn begin(self: &Arc<Self>, config: &RulesConfig) {
        let found = match &config.source {
            RuleSource::Redis(_) => redis::first(self).await,
            RuleSource::Url(from) => url::first(self, from).await,
            _ => return,
        };
        let Err(error) = found else { return };
        let kept = self.kept();
        let version = kept.as_ref().and_then(|kept| kept.number);
        let started = match kept {
            Some(kept) => self.start_with(kept).await.is_ok(),
            None => false,
        };
        // That they can't be used was told.
        if self.standing().problem.is_none() {
            self.away(&error);
        }
        if started {
            tracing::warn!(version, source = self.source(), "started with a copy of the rules");
        } else {
            tracing::warn!(source = self.source(), "no rules yet, and no copy of them: not ready");
            self.await_rules(true);
        }
    }

    /// Follows the sources until they are dropped.
    pub(crate) fn follow(self: &Arc<Self>, config: &RulesConfig) -> Vec<JoinHandle<()>> {
        let pace = |usual: Span| Duration::from(config.poll.unwrap_or(usual));
        let mut tasks = vec![tokio::spawn(Arc::clone(self).keep_reporting())];
        let file = match &config.source {
            RuleSource::File(path) => Some(path.clone()),
            RuleSource::Redis(_) => {
                tasks.push(tokio::spawn(redis::follow(Arc::clone(self), pace(ELSEWHERE))));
                None
            }
            RuleSource::Url(from) => {
                let following = url::follow(Arc::clone(self), from.clone(), pace(ELSEWHERE));
                tasks.push(tokio::spawn(following));
                None
            }
            RuleSource::Nothing | RuleSource::Sample | RuleSource::Inline(_) => None,
        };
        if file.is_some() || config.envoy.is_some() {
            let following =
                files::follow(Arc::clone(self), file, config.envoy.clone(), pace(FILES));
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
        keeper: &Keeper,
        pace: Duration,
    ) -> Duration {
        let Err(error) = looked else {
            *self = Self::new();
            return pace;
        };
        keeper.away(&error);
        let wait = self.0;
        self.0 = (wait * 2).min(RETRY.1);
        wait.min(pace)
    }
}
