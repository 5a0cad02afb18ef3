//! What waits for a server and travels together, and where a cluster sends it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;

use super::super::Servers;
use super::super::batch::{Batch, Errand};
use super::super::redirect::Redirect;
use super::super::slots::slot_of;
use super::{Failure, Link, MOVING, Node};
use crate::store::StoreError;

/// Calls under way at once: while one is decided, the next is written.
const FLIGHTS: usize = 4;
/// Most requests that may wait for a server; more would only wait longer than they have.
const WAITING: usize = 16_384;

#[derive(Debug, Default)]
pub(super) struct Lane {
    pub(super) waiting: VecDeque<Errand>,
    flights: usize,
}

impl Node {
    /// Takes a request along with the next call.
    pub(in super::super) fn submit(&self, errand: Errand) {
        if !self.is_up() {
            errand.tell(Err(self.unavailable()));
            return;
        }
        let mut lane = self.lane.lock();
        if lane.waiting.len() >= WAITING {
            drop(lane);
            let reason = "too many requests are waiting".into();
            errand.tell(Err(StoreError::Unavailable { store: Arc::clone(&self.name), reason }));
            return;
        }
        lane.waiting.push_back(errand);
        if lane.flights < FLIGHTS
            && let Some(node) = self.this.upgrade()
        {
            lane.flights += 1;
            self.shared.spawn(node.fly());
        }
    }

    /// Makes calls as long as somebody waits.
    async fn fly(self: Arc<Self>) {
        while let Some(batches) = self.load_up() {
            match batches {
                Load::One(batch) => self.send(batch).await,
                Load::Many(batches) => {
                    join_all(batches.into_iter().map(|batch| self.send(batch))).await;
                }
            }
        }
    }

    /// What waits, as far as it fits one call for each slot. Ends the flight when nothing does.
    fn load_up(&self) -> Option<Load> {
        let clustered = matches!(self.shared.config.servers(), Servers::Cluster(_));
        let mut lane = self.lane.lock();
        let load = if clustered { self.load_by_slot(&mut lane) } else { load_all(&mut lane) };
        if load.is_none() {
            lane.flights -= 1;
        }
        load
    }

    fn load_by_slot(&self, lane: &mut Lane) -> Option<Load> {
        let mut batches: BTreeMap<u16, Batch> = BTreeMap::new();
        while let Some(errand) = lane.waiting.pop_front() {
            if errand.is_abandoned() {
                continue;
            }
            let slot = match errand.items().first() {
                Some(item) => slot_of(self.shared.spell(item.key).as_bytes()),
                None => 0,
            };
            if let Err(errand) = batches.entry(slot).or_default().push(errand) {
                lane.waiting.push_front(errand);
                break;
            }
        }
        (!batches.is_empty()).then(|| Load::Many(batches.into_values().collect()))
    }

    /// Makes one call, and tells everybody who waits for it.
    async fn send(&self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        let Some(link) = self.link.load_full() else {
            batch.fail(&self.unavailable());
            return;
        };
        self.shared.counters.calls.fetch_add(1, Ordering::Relaxed);
        let reply = self.charge(&link, &batch, false).await;
        self.settle(batch, reply).await;
    }

    async fn charge(
        &self,
        link: &Arc<Link>,
        batch: &Batch,
        asking: bool,
    ) -> Result<Vec<u8>, Failure> {
        let keys: Vec<String> = batch.keys().iter().map(|key| self.shared.spell(*key)).collect();
        self.call(link, &self.shared.scripts.charge, &keys, &batch.arguments(), asking).await
    }

    async fn settle(&self, batch: Batch, reply: Result<Vec<u8>, Failure>) {
        match reply {
            Ok(reply) => {
                let again = batch.tell(&self.name, &self.this, &reply);
                if !again.is_empty() {
                    self.requeue(again);
                }
            }
            Err(Failure::Store(error)) => batch.fail(&error),
            Err(Failure::Redirect(redirect)) => Box::pin(self.redirect(batch, redirect)).await,
        }
    }

    /// Sends requests again, before others. This flight is still under way and will see them.
    fn requeue(&self, errands: Vec<Errand>) {
        let mut lane = self.lane.lock();
        for errand in errands.into_iter().rev() {
            lane.waiting.push_front(errand);
        }
    }

    /// Goes where a node of the cluster sends us. Nothing was done so far.
    #[allow(
        clippy::disallowed_methods,
        reason = "keys on their way are nothing to wait for otherwise"
    )]
    async fn redirect(&self, batch: Batch, redirect: Redirect) {
        let Some(cluster) = self.cluster.upgrade() else {
            batch.fail(&self.unavailable());
            return;
        };
        match redirect {
            Redirect::Moved { slot, to } => {
                let node = cluster.moved(slot, &to);
                if std::ptr::eq(Arc::as_ptr(&node), self) || !node.is_up() {
                    // It says so of itself, or is not there yet: ask again in a moment.
                    tokio::time::sleep(MOVING).await;
                }
                batch.into_errands().filter(|errand| !errand.is_abandoned()).for_each(|errand| {
                    node.submit(errand);
                });
            }
            Redirect::Ask { to, .. } => {
                let node = cluster.node_at(&to);
                let Some(link) = node.link.load_full() else {
                    tokio::time::sleep(MOVING).await;
                    self.requeue(batch.into_errands().collect());
                    return;
                };
                let reply = node.charge(&link, &batch, true).await;
                self.settle(batch, reply).await;
            }
            // Keys of one call are in two places. Requests that need not meet go by themselves.
            Redirect::TryAgain if !batch.is_of_one_kind() => {
                join_all(batch.apart().map(|batch| self.send(batch))).await;
            }
            Redirect::TryAgain => {
                tokio::time::sleep(MOVING).await;
                self.requeue(batch.into_errands().collect());
            }
            Redirect::ClusterDown => {
                cluster.look_again();
                batch.fail(&StoreError::Unavailable {
                    store: Arc::clone(&self.name),
                    reason: "the cluster is down".into(),
                });
            }
        }
    }
}

enum Load {
    One(Batch),
    Many(Vec<Batch>),
}

fn load_all(lane: &mut Lane) -> Option<Load> {
    let mut batch = Batch::default();
    while let Some(errand) = lane.waiting.pop_front() {
        if errand.is_abandoned() {
            continue;
        }
        if let Err(errand) = batch.push(errand) {
            lane.waiting.push_front(errand);
            break;
        }
    }
    (!batch.is_empty()).then_some(Load::One(batch))
}
