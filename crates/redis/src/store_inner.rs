//! The parts of a store that its clones and its background tasks share.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_limiter::store::{Charge, ChargeResult, ChargeResults, Refund, StoreError};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::denial_cache::DenialCache;
use super::heartbeat::{FleetHeartbeat, HEARTBEAT_INTERVAL, HEARTBEAT_RETRY};
use super::shared::RedisShared;
use super::topology::{KeyGroup, Topology};

/// Time between two samples of the servers' memory.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(10);

/// The parts of a store that its clones and its background tasks share.
#[derive(Debug)]
pub(crate) struct StoreInner {
    pub(crate) shared: Arc<RedisShared>,
    pub(crate) topology: Topology,
    pub(crate) denials: DenialCache,
    pub(crate) fleet: FleetHeartbeat,
}

impl StoreInner {
    /// Refunds charges in the background.
    pub(crate) fn refund_in_background(self: &Arc<Self>, refunds: Vec<Refund>) -> JoinHandle<()> {
        let store = Arc::clone(self);
        self.shared.runtime.spawn(async move {
            // Sent once; a failure is counted.
            let _ = store.refund(&refunds).await;
        })
    }

    /// Returns the refunds by the group of their keys.
    fn groups(&self, refunds: impl Iterator<Item = Refund>) -> BTreeMap<KeyGroup, Vec<Refund>> {
        let mut groups: BTreeMap<KeyGroup, Vec<Refund>> = BTreeMap::new();
        for refund in refunds {
            let group = self.topology.group(&self.shared, refund.key);
            groups.entry(group).or_default().push(refund);
        }
        groups
    }

    /// Renews slots in flight. Returns how many are held.
    pub(crate) async fn renew(&self, slots: &[Refund]) -> Result<usize, StoreError> {
        let is_held =
            |slots: &&Refund| slots.limit.is_concurrency() && slots.refund_token.is_some();
        let held_slots = slots.iter().filter(is_held);
        let (mut held, mut failed) = (0, None);
        for (group, renewals) in self.groups(held_slots.cloned()) {
            let renewed = match self.topology.node(group) {
                Ok(node) => node.renew(&renewals).await,
                Err(error) => Err(error),
            };
            match renewed {
                Ok(count) => held += count,
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(held), Err)
    }

    /// Refunds charges. Returns how many gave anything back; those that can't be refunded are counted as lost.
    pub(crate) async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        refunds.iter().for_each(|refund| self.denials.remove(refund.key));
        let groups = self.groups(refunds.iter().cloned());
        let (mut given, mut failed) = (0, None);
        for (group, refunds) in groups {
            let refunded = match self.topology.node(group) {
                Ok(node) => node.refund(&refunds).await,
                Err(error) => Err(error),
            };
            match refunded {
                Ok(count) => given += count,
                Err(error) => {
                    let lost = u64::try_from(refunds.len()).unwrap_or(u64::MAX);
                    self.shared.counters.lost.fetch_add(lost, Ordering::Relaxed);
                    failed = Some(error);
                }
            }
        }
        match failed {
            Some(error) => Err(error),
            None => Ok(given),
        }
    }

    /// Returns whether a cached denial shows that one of the charges does not fit.
    pub(crate) fn deny_from_cache(
        &self,
        charges: &[Charge<'_>],
        together: &[usize],
        now: Instant,
        results: &mut ChargeResults,
    ) -> bool {
        for place in together {
            let charge = &charges[*place];
            if let Some(denied) = self.denials.get(charge.key, charge.limit, charge.cost, now) {
                results[*place] = ChargeResult::Outcome(denied);
                self.shared.counters.remembered.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }

    /// Sends a heartbeat. Returns whether the store replied.
    pub(crate) async fn send_heartbeat(&self) -> bool {
        self.fleet.send(&self.shared, &self.topology).await
    }

    /// Sends heartbeats until the store is dropped, or has left the fleet.
    #[allow(clippy::disallowed_methods, reason = "heartbeats have their own pace")]
    pub(crate) async fn heartbeat_loop(this: Weak<Self>) {
        loop {
            let replied = match this.upgrade() {
                Some(store) if !store.fleet.has_left() => store.send_heartbeat().await,
                Some(_) | None => return,
            };
            tokio::time::sleep(if replied { HEARTBEAT_INTERVAL } else { HEARTBEAT_RETRY }).await;
        }
    }

    /// Samples the memory of the servers until the store is dropped.
    #[allow(clippy::disallowed_methods, reason = "sampling has its own pace")]
    pub(crate) async fn sample_loop(this: Weak<Self>) {
        while let Some(store) = this.upgrade() {
            store.topology.sample_memory().await;
            drop(store);
            tokio::time::sleep(SAMPLE_INTERVAL).await;
        }
    }
}
