//! Slots in flight: taken with a request, held while it lasts, released on every way it can end.

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Decision, Limit, Request, Span, Timestamp};
use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use super::{Limiter, Receipt};
use crate::clock::Clock;
use crate::store::memory::MemoryStore;
use crate::store::{Refund, Store, StoreError};

impl Receipt {
    /// Whether there are slots in flight among what was charged, which are held until they are released.
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.slots().next().is_some()
    }

    /// The slots in flight among what was charged, for who gives them another name; a receipt of them
    /// can be [collected](FromIterator) again.
    pub fn slots(&self) -> impl Iterator<Item = &Refund> {
        self.refunds.iter().filter(|refund| refund.limit.is_held())
    }

    /// Only the slots; what was spent per time stays spent.
    fn into_slots(mut self) -> Vec<Refund> {
        self.take_slots()
    }

    /// Takes the slots out of it.
    pub(super) fn take_slots(&mut self) -> Vec<Refund> {
        if !self.is_held() {
            return Vec::new();
        }
        let (slots, rest): (SmallVec<[Refund; 2]>, _) = std::mem::take(&mut self.refunds)
            .into_iter()
            .partition(|refund| refund.limit.is_held());
        self.refunds = rest;
        slots.into_vec()
    }
}

/// The receipt of charges that somebody has kept.
impl FromIterator<Refund> for Receipt {
    fn from_iter<I: IntoIterator<Item = Refund>>(refunds: I) -> Self {
        Self { refunds: refunds.into_iter().collect(), ..Self::default() }
    }
}

impl<S: Store> Limiter<S> {
    /// Releases the slots in flight that a request took, each if it is still held. How many were.
    ///
    /// What the request was charged per time stays charged: that is for [`refund`](Self::refund), which
    /// takes back all of it.
    ///
    /// # Errors
    /// The store did not confirm it; it is not tried again, and what is still held is lost after its
    /// hold.
    pub async fn release(&self, receipt: Receipt) -> Result<usize, StoreError> {
        let slots = receipt.into_slots();
        match slots.is_empty() {
            true => Ok(0),
            false => self.inner.store.refund(&slots).await,
        }
    }

    /// Renews the slots in flight of a request for another hold. A slot that expired, or that the store
    /// lost, is taken again, above the limit if needed: new requests are denied until they fit. Returns
    /// how many are held: one that was released is not.
    ///
    /// # Errors
    /// The store did not confirm it. Try again soon: the slots expire a hold after their last renewal.
    pub async fn renew(&self, receipt: &Receipt) -> Result<usize, StoreError> {
        let slots: Vec<Refund> = receipt.clone().into_slots();
        match slots.is_empty() {
            true => Ok(0),
            false => self.inner.store.renew(&slots).await,
        }
    }

    /// As [`check`](Self::check), with a guard for the slots in flight that the request took: they are
    /// held while it lives, and released when it is dropped.
    ///
    /// A future that is dropped before it is ready leaves no slot behind: the store takes back what it
    /// gave to who is gone, or loses it after its hold if it can't be reached.
    ///
    /// ```
    /// use tidegate::{Limiter, Request, RuleSet};
    ///
    /// # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let rules = "rules: [{name: exports, per: [user], limit: 1 in flight}]";
    /// let limiter = Limiter::builder().rules(RuleSet::parse("rules.yaml", rules)?).build();
    /// let alice = Request::new().with("user", "alice")?;
    /// let (decision, held) = limiter.hold(&alice).await;
    /// assert!(decision.is_allowed());
    /// assert!(!limiter.hold(&alice).await.0.is_allowed());
    /// drop(held);
    /// assert!(limiter.hold(&alice).await.0.is_allowed());
    /// # Ok(()) }
    /// ```
    pub async fn hold(&self, request: &Request<'_>) -> (Decision, Held<S>) {
        let (decision, receipt) = self.check_with_receipt(request).await;
        (decision, self.held(receipt))
    }

