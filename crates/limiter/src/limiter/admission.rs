//! An admitted request until it is served.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{Span, Timestamp};

use super::receipt::Receipt;
use super::slot_guard::SlotGuard;
use crate::clock::Clock;
use crate::coordination::Coordinator;
use crate::store::Store;
use crate::store::memory::MemoryStore;

/// An admitted request that may have to wait in the queue of a leaky bucket. The default has nothing to
/// wait for, and is what a denied request has.
///
/// Dropped before [`start`](Self::start), it undoes the admission as far as that is possible: slots in
/// flight are released and charges are refunded, of a leaky bucket's slots only the last. Nothing waits
/// for the store then.
#[must_use = "an admission that is dropped is undone"]
pub struct Admission<S: Store = MemoryStore> {
    guard: SlotGuard<S>,
    /// The other charges, and where they were made.
    charged: Option<Charged<S>>,
    /// When the wait is over, and by which clock; `None` without a wait.
    ready_at: Option<(Timestamp, Clock)>,
}

struct Charged<S> {
    store: Arc<S>,
    coordinator: Option<Arc<Coordinator>>,
    receipt: Receipt,
}

impl<S: Store> Default for Admission<S> {
    fn default() -> Self {
        Self { guard: SlotGuard::default(), charged: None, ready_at: None }
    }
}

impl<S: Store> fmt::Debug for Admission<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ready_at = self.ready_at.as_ref().map(|(at, _)| at);
        f.debug_struct("Admission").field("ready_at", &ready_at).finish_non_exhaustive()
    }
}

impl<S: Store> Admission<S> {
    /// Admits a request that was charged just now and has to wait for `delay`.
    pub(crate) fn new(
        store: &Arc<S>,
        clock: &Clock,
        coordinator: Option<&Arc<Coordinator>>,
        mut receipt: Receipt,
        delay: Span,
    ) -> Self {
        let guard = SlotGuard::new(store, clock, receipt.take_slots());
        let coordinator = coordinator.filter(|_| !receipt.local_charges.is_empty()).map(Arc::clone);
        let charged = (!receipt.is_empty()).then(|| Charged {
            store: Arc::clone(store),
            coordinator,
            receipt,
        });
        // Read after the check: a wait counted from before it would end too early.
        let ready_at = (!delay.is_zero()).then(|| (clock.now() + delay, clock.clone()));
        Self { guard, charged, ready_at }
    }

    /// Returns whether there was nothing to wait for from the beginning, so that [`wait`](Self::wait)
    /// is ready at once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready_at.is_none()
    }

    /// Waits until the request may be served. From then on its charges stay, and its slots in flight are
    /// held while the guard lives.
    ///
    /// Dropped before it is ready, the future undoes the admission. Slots in flight are renewed meanwhile.
    pub async fn wait(self) -> SlotGuard<S> {
        self.ready().await;
        self.start()
    }

    /// Waits until the request may be served. The admission can still be undone then, by dropping it.
    pub async fn ready(&self) {
        if let Some((at, clock)) = &self.ready_at {
            clock.sleep_until(*at).await;
        }
    }

    /// Returns what [`wait`](Self::wait) ends with, without waiting. The charges stay from now on.
    #[must_use = "slots in flight are released when the guard is dropped"]
    pub fn start(mut self) -> SlotGuard<S> {
        self.charged = None;
        std::mem::take(&mut self.guard)
    }
}

impl<S: Store> Drop for Admission<S> {
    fn drop(&mut self) {
        if let Some(Charged { store, coordinator, receipt }) = self.charged.take() {
            let Receipt { refunds, local_charges } = receipt;
            let mut refunds = refunds.into_vec();
            refunds.extend(
                coordinator
                    .map(|coordinator| coordinator.roll_back(&store, local_charges))
                    .unwrap_or_default(),
            );
            // All in one call. Slots without other charges are released by their guard.
            refunds.append(&mut self.guard.take_slots());
            if !refunds.is_empty() {
                store.refund_detached(refunds);
            }
        }
    }
}
