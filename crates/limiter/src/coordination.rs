//! Limits that nodes share without a store call for each check.
//!
//! Each `accuracy` has its own file; the limiter uses `Coordinator`. A charge is rolled back by the same kind of
//! coordination that made it.

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
use self::shards::ShardedLimits;
use self::split::SplitLimits;
use self::sync::UnsyncedDebit;
use self::sync_manager::SyncManager;
use crate::clock::Clock;
use crate::store::{Charge, ChargeMode, ChargeResult, Refund, Store, StoreError};

/// Requests per second of a client at one node from which `leased_when_hot` takes leases.
const HOT_CLIENT_RATE: u64 = 200;

/// Charges limits with another `accuracy` than `exact`, mostly without the store.
#[derive(Debug)]
pub(crate) struct Coordinator {
    leases: Arc<LeaseManager>,
    syncs: Arc<SyncManager>,
    shards: ShardedLimits,
    split: SplitLimits,
}

/// A charge, with the data to roll it back.
#[derive(Clone, Debug)]
pub(crate) enum LocalCharge {
    /// Taken from leases of this node.
    Leased(Key, LeaseDebit),
    /// Admitted by this node's view of the store, and not reported yet.
    Unsynced(Key, UnsyncedDebit),
    /// Taken from this node's share of a limit.
    Split(Refund),
    /// Charged in the store.
    Stored(Refund),
}

/// The charges of one request.
pub(crate) type LocalCharges = SmallVec<[LocalCharge; 1]>;

impl Coordinator {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            leases: Arc::new(LeaseManager::new(clock)),
            syncs: Arc::new(SyncManager::new(clock)),
            shards: ShardedLimits::new(),
            split: SplitLimits::new(),
        }
    }

    /// Returns whether the coordinator charges a limit. Other limits are charged in the store.
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

    /// Charges one key by the `accuracy` of its rule, or peeks. The outcome has no refund token: the charges to
    /// roll back are added to `charges`.
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
            Accuracy::Sharded(count) => {
                self.shards.charge(store, count, charge, mode, charges).await
            }
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
        charges.extend(leased.outcome.refund_token().map(|token| stored_charge(charge, token)));
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
            None => {
                let token = synced.outcome.refund_token();
                charges.extend(token.map(|token| stored_charge(charge, token)));
            }
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

    /// Refunds the latest usage of a client, up to the cost of `refund`, if it was charged on this node. Returns
    /// the refunds for the caller to make in the store.
    ///
    /// # Errors
    /// The store did not return the usage of each shard.
    pub(crate) async fn refund_latest<S: Store>(
        &self,
        store: &Arc<S>,
        accuracy: Accuracy,
        refund: Refund,
    ) -> Result<Vec<Refund>, StoreError> {
        match accuracy {
            Accuracy::Split => {
                self.split.refund(store.membership_view().as_ref(), &refund);
                Ok(Vec::new())
            }
            Accuracy::Sharded(count) => self.shards.plan_latest_refund(store, count, &refund).await,
            _ => Ok(vec![refund]),
        }
    }

    /// Resets the usage of a client on this node and in the shards.
    ///
    /// # Errors
    /// The store did not confirm the reset of a shard.
    pub(crate) async fn reset<S: Store>(
        &self,
        store: &Arc<S>,
        accuracy: Accuracy,
        key: Key,
    ) -> Result<(), StoreError> {
        match accuracy {
            Accuracy::Split => self.split.reset(key),
            Accuracy::Sharded(count) => self.shards.reset(store, count, key).await?,
            Accuracy::Synced(_) => self.syncs.remove(key),
            Accuracy::Exact | Accuracy::LeasedWhenHot | Accuracy::Leased => {}
        }
        Ok(())
    }

    /// Rolls back charges on this node. Returns the refunds for the caller to make in the store.
    pub(crate) fn roll_back<S: Store>(&self, store: &Arc<S>, charges: LocalCharges) -> Vec<Refund> {
        let mut refunds = Vec::new();
        for charge in charges {
            match charge {
                LocalCharge::Leased(key, debit) => self.leases.roll_back(key, &debit),
                LocalCharge::Unsynced(key, debit) => self.syncs.roll_back(key, &debit),
                LocalCharge::Split(refund) => {
                    self.split.refund(store.membership_view().as_ref(), &refund);
                }
                LocalCharge::Stored(refund) => {
                    self.leases.revoke(refund.key, refund.cost);
                    refunds.push(refund);
                }
            }
        }
        refunds
    }

    /// Returns the number of clients with leases on this node, and the number of their unused tokens.
    pub(crate) fn leased(&self) -> (usize, u64) {
        self.leases.held()
    }

    /// Runs the background work that is due: syncs clients, releases idle leases and closes those that end soon.
    pub(crate) async fn run_background_once<S: Store>(&self, store: &Arc<S>) {
        self.syncs.sync_due(store).await;
        self.leases.release_idle(store, false).await;
    }

    /// Returns the time of the next sync.
    pub(crate) fn next_sync_at(&self) -> Option<Timestamp> {
        self.syncs.next_sync_at()
    }

    /// Releases all leases and reports all usage to the store. A node does this before it stops.
    pub(crate) async fn release_all<S: Store>(&self, store: &Arc<S>) {
        self.leases.release_idle(store, true).await;
        self.syncs.flush(store).await;
    }

    /// Drops the view of a client that was refunded: its next check goes to the store.
    pub(crate) fn invalidate(&self, key: Key) {
        self.syncs.invalidate(key);
    }
}

fn stored_charge(charge: &Charge<'_>, refund_token: RefundToken) -> LocalCharge {
    let Charge { key, limit, cost, .. } = *charge;
    LocalCharge::Stored(Refund {
        key,
        limit: Arc::clone(limit),
        cost,
        refund_token: Some(refund_token),
    })
}
