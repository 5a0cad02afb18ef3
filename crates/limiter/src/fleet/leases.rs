//! The leases of all clients of one node, and the questions that keep them.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use smallvec::SmallVec;
use tidegate_core::hold::{Ask, Granted, HoldId};
use tidegate_core::{Key, Limit, Outcome, Span, Verdict};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::lease::{self, SWEEP_INTERVAL, Slice, Tab, Taken};
use crate::clock::Clock;
use crate::store::{Store, StoreError};

const SHARDS: usize = 64;
/// Most clients whose leases are closed in one call.
const LEAVING: usize = 64;

/// What this node holds, of every client under a leased rule.
pub(crate) struct Leases {
    node: u64,
    numbers: AtomicU32,
    clock: Clock,
    shards: Box<[Mutex<HashMap<Key, Entry>>]>,
    /// Whether a task sweeps the clients.
    swept: AtomicBool,
}

/// A client, its limit and what is asked of the store about it.
type AskedClient = (Key, Arc<Limit>, Ask);

/// One client.
struct Entry {
    tab: Tab,
    limit: Arc<Limit>,
    /// What those cost who wait for the question that is under way.
    waiting: u64,
    answered: Arc<Notify>,
    /// How often a question was answered or lost, and what became of the last.
    questions: u64,
    last: Option<Result<Outcome, StoreError>>,
}

impl Entry {
    fn new(limit: &Arc<Limit>, few: u64, closing_time: Span) -> Self {
        Self {
            tab: Tab::new(few, closing_time),
            limit: Arc::clone(limit),
            waiting: 0,
            answered: Arc::default(),
            questions: 0,
            last: None,
        }
    }

    /// What a check is told that was decided here.
    fn told(&self, left: u64) -> Outcome {
        let capacity = self.limit.capacity();
        let last = self.last.as_ref().and_then(|last| last.as_ref().ok());
        let elsewhere = last.map_or(0, |last| last.remaining);
        let verdict = Verdict::Allow { delay: Span::ZERO, slip: None };
        let reset_after = last.map_or(Span::ZERO, |last| last.reset_after);
        let remaining = left.saturating_add(elsewhere).min(capacity);
        Outcome { limit: capacity, remaining, reset_after, verdict }
    }
}

/// What to do about a check.
enum Step {
    /// It is decided, and this was taken for it.
    Done(Outcome, Option<Slice>),
    /// Somebody else asks; this is how often somebody had.
    Wait(Arc<Notify>, u64),
    Ask(Ask),
}

/// What a leased rule said to a charge.
pub(crate) struct Leased {
    pub(crate) outcome: Outcome,
    /// What was taken for it from what is held here, and can be put back there.
    pub(crate) here: Option<Slice>,
}

impl Leases {
    pub(crate) fn new(clock: Clock) -> Self {
        let mut shards = Vec::new();
        shards.resize_with(SHARDS, Mutex::default);
        Self {
            node: RandomState::new().hash_one(0),
            numbers: AtomicU32::new(0),
            // A clock that lags would use what is over.
            clock: clock.afresh(),
            shards: shards.into(),
            swept: AtomicBool::new(false),
        }
    }

    /// How many clients something is held of, and how much of that is unused.
    pub(crate) fn held(&self) -> (usize, u64) {
        let now = self.clock.now();
        let left = |shard: &Mutex<HashMap<Key, Entry>>| {
            let left = shard.lock().values().map(|entry| entry.tab.left(now)).collect::<Vec<_>>();
            left.into_iter().filter(|left| *left > 0)
        };
        let each = self.shards.iter().flat_map(left);
        each.fold((0, 0), |(clients, tokens), left| (clients + 1, left.saturating_add(tokens)))
    }

    fn shard(&self, key: Key) -> &Mutex<HashMap<Key, Entry>> {
        let [.., last] = key.as_u128().to_be_bytes();
        &self.shards[usize::from(last) % SHARDS]
    }

    fn id(&self) -> HoldId {
        HoldId { node: self.node, number: self.numbers.fetch_add(1, Ordering::Relaxed) }
    }

