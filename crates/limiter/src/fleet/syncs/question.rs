//! A question under way. Dropped without an answer, it is lost.

use std::sync::Arc;

use tidegate_core::{Granted, HoldId, Key, Limit, Timestamp};

use super::Syncs;
use crate::store::StoreError;

/// A question about one client, under one limit.
pub(super) struct Question<'a> {
    syncs: &'a Syncs,
    key: Key,
    limit: Arc<Limit>,
    id: HoldId,
    sent: Timestamp,
    settled: bool,
}

impl<'a> Question<'a> {
    pub(super) fn new(
        syncs: &'a Syncs,
        key: Key,
        limit: &Arc<Limit>,
        id: HoldId,
        sent: Timestamp,
    ) -> Self {
        Self { syncs, key, limit: Arc::clone(limit), id, sent, settled: false }
    }

    /// Takes the answer over, and tells everybody who waits for it.
    pub(super) fn settle(mut self, heard: Timestamp, answer: &Result<Granted, StoreError>) {
        self.settled = true;
        self.end(heard, Some(answer));
    }

    fn end(&self, heard: Timestamp, answer: Option<&Result<Granted, StoreError>>) {
        let mut shard = self.syncs.shard(self.key).lock();
        let Some(entry) = shard.get_mut(&self.key) else { return };
        let was_asking = entry.view.asking();
        match answer {
            Some(Ok(granted)) => {
                // What was said about another limit says nothing about this one.
                let same = entry.limit == self.limit;
                let standing = granted.standing.clone().filter(|_| same);
                match was_asking == Some(self.id) {
                    true => entry.view.answered(heard, self.id, &entry.limit, standing),
                    false => entry.view.learn(self.sent, heard, &entry.limit, standing),
                }
            }
            _ => entry.view.lost(self.id),
        }
        if was_asking == Some(self.id) {
            entry.questions += 1;
            entry.last = match answer {
                Some(Err(error)) => Some(error.clone()),
                _ => None,
            };
            entry.answered.notify_waiters();
        }
        entry.schedule(&self.syncs.queue, self.key);
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if !self.settled {
            self.end(self.sent, None);
        }
    }
}

/// What is said where a store said nothing.
pub(super) fn unanswered() -> StoreError {
    let reason = "it answered nothing".into();
    StoreError::Unavailable { store: "store".into(), reason }
}
