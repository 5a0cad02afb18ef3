//! Clients that are synced while nobody waits for it, and all of them at the end.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tidegate_core::{Key, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::queue::Queue;
use super::{Asking, Entry, NEVER, Syncs};
use crate::clock::Clock;
use crate::fleet::leases::in_time;
use crate::store::Store;

/// Most clients of one sync, and most syncs at a time.
const TOGETHER: usize = 64;
const AT_ONCE: usize = 8;
/// How often a flush waits for a question that somebody else asks about a client.
const PATIENCE: usize = 4;

impl Syncs {
    /// Sees to it that clients are synced while nobody asks about them.
    pub(super) fn tend<S: Store>(self: &Arc<Self>, store: &Arc<S>) {
        if self.tended.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if self.tended.swap(true, Ordering::Relaxed) {
            return;
        }
        let queue = Arc::clone(&self.queue);
        runtime.spawn(keep_syncing(
            Arc::downgrade(self),
            Arc::downgrade(store),
            self.clock.clone(),
            queue,
        ));
    }

    /// Questions about clients whose time has come, at most so many. Those that nobody needs any more are
    /// forgotten.
    fn due(&self) -> Vec<Asking> {
        let now = self.clock.now();
        let mut asking = Vec::new();
        for (at, key) in self.queue.due(now, TOGETHER) {
            let mut shard = self.shard(key).lock();
            let Some(entry) = shard.get_mut(&key).filter(|entry| entry.wake == at) else {
                continue;
            };
            entry.wake = NEVER;
            let every = entry.synced.every;
            if entry.view.is_due(now, every) {
                asking.push(self.sync(key, entry, now));
            } else if entry.view.is_over(now, every) {
                shard.remove(&key);
            } else if !entry.view.is_asking() {
                entry.schedule(&self.queue, key);
            }
        }
        asking
    }

    /// Syncs everybody whose time has come.
    pub(crate) async fn catch_up<S: Store>(&self, store: &Arc<S>) {
        while self.queue.next().is_some_and(|next| next <= self.clock.now()) {
            let asking = self.due();
            if !asking.is_empty() {
                // What failed is told again in time.
                let _ = self.ask_all(store, asking).await;
            }
        }
    }

    /// When the next one's time comes.
    pub(crate) fn next(&self) -> Option<Timestamp> {
        self.queue.next()
    }

    fn sync(&self, key: Key, entry: &mut Entry, now: Timestamp) -> Asking {
        let id = self.id();
        let ask = entry.view.ask(now, id, entry.synced.every, 0);
        (key, Arc::clone(&entry.limit), id, ask)
    }

    /// Tells all that is owed, now, and drops what is known of everybody else: whoever comes is asked for.
    pub(crate) async fn flush<S: Store>(&self, store: &Arc<S>) {
        for shard in &self.shards {
            let keys: Vec<Key> = shard.lock().keys().copied().collect();
            for keys in keys.chunks(TOGETHER) {
                for key in keys {
                    self.quiet(store, *key).await;
                }
                let asking = self.leaving(shard, keys);
                if !asking.is_empty() {
                    self.ask_all(store, asking).await;
                }
            }
        }
    }

    /// Questions about those who owe. The others are forgotten.
    fn leaving(&self, shard: &Mutex<HashMap<Key, Entry>>, keys: &[Key]) -> Vec<Asking> {
        let (now, mut asking, mut shard) = (self.clock.now(), Vec::new(), shard.lock());
        for key in keys {
            let Some(entry) = shard.get_mut(key).filter(|entry| !entry.view.is_asking()) else {
                continue;
            };
            if entry.view.ahead() > 0 {
                asking.push(self.sync(*key, entry, now));
            } else {
                shard.remove(key);
            }
        }
        asking
    }

    /// Waits until no question about a client is under way, or for a few of them.
    async fn quiet<S: Store>(&self, store: &Arc<S>, key: Key) {
        let deadline = store.patience().map(|patience| Instant::now() + patience);
        for _ in 0..PATIENCE {
            let asking = {
                let shard = self.shard(key).lock();
                let entry = shard.get(&key).filter(|entry| entry.view.is_asking());
                entry.map(|entry| (Arc::clone(&entry.answered), entry.questions))
            };
            let Some((answered, questions)) = asking else { return };
            // What failed or is late is told again.
            let _ = in_time(store, deadline, self.wait(key, answered, questions)).await;
        }
    }
}

async fn keep_syncing<S: Store>(
    syncs: Weak<Syncs>,
    store: Weak<S>,
    clock: Clock,
    queue: Arc<Queue>,
) {
    let lines = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        queue.ready(&clock).await;
        let Ok(line) = Arc::clone(&lines).acquire_owned().await else { return };
        let (Some(syncs), Some(store)) = (syncs.upgrade(), store.upgrade()) else { return };
        let asking = syncs.due();
        if !asking.is_empty() {
            tokio::spawn(async move {
                // What failed is told again in time.
                let _ = syncs.ask_all(&store, asking).await;
                drop(line);
            });
        }
    }
}
