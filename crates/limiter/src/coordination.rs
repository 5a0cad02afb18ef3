//! Limits that nodes share without a call of the store for each check.
//!
//! Each kind of coordination has a file of its own; the limiter uses `Coordinator`. What was taken for
//! a request that is denied after all is rolled back by the same kind.

mod client_map;
mod demand;
pub mod lease;
mod lease_manager;
pub mod membership;
mod shards;
#[cfg(test)]
mod simulation;
mod split;
pub mod sync;
mod sync_manager;

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::{Algorithm, Key, Limit, Outcome, RefundToken, Timestamp};
use tidegate_rules::{Accuracy, SyncSettings};

use self::lease::LeaseDebit;
use self::lease_manager::LeaseManager;
use self::shards::Shards;
use self::split::Split;
use self::sync::UnsyncedDebit;
use self::sync_manager::SyncManager;
use crate::clock::Clock;
use crate::store::{Charge, ChargeMode, ChargeResult, Refund, Store, StoreError};

/// Under `leased_when_hot`, clients above this many requests per second at one node are leased.
const HOT_CLIENT_RATE: u64 = 200;

/// The limits that this node does not charge in the store each time.
#[derive(Debug)]
pub(crate) struct Coordinator {
    leases: Arc<LeaseManager>,
    syncs: Arc<SyncManager>,
    shards: Shards,
    split: Split,
}

/// A charge that can be rolled back where it was made.
#[derive(Clone, Debug)]
pub(crate) enum LocalCharge {
    /// From leases of this node.
    Leased(Key, LeaseDebit),
    /// By this node's view of the store.
    Unsynced(Key, UnsyncedDebit),
    /// From this node's share of a limit.
    Split(Refund),
    /// From the store.
    Stored(Refund),
}

/// The charges of one request.
pub(crate) type LocalCharges = SmallVec<[LocalCharge; 1]>;

