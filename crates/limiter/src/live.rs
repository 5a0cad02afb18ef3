//! A limiter with rules that can be replaced while it decides.

use std::fmt;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tidegate_core::{Decision, Request};
use tidegate_rules::RuleSet;

use crate::limiter::Limiter;
use crate::store::Store;
use crate::store::memory::MemoryStore;

/// A limiter with rules that can be replaced while it decides. Clones share the rules.
///
/// No check waits for a replacement. Each check is decided by one set of rules: the one that was active when it
/// started.
///
/// ```
/// use tidegate::{Limiter, LiveLimiter, Request, RuleSet};
///
/// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let rules = |limit| {
///     RuleSet::parse("rules.yaml", &format!("rules: [{{name: api, per: [user], limit: {limit}}}]"))
/// };
/// let limiter = LiveLimiter::new(Limiter::builder().rules(rules("10 per hour")?).build());
/// let request = Request::new().with("user", "alice")?.cost(5);
/// assert_eq!(limiter.check(&request).await.strictest_rule().unwrap().outcome.remaining, 5);
/// limiter.replace(rules("100 per hour")?);
/// // Half of the limit was spent, and stays spent under the new limit.
/// assert_eq!(limiter.check(&request).await.strictest_rule().unwrap().outcome.remaining, 45);
/// # Ok(()) }
/// ```
pub struct LiveLimiter<S = MemoryStore> {
    current: Arc<ArcSwap<Limiter<S>>>,
}

impl<S> Clone for LiveLimiter<S> {
    fn clone(&self) -> Self {
        Self { current: Arc::clone(&self.current) }
    }
}

impl<S> fmt::Debug for LiveLimiter<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LiveLimiter").finish_non_exhaustive()
    }
}

impl<S: Store> LiveLimiter<S> {
    /// Creates a live limiter with the rules of `limiter`.
    #[must_use]
    pub fn new(limiter: Limiter<S>) -> Self {
        Self { current: Arc::new(ArcSwap::from_pointee(limiter)) }
    }

    /// Returns a limiter with the active rules. It keeps these rules after a replacement.
    #[must_use]
    pub fn limiter(&self) -> Limiter<S> {
        Limiter::clone(&self.current.load())
    }

    /// Replaces the active rules, see [`Limiter::with_rules`]. Returns the limiter with the old rules.
    ///
    /// Dropping the last limiter of a set of rules frees them, which takes a moment for a very large set.
    pub fn replace(&self, rules: RuleSet) -> Limiter<S> {
        let next = self.current().with_rules(rules);
        Limiter::clone(&self.current.swap(Arc::new(next)))
    }

    /// Decides a request by the active rules, as [`Limiter::check`] does.
    pub async fn check(&self, request: &Request<'_>) -> Decision {
        self.current().check(request).await
    }

    /// Returns the active limiter, without the reference count that a clone would share between threads.
    pub(crate) fn current(&self) -> Guard<Arc<Limiter<S>>> {
        self.current.load()
    }
}

impl<S: Store> From<Limiter<S>> for LiveLimiter<S> {
    fn from(limiter: Limiter<S>) -> Self {
        Self::new(limiter)
    }
}
