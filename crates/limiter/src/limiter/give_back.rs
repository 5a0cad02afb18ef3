//! Giving back without a receipt, and looking.

use tidegate_core::Decision;

use super::Limiter;
use super::together::Claim;
use crate::store::{Refund, Store, StoreError};

impl<S: Store> Limiter<S> {
    /// Gives back up to the request's cost of what its client spent last, and tells how it stands
    /// then, as a look does.
    ///
    /// For callers that have no [`Receipt`](super::Receipt). It is taken on trust which charge is meant:
    /// never above full, only from the current window, and from a leaky bucket only slots that have not
    /// begun. What a bucket admits, less what was given back, stays within its bound. A bucket that was
    /// last charged under another limit gives nothing back.
    ///
    /// # Errors
    /// The store did not confirm it; it is not tried again.
    ///
    /// # Panics
    /// The claim names a rule that is not there.
    pub async fn give_back(&self, claim: Claim<'_, '_>) -> Result<Decision, StoreError> {
        let mut refunds: Vec<Refund> = Vec::new();
        for ask in self.asks(&claim).iter().filter(|ask| ask.cost > 0) {
            match self.inner.fleet.as_ref().filter(|_| self.has_own_way(ask)) {
                Some(fleet) => {
                    let (store, accuracy) = (&self.inner.store, ask.rule.accuracy());
                    refunds.extend(fleet.returned(store, accuracy, ask.refund(None)).await?);
                }
                None => refunds.push(ask.refund(None)),
            }
        }
        if !refunds.is_empty() {
            self.inner.store.refund(&refunds).await?;
            let fleet = self.inner.fleet.iter();
            fleet.for_each(|fleet| refunds.iter().for_each(|refund| fleet.unsee(refund.key)));
        }
        match self.blocked(claim.request) {
            Some(blocked) => Ok(blocked),
            None => Ok(self.look(claim).await),
        }
    }

    /// How a client stands with its rules, whether or not it is blocked: what a request of cost 1 would
    /// be answered. Nothing is spent, and no denial counts towards a penalty.
    ///
    /// # Panics
    /// The claim names a rule that is not there.
    pub async fn look(&self, claim: Claim<'_, '_>) -> Decision {
        let mut asks = self.asks(&claim);
        asks.iter_mut().for_each(|ask| ask.cost = 0);
        self.decide(asks).await.0
    }
}
