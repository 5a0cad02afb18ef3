//! The block list of a fleet: a subject that one node blocks is blocked by every node within a second.
//!
//! Changes are published at once and fetched several times a second, only those since the version that
//! a node has. Nodes restore the list in a Redis that lost it.

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
    BlockList, BlockOrigin, Change, ChangeFeed, ChangeKind, ChangeStamp, Entry, Reason,
};
use tidegate_limiter::clock::Clock;
use tidegate_limiter::store::StoreError;

/// Time between two fetches of changes by other nodes.
const FETCH_INTERVAL: Duration = Duration::from_millis(250);
/// Changes that one call publishes at most.
const MAX_CHANGES_PER_CALL: usize = 500;
/// The beginning of the fields of penalties, as in the script.
const PENALTY: &str = "#penalty ";

impl RedisStore {
    /// Shares a block list with every node that shares this Redis, as long as this store is there.
    pub fn share_blocks(&self, list: &Arc<BlockList>) {
        let (store, list) = (Arc::downgrade(&self.inner), Arc::clone(list));
        self.inner.shared.spawn(keep_sharing(store, list));
    }
}

async fn keep_sharing(store: Weak<StoreInner>, list: Arc<BlockList>) {
    let feed = list.share();
    let mut mirror = BlockListMirror::default();
    loop {
        let Some(store) = store.upgrade() else { return };
        let more = match mirror.exchange(&store, &list, &feed).await {
            Ok(more) => more,
            Err(error) => {
                tracing::debug!(%error, "block list not exchanged, trying on");
                false
            }
        };
        drop(store);
        if !more {
            // News of our own go out at once, news of others come by the clock.
            let _ = timeout(FETCH_INTERVAL, feed.changed()).await;
            if mirror.failed {
                pause().await;
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a store that fails is asked again at its own pace")]
async fn pause() {
    tokio::time::sleep(FETCH_INTERVAL).await;
}

/// The records of Redis, as far as this node has fetched them.
#[derive(Default)]
struct BlockListMirror {
    /// The life of the list that the version belongs to; a Redis that lost the list begins another.
    life: String,
    version: u64,
    /// The floor of the list when the records were fetched.
    floor: u64,
    /// By field.
    records: HashMap<String, BlockRecord>,
    /// The records of an earlier life that are not restored yet, and the version that they reached.
    lost: (Vec<Change>, u64),
    failed: bool,
}

struct BlockRecord {
    change: Change,
    /// The time after which it has no effect.
    until: Timestamp,
}

/// The head of a reply.
struct ListHead {
    /// `true` if Redis lost the records that this node had fetched.
    lost: bool,
    latest: u64,
    /// The version up to which the list has been restored in this life.
    restored: u64,
}

impl BlockListMirror {
    /// Publishes what changed here, and takes in what changed elsewhere. Whether there is more.
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
        if !self.lost.0.is_empty() {
            head.latest = self.restore(store, &head, now).await?;
        }
        self.records.retain(|_, record| now < record.until);
        let restored = self.lost.0.is_empty();
        if restored && self.version >= head.latest {
            let newest = self.records.values().map(|record| record.change.clone()).collect();
            list.replace_all(self.version, newest, now);
        }
        self.failed = false;
        Ok(lost || !restored || self.version < head.latest || changes.len() == MAX_CHANGES_PER_CALL)
    }

    /// Gives the records of an earlier life back to Redis, unless a node has that had seen as much of it or more:
    /// it knew of every change that this node does, and of unblocks that this one may have missed.
    ///
    /// Returns the latest version.
    async fn restore(
        &mut self,
        store: &StoreInner,
        head: &ListHead,
        now: Timestamp,
    ) -> Result<u64, StoreError> {
        let mut latest = head.latest;
        let (changes, version) = self.lost.clone();
        if version > head.restored {
            tracing::warn!(changes = changes.len(), "redis lost the block list, restoring it");
            let parts = changes.len().div_ceil(MAX_CHANGES_PER_CALL);
            for (part, changes) in (1..).zip(changes.chunks(MAX_CHANGES_PER_CALL)) {
                let restored = if part == parts { version } else { 0 };
                let head = self.call(store, changes, restored, now).await?;
                latest = head.latest;
                if head.lost {
                    // Lost again meanwhile: all of it once more.
                    return Ok(latest);
                }
            }
        }
        self.lost = (Vec::new(), 0);
        Ok(latest)
    }

    /// One call.
    async fn call(
        &mut self,
        store: &StoreInner,
        changes: &[Change],
        restored: u64,
        now: Timestamp,
    ) -> Result<ListHead, StoreError> {
        // The braces keep all of them in one slot of a cluster.
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
        arguments.extend(changes.iter().flat_map(described));
        let script = &store.shared.scripts.blocks;
        let call = ScriptCall { script, keys: &keys, arguments: &arguments };
        let answer: Vec<Vec<u8>> = node.call(call).await?;
        let text = |place: usize| answer.get(place).and_then(|text| std::str::from_utf8(text).ok());
        let number = |place: usize| text(place).and_then(|text| text.parse().ok());
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
        if since == 0 {
            let records = std::mem::take(&mut self.records);
            if lost {
                self.lost.0.extend(records.into_values().map(|record| record.change));
                self.lost.1 = self.lost.1.max(self.version);
            }
        }
        (self.life, self.version, self.floor) = (life.to_owned(), reached, floor);
        for record in answer.get(6..).unwrap_or_default().chunks_exact(2) {
            self.take_in(&String::from_utf8_lossy(&record[0]), &record[1], now);
        }
        Ok(ListHead { lost, latest, restored })
    }

    fn take_in(&mut self, field: &str, record: &[u8], now: Timestamp) {
        let Some(record) = read(record, now) else {
            // Of a release that writes more than this one can read.
            self.records.remove(field);
            return;
        };
        let stamp = record.change.stamp;
        if !record.change.is_penalty() {
            // As in Redis: an operator's change ends the penalties before it.
            let penalty = format!("{PENALTY}{field}");
            if self.records.get(&penalty).is_some_and(|penalty| penalty.change.stamp < stamp) {
                self.records.remove(&penalty);
            }
        }
        self.records.insert(field.to_owned(), record);
    }
}

/// Reads a record: a stamp and an entry, which was over at the epoch if the subject is unblocked.
fn read(record: &[u8], now: Timestamp) -> Option<BlockRecord> {
    // A record of a release without stamps is an entry alone.
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

/// A change as the script takes it.
fn described(change: &Change) -> [Vec<u8>; 5] {
    let entry = match &change.kind {
        ChangeKind::Add(entry) => Arc::clone(entry),
        ChangeKind::Remove(subject) => Arc::new(Entry {
            subject: subject.clone(),
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