impl Coordinator {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            leases: Arc::new(LeaseManager::new(clock)),
            syncs: Arc::new(SyncManager::new(clock)),
            shards: Shards::new(),
            split: Split::new(),
        }
    }

    /// Returns whether a limit is coordinated, and not charged in the store with others.
    pub(crate) fn handles(accuracy: Accuracy, limit: &Limit) -> bool {
        match accuracy {
            Accuracy::Leased | Accuracy::LeasedWhenHot | Accuracy::Synced(_) => {
                limit.supports_leases()
            }
            Accuracy::Sharded(_) | Accuracy::Split => {
                !matches!(limit.algorithm(), Algorithm::LeakyBucket { .. })
                    && !limit.is_concurrency()
            }
            Accuracy::Exact => false,
        }
    }

    /// Charges one key as its rule's `accuracy` says, or peeks. The outcome can't be refunded: what was
    /// taken is added to `charges`.
    pub(crate) async fn charge<S: Store>(
        &self,
        store: &Arc<S>,
        accuracy: Accuracy,
        charge: &Charge<'_>,
        mode: ChargeMode,
        charges: &mut LocalCharges,
    ) -> ChargeResult {
        let exceeds = charge.cost > charge.limit.capacity();
        let mode = if exceeds { ChargeMode::Peek } else { mode };
        let outcome = match accuracy {
            Accuracy::Synced(synced) => self.sync(store, synced, charge, mode, charges).await,
            Accuracy::LeasedWhenHot => {
                self.lease(store, charge, HOT_CLIENT_RATE, mode, charges).await
            }
            Accuracy::Sharded(of) => self.shards.charge(store, of, charge, mode, charges).await,
            Accuracy::Split => self.split(store, charge, mode, charges),
            Accuracy::Exact | Accuracy::Leased => {
                self.lease(store, charge, lease::MIN_RATE_TO_LEASE, mode, charges).await
            }
        };
        match outcome {
            Ok(outcome) => ChargeResult::Outcome(outcome.non_refundable()),
            Err(error) => ChargeResult::Failed(error),
        }
    }

    async fn lease<S: Store>(
        &self,
        store: &Arc<S>,
        charge: &Charge<'_>,
        min_rate: u64,
        mode: ChargeMode,
        charges: &mut LocalCharges,
    ) -> Result<Outcome, StoreError> {
        let Charge { key, limit, cost, .. } = charge;
        if mode == ChargeMode::Peek {
            return self.leases.peek(store, *key, limit, *cost).await;
        }
        let leased = self.leases.charge(store, *key, limit, *cost, min_rate).await?;
        charges.extend(leased.debit.map(|debit| LocalCharge::Leased(*key, debit)));
        charges
            .extend(leased.outcome.refund_token().map(|refund_token| stored(charge, refund_token)));
        Ok(leased.outcome)
    }

    async fn sync<S: Store>(
        &self,
        store: &Arc<S>,
        synced: SyncSettings,
        charge: &Charge<'_>,
        mode: ChargeMode,
        charges: &mut LocalCharges,
    ) -> Result<Outcome, StoreError> {
        let Charge { key, limit, cost, .. } = charge;
        if mode == ChargeMode::Peek {
            return self.syncs.peek(store, *key, limit, synced, *cost).await;
        }
        let synced = self.syncs.charge(store, *key, limit, synced, *cost).await?;
        match synced.debit {
            Some(debit) => charges.push(LocalCharge::Unsynced(*key, debit)),
            None => charges.extend(
                synced.outcome.refund_token().map(|refund_token| stored(charge, refund_token)),
            ),
        }
        Ok(synced.outcome)
    }

    fn split<S: Store>(
        &self,
        store: &Arc<S>,
        charge: &Charge<'_>,
        mode: ChargeMode,
        charges: &mut LocalCharges,
    ) -> Result<Outcome, StoreError> {
        let (outcome, refund) =
            self.split.charge(store.membership_view().as_ref(), charge, mode)?;
        charges.extend(refund.map(LocalCharge::Split));
        Ok(outcome)
    }

    /// Refunds up to a refund's cost of what was spent last, as far as it was spent here. Returns the
    /// refunds that are left for the store.
    ///
    /// # Errors
    /// The store did not answer what was spent.
    pub(crate) async fn refunds_of_latest<S: Store>(
        &self,
        store: &Arc<S>,
        accuracy: Accuracy,
        refund: Refund,
    ) -> Result<Vec<Refund>, StoreError> {
        match accuracy {
            Accuracy::Split => {
                self.split.take_back(store.membership_view().as_ref(), &refund);
                Ok(Vec::new())
            }
            Accuracy::Sharded(of) => self.shards.refunds_of_latest(store, of, &refund).await,
            _ => Ok(vec![refund]),
        }
    }

    /// Resets what a client has spent, as far as this node or a shard keeps it.
    ///
    /// # Errors
    /// The store did not confirm it.
    pub(crate) async fn forget<S: Store>(
        &self,
        store: &Arc<S>,
        accuracy: Accuracy,
        key: Key,
    ) -> Result<(), StoreError> {
        match accuracy {
            Accuracy::Split => self.split.forget(key),
            Accuracy::Sharded(of) => self.shards.forget(store, of, key).await?,
            Accuracy::Synced(_) => self.syncs.remove(key),
            Accuracy::Exact | Accuracy::LeasedWhenHot | Accuracy::Leased => {}
        }
        Ok(())
    }

    /// Rolls back charges, as far as this node can. Returns the refunds that are left for the store.
    pub(crate) fn roll_back<S: Store>(&self, store: &Arc<S>, charges: LocalCharges) -> Vec<Refund> {
        let mut refunds = Vec::new();
        for charge in charges {
            match charge {
                LocalCharge::Leased(key, debit) => self.leases.roll_back(key, &debit),
                LocalCharge::Unsynced(key, debit) => self.syncs.roll_back(key, &debit),
                LocalCharge::Split(refund) => {
                    self.split.take_back(store.membership_view().as_ref(), &refund);
                }
                LocalCharge::Stored(refund) => {
                    self.leases.revoke(refund.key, refund.cost);
                    refunds.push(refund);
                }
            }
        }
        refunds
    }

    /// Returns how many clients have leases here, and how many of their tokens are unused.
    pub(crate) fn leased(&self) -> (usize, u64) {
        self.leases.held()
    }

    /// Runs once what is due in the background.
    pub(crate) async fn run_background_once<S: Store>(&self, store: &Arc<S>) {
        self.syncs.sync_due(store).await;
        self.leases.release_idle(store, false).await;
    }

    /// Returns when the next sync is due.
    pub(crate) fn next_sync_at(&self) -> Option<Timestamp> {
        self.syncs.next_sync_at()
    }

    /// Reports to the store all that it does not know, and releases all leases, as a node does before it
    /// stops.
    pub(crate) async fn release_all<S: Store>(&self, store: &Arc<S>) {
        self.leases.release_idle(store, true).await;
        self.syncs.flush(store).await;
    }

    /// Makes the next check of a client that was refunded ask the store.
    pub(crate) fn invalidate(&self, key: Key) {
        self.syncs.invalidate(key);
    }
}

fn stored(charge: &Charge<'_>, refund_token: RefundToken) -> LocalCharge {
    let Charge { key, limit, cost, .. } = *charge;
    LocalCharge::Stored(Refund {
        key,
        limit: Arc::clone(limit),
        cost,
        refund_token: Some(refund_token),
    })
}
