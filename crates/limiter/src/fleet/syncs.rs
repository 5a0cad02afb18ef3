//! The views of all clients of one node, and the syncs that keep them.

mod question;
mod queue;
mod tending;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::Mutex;
use tidegate_core::rule::Synced;
use tidegate_core::{Ask, Granted, HoldId, Key, Limit, Outcome, Timestamp};
use tokio::sync::Notify;
use tokio::time::Instant;

use self::question::Question;
use self::queue::Queue;
use super::leases::in_time;
use super::sync::{Advance, Taken, View, exactly};
use crate::clock::Clock;
use crate::store::{Store, StoreError};

const SHARDS: usize = 64;
/// No wake was asked for.
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// What this node knows of every client under a synced rule.
pub(crate) struct Syncs {
    node: u64,
    numbers: AtomicU32,
    clock: Clock,
    shards: Box<[Mutex<HashMap<Key, Entry>>]>,
    /// Which clients are to be looked at, and when.
    queue: Arc<Queue>,
    /// Whether somebody does.
    tended: AtomicBool,
}

/// One client.
struct Entry {
    view: View,
    limit: Arc<Limit>,
    synced: Synced,
    /// When it is looked at next.
    wake: Timestamp,
    answered: Arc<Notify>,
    /// How often a question was answered or lost, and why the last one was.
    questions: u64,
    last: Option<StoreError>,
}

impl Entry {
    fn new(limit: &Arc<Limit>, synced: Synced) -> Self {
        Self {
            view: View::default(),
            limit: Arc::clone(limit),
            synced,
            wake: NEVER,
            answered: Arc::default(),
            questions: 0,
            last: None,
        }
    }

    /// Sees to it that the client is looked at in time.
    #[inline]
    fn schedule(&mut self, queue: &Queue, key: Key) {
        let next = self.view.next(self.synced.every);
        if next < self.wake {
            self.wake = next;
            queue.push(next, key);
        }
    }
}

/// What to do about a check.
enum Step {
    /// It is decided, and this was admitted for it.
    Done(Outcome, Option<Advance>),
    /// Somebody else asks; this is how often somebody had.
    Wait(Arc<Notify>, u64),
    /// The store is asked, under a name of the question's own.
    Ask(HoldId, Ask),
}

/// What a synced rule said to a charge.
pub(crate) struct Decided {
    pub(crate) outcome: Outcome,
    /// What was admitted here, and can be taken back.
    pub(crate) here: Option<Advance>,
}

/// A question about a client.
type Asking = (Key, Arc<Limit>, HoldId, Ask);

impl Syncs {
    pub(crate) fn new(clock: &Clock) -> Self {
        let mut shards = Vec::new();
        shards.resize_with(SHARDS, Mutex::default);
        Self {
            node: RandomState::new().hash_one(0),
            numbers: AtomicU32::new(0),
            // A clock that lags would use what is too old.
            clock: clock.afresh(),
            shards: shards.into(),
            queue: Arc::default(),
            tended: AtomicBool::new(false),
        }
    }

    fn shard(&self, key: Key) -> &Mutex<HashMap<Key, Entry>> {
        let [.., last] = key.as_u128().to_be_bytes();
        &self.shards[usize::from(last) % SHARDS]
    }

    fn id(&self) -> HoldId {
        HoldId { node: self.node, number: self.numbers.fetch_add(1, Ordering::Relaxed) }
    }

    /// Charges a client: on what this node knows, else by asking the store.
    ///
    /// # Errors
    /// The store did not answer in time; nothing is admitted here.
    pub(crate) async fn charge<S: Store>(
        self: &Arc<Self>,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        synced: Synced,
        cost: u64,
    ) -> Result<Decided, StoreError> {
        // Of all that it waits for: somebody else's question, and its own.
        let mut deadline = None;
        loop {
            match self.step(key, limit, synced, cost, deadline.is_some()) {
                Step::Done(outcome, here) => return Ok(Decided { outcome, here }),
                Step::Wait(answered, questions) => {
                    deadline = Some(store.patience().map(|patience| Instant::now() + patience));
                    let waiting = self.wait(key, answered, questions);
                    if let Some(error) = in_time(store, deadline.flatten(), waiting).await? {
                        return Err(error);
                    }
                }
                Step::Ask(id, ask) => {
                    self.tend(store);
                    let asking = self.ask(store, (key, Arc::clone(limit), id, ask));
                    let outcome = in_time(store, deadline.flatten(), asking).await??.outcome;
                    return Ok(Decided { outcome, here: None });
                }
            }
        }
    }