    /// Charges a client: from what is held here, else by asking the store, once for all who wait. Nothing
    /// is held for one that uses fewer than so many in a second.
    ///
    /// # Errors
    /// The store did not answer in time; nothing is taken here.
    pub(crate) async fn charge<S: Store>(
        self: &Arc<Self>,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        cost: u64,
        few: u64,
    ) -> Result<Leased, StoreError> {
        // Of all that it waits for: others' questions, one after another, and its own.
        let mut deadline = None;
        loop {
            let (step, due) = self.step(store, key, limit, cost, few);
            if due && let Some(ask) = self.fetch_ahead(store, key, limit) {
                // What failed is told when somebody needs it.
                let _ = Box::pin(self.ask(store, key, limit, ask)).await;
            }
            match step {
                Step::Done(outcome, here) => return Ok(Leased { outcome, here }),
                Step::Wait(answered, questions) => {
                    let patience = store.patience();
                    deadline = deadline.or_else(|| Some(Instant::now() + patience?));
                    let waiting = self.wait(key, answered, questions);
                    if let Some(error) = in_time(store, deadline, waiting).await? {
                        return Err(error);
                    }
                }
                Step::Ask(ask) => {
                    let asking = self.ask(store, key, limit, ask);
                    let outcome = in_time(store, deadline, asking).await??;
                    return Ok(Leased { outcome, here: None });
                }
            }
        }
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
        cost: u64,
    ) -> Result<Outcome, StoreError> {
        let (now, cost) = (self.clock.now(), cost.max(1));
        let left = {
            let shard = self.shard(key).lock();
            let entry = shard.get(&key).filter(|entry| entry.limit == *limit);
            entry.map_or(0, |entry| entry.tab.left(now))
        };
        let (id, life, nodes) = (self.id(), lease::LIFE, store.share().of);
        let (owed, reports) = (SmallVec::new(), SmallVec::new());
        let ask = Ask { cost: 0, want: 0, id, owed, reports, life, nodes };
        let mut outcome = one(store, key, limit, ask).await?.outcome;
        outcome.remaining = outcome.remaining.saturating_add(left).min(outcome.limit);
        if cost <= outcome.remaining {
            outcome.verdict = Verdict::Allow { delay: Span::ZERO, slip: None };
        } else if outcome.is_allowed() {
            // How long exactly, the store was not asked.
            let wait = (cost <= outcome.limit).then(|| outcome.reset_after.max(Span::MICROSECOND));
            outcome.verdict = Verdict::Deny { retry_after: wait };
        }
        Ok(outcome)
    }

    /// Puts back what was taken here, as far as that can still be.
    pub(crate) fn put_back(&self, key: Key, slice: &Slice) {
        let now = self.clock.now();
        if let Some(entry) = self.shard(key).lock().get_mut(&key) {
            entry.tab.put_back(now, slice);
        }
    }

    /// Counts a request as denied after all that the store had admitted.
    pub(crate) fn revoke(&self, key: Key, cost: u64) {
        if let Some(entry) = self.shard(key).lock().get_mut(&key) {
            entry.tab.revoke(cost);
        }
    }

    /// What to do about a check, and whether to ask the store meanwhile.
    fn step<S: Store>(
        &self,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        cost: u64,
        few: u64,
    ) -> (Step, bool) {
        let now = self.clock.now();
        let mut shard = self.shard(key).lock();
        let fresh = || Entry::new(limit, few, lease::closing_time(timeout(store)));
        let entry = shard.entry(key).or_insert_with(fresh);
        if !Arc::ptr_eq(&entry.limit, limit) && entry.limit != *limit {
            // What is held belongs to the limit as it was: no more is taken from it, and it expires.
            *entry = Entry { answered: Arc::clone(&entry.answered), ..fresh() };
        }
        if let Taken::Yes { left, slice } = entry.tab.take(now, cost) {
            let due = entry.tab.is_due(now);
            return (Step::Done(entry.told(left), Some(slice)), due);
        }
        if let Some((outcome, again)) = entry.tab.refusal(now, cost) {
            return (Step::Done(outcome, None), again);
        }
        if entry.tab.is_asking() {
            entry.waiting = entry.waiting.saturating_add(cost);
            return (Step::Wait(Arc::clone(&entry.answered), entry.questions), false);
        }
        let waiting = std::mem::take(&mut entry.waiting);
        let nodes = store.share().of;
        (Step::Ask(entry.tab.ask(now, cost, waiting, self.id(), nodes)), false)
    }

