//! The block list of a fleet: what one node blocks, every node does within a second.
//!
//! Changes are published at once and fetched several times a second, only those since the version that
//! a node has. A Redis that lost them gets them back from the nodes.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::time::timeout;

use super::fleet::random_name;
use super::{Inner, RedisStore};
use crate::block::{BlockList, By, Change, Entry, Outlet, What};
use crate::clock::Clock;
use crate::store::StoreError;

/// How often a node looks for what others changed.
const EVERY: Duration = Duration::from_millis(250);
/// Most changes that are published in one call.
const MOST: usize = 500;

impl RedisStore {
    /// Shares a block list with every node that shares this Redis, as long as this store is there.
    pub fn share_blocks(&self, list: &Arc<BlockList>) {
        let (store, list) = (Arc::downgrade(&self.inner), Arc::clone(list));
        self.inner.shared.spawn(keep_sharing(store, list));
    }
}

async fn keep_sharing(store: Weak<Inner>, list: Arc<BlockList>) {
    let outlet = list.share();
    let mut mirror = Mirror::default();
    loop {
        let Some(store) = store.upgrade() else { return };
        let more = match mirror.exchange(&store, &list, &outlet).await {
            Ok(more) => more,
            Err(error) => {
                tracing::debug!(%error, "block list not exchanged, trying on");
                false
            }
        };
        drop(store);
        if !more {
            // News of our own go out at once, news of others come by the clock.
            let _ = timeout(EVERY, outlet.changed()).await;
            if mirror.failed {
                pause().await;
            }
        }
    }
}

#[allow(clippy::disallowed_methods, reason = "a store that fails is asked again at its own pace")]
async fn pause() {
    tokio::time::sleep(EVERY).await;
}

/// What Redis has, as far as this node has heard.
#[derive(Default)]
struct Mirror {
    /// Which life of the list the version is of; a Redis that lost it begins another.
    life: String,
    version: u64,
    entries: HashMap<String, Entry>,
    failed: bool,
}

impl Mirror {
    /// Publishes what changed here, and takes in what changed elsewhere. Whether there is more.
    async fn exchange(
        &mut self,
        store: &Inner,
        list: &BlockList,
        outlet: &Outlet,
    ) -> Result<bool, StoreError> {
        self.failed = true;
        let now = Clock::system().now();
        let changes = outlet.pending(MOST, now);
        let (lost, mut latest) =
            self.call(store, changes.iter().flat_map(described).collect()).await?;
        if lost {
            tracing::warn!("redis lost the block list, publishing it anew");
            let known: Vec<_> =
                list.entries(now).iter().map(|entry| described_entry(entry)).collect();
            for part in known.chunks(MOST) {
                (_, latest) = self.call(store, part.concat()).await?;
            }
        }
        outlet.published(&changes, latest);
        self.entries.retain(|_, entry| now < entry.until);
        if self.version >= latest {
            list.replace_all(self.version, self.entries.values().cloned().collect(), now);
        }
        self.failed = false;
        Ok(self.version < latest || changes.len() == MOST)
    }

    /// One call. Whether Redis lost what it had, and the latest version.
    async fn call(
        &mut self,
        store: &Inner,
        changes: Vec<Vec<u8>>,
    ) -> Result<(bool, u64), StoreError> {
        // The braces keep all three in one slot of a cluster.
        let name = store.shared.spell_own("{blocks}");
        let keys = [name.clone(), format!("{name}:versions"), format!("{name}:ends")];
        let node = store.topology.node(store.topology.group_of_name(&name))?;
        let mut arguments: Vec<Vec<u8>> =
            vec![self.life.clone().into(), self.version.to_string().into(), random_name().into()];
        arguments.extend(changes);
        let answer: Vec<Vec<u8>> =
            node.call_anywhere(&store.shared.scripts.blocks, &keys, &arguments).await?;
        let text = |place: usize| answer.get(place).and_then(|text| std::str::from_utf8(text).ok());
        let number = |place: usize| text(place).and_then(|text| text.parse().ok());
        let (Some(life), Some(reached), Some(latest)) = (text(0), number(1), number(2)) else {
            return Err(StoreError::Corrupt {
                store: node.name().into(),
                reason: "the block list has no version".into(),
            });
        };
        let lost = life != self.life && !self.life.is_empty();
        if life != self.life {
            self.entries.clear();
        }
        (self.life, self.version) = (life.to_owned(), reached);
        for change in answer.get(3..).unwrap_or_default().chunks_exact(2) {
            let name = String::from_utf8_lossy(&change[0]).into_owned();
            match serde_json::from_slice(&change[1]) {
                Ok(entry) => drop(self.entries.insert(name, entry)),
                // Removed, or of a release that says more than this one understands.
                Err(_) => drop(self.entries.remove(&name)),
            }
        }
        Ok((lost, latest))
    }
}

/// A change as the script takes it.
fn described(change: &Change) -> Vec<Vec<u8>> {
    match &change.what {
        What::Add(entry) => described_entry(entry),
        What::Remove(subject) => {
            let (over, penalty, entry) = (b"0".to_vec(), b"0".to_vec(), Vec::new());
            vec![subject.to_string().into(), over, penalty, entry]
        }
    }
}

fn described_entry(entry: &Entry) -> Vec<Vec<u8>> {
    let over = entry.until.as_micros().div_ceil(1_000).to_string();
    let penalty = if matches!(entry.by, By::Penalty { .. }) { "1" } else { "0" };
    let text = serde_json::to_vec(entry).unwrap_or_default();
    vec![entry.subject.to_string().into(), over.into(), penalty.into(), text]
}