    fn step(&self, key: Key, limit: &Arc<Limit>, synced: Synced, cost: u64, waited: bool) -> Step {
        let now = self.clock.now();
        let mut shard = self.shard(key).lock();
        let entry = shard.entry(key).or_insert_with(|| Entry::new(limit, synced));
        entry.synced = synced;
        if !Arc::ptr_eq(&entry.limit, limit) {
            if entry.limit != *limit {
                // What was admitted under the limit as it was is told under the new one.
                entry.view.unsee();
            }
            entry.limit = Arc::clone(limit);
        }
        let (outcome, here) = match entry.view.take(now, limit, synced, cost) {
            Taken::Yes(outcome, advance) => (outcome, Some(advance)),
            Taken::No(outcome) => (outcome, None),
            Taken::Unknown => {
                let alone = waited || cost > synced.max_ahead.of(limit);
                let (asking, id) = (entry.view.is_asking(), self.id());
                return match asking {
                    false => Step::Ask(id, entry.view.ask(now, id, synced.every, cost)),
                    true if alone => Step::Ask(id, exactly(id, synced.every, cost)),
                    true => Step::Wait(Arc::clone(&entry.answered), entry.questions),
                };
            }
        };
        entry.schedule(&self.queue, key);
        Step::Done(outcome, here)
    }

    /// Answers what a charge would, and takes nothing: the answer to `cost`, or to 1 for 0.
    ///
    /// # Errors
    /// The store did not answer in time.
    pub(crate) async fn look<S: Store>(
        &self,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        synced: Synced,
        cost: u64,
    ) -> Result<Outcome, StoreError> {
        let known = {
            let mut shard = self.shard(key).lock();
            let entry = shard.get_mut(&key).filter(|entry| entry.limit == *limit);
            entry.and_then(|entry| entry.view.look(self.clock.now(), limit, synced.every, cost))
        };
        if let Some(outcome) = known {
            return Ok(outcome);
        }
        let id = self.id();
        let ask = exactly(id, synced.every, 0);
        let granted = self.ask(store, (key, Arc::clone(limit), id, ask)).await?;
        let outcome = granted.standing.map(|mut now| limit.peek(&mut now.state, now.at, cost));
        Ok(outcome.unwrap_or(granted.outcome))
    }

    /// Takes back what was admitted here, as far as that can still be.
    pub(crate) fn put_back(&self, key: Key, advance: &Advance) {
        let now = self.clock.now();
        if let Some(entry) = self.shard(key).lock().get_mut(&key) {
            entry.view.put_back(now, &entry.limit, advance);
        }
    }

    /// Has a client asked for when it comes next. What is owed stays.
    pub(crate) fn unsee(&self, key: Key) {
        if let Some(entry) = self.shard(key).lock().get_mut(&key) {
            entry.view.unsee();
        }
    }

    /// Forgets a client, and what it was admitted that nobody else knows of.
    pub(crate) fn forget(&self, key: Key) {
        let gone = self.shard(key).lock().remove(&key);
        gone.into_iter().for_each(|entry| entry.answered.notify_waiters());
    }

    /// Waits for the question that somebody else has asked. Its failure is everybody's.
    async fn wait(&self, key: Key, answered: Arc<Notify>, questions: u64) -> Option<StoreError> {
        let notified = answered.notified();
        let settled = |entry: &Entry| {
            entry.questions != questions || !Arc::ptr_eq(&entry.answered, &answered)
        };
        // It may have been answered between the look and here, or the client was forgotten.
        let over = self.shard(key).lock().get(&key).is_none_or(settled);
        if !over {
            notified.await;
        }
        let shard = self.shard(key).lock();
        let entry = shard.get(&key)?;
        if entry.questions == questions + 1 { entry.last.clone() } else { None }
    }

    /// Asks about one client, and tells everybody who waits.
    async fn ask<S: Store>(&self, store: &Arc<S>, asking: Asking) -> Result<Granted, StoreError> {
        let mut answers = self.ask_all(store, vec![asking]).await;
        answers.pop().unwrap_or_else(|| Err(question::unanswered()))
    }

    async fn ask_all<S: Store>(
        &self,
        store: &Arc<S>,
        asking: Vec<Asking>,
    ) -> Vec<Result<Granted, StoreError>> {
        let sent = self.clock.now();
        // Whoever stops waiting leaves nobody behind who waits for ever.
        let questions: Vec<Question<'_>> = asking
            .iter()
            .map(|(key, limit, id, _)| Question::new(self, *key, limit, *id, sent))
            .collect();
        let asks: Vec<(Key, Arc<Limit>, Ask)> =
            asking.into_iter().map(|(key, limit, _, ask)| (key, limit, ask)).collect();
        let answers = store.ask(&asks).await;
        let heard = self.clock.now();
        for (question, answer) in questions.into_iter().zip(&answers) {
            question.settle(heard, answer);
        }
        answers
    }
}

impl Drop for Syncs {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl std::fmt::Debug for Syncs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let clients: usize = self.shards.iter().map(|shard| shard.lock().len()).sum();
        f.debug_struct("Syncs").field("clients", &clients).finish_non_exhaustive()
    }
}
