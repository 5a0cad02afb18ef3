//! Limits that are split between the live nodes: each node enforces its own part without calls to the store.
//!
//! A change of the node's share keeps the number of tokens that a client has left. A larger part fills only by
//! refill, because the node that had it before may have spent it. The store decides each node's share, see
//! [`MembershipView`].

mod client;

use std::collections::HashMap;

use tidegate_core::{Key, Outcome, Span, Timestamp, Verdict};

use self::client::SplitClient;
use super::membership::{MembershipView, ShareStatus, ShareTerm};
use crate::limit_shares::LimitShares;
use crate::sharded_map::ShardedMap;
use crate::store::memory::MemoryStore;
use crate::store::{Charge, ChargeMode, Refund, Share, StoreError};

/// Most clients of one shard. While all of them have spent tokens, new clients share overflow buckets.
const MAX_CLIENTS_PER_SHARD: usize = 16_384;
/// Below this number of clients a shard is not swept.
const MIN_CLIENTS_TO_SWEEP: usize = 64;
/// Shortest time between two sweeps of a full shard.
const FULL_SHARD_SWEEP_INTERVAL: Span = Span::SECOND;

/// The usage of this node's parts of split limits, by client.
pub(crate) struct SplitLimits {
    parts: LimitShares,
    shards: ShardedMap<SplitShard>,
}

#[derive(Default)]
struct SplitShard {
    clients: HashMap<Key, SplitClient>,
    /// The number of clients at which the shard is swept next.
    sweep_at: usize,
    last_sweep: Timestamp,
}

impl SplitShard {
    /// Returns whether another client fits. Removes unspent clients first if a sweep is due.
    fn has_room(&mut self, now: Timestamp) -> bool {
        let count = self.clients.len();
        let is_full = count >= MAX_CLIENTS_PER_SHARD;
        if count >= self.sweep_at.max(MIN_CLIENTS_TO_SWEEP)
            && (!is_full || now.since(self.last_sweep) >= FULL_SHARD_SWEEP_INTERVAL)
        {
            self.clients.retain(|_, client| !client.is_unspent(now));
            self.sweep_at = (self.clients.len() * 2).min(MAX_CLIENTS_PER_SHARD);
            self.last_sweep = now;
        }
        self.clients.len() < MAX_CLIENTS_PER_SHARD
    }
}

impl SplitLimits {
    pub(crate) fn new() -> Self {
        Self { parts: LimitShares::default(), shards: ShardedMap::default() }
    }

    /// Charges a client's part, or peeks. Returns the outcome, and the refund that undoes the charge.
    ///
    /// # Errors
    /// The share of this node is unknown.
    pub(crate) fn charge(
        &self,
        view: Option<&MembershipView>,
        charge: &Charge<'_>,
        mode: ChargeMode,
    ) -> Result<(Outcome, Option<Refund>), StoreError> {
        let view = view.ok_or_else(unknown_share)?;
        match view.share_status() {
            ShareStatus::Active(terms) => Ok(self.charge_part(terms, view.at, charge, mode)),
            ShareStatus::Joining { share, wait } => Ok((self.deny(charge, share, wait), None)),
            ShareStatus::Expired => Err(unknown_share()),
        }
    }

    fn charge_part(
        &self,
        terms: &[ShareTerm],
        now: Timestamp,
        charge: &Charge<'_>,
        mode: ChargeMode,
    ) -> (Outcome, Option<Refund>) {
        let Charge { key, limit, cost, .. } = charge;
        let mut shard = self.shards.shard(*key).write();
        if let Some(client) = shard.clients.get_mut(key) {
            client.update(&self.parts, limit, terms, now);
            return client.charge(*key, now, *cost, mode);
        }
        let mut new_client = SplitClient::new(&self.parts, limit, terms);
        if mode == ChargeMode::Peek {
            return new_client.charge(*key, now, *cost, mode);
        }
        if shard.has_room(now) {
            return shard.clients.entry(*key).or_insert(new_client).charge(*key, now, *cost, mode);
        }
        drop(shard);
        let [.., last, _] = key.as_u128().to_be_bytes();
        let key = charge.overflow_key.offset(u64::from(last) % MemoryStore::OVERFLOW_BUCKETS);
        let mut shard = self.shards.shard(key).write();
        let client = shard.clients.entry(key).or_insert(new_client);
        client.update(&self.parts, limit, terms, now);
        client.charge(key, now, *cost, mode)
    }

    /// Returns the denial of a node that has no share yet.
    fn deny(&self, charge: &Charge<'_>, share: Share, wait: Span) -> Outcome {
        let limit = self.parts.share(charge.limit, share).capacity();
        let retry_after = (charge.cost <= limit).then_some(wait.max(Span::MICROSECOND));
        let verdict = Verdict::Deny { retry_after };
        Outcome { limit, remaining: 0, reset_after: wait, verdict }
    }

    /// Refunds a charge. Without a refund token, refunds up to its cost of the latest usage.
    pub(crate) fn refund(&self, view: Option<&MembershipView>, refund: &Refund) {
        let Some(view) = view else { return };
        if let Some(client) = self.shards.shard(refund.key).write().clients.get_mut(&refund.key) {
            client.refund(&self.parts, view, refund);
        }
    }

    /// Resets the usage of a client on this node.
    pub(crate) fn reset(&self, key: Key) {
        self.shards.shard(key).write().clients.remove(&key);
    }
}

fn unknown_share() -> StoreError {
    let reason =
        "this node's share of the limit is unknown until the store has counted it for a while";
    StoreError::Unavailable { store: "fleet".into(), reason: reason.into() }
}

impl std::fmt::Debug for SplitLimits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let clients: usize =
            self.shards.shards().iter().map(|shard| shard.read().clients.len()).sum();
        f.debug_struct("SplitLimits").field("clients", &clients).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
