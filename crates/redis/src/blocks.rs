//! The block list of a fleet: a subject that one node blocks is blocked by every node within a second.
//!
//! A node publishes its changes at once. Every [`FETCH_INTERVAL`] it fetches the changes since the version that it has.
//! If Redis loses the list, the nodes restore it.
//!
//! `blocks.lua` describes the stored form: records, versions, and the *life* of the list. A list that Redis lost, and
//! that is written again, has another life.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_core::Timestamp;
use tokio::time::timeout;

use super::heartbeat::random_name;
use super::script::ScriptCall;
use super::store::RedisStore;
use super::store_inner::StoreInner;
use tidegate_limiter::block::{
    BlockAction, BlockList, BlockOrigin, Change, ChangeFeed, ChangeKind, ChangeStamp, Entry, Reason,
};
use tidegate_limiter::clock::Clock;
use tidegate_limiter::store::StoreError;

/// Time between two fetches of changes by other nodes.
const FETCH_INTERVAL: Duration = Duration::from_millis(250);
/// Most changes that one call publishes.
const MAX_CHANGES_PER_CALL: usize = 500;
/// Prefix of the fields of penalties, the same as in the script.
const PENALTY_PREFIX: &str = "#penalty ";

impl RedisStore {
    /// Shares a block list with every node that uses this Redis, until this store is dropped.
    pub fn share_blocks(&self, list: &Arc<BlockList>) {
        let (store, list) = (Arc::downgrade(&self.inner), Arc::clone(list));
        self.inner.shared.spawn(share_until_dropped(store, list));
    }
}