    /// A guard for the slots in flight of a receipt.
    #[must_use]
    pub fn held(&self, receipt: Receipt) -> Held<S> {
        Held::new(&self.inner.store, &self.inner.clock, receipt.into_slots())
    }
}

/// Slots in flight that are held while this lives. The default holds nothing.
///
/// They are renewed in the background three times per hold, and when a lost connection to the store is
/// back, before the store is used again. They are released on drop without waiting for the store's
/// answer. Made outside of a tokio runtime, they are released but not renewed three times per hold.
#[derive(Debug)]
pub struct Held<S: Store = MemoryStore> {
    /// Where they are released, and what; `None` when there is nothing to release.
    slots: Option<(Arc<S>, Arc<[Refund]>)>,
    renewing: Option<AbortHandle>,
}

impl<S: Store> Default for Held<S> {
    fn default() -> Self {
        Self { slots: None, renewing: None }
    }
}

impl<S: Store> Held<S> {
    pub(super) fn new(store: &Arc<S>, clock: &Clock, slots: Vec<Refund>) -> Self {
        if slots.is_empty() {
            return Self::default();
        }
        let pace = slots.iter().filter_map(|slots| hold_of(&slots.limit)).min();
        let renewing = pace.zip(Handle::try_current().ok()).map(|(hold, runtime)| {
            let (store, clock, slots) = (Arc::clone(store), clock.clone(), slots.clone());
            let third = Span::from_micros(hold.as_micros() / 3);
            // Not from when the task is first polled, which may be much later.
            let due = clock.now() + third;
            runtime.spawn(keep_renewing(store, clock, slots, due, third)).abort_handle()
        });
        let slots = Arc::from(slots);
        store.register_held(&slots);
        Self { slots: Some((Arc::clone(store), slots)), renewing }
    }

    /// Whether no rule of the request counts what is in flight, or none let it pass.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_none()
    }

    /// Releases the slots, and waits until the store has confirmed it. How many were still held.
    ///
    /// # Errors
    /// The store did not; it is not tried again.
    pub async fn release(mut self) -> Result<usize, StoreError> {
        let Some((store, slots)) = self.stop() else { return Ok(0) };
        // A future that is dropped half way releases once more, by the same ids, which is harmless.
        let mut releasing = Releasing { store: &store, slots };
        let released = store.refund(&releasing.slots).await;
        releasing.slots.clear();
        released
    }

    /// Takes the slots out of it, to be released elsewhere.
    pub(super) fn take_slots(&mut self) -> Vec<Refund> {
        self.stop().map(|(_, slots)| slots).unwrap_or_default()
    }

    /// Stops renewing, here and at reconnects. No renewal is sent from then on.
    fn stop(&mut self) -> Option<(Arc<S>, Vec<Refund>)> {
        if let Some(renewing) = self.renewing.take() {
            renewing.abort();
        }
        // The registered slots are dropped before they are released: a reconnect in between releases those
        // that it has renewed.
        self.slots.take().map(|(store, slots)| (store, slots.to_vec()))
    }
}

impl<S: Store> Drop for Held<S> {
    fn drop(&mut self) {
        if let Some((store, slots)) = self.stop() {
            store.refund_detached(slots);
        }
    }
}

/// Slots whose release has not been confirmed yet.
struct Releasing<'s, S: Store> {
    store: &'s Arc<S>,
    slots: Vec<Refund>,
}

impl<S: Store> Drop for Releasing<'_, S> {
    fn drop(&mut self) {
        if !self.slots.is_empty() {
            self.store.refund_detached(std::mem::take(&mut self.slots));
        }
    }
}

fn hold_of(limit: &Limit) -> Option<Span> {
    match limit {
        Limit::Concurrency(slots) => Some(slots.hold()),
        _ => None,
    }
}

/// Renews until all slots were released elsewhere. After a failure it tries again a third of a hold later; the
/// store itself renews when its connection is back.
async fn keep_renewing<S: Store>(
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
