//! The guard of slots in flight, which holds them while a request lasts and releases them at any end of it.

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
/// The slots are renewed in the background three times per hold time. After a reconnect they are renewed
/// before the store is used again. They are released on drop, without waiting for the reply of the store.
/// Outside of a tokio runtime there is no renewal in the background.
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
        let shortest_hold = slots.iter().filter_map(|slots| hold_time(&slots.limit)).min();
        let renewal = shortest_hold.zip(Handle::try_current().ok()).map(|(hold, runtime)| {
            let (store, clock, slots) = (Arc::clone(store), clock.clone(), slots.clone());
            let interval = Span::from_micros(hold.as_micros() / 3);
            // Counted from now, because the first poll of the task may be much later.
            let due = clock.now() + interval;
            runtime.spawn(renew_loop(store, clock, slots, due, interval)).abort_handle()
        });
        let slots = Arc::from(slots);
        store.register_held(&slots);
        Self { slots: Some((Arc::clone(store), slots)), renewal }
    }

    /// Returns whether the guard holds no slots: the request has no limit in flight, or was denied.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_none()
    }

    /// Releases the slots and waits for the confirmation of the store. Returns how many were still held.
    ///
    /// # Errors
    /// The store did not confirm it. It is not retried.
    pub async fn release(mut self) -> Result<usize, StoreError> {
        let Some((store, slots)) = self.stop() else { return Ok(0) };
        // If this future is dropped before the reply, the slots are released again by the same ids, which has
        // no effect.
        let guard = RefundGuard::new(&store, slots);
        let released = store.refund(guard.refunds()).await;
        guard.disarm();
        released
    }

    /// Takes the slots out of the guard, for a release by the caller.
    pub(crate) fn take_slots(&mut self) -> Vec<Refund> {
        self.stop().map(|(_, slots)| slots).unwrap_or_default()
    }

    /// Stops the renewals, in the background and at reconnects.
    fn stop(&mut self) -> Option<(Arc<S>, Vec<Refund>)> {
        if let Some(renewal) = self.renewal.take() {
            renewal.abort();
        }
        // The registration ends before the release, so that a reconnect in between releases the slots that it
        // has renewed.
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

fn hold_time(limit: &Limit) -> Option<Span> {
    match limit {
        Limit::Concurrency(slots) => Some(slots.hold()),
        _ => None,
    }
}

/// Renews the slots until another caller has released all of them. A failed renewal is repeated after the
/// interval; the store itself renews the slots after a reconnect.
async fn renew_loop<S: Store>(
    store: Arc<S>,
    clock: Clock,
    slots: Vec<Refund>,
    mut due: Timestamp,
    interval: Span,
) {
    loop {
        clock.sleep_until(due).await;
        due = clock.now() + interval;
        match store.renew(&slots).await {
            Ok(0) => {
                tracing::warn!("slots in flight were released by another caller, renewal stopped");
                return;
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "cannot renew slots in flight, retrying"),
        }
    }
}
