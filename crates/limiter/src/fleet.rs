//! Limits that a fleet shares without asking its store each time.
//!
//! Each way of keeping a limit is a file of its own; here is what a limiter sees of them. What was taken
//! for a request that is refused after all is put back, in the way in which it was taken.

mod demand;
pub mod lease;
mod leases;
pub mod membership;
mod parts;
mod shards;
#[cfg(test)]
mod simulation;
mod split;
pub mod sync;
mod syncs;

use std::sync::Arc;

use smallvec::SmallVec;
use tidegate_core::rule::{Accuracy, Synced};
use tidegate_core::{Algorithm, Key, Limit, Outcome, Timestamp};

use self::lease::Slice;
use self::leases::Leases;
use self::shards::Shards;
use self::split::Split;
use self::sync::Advance;
use self::syncs::Syncs;
use crate::clock::Clock;
use crate::store::{Answer, Charge, Refund, Store, StoreError};

/// A client that uses so many in a second at one node is hot: it is leased also where others are not.
const HOT: u64 = 200;

/// What this node keeps of limits that it does not ask the store about each time.
#[derive(Debug)]
pub(crate) struct Fleet {
    leases: Arc<Leases>,
    syncs: Arc<Syncs>,
    shards: Shards,
    split: Split,
}

/// What was taken for a charge, to be put back where it came from.
#[derive(Clone, Debug)]
pub(crate) enum Taken {
    /// From what this node holds ahead of use.
    Held(Key, Slice),
    /// From what this node knows of the store.
    Ahead(Key, Advance),
    /// From this node's part of a limit.
    Split(Refund),
    /// From the store.
    Stored(Refund),
}

/// What was taken for all charges of a request.
pub(crate) type Takings = SmallVec<[Taken; 1]>;

