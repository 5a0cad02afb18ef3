//! A request to charge that a caller waits for.

use std::sync::{Arc, Weak};

use smallvec::SmallVec;
use tidegate_core::{Key, Limit, Timestamp};
use tokio::sync::oneshot;

use super::reply_guard::{ReplyGuard, SlotReleaser};
use super::script_batch::ScriptRequest;
use super::state_codec::{self, LimitTag};
use tidegate_limiter::store::{ChargeMode, Outcomes, Refund, StoreError};

/// One charge of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChargeItem {
    pub(crate) key: Key,
    pub(crate) limit: Arc<Limit>,
    pub(crate) cost: u64,
}

/// A request of which all items are charged, or none.
#[derive(Debug)]
pub(crate) struct PendingCharge {
    pub(crate) items: SmallVec<[ChargeItem; 2]>,
    /// Nothing is spent: the request is a peek, or costs more than a limit ever admits.
    pub(crate) dry_run: bool,
    /// States that were last used by another limit, and their values under this one.
    pub(crate) migrations: Vec<StateMigration>,
    /// Number of times that it was sent in vain.
    attempts: usize,
    reply: oneshot::Sender<ReplyGuard>,
}

/// The sections of a key's value under one limit: the one that was found, and the one to replace it. Either is empty
/// if there is none.
#[derive(Debug)]
pub(crate) struct StateMigration {
    pub(crate) key: Key,
    pub(crate) tag: LimitTag,
    pub(crate) found: Vec<u8>,
    pub(crate) migrated: Vec<u8>,
}

impl PendingCharge {
    /// Returns a request and the receiver of its reply. A request that costs more than a limit ever admits spends
    /// nothing, like a peek.
    pub(crate) fn new(
        items: SmallVec<[ChargeItem; 2]>,
        mode: ChargeMode,
    ) -> (Self, oneshot::Receiver<ReplyGuard>) {
        let exceeds = |item: &ChargeItem| item.cost > item.limit.capacity();
        let dry_run = mode == ChargeMode::Peek || items.iter().any(exceeds);
        let (reply, receiver) = oneshot::channel();
        (Self { items, dry_run, migrations: Vec::new(), attempts: 0, reply }, receiver)
    }

    /// Returns whether two requests have the same effect.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        self.migrations.is_empty()
            && other.migrations.is_empty()
            && self.dry_run == other.dry_run
            && self.items == other.items
    }

    /// Reports the outcomes to the caller. If it no longer waits, the slots in flight are released.
    pub(crate) fn complete(self, outcomes: Outcomes, releaser: Option<&Weak<dyn SlotReleaser>>) {
        let slots = self.items.iter().zip(&outcomes);
        let slots = slots
            .filter(|(item, outcome)| item.limit.is_concurrency() || !outcome.delay().is_zero());
        let slots = slots.filter_map(|(item, outcome)| {
            let ChargeItem { key, limit, cost } = item.clone();
            Some(Refund { key, limit, cost, refund_token: Some(outcome.refund_token()?) })
        });
        let slots = slots.collect();
        let _ = self.reply.send(ReplyGuard::new(outcomes, slots, releaser));
    }

    /// Returns the request with the migrations that it needs, from the value that was found for each item.
    #[allow(clippy::result_large_err, reason = "the request is moved on, not kept")]
    pub(crate) fn migrate<'r>(
        mut self,
        found: impl Iterator<Item = Option<&'r [u8]>>,
        now: Timestamp,
    ) -> Result<Self, (Self, &'static str)> {
        self.attempts += 1;
        // The script decides on a state that comes with its migration, so each is sent again once.
        if self.attempts > self.items.len() {
            return Err((self, "its bytes can't be read, or it is no string"));
        }
        for (item, found) in self.items.iter().zip(found) {
            let Some(found) = found else { continue };
            let tag = LimitTag::of(&item.limit);
            let (own, migrated) = match state_codec::migrate_state(&item.limit, &tag, found, now) {
                Ok(taken) => taken,
                Err(reason) => return Err((self, reason)),
            };
            let (found, migrated) = (own.to_vec(), migrated.to_vec());
            self.migrations.retain(|known| known.key != item.key || known.tag != tag);
            self.migrations.push(StateMigration { key: item.key, tag, found, migrated });
        }
        Ok(self)
    }
}

impl ScriptRequest for PendingCharge {
    fn key(&self) -> Option<Key> {
        self.items.first().map(|item| item.key)
    }

    fn is_abandoned(&self) -> bool {
        self.reply.is_closed()
    }

    fn fail(self, error: StoreError) {
        let _ = self.reply.send(ReplyGuard::failed(error));
    }
}