/// Exchanges changes with Redis until the store is dropped.
async fn share_until_dropped(store: Weak<StoreInner>, list: Arc<BlockList>) {
    let feed = list.share();
    let mut mirror = BlockListMirror::default();
    loop {
        let Some(store) = store.upgrade() else { return };
        let more = match mirror.exchange(&store, &list, &feed).await {
            Ok(more) => more,
            Err(error) => {
                tracing::debug!(%error, "cannot exchange the block list with Redis, retrying");
                false
            }
        };
        drop(store);
        if !more {
            // Changes of this node are published at once, those of other nodes are fetched at intervals.
            let _ = timeout(FETCH_INTERVAL, feed.changed()).await;
            // After a failure, pending changes would end the wait at once.
            if mirror.failed {
                retry_pause().await;
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "the retry interval after a failed exchange")]
async fn retry_pause() {
    tokio::time::sleep(FETCH_INTERVAL).await;
}

/// A copy of the records in Redis, up to the version that this node has fetched.
#[derive(Default)]
struct BlockListMirror {
    /// The life of the list that `version` belongs to; empty before the first fetch.
    life: String,
    version: u64,
    /// The floor of the list when the records were fetched: the highest version of an unblock that Redis has deleted.
    floor: u64,
    /// The records by their field in Redis.
    records: HashMap<String, BlockRecord>,
    to_restore: LostRecords,
    /// Set if the last exchange failed.
    failed: bool,
}

/// The records of an earlier life that this node had fetched, until they are restored.
#[derive(Clone, Default)]
struct LostRecords {
    changes: Vec<Change>,
    /// The version of the earlier life up to which they were fetched.
    version: u64,
}

/// The newest change of a field.
struct BlockRecord {
    change: Change,
    /// The time from which on the change has no effect.
    until: Timestamp,
}

/// The state of the list in Redis, from a reply.
struct ListHead {
    /// Set if Redis lost the records that this node had fetched.
    lost: bool,
    /// The latest version of the list.
    latest: u64,
    /// The version of earlier lives up to which nodes have restored the list in this life.
    restored: u64,
}

impl BlockListMirror {
    /// Publishes changes of this node, and fetches those of others. Returns whether there are more of either.
    async fn exchange(
        &mut self,
        store: &StoreInner,
        list: &BlockList,
        feed: &ChangeFeed,
    ) -> Result<bool, StoreError> {
        self.failed = true;
        let now = Clock::system().now();
        let changes = feed.pending(MAX_CHANGES_PER_CALL, now);
        let mut head = self.call(store, &changes, 0, now).await?;
        let lost = head.lost;
        if lost {
            feed.republish();
        }
        feed.published(&changes, head.latest);
        if !self.to_restore.changes.is_empty() {
            head.latest = self.restore(store, &head, now).await?;
        }
        self.records.retain(|_, record| now < record.until);
        let restored = self.to_restore.changes.is_empty();
        if restored && self.version >= head.latest {
            let newest = self.records.values().map(|record| record.change.clone()).collect();
            list.replace_all(self.version, newest, now);
        }
        self.failed = false;
        Ok(lost || !restored || self.version < head.latest || changes.len() == MAX_CHANGES_PER_CALL)
    }

    /// Restores the records of an earlier life, and returns the latest version.
    ///
    /// Does nothing if a node has restored that life up to the same or a later version: that node had every change that
    /// this one has, and may have had unblocks that this one missed.
    async fn restore(
        &mut self,
        store: &StoreInner,
        head: &ListHead,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let mut latest = head.latest;
        let LostRecords { changes, version } = self.to_restore.clone();
        if version > head.restored {
            tracing::warn!(changes = changes.len(), "redis lost the block list, restoring it");
            let parts = changes.len().div_ceil(MAX_CHANGES_PER_CALL);
            // Only the last part reports the version as restored.
            for (part, changes) in (1..).zip(changes.chunks(MAX_CHANGES_PER_CALL)) {
                let restored = if part == parts { version } else { 0 };
                let head = self.call(store, changes, restored, now).await?;
                latest = head.latest;
                if head.lost {
                    // Redis lost the list again: the next exchange restores everything once more.
                    return Ok(latest);
                }
            }
        }
        self.to_restore = LostRecords::default();
        Ok(latest)
    }

    /// Calls the script: publishes `changes`, fetches the records that follow, and applies them to this copy. `restored`
    /// is the version up to which this node has restored the list, or 0.
    async fn call(
        &mut self,
        store: &StoreInner,
        changes: &[Change],
        restored: u64,
        now: Timestamp,
    ) -> Result<ListHead, StoreError> {
        // The braces place all keys in one slot of a cluster.
        let name = store.shared.fleet_key("{blocks}");
        let keys = [
            name.clone(),
            format!("{name}:versions"),
            format!("{name}:ends"),
            format!("{name}:removed"),
        ];
        let node = store.topology.node(store.topology.group_of_name(&name))?;
        let mut arguments: Vec<Vec<u8>> = vec![
            self.life.clone().into(),
            self.version.to_string().into(),
            self.floor.to_string().into(),
            random_name().into(),
            restored.to_string().into(),
        ];
        arguments.extend(changes.iter().flat_map(encode_change));
        let script = &store.shared.scripts.blocks;
        let call = ScriptCall { script, keys: &keys, arguments: &arguments };
        let reply: Vec<Vec<u8>> = node.call(call).await?;
        let text = |index: usize| reply.get(index).and_then(|text| std::str::from_utf8(text).ok());
        let number = |index: usize| text(index).and_then(|text| text.parse().ok());
        let numbers = (number(1), number(2), number(3), number(4), number(5));
        let (Some(life), (Some(since), Some(reached), Some(latest), Some(floor), Some(restored))) =
            (text(0), numbers)
        else {
            return Err(StoreError::Corrupt {
                store: Arc::clone(node.name()),
                reason: "the block list has no version".into(),
            });
        };
        let lost = life != self.life && !self.life.is_empty();
        // The records that follow are the whole list.
        if since == 0 {
            let records = std::mem::take(&mut self.records);
            if lost {
                self.to_restore.changes.extend(records.into_values().map(|record| record.change));
                self.to_restore.version = self.to_restore.version.max(self.version);
            }
        }
        (self.life, self.version, self.floor) = (life.to_owned(), reached, floor);
        for record in reply.get(6..).unwrap_or_default().chunks_exact(2) {
            self.apply(&String::from_utf8_lossy(&record[0]), &record[1], now);
        }
        Ok(ListHead { lost, latest, restored })
    }

    /// Applies a fetched record to this copy.
    fn apply(&mut self, field: &str, record: &[u8], now: Timestamp) {
        let Some(record) = parse_record(record, now) else {
            // A later release wrote a record that this one can't parse.
            self.records.remove(field);
            return;
        };
        let stamp = record.change.stamp;
        if !record.change.is_penalty() {
            // As in the script: an operator's change ends an earlier penalty.
            let penalty = format!("{PENALTY_PREFIX}{field}");
            if self.records.get(&penalty).is_some_and(|penalty| penalty.change.stamp < stamp) {
                self.records.remove(&penalty);
            }
        }
        self.records.insert(field.to_owned(), record);
    }
}

/// Parses a record: a stamp and an entry. The entry of an unblock ends at the epoch.
fn parse_record(record: &[u8], now: Timestamp) -> Option<BlockRecord> {
    // Earlier releases wrote the entry without a stamp.
    let length = if record.starts_with(b"{") { 0 } else { ChangeStamp::LENGTH };
    let (stamp, entry) = record.split_at_checked(length)?;
    let stamp = match stamp {
        [] => ChangeStamp::default(),
        text => std::str::from_utf8(text).ok()?.parse().ok()?,
    };
    let entry: Entry = serde_json::from_slice(entry).ok()?;
    let (kind, until) = match entry.until {
        Timestamp::EPOCH => (ChangeKind::Remove(entry.subject), now + Change::UNBLOCK_LIFETIME),
        until => (ChangeKind::Add(Arc::new(entry)), until),
    };
    Some(BlockRecord { change: Change { stamp, kind }, until })
}

/// Returns the arguments of the script for a change: subject, 1 for a penalty, stamp, end in milliseconds, entry.
fn encode_change(change: &Change) -> [Vec<u8>; 5] {
    let entry = match &change.kind {
        ChangeKind::Add(entry) => Arc::clone(entry),
        ChangeKind::Remove(subject) => Arc::new(Entry {
            subject: subject.clone(),
            // Earlier releases read the removal of either kind of entry.
            action: BlockAction::Block,
            until: Timestamp::EPOCH,
            reason: Reason::default(),
            origin: BlockOrigin::Operator,
            added: Timestamp::EPOCH,
        }),
    };
    let penalty = if change.is_penalty() { "1" } else { "0" };
    [
        change.subject().to_string().into(),
        penalty.into(),
        change.stamp.to_string().into(),
        entry.until.as_micros().div_ceil(1_000).to_string().into(),
        serde_json::to_vec(&*entry).unwrap_or_default(),
    ]
}
