//! Slots in flight that guards of this process hold, and their renewal before a server is used again.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use redis::ErrorKind;
use tidegate_core::Key;

use super::super::Servers;
use super::super::connect::OpenError;
use super::super::rendezvous::RendezvousHash;
use super::super::slots::slot_of;
use super::call::{eval, refund_argument};
use super::{Link, Node, Where, describe, unusable};
use crate::store::Refund;

/// Slots that one script call renews at most. Each call runs for well under a millisecond.
const RENEWALS_PER_CALL: usize = 128;
/// Fewer guards than this are not searched for dropped ones.
const MIN_SWEEP: usize = 64;

/// The slots of every guard in this process that has not been dropped.
#[derive(Debug, Default)]
pub(in super::super) struct HeldSlots(Mutex<Guards>);

#[derive(Debug, Default)]
struct Guards {
    slots: Vec<Weak<[Refund]>>,
    /// How many were left by the last search for dropped ones.
    swept: usize,
}

impl HeldSlots {
    pub(in super::super) fn add(&self, slots: &Arc<[Refund]>) {
        let mut guards = self.0.lock();
        if guards.slots.len() >= 2 * guards.swept.max(MIN_SWEEP) {
            guards.slots.retain(|slots| slots.strong_count() > 0);
            guards.swept = guards.slots.len();
        }
        guards.slots.push(Arc::downgrade(slots));
    }

    /// The slots that are held now.
    pub(super) fn all(&self) -> Vec<HeldSlot> {
        let guards = self.0.lock();
        let held = guards.slots.iter().filter_map(|guard| Some((guard.upgrade()?, guard)));
        let held = held.flat_map(|(slots, guard)| {
            let held =
                |slots: &Refund| HeldSlot { slots: slots.clone(), guard: Weak::clone(guard) };
            slots.iter().map(held).collect::<Vec<_>>()
        });
        held.collect()
    }

    /// Those of some slots whose guards were dropped since.
    fn dropped(&self, held: Vec<HeldSlot>) -> Vec<Refund> {
        // Under the lock, so that `all` of another server has upgraded none of them.
        let _guards = self.0.lock();
        let dropped = held.into_iter().filter(|held| held.guard.strong_count() == 0);
        dropped.map(|held| held.slots).collect()
    }
}

/// Slots of one key, and the guard that holds them.
#[derive(Debug)]
pub(super) struct HeldSlot {
    slots: Refund,
    guard: Weak<[Refund]>,
}

impl Node {
    /// Renews the slots that guards of this process hold on the server at `link`. Checks are sent to the
    /// server only afterwards, so this process takes no slot there while it holds some that do not count.
    ///
    /// # Errors
    /// The server did not answer in time. A call that it refuses is logged: guards renew again later.
    pub(super) async fn renew_held(&self, link: &Link, held: &[HeldSlot]) -> Result<(), OpenError> {
        // As loading the scripts, renewing is part of connecting, and has that long.
        let mut connection = link.connection.clone();
        connection.set_response_timeout(self.shared.config.connect_timeout());
        let link = &Link { connection, address: link.address.clone() };
        // Keys of one call have to be in one slot of a cluster; slots of one key are read and written once.
        let mut groups: BTreeMap<(u16, Key), Vec<&Refund>> = BTreeMap::new();
        let is_own = self.own_keys();
        for slots in held.iter().map(|held| &held.slots).filter(|slots| is_own(slots.key)) {
            let group = match self.shared.config.servers() {
                Servers::Cluster(_) => slot_of(self.shared.spell(slots.key).as_bytes()),
                Servers::Single(_) | Servers::Sentinel { .. } | Servers::Shards(_) => 0,
            };
            groups.entry((group, slots.key)).or_default().push(slots);
        }
        let groups: Vec<(u16, &Refund)> = groups
            .into_iter()
            .flat_map(|((group, _), slots)| slots.into_iter().map(move |slots| (group, slots)))
            .collect();
        for group in groups.chunk_by(|one, other| one.0 == other.0) {
            for call in group.chunks(RENEWALS_PER_CALL) {
                let keys: Vec<String> =
                    call.iter().map(|(_, slots)| self.shared.spell(slots.key)).collect();
                let arguments: Vec<Vec<u8>> =
                    call.iter().map(|(_, slots)| refund_argument(slots, true)).collect();
                let script = &self.shared.scripts.refund.hash;
                let renewed = eval(link, "EVALSHA", script, &keys, &arguments, false).await;
                match renewed.map(|held: Vec<u8>| held) {
                    Ok(_) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::Server(_)) => {
                        let (store, error) = (self.name(), describe(&error));
                        tracing::warn!(store, error, "slots in flight not renewed at reconnect");
                    }
                    Err(error) => return Err(unusable(&link.address, describe(&error))),
                }
            }
        }
        Ok(())
    }

    /// Releases the slots of guards that were dropped while their slots were renewed: their own release
    /// found no connection.
    pub(super) fn release_dropped(&self, held: Vec<HeldSlot>) {
        let (is_own, dropped) = (self.own_keys(), self.shared.held.dropped(held));
        for slots in dropped.into_iter().filter(|slots| is_own(slots.key)) {
            if let Some(node) = self.this.upgrade() {
                node.release(vec![slots]);
            }
        }
    }

    /// Returns whether a key is kept on this server.
    fn own_keys(&self) -> Box<dyn Fn(Key) -> bool + Send + Sync + '_> {
        match (self.shared.config.servers(), &self.place) {
            (Servers::Shards(addresses), Where::At(own)) => {
                let (hash, own) = (RendezvousHash::new(addresses), own.clone());
                Box::new(move |key| addresses.get(hash.shard_of(key.as_u128())) == Some(&own))
            }
            (Servers::Cluster(_), _) => {
                let cluster = self.cluster.upgrade();
                Box::new(move |key| {
                    let slot = slot_of(self.shared.spell(key).as_bytes());
                    let owner = cluster.as_ref().and_then(|cluster| cluster.node_of(slot));
                    owner.is_some_and(|owner| std::ptr::eq(&*owner, self))
                })
            }
            (Servers::Single(_) | Servers::Sentinel { .. } | Servers::Shards(_), _) => {
                Box::new(|_| true)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Algorithm, Limit, Quota, Span};

    use super::*;

    #[test]
    fn slots_of_dropped_guards_are_neither_returned_nor_kept() {
        let held = HeldSlots::default();
        let limit = Limit::new(Algorithm::Concurrency { hold: Span::MINUTE }, Quota::in_flight(1));
        let limit = Arc::new(limit.unwrap());
        let slots = |number| -> Arc<[Refund]> {
            let (key, limit) = (Key::from_u128(number), Arc::clone(&limit));
            Arc::from([Refund { key, limit, cost: 1, slip: None }])
        };
        let mut living: Vec<Arc<[Refund]>> = (0..10).map(slots).collect();
        living.iter().for_each(|slots| held.add(slots));
        for number in 10..10_000 {
            held.add(&slots(number));
        }
        let all = held.all();
        assert_eq!(all.len(), 10);
        living.truncate(7);
        let dropped: Vec<u128> =
            held.dropped(all).iter().map(|slots| slots.key.as_u128()).collect();
        assert_eq!(dropped, [7, 8, 9]);
        assert!(held.0.lock().slots.len() <= 2 * MIN_SWEEP);
    }
}
