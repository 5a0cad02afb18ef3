//! The guard of slots in flight: they are held while a request lasts, and released however it ends.

use std::sync::Arc;

use tidegate_core::{Limit, Span, Timestamp};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::receipt::RefundGuard;
use crate::clock::Clock;
use crate::store::memory::MemoryStore;
use crate::store::{Refund, Store, StoreError};

/// Slots in flight that are held while the guard lives. The default holds nothing.
///
/// They are renewed in the background three times per hold, and when a lost connection to the store is
/// back, before the store is used again. They are released on drop without waiting for the store's
/// answer. Made outside of a tokio runtime, they are released but not renewed three times per hold.
#[derive(Debug)]
pub struct SlotGuard<S: Store = MemoryStore> {
    /// The store and the slots to release; `None` when there are none.
    slots: Option<(Arc<S>, Arc<[Refund]>)>,
    renewal: Option<AbortHandle>,
}

impl<S: Store> Default for SlotGuard<S> {
    fn default() -> Self {
        Self { slots: None, renewal: None }
    }
}

impl<S: Store> SlotGuard<S> {
    pub(crate) fn new(store: &Arc<S>, clock: &Clock, slots: Vec<Refund>) -> Self {
        if slots.is_empty() {
            return Self::default();
        }
        let shortest_hold = slots.iter().filter_map(|slots| hold_of(&slots.limit)).min();
        let renewal = shortest_hold.zip(Handle::try_current().ok()).map(|(hold, runtime)| {
            let (store, clock, slots) = (Arc::clone(store), clock.clone(), slots.clone());
            let third = Span::from_micros(hold.as_micros() / 3);
            // Not from when the task is first polled, which may be much later.
            let due = clock.now() + third;
            runtime.spawn(renew_loop(store, clock, slots, due, third)).abort_handle()
        });
        let slots = Arc::from(slots);
        store.register_held(&slots);
        Self { slots: Some((Arc::clone(store), slots)), renewal }
    }

    /// Returns whether the guard holds no slots: no rule of the request counts what is in flight, or a
    /// rule denied it.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_none()
    }

    /// Releases the slots, and waits until the store has confirmed it. Returns how many were still held.
    ///
    /// # Errors
    /// The store did not confirm it. It is not retried.
    pub async fn release(mut self) -> Result<usize, StoreError> {
        let Some((store, slots)) = self.stop() else { return Ok(0) };
        // A future that is dropped before the reply releases once more, by the same ids: harmless.
        let guard = RefundGuard::new(&store, slots);
        let released = store.refund(guard.refunds()).await;
        guard.disarm();
        released
    }

    /// Takes the slots out of it, to be released elsewhere.
    pub(crate) fn take_slots(&mut self) -> Vec<Refund> {
        self.stop().map(|(_, slots)| slots).unwrap_or_default()
    }

    /// Stops renewing, here and at reconnects. No renewal is sent from then on.
    fn stop(&mut self) -> Option<(Arc<S>, Vec<Refund>)> {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        // The registered slots are dropped before they are released: a reconnect in between releases those
        // that it has renewed.
        self.slots.take().map(|(store, slots)| (store, slots.to_vec()))
    }
}

impl<S: Store> Drop for SlotGuard<S> {
    fn drop(&mut self) {
        if let Some((store, slots)) = self.stop() {
            store.refund_detached(slots);
        }
    }
}

fn hold_of(limit: &Limit) -> Option<Span> {
    match limit {
        Limit::Concurrency(slots) => Some(slots.hold()),
        _ => None,
    }
}

/// Renews until all slots were released elsewhere. After a failure it retries a third of a hold later; the
/// store itself renews when it has reconnected.
async fn renew_loop<S: Store>(
    store: Arc<S>,
    clock: Clock,
    slots: Vec<Refund>,
    mut due: Timestamp,
    third: Span,
) {
    loop {
        clock.sleep_until(due).await;
        due = clock.now() + third;
        match store.renew(&slots).await {
            Ok(0) => {
                tracing::warn!("slots in flight were released elsewhere, renewing ends");
                return;
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot renew slots in flight, retrying"),
        }
    }
}
