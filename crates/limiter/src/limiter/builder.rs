//! The builder of a limiter.

use std::sync::Arc;

use tidegate_rules::RuleSet;

use super::Limiter;
use crate::block::BlockList;
use crate::clock::Clock;
use crate::store::Store;
use crate::store::memory::MemoryStore;

/// Collects the parts of a [`Limiter`].
#[derive(Debug)]
pub struct LimiterBuilder<St = ()> {
    rules: RuleSet,
    clock: Option<Clock>,
    blocks: Option<Arc<BlockList>>,
    store: St,
}

impl LimiterBuilder {
    pub(crate) fn new() -> Self {
        Self { rules: RuleSet::default(), clock: None, blocks: None, store: () }
    }

    /// Sets the store. The default is a memory store of default size.
    #[must_use]
    pub fn store<S: Store>(self, store: Arc<S>) -> LimiterBuilder<Arc<S>> {
        LimiterBuilder { rules: self.rules, clock: self.clock, blocks: self.blocks, store }
    }

    /// Builds the limiter with a new memory store.
    #[must_use]
    pub fn build(self) -> Limiter {
        let clock = self.clock.unwrap_or_default();
        let store = Arc::new(MemoryStore::new(clock.clone()));
        Limiter::new(store, clock, self.rules, self.blocks)
    }
}

impl<St> LimiterBuilder<St> {
    /// Sets the rules. Without any, every request is allowed.
    #[must_use]
    pub fn rules(mut self, rules: RuleSet) -> Self {
        self.rules = rules;
        self
    }

    /// Sets the clock for the end of overrides, for waits, and for the default memory store.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Sets the block list. The default is an empty list under the secret of the store's keys.
    #[must_use]
    pub fn blocks(mut self, blocks: Arc<BlockList>) -> Self {
        self.blocks = Some(blocks);
        self
    }
}

impl<S: Store> LimiterBuilder<Arc<S>> {
    /// Builds the limiter.
    #[must_use]
    pub fn build(self) -> Limiter<S> {
        Limiter::new(self.store, self.clock.unwrap_or_default(), self.rules, self.blocks)
    }
}
