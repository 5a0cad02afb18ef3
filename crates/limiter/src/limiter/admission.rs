//! An admitted request before it is served.

use std::fmt;
use std::sync::Arc;

use tidegate_core::{Span, Timestamp};

use super::receipt::Receipt;
use super::slot_guard::SlotGuard;
use crate::clock::Clock;
use crate::coordination::Coordinator;
use crate::store::Store;
use crate::store::memory::MemoryStore;

/// An admitted request that may have to wait in the queue of a leaky bucket. The default has no charges and
/// no wait; a denied request has it.
///
/// If it is dropped before [`start`](Self::start), the admission is undone: slots in flight are released
/// and charges are refunded. A place in the queue of a leaky bucket is freed only if it is the last. The
/// drop does not wait for the store.
#[must_use = "an admission that is dropped is undone"]
pub struct Admission<S: Store = MemoryStore> {
    guard: SlotGuard<S>,
    /// The charges other than slots in flight; `None` if there are none.
    charges: Option<AdmissionCharges<S>>,
    /// The end of the wait, and its clock; `None` without a wait.
    ready_at: Option<(Timestamp, Clock)>,
}

/// The charges of an admission, with the store and the coordinator that made them.
struct AdmissionCharges<S> {
    store: Arc<S>,
    coordinator: Option<Arc<Coordinator>>,
    receipt: Receipt,
}

impl<S: Store> Default for Admission<S> {
    fn default() -> Self {
        Self { guard: SlotGuard::default(), charges: None, ready_at: None }
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
        let charges = (!receipt.is_empty()).then(|| AdmissionCharges {
            store: Arc::clone(store),
            coordinator,
            receipt,
        });
        // The clock is read after the check, because the wait starts then.
        let ready_at = (!delay.is_zero()).then(|| (clock.now() + delay, clock.clone()));
        Self { guard, charges, ready_at }
    }

    /// Returns whether the admission had no wait when it was made, so that [`wait`](Self::wait) is ready at
    /// once.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.ready_at.is_none()
    }

    /// Waits until the request may be served. After that its charges stay, and its slots in flight are held
    /// until the guard is dropped.
    ///
    /// If the future is dropped before it is ready, the admission is undone. Slots in flight are renewed
    /// during the wait.
    pub async fn wait(self) -> SlotGuard<S> {
        self.ready().await;
        self.start()
    }

    /// Waits until the request may be served. A drop of the admission still undoes it after that.
    pub async fn ready(&self) {
        if let Some((at, clock)) = &self.ready_at {
            clock.sleep_until(*at).await;
        }
    }

    /// Returns the guard of the slots in flight without waiting. The charges stay from now on.
    #[must_use = "slots in flight are released when the guard is dropped"]
    pub fn start(mut self) -> SlotGuard<S> {
        self.charges = None;
        std::mem::take(&mut self.guard)
    }
}

impl<S: Store> Drop for Admission<S> {
    fn drop(&mut self) {
        if let Some(AdmissionCharges { store, coordinator, receipt }) = self.charges.take() {
            let Receipt { refunds, local_charges } = receipt;
            let mut refunds = refunds.into_vec();
            refunds.extend(
                coordinator
                    .map(|coordinator| coordinator.roll_back(&store, local_charges))
                    .unwrap_or_default(),
            );
            // One call refunds the charges and releases the slots. Without charges, the drop of `guard` releases
            // the slots.
            refunds.append(&mut self.guard.take_slots());
            if !refunds.is_empty() {
                store.refund_detached(refunds);
            }
        }
    }
}