impl Fleet {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            leases: Arc::new(Leases::new(clock.clone())),
            shards: Shards::new(),
            split: Split::new(),
            syncs: Arc::new(Syncs::new(clock)),
        }
    }

    /// Whether a limit is kept in a way of its own, and not charged in the store with others.
    pub(crate) fn keeps(accuracy: Accuracy, limit: &Limit) -> bool {
        match accuracy {
            Accuracy::Leased | Accuracy::LeasedWhenHot | Accuracy::Synced(_) => limit.leases(),
            Accuracy::Sharded(_) | Accuracy::Split => {
                !matches!(limit.algorithm(), Algorithm::LeakyBucket { .. }) && !limit.is_held()
            }
            Accuracy::Exact => false,
        }
    }

    /// Charges one key in the way that its rule wants, or looks at it: what it answers carries no slip,
    /// and what was taken is added to `taken`.
    pub(crate) async fn charge<S: Store>(
        &self,
        store: &Arc<S>,
        accuracy: Accuracy,
        charge: &Charge<'_>,
        looks: bool,
        taken: &mut Takings,
    ) -> Answer {
        let looks = looks || charge.cost == 0 || charge.cost > charge.limit.capacity();
        let answer = match accuracy {
            Accuracy::Synced(synced) => self.sync(store, synced, charge, looks, taken).await,
            Accuracy::LeasedWhenHot => self.lease(store, charge, HOT, looks, taken).await,
            Accuracy::Sharded(of) => self.shards.charge(store, of, charge, looks, taken).await,
            Accuracy::Split => self.split(store, charge, looks, taken),
            Accuracy::Exact | Accuracy::Leased => {
                self.lease(store, charge, lease::FEW, looks, taken).await
            }
        };
        match answer {
            Ok(outcome) => Answer::Decided(outcome.without_slip()),
            Err(error) => Answer::Failed(error),
        }
    }

    async fn lease<S: Store>(
        &self,
        store: &Arc<S>,
        charge: &Charge<'_>,
        few: u64,
        looks: bool,
        taken: &mut Takings,
    ) -> Result<Outcome, StoreError> {
        let Charge { key, limit, cost, .. } = charge;
        if looks {
            return self.leases.look(store, *key, limit, *cost).await;
        }
        let leased = self.leases.charge(store, *key, limit, *cost, few).await?;
        taken.extend(leased.here.map(|slice| Taken::Held(*key, slice)));
        taken.extend(leased.outcome.slip().map(|slip| {
            let (limit, slip) = (Arc::clone(limit), Some(slip));
            Taken::Stored(Refund { key: *key, limit, cost: *cost, slip })
        }));
        Ok(leased.outcome)
    }

    async fn sync<S: Store>(
        &self,
        store: &Arc<S>,
        synced: Synced,
        charge: &Charge<'_>,
        looks: bool,
        taken: &mut Takings,
    ) -> Result<Outcome, StoreError> {
        let Charge { key, limit, cost, .. } = charge;
        if looks {
            return self.syncs.look(store, *key, limit, synced, *cost).await;
        }
        let decided = self.syncs.charge(store, *key, limit, synced, *cost).await?;
        match decided.here {
            Some(advance) => taken.push(Taken::Ahead(*key, advance)),
            None => taken.extend(decided.outcome.slip().map(|slip| {
                let (limit, slip) = (Arc::clone(limit), Some(slip));
                Taken::Stored(Refund { key: *key, limit, cost: *cost, slip })
            })),
        }
        Ok(decided.outcome)
    }

    fn split<S: Store>(
        &self,
        store: &Arc<S>,
        charge: &Charge<'_>,
        looks: bool,
        taken: &mut Takings,
    ) -> Result<Outcome, StoreError> {
        let (outcome, refund) = self.split.charge(store.stake().as_ref(), charge, looks)?;
        taken.extend(refund.map(Taken::Split));
        Ok(outcome)
    }

    /// What is left to tell the store so that up to a refund's cost is given back, of what was spent last.
    ///
    /// # Errors
    /// The store did not say what was spent.
    pub(crate) async fn returned<S: Store>(
        &self,
        store: &Arc<S>,
        accuracy: Accuracy,
        refund: Refund,
    ) -> Result<Vec<Refund>, StoreError> {
        match accuracy {
            Accuracy::Split => {
                self.split.take_back(store.stake().as_ref(), &refund);
                Ok(Vec::new())
            }
            Accuracy::Sharded(of) => self.shards.returned(store, of, &refund).await,
            _ => Ok(vec![refund]),
        }
    }

    /// Forgets what a client has spent, as far as it is kept in a way of its rule's own.
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
            Accuracy::Synced(_) => self.syncs.forget(key),
            Accuracy::Exact | Accuracy::LeasedWhenHot | Accuracy::Leased => {}
        }
        Ok(())
    }

    /// Puts back what was taken, as far as that can be done here and now. What is left to tell the store.
    pub(crate) fn put_back<S: Store>(&self, store: &Arc<S>, taken: Takings) -> Vec<Refund> {
        let mut refunds = Vec::new();
        for taken in taken {
            match taken {
                Taken::Held(key, slice) => self.leases.put_back(key, &slice),
                Taken::Ahead(key, advance) => self.syncs.put_back(key, &advance),
                Taken::Split(refund) => self.split.take_back(store.stake().as_ref(), &refund),
                Taken::Stored(refund) => {
                    self.leases.revoke(refund.key, refund.cost);
                    refunds.push(refund);
                }
            }
        }
        refunds
    }

    /// How many clients something is held of ahead of use, and how much.
    pub(crate) fn leased(&self) -> (usize, u64) {
        self.leases.held()
    }

    /// Does once what is due in the background.
    pub(crate) async fn tend<S: Store>(&self, store: &Arc<S>) {
        self.syncs.catch_up(store).await;
        self.leases.give_back(store, false).await;
    }

    /// When a sync is due next.
    pub(crate) fn next_sync(&self) -> Option<Timestamp> {
        self.syncs.next()
    }

    /// Tells the store all that it does not know, and gives back what is held, as a node does before it
    /// goes.
    pub(crate) async fn leave<S: Store>(&self, store: &Arc<S>) {
        self.leases.give_back(store, true).await;
        self.syncs.flush(store).await;
    }

    /// Has the store asked about a client that was given something back.
    pub(crate) fn unsee(&self, key: Key) {
        self.syncs.unsee(key);
    }
}
