//! Limits of which each live node enforces its part, and asks nobody.
//!
//! What a client has left here is kept in tokens through every change of the part: a larger part is
//! filled by time and never by the change, since what another node had may be spent. Nothing is sent
//! anywhere; which part is this node's own is the store's to say ([`Stake`]).

mod client;

use std::collections::HashMap;

use tidegate_core::{Key, Outcome, Span, Timestamp, Verdict};

use self::client::Client;
use super::membership::{MembershipView, ShareStatus, ShareTerm};
use crate::limit_shares::LimitShares;
use crate::sharded_map::ShardedMap;
use crate::store::memory::MemoryStore;
use crate::store::{Charge, ChargeMode, Refund, Share, StoreError};

/// Most clients of one shard. When all of them are being limited, newcomers share a few buckets.
const ROOM: usize = 16_384;
/// So many are kept before anybody looks who can be forgotten.
const FEW: usize = 64;
/// How often a shard that is full is looked through.
const PATIENCE: Span = Span::SECOND;

/// What clients have spent here, of this node's part of their limits.
pub(crate) struct Split {
    parts: LimitShares,
    shards: ShardedMap<Shard>,
}

#[derive(Default)]
struct Shard {
    clients: HashMap<Key, Client>,
    /// How many there may be before those are forgotten who have all of their part.
    most: usize,
    swept: Timestamp,
}

impl Shard {
    /// Whether there is room for one more.
    fn has_room(&mut self, now: Timestamp) -> bool {
        let count = self.clients.len();
        if count >= self.most.max(FEW) && (count < ROOM || now.since(self.swept) >= PATIENCE) {
            self.clients.retain(|_, client| !client.is_whole(now));
            self.most = (self.clients.len() * 2).min(ROOM);
            self.swept = now;
        }
        self.clients.len() < ROOM
    }
}

impl Split {
    pub(crate) fn new() -> Self {
        Self { parts: LimitShares::default(), shards: ShardedMap::default() }
    }

    /// Charges a client's part, or looks at it. What it takes to undo that comes along.
    ///
    /// # Errors
    /// This node can't tell what is its own.
    pub(crate) fn charge(
        &self,
        view: Option<&MembershipView>,
        charge: &Charge<'_>,
        mode: ChargeMode,
    ) -> Result<(Outcome, Option<Refund>), StoreError> {
        let view = view.ok_or_else(lapsed)?;
        match view.share_status() {
            ShareStatus::Active(terms) => Ok(self.charge_part(terms, view.at, charge, mode)),
            ShareStatus::Joining { share, wait } => Ok((self.too_early(charge, share, wait), None)),
            ShareStatus::Expired => Err(lapsed()),
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
            client.follow(&self.parts, limit, terms, now);
            return client.charge(*key, now, *cost, mode);
        }
        let mut newcomer = Client::unseen(&self.parts, limit, terms);
        if mode == ChargeMode::Peek {
            return newcomer.charge(*key, now, *cost, mode);
        }
        if shard.has_room(now) {
            return shard.clients.entry(*key).or_insert(newcomer).charge(*key, now, *cost, mode);
        }
        drop(shard);
        let [.., last, _] = key.as_u128().to_be_bytes();
        let key = charge.overflow_key.offset(u64::from(last) % MemoryStore::SHARED_BUCKETS);
        let mut shard = self.shards.shard(key).write();
        let client = shard.clients.entry(key).or_insert(newcomer);
        client.follow(&self.parts, limit, terms, now);
        client.charge(key, now, *cost, mode)
    }

    /// What a client is told while nothing is this node's own yet.
    fn too_early(&self, charge: &Charge<'_>, share: Share, wait: Span) -> Outcome {
        let limit = self.parts.of(charge.limit, share).capacity();
        let retry_after = (charge.cost <= limit).then_some(wait.max(Span::MICROSECOND));
        let verdict = Verdict::Deny { retry_after };
        Outcome { limit, remaining: 0, reset_after: wait, verdict }
    }

    /// Takes a charge back, or what was spent last, as far as it still counts.
    pub(crate) fn take_back(&self, view: Option<&MembershipView>, refund: &Refund) {
        let Some(view) = view else { return };
        if let Some(client) = self.shards.shard(refund.key).write().clients.get_mut(&refund.key) {
            client.take_back(&self.parts, view, refund);
        }
    }

    /// Forgets what a client has spent on this node.
    pub(crate) fn forget(&self, key: Key) {
        self.shards.shard(key).write().clients.remove(&key);
    }
}

fn lapsed() -> StoreError {
    let reason =
        "this node can't tell its share of the limit until the store has known it for a while";
    StoreError::Unavailable { store: "fleet".into(), reason: reason.into() }
}

impl std::fmt::Debug for Split {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let clients: usize =
            self.shards.shards().iter().map(|shard| shard.read().clients.len()).sum();
        f.debug_struct("Split").field("clients", &clients).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
