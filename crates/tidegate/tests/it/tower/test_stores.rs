//! Stores that fail or respond slowly.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tidegate::error::StoreError;
use tidegate::store::{Charge, ChargeMode, ChargeResult, ChargeResults, Key, Keyer, Refund, Store};
use tidegate::{Clock, MemoryStore};
use tokio::task::yield_now;

/// A store that fails every call.
pub(crate) struct UnavailableStore;

impl UnavailableStore {
    fn error() -> StoreError {
        StoreError::Unavailable { store: "down".into(), reason: "it is a test".into() }
    }
}

impl Store for UnavailableStore {
    fn keyer(&self) -> Keyer {
        Keyer::Local { seed: [0; 32] }
    }

    async fn charge(&self, charges: &[Charge<'_>], _: ChargeMode) -> ChargeResults {
        yield_now().await;
        charges.iter().map(|_| ChargeResult::Failed(Self::error())).collect()
    }

    async fn refund(&self, _: &[Refund]) -> Result<usize, StoreError> {
        Err(Self::error())
    }

    fn refund_detached(self: &Arc<Self>, _: Vec<Refund>) {}

    async fn reset(&self, _: Key) -> Result<(), StoreError> {
        Err(Self::error())
    }
}

/// A store that replies at the second poll, like one across a network.
pub(crate) struct SlowStore {
    memory: MemoryStore,
    refunds: AtomicUsize,
}

impl SlowStore {
    pub(crate) fn new(clock: Clock) -> Self {
        Self { memory: MemoryStore::new(clock), refunds: AtomicUsize::new(0) }
    }

    /// Returns the number of refunds.
    pub(crate) fn refunds(&self) -> usize {
        self.refunds.load(Ordering::SeqCst)
    }
}

impl Store for SlowStore {
    fn keyer(&self) -> Keyer {
        self.memory.keyer()
    }

    async fn charge(&self, charges: &[Charge<'_>], mode: ChargeMode) -> ChargeResults {
        let outcomes = self.memory.charge(charges, mode).await;
        yield_now().await;
        outcomes
    }

    async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        yield_now().await;
        let refunded = self.memory.refund(refunds).await;
        self.refunds.fetch_add(1, Ordering::SeqCst);
        refunded
    }

    fn refund_detached(self: &Arc<Self>, refunds: Vec<Refund>) {
        let store = Arc::clone(self);
        tokio::spawn(async move { store.refund(&refunds).await });
    }

    async fn reset(&self, key: Key) -> Result<(), StoreError> {
        self.memory.reset(key).await
    }
}
