//! A limiter, put together.

use std::sync::Arc;

use tidegate_core::rule::Chain;
use tidegate_core::{Key, Keyer, RuleSet, Scope};

use super::failing::Failing;
use super::{Inner, Limiter};
use crate::block::{BlockList, PenaltyBox};
use crate::clock::Clock;
use crate::fleet::Fleet;
use crate::store::Store;
use crate::store::memory::MemoryStore;

impl Limiter<MemoryStore> {
    /// A limiter to be given its rules, and perhaps a clock and a store.
    #[must_use]
    pub fn builder() -> Builder {
        Builder { rules: RuleSet::default(), clock: None, blocks: None, store: () }
    }
}

/// Collects what a [`Limiter`] needs.
#[derive(Debug)]
pub struct Builder<St = ()> {
    rules: RuleSet,
    clock: Option<Clock>,
    blocks: Option<Arc<BlockList>>,
    store: St,
}

impl<St> Builder<St> {
    /// The rules to decide by. Without any, every request is allowed.
    #[must_use]
    pub fn rules(mut self, rules: RuleSet) -> Self {
        self.rules = rules;
        self
    }

    /// The clock for overrides that end, for waiting, and for a memory store made here.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Who is blocked. Without a list: one of its own, empty, under the secret of the store's keys.
    #[must_use]
    pub fn blocks(mut self, blocks: Arc<BlockList>) -> Self {
        self.blocks = Some(blocks);
        self
    }
}

impl Builder {
    /// Where spending is remembered. Without one: in memory, with default room.
    #[must_use]
    pub fn store<S: Store>(self, store: Arc<S>) -> Builder<Arc<S>> {
        Builder { rules: self.rules, clock: self.clock, blocks: self.blocks, store }
    }

    /// The limiter, on a memory store of its own.
    #[must_use]
    pub fn build(self) -> Limiter {
        let clock = self.clock.unwrap_or_default();
        let store = Arc::new(MemoryStore::new(clock.clone()));
        Limiter::assemble(store, clock, self.rules, self.blocks)
    }
}

impl<S: Store> Builder<Arc<S>> {
    /// The limiter.
    #[must_use]
    pub fn build(self) -> Limiter<S> {
        Limiter::assemble(self.store, self.clock.unwrap_or_default(), self.rules, self.blocks)
    }
}

impl<S: Store> Limiter<S> {
    fn assemble(
        store: Arc<S>,
        clock: Clock,
        rules: RuleSet,
        blocks: Option<Arc<BlockList>>,
    ) -> Self {
        let blocks = blocks.unwrap_or_else(|| {
            let (Keyer::Local { seed: secret } | Keyer::Fleet { secret }) = store.keyer();
            Arc::new(BlockList::new(secret))
        });
        let failing = Failing::new(rules.rules().len(), clock.clone());
        let penalties = is_punishing(&rules).then(|| Arc::new(PenaltyBox::new(clock.clone())));
        let (scopes, ranks) = (scopes(&store.keyer(), &rules), ranks(&rules));
        let fleet = store.leases().then(|| Arc::new(Fleet::new(&clock)));
        let inner = Inner { store, clock, rules, scopes, ranks, failing, blocks, fleet, penalties };
        Self { inner: Arc::new(inner) }
    }

    /// A limiter by other rules that goes on where this one is: on the same store, with the same
    /// clients blocked and the same failures counted.
    ///
    /// What a client has spent under a rule stays with the rule's name and what it counts by. A limit
    /// that changed takes it over: a bucket keeps its fraction, a window its count.
    #[must_use]
    pub fn with_rules(&self, rules: RuleSet) -> Self {
        let old = &*self.inner;
        let (store, clock, blocks) =
            (Arc::clone(&old.store), old.clock.clone(), Arc::clone(&old.blocks));
        let failing = old.failing.following(&old.rules, &rules);
        let penalties = is_punishing(&rules).then(|| {
            let kept = old.penalties.as_ref().map(Arc::clone);
            kept.unwrap_or_else(|| Arc::new(PenaltyBox::new(clock.clone())))
        });
        let (scopes, ranks) = (scopes(&store.keyer(), &rules), ranks(&rules));
        let fleet = old.fleet.clone();
        let inner = Inner { store, clock, rules, scopes, ranks, failing, blocks, fleet, penalties };
        Self { inner: Arc::new(inner) }
    }
}

fn is_punishing(rules: &RuleSet) -> bool {
    rules.rules().iter().any(|rule| rule.penalty().is_some())
}

/// For each rule, the keys of its clients.
fn scopes(keyer: &Keyer, rules: &RuleSet) -> Vec<(Scope, Key)> {
    let scopes = rules.rules().iter().map(|rule| {
        let scope = keyer.scope(rule.name(), rule.per().iter().map(Chain::as_str));
        let shared = scope.shared();
        (scope, shared)
    });
    scopes.collect()
}

/// For each rule, its place when they are charged from the narrowest to the widest.
///
/// A rule that counts by more attributes is narrower: a denial is likelier there, and stops the rest
/// before what everybody shares is charged.
fn ranks(rules: &RuleSet) -> Vec<usize> {
    let mut places: Vec<usize> = (0..rules.rules().len()).collect();
    places.sort_by_key(|place| std::cmp::Reverse(rules.rules()[*place].per().len()));
    let mut ranks = vec![0; places.len()];
    for (rank, place) in places.into_iter().enumerate() {
        ranks[place] = rank;
    }
    ranks
}
