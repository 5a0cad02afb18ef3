//! Rules that change while requests are decided.

use std::fmt;
use std::sync::Arc;

use arc_swap::{ArcSwap, Guard};
use tidegate_core::{Decision, Request};
use tidegate_rules::RuleSet;

use crate::limiter::Limiter;
use crate::store::Store;
use crate::store::memory::MemoryStore;

/// A limiter whose rules can be replaced while it decides. Clones share the rules.
///
/// No check waits for a replacement, and each is decided by one set of rules, whole: those that were
/// in force when it began.
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
/// // Half of it was spent, and half of it still is.
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
    /// Begins with the rules of a limiter.
    #[must_use]
    pub fn new(limiter: Limiter<S>) -> Self {
        Self { current: Arc::new(ArcSwap::from_pointee(limiter)) }
    }

    /// The limiter by the rules that are in force now. It keeps deciding by them when they are
    /// replaced.
    #[must_use]
    pub fn limiter(&self) -> Limiter<S> {
        Limiter::clone(&self.current.load())
    }

    /// Decides by other rules from now on, as [`Limiter::with_rules`] says. What had been in force.
    ///
    /// Whoever drops the last limiter by some rules frees them, which for very many takes a moment.
    pub fn replace(&self, rules: RuleSet) -> Limiter<S> {
        let next = self.now().with_rules(rules);
        Limiter::clone(&self.current.swap(Arc::new(next)))
    }

    /// As [`Limiter::check`], by the rules in force.
    pub async fn check(&self, request: &Request<'_>) -> Decision {
        self.now().check(request).await
    }

    /// The limiter in force, without a count to be shared between threads.
    pub(crate) fn now(&self) -> Guard<Arc<Limiter<S>>> {
        self.current.load()
    }
}

impl<S: Store> From<Limiter<S>> for LiveLimiter<S> {
    fn from(limiter: Limiter<S>) -> Self {
        Self::new(limiter)
    }
}