    /// Waits for the question that somebody else has asked. Its failure is everybody's.
    async fn wait(&self, key: Key, answered: Arc<Notify>, questions: u64) -> Option<StoreError> {
        let notified = answered.notified();
        let settled = |entry: &Entry| entry.questions != questions;
        // It may have been answered between the look and here.
        let over = self.shard(key).lock().get(&key).is_none_or(settled);
        if !over {
            notified.await;
        }
        let shard = self.shard(key).lock();
        let entry = shard.get(&key)?;
        match &entry.last {
            Some(Err(error)) if entry.questions == questions + 1 => Some(error.clone()),
            _ => None,
        }
    }

    /// Asks the store, and tells everybody who waits.
    async fn ask<S: Store>(
        self: &Arc<Self>,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        ask: Ask,
    ) -> Result<Outcome, StoreError> {
        // Also clients that a failing store was asked for are forgotten when they have gone.
        self.look_after(store);
        // Whoever stops waiting leaves nobody behind who waits for ever.
        let question = Question::new(self, key, ask.id, false);
        question.settle(one(store, key, limit, ask).await)
    }

    /// Asks for more before there is nothing left, while others go on. Where no runtime can do that
    /// meanwhile: the question, for the caller to ask.
    fn fetch_ahead<S: Store>(
        self: &Arc<Self>,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
    ) -> Option<Ask> {
        let asked = self.clock.now();
        let ask = {
            let mut shard = self.shard(key).lock();
            let entry = shard.get_mut(&key).filter(|entry| !entry.tab.is_asking())?;
            let waiting = std::mem::take(&mut entry.waiting);
            entry.tab.ask(asked, 0, waiting, self.id(), store.share().of)
        };
        let Ok(runtime) = Handle::try_current() else { return Some(ask) };
        let (leases, store, limit) = (Arc::clone(self), Arc::clone(store), Arc::clone(limit));
        runtime.spawn(async move {
            // What failed is told when somebody needs it.
            let _ = leases.ask(&store, key, &limit, ask).await;
        });
        None
    }

    /// Starts the task that sweeps the clients, once there is a runtime for it. It ends with its runtime,
    /// and is then started again by another.
    fn look_after<S: Store>(self: &Arc<Self>, store: &Arc<S>) {
        if self.swept.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if self.swept.swap(true, Ordering::Relaxed) {
            return;
        }
        let sweeper = Sweeper(Arc::downgrade(self));
        runtime.spawn(sweeper.run(Arc::downgrade(store)));
    }

    /// Gives back what is held for clients that have gone, or for all of them. Of the others, closes and
    /// reports the leases that end soon.
    pub(crate) async fn give_back<S: Store>(&self, store: &Arc<S>, all: bool) {
        for shard in &self.shards {
            if all {
                self.hear_out(store, shard).await;
            }
            loop {
                let (questions, asks) = self.closing(shard, store.share().of, all);
                if asks.is_empty() {
                    break;
                }
                let answers = store.ask(&asks).await;
                for (question, answer) in questions.into_iter().zip(answers) {
                    // What failed counts as spent when it expires.
                    let _ = question.settle(answer);
                }
            }
        }
    }

    /// Waits for the questions that are under way, once: what they bring is known then.
    async fn hear_out<S: Store>(&self, store: &Arc<S>, shard: &Mutex<HashMap<Key, Entry>>) {
        let asking = |(key, entry): (&Key, &Entry)| {
            let asked = entry.tab.is_asking();
            asked.then(|| (*key, Arc::clone(&entry.answered), entry.questions))
        };
        let under_way: Vec<_> = shard.lock().iter().filter_map(asking).collect();
        let deadline = store.patience().map(|patience| Instant::now() + patience);
        for (key, answered, questions) in under_way {
            // What failed or is late is not used.
            let _ = in_time(store, deadline, self.wait(key, answered, questions)).await;
        }
    }

