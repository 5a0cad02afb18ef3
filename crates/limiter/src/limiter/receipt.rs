//! The receipt of a request: its charges, for refunds.

use std::sync::Arc;

use smallvec::SmallVec;

use crate::coordination::LocalCharges;
use crate::store::{Refund, Store};

/// The charges of one request, for a refund.
#[derive(Clone, Debug, Default)]
pub struct Receipt {
    /// The refunds of the charges that the store made.
    pub(crate) refunds: SmallVec<[Refund; 2]>,
    /// The charges that this node made without the store.
    pub(crate) local_charges: LocalCharges,
}

impl Receipt {
    /// Returns whether there is nothing to refund.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.refunds.is_empty() && self.local_charges.is_empty()
    }

    /// Returns whether the charges include slots in flight. They are held until they are released.
    #[must_use]
    pub fn has_slots(&self) -> bool {
        self.slots().next().is_some()
    }

    /// Returns the slots in flight among the charges. A receipt can be [collected](FromIterator) from
    /// them again.
    pub fn slots(&self) -> impl Iterator<Item = &Refund> {
        self.refunds.iter().filter(|refund| refund.limit.is_concurrency())
    }

    /// Removes the slots in flight from the receipt and returns them.
    pub(crate) fn take_slots(&mut self) -> Vec<Refund> {
        if !self.has_slots() {
            return Vec::new();
        }
        let (slots, rest): (SmallVec<[Refund; 2]>, _) = std::mem::take(&mut self.refunds)
            .into_iter()
            .partition(|refund| refund.limit.is_concurrency());
        self.refunds = rest;
        slots.into_vec()
    }
}

/// Makes a receipt from refunds that the caller kept, such as those of [`Receipt::slots`].
impl FromIterator<Refund> for Receipt {
    fn from_iter<I: IntoIterator<Item = Refund>>(refunds: I) -> Self {
        Self { refunds: refunds.into_iter().collect(), ..Self::default() }
    }
}

/// Refunds charges on drop, without waiting for the store, unless it is disarmed.
pub(crate) struct RefundGuard<'s, S: Store> {
    store: &'s Arc<S>,
    refunds: Vec<Refund>,
}

impl<'s, S: Store> RefundGuard<'s, S> {
    pub(crate) fn new(store: &'s Arc<S>, refunds: Vec<Refund>) -> Self {
        Self { store, refunds }
    }

    pub(crate) fn refunds(&self) -> &[Refund] {
        &self.refunds
    }

    /// Drops the guard without a refund.
    pub(crate) fn disarm(mut self) {
        self.refunds.clear();
    }
}

impl<S: Store> Drop for RefundGuard<'_, S> {
    fn drop(&mut self) {
        if !self.refunds.is_empty() {
            self.store.refund_detached(std::mem::take(&mut self.refunds));
        }
    }
}