    /// Questions that close leases of one part of the clients, at most [`LEAVING`] of them.
    fn closing(
        &self,
        shard: &Mutex<HashMap<Key, Entry>>,
        nodes: u64,
        all: bool,
    ) -> (Vec<Question<'_>>, Vec<AskedClient>) {
        let now = self.clock.now();
        let (mut questions, mut asks) = (Vec::new(), Vec::new());
        shard.lock().retain(|key, entry| {
            if asks.len() == LEAVING {
                return true;
            }
            let leaves = all || entry.tab.is_idle(now);
            let ask = match leaves {
                true => entry.tab.leave(now, self.id(), nodes),
                false => entry.tab.renew(now, self.id(), nodes),
            };
            let keeps = !leaves || ask.is_some() || !entry.tab.is_empty();
            questions.extend(ask.iter().map(|ask| Question::new(self, *key, ask.id, leaves)));
            asks.extend(ask.map(|ask| (*key, Arc::clone(&entry.limit), ask)));
            keeps
        });
        (questions, asks)
    }
}

impl std::fmt::Debug for Leases {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let clients: usize = self.shards.iter().map(|shard| shard.lock().len()).sum();
        f.debug_struct("Leases").field("clients", &clients).finish_non_exhaustive()
    }
}

/// A question under way. Dropped without an answer, it is lost.
struct Question<'a> {
    leases: &'a Leases,
    key: Key,
    id: HoldId,
    /// Whether its client has gone: then it is not asked again.
    leaves: bool,
    settled: bool,
}

impl<'a> Question<'a> {
    fn new(leases: &'a Leases, key: Key, id: HoldId, leaves: bool) -> Self {
        Self { leases, key, id, leaves, settled: false }
    }

    fn settle(mut self, answer: Result<Granted, StoreError>) -> Result<Outcome, StoreError> {
        self.settled = true;
        let mut shard = self.leases.shard(self.key).lock();
        let outcome = answer.as_ref().map(|granted| granted.outcome).map_err(Clone::clone);
        if let Some(entry) = shard.get_mut(&self.key) {
            match &answer {
                Ok(granted) => entry.tab.answered(self.id, &entry.limit, granted),
                Err(_) if self.leaves => entry.tab.abandoned(self.id),
                Err(_) => entry.tab.lost(self.id),
            }
            entry.questions += 1;
            entry.last = Some(outcome.clone());
            entry.answered.notify_waiters();
        }
        outcome
    }
}

impl Drop for Question<'_> {
    fn drop(&mut self) {
        if self.settled {
            return;
        }
        if let Some(entry) = self.leases.shard(self.key).lock().get_mut(&self.key) {
            match self.leaves {
                true => entry.tab.abandoned(self.id),
                false => entry.tab.lost(self.id),
            }
            entry.questions += 1;
            entry.last = None;
            entry.answered.notify_waiters();
        }
    }
}

/// What comes by a deadline, if there is one.
pub(super) async fn in_time<S: Store, T>(
    store: &Arc<S>,
    deadline: Option<Instant>,
    coming: impl Future<Output = T>,
) -> Result<T, StoreError> {
    let Some(end) = deadline else { return Ok(coming.await) };
    let after = store.patience().unwrap_or_default();
    let late = |_| StoreError::Timeout { store: "store".into(), after };
    timeout_at(end, coming).await.map_err(late)
}

async fn one<S: Store>(
    store: &Arc<S>,
    key: Key,
    limit: &Arc<Limit>,
    ask: Ask,
) -> Result<Granted, StoreError> {
    let mut answers = store.ask(&[(key, Arc::clone(limit), ask)]).await;
    answers.pop().unwrap_or_else(|| {
        let reason = "it answered nothing".into();
        Err(StoreError::Unavailable { store: "store".into(), reason })
    })
}

/// The time that a store has to answer.
fn timeout<S: Store>(store: &Arc<S>) -> Span {
    let micros = store.patience().unwrap_or_default().as_micros();
    Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

/// The task that sweeps the clients of a node. Dropped, it can be started again.
struct Sweeper(Weak<Leases>);

impl Sweeper {
    async fn run<S: Store>(self, store: Weak<S>) {
        let mut ticker = tokio::time::interval(Duration::from_micros(SWEEP_INTERVAL.as_micros()));
        ticker.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticker.tick().await;
            let (Some(leases), Some(store)) = (self.0.upgrade(), store.upgrade()) else { return };
            leases.give_back(&store, false).await;
        }
    }
}

impl Drop for Sweeper {
    fn drop(&mut self) {
        if let Some(leases) = self.0.upgrade() {
            leases.swept.store(false, Ordering::Relaxed);
        }
    }
}
