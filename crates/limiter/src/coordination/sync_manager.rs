//! The views of all clients of one node, and the syncs that refresh them.

mod queue;

use std::sync::{Arc, Weak};

use tidegate_core::{Key, LeaseGrant, LeaseId, LeaseRequest, Limit, Outcome, Timestamp};
use tidegate_rules::SyncSettings;
use tokio::sync::Semaphore;
use tokio::time::Instant;

use self::queue::SyncQueue;
use super::client_map::{
    BackgroundTask, ClientMap, ClientShard, InFlightRequest, OutgoingRequest, Reply,
    RequestTracker, TrackedClient, by_deadline,
};
use super::sync::{ClientView, SyncDecision, UnsyncedDebit, exact_request};
use crate::clock::Clock;
use crate::store::{Store, StoreError};

/// Most clients in one sync.
const MAX_CLIENTS_PER_SYNC: usize = 64;
/// Most syncs in flight.
const MAX_SYNCS_IN_FLIGHT: usize = 8;
/// Most requests in flight for one client that a flush waits for.
const MAX_WAITS_PER_FLUSH: usize = 4;
/// The wake-up time of a client that is in no queue.
const NEVER: Timestamp = Timestamp::from_micros(u64::MAX);

/// The views of all clients of synced rules.
pub(crate) struct SyncManager {
    clients: ClientMap<SyncedClient>,
    /// The clients to sync, by due time.
    queue: Arc<SyncQueue>,
    background: BackgroundTask,
}

/// A client of a synced rule.
struct SyncedClient {
    view: ClientView,
    limit: Arc<Limit>,
    synced: SyncSettings,
    /// The due time of the client's entry in the queue.
    wake_at: Timestamp,
    queue: Arc<SyncQueue>,
    tracker: RequestTracker,
}

/// A request in flight for a client.
struct SyncInFlight {
    limit: Arc<Limit>,
    id: LeaseId,
    sent_at: Timestamp,
}

impl SyncedClient {
    fn new(limit: &Arc<Limit>, synced: SyncSettings, queue: &Arc<SyncQueue>) -> Self {
        Self {
            view: ClientView::default(),
            limit: Arc::clone(limit),
            synced,
            wake_at: NEVER,
            queue: Arc::clone(queue),
            tracker: RequestTracker::default(),
        }
    }

    /// Queues the client for its next sync, unless it is queued for an earlier time.
    #[inline]
    fn schedule(&mut self, key: Key) {
        let next = self.view.next_due(self.synced.every);
        if next < self.wake_at {
            self.wake_at = next;
            self.queue.push(next, key);
        }
    }
}

impl TrackedClient for SyncedClient {
    type Request = SyncInFlight;

    fn tracker(&self) -> &RequestTracker {
        &self.tracker
    }

    fn complete(
        &mut self,
        key: Key,
        request: &SyncInFlight,
        now: Timestamp,
        reply: Option<&Reply>,
    ) {
        let is_pending = self.view.pending() == Some(request.id);
        match reply {
            Some(Ok(grant)) => {
                // A snapshot under another limit does not apply.
                let same = self.limit == request.limit;
                let snapshot = grant.snapshot.clone().filter(|_| same);
                match is_pending {
                    true => self.view.on_reply(now, request.id, &self.limit, snapshot),
                    false => self.view.on_snapshot(request.sent_at, now, &self.limit, snapshot),
                }
            }
            Some(Err(_)) | None => self.view.on_failure(request.id),
        }
        if is_pending {
            self.tracker.finish(reply);
        }
        self.schedule(key);
    }
}

/// The next step of a check.
enum NextStep {
    /// The check is decided, by this debit if it was admitted.
    Decided(Outcome, Option<UnsyncedDebit>),
    /// The check waits for the request of another check.
    Join(InFlightRequest),
    /// The check sends a request with this id. The request may report usage under an older id.
    Request(LeaseId, LeaseRequest),
}

/// The outcome of a charge to a synced rule.
pub(crate) struct SyncedOutcome {
    pub(crate) outcome: Outcome,
    /// The debit that is not reported to the store yet. It is rolled back if another rule denies the request.
    pub(crate) debit: Option<UnsyncedDebit>,
}

impl SyncManager {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            clients: ClientMap::new(clock),
            queue: Arc::default(),
            background: BackgroundTask::default(),
        }
    }

    /// Charges a client by its view. If the view can't decide, the check goes to the store.
    ///
    /// # Errors
    /// The store failed or timed out. The view is not charged then.
    pub(crate) async fn charge<S: Store>(
        self: &Arc<Self>,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        synced: SyncSettings,
        cost: u64,
    ) -> Result<SyncedOutcome, StoreError> {
        // One deadline covers the request of another check and this check's own.
        let mut deadline = None;
        loop {
            match self.next_step(key, limit, synced, cost, deadline.is_some()) {
                NextStep::Decided(outcome, debit) => return Ok(SyncedOutcome { outcome, debit }),
                NextStep::Join(request) => {
                    deadline = Some(store.timeout().map(|timeout| Instant::now() + timeout));
                    let waiting = self.clients.wait(key, request);
                    if let Some(error) = by_deadline(store, deadline.flatten(), waiting).await? {
                        return Err(error);
                    }
                }
                NextStep::Request(id, lease_request) => {
                    self.start_background_sync(store);
                    let requesting = self.send(store, key, limit, id, lease_request);
                    let grant = by_deadline(store, deadline.flatten(), requesting).await??;
                    return Ok(SyncedOutcome { outcome: grant.outcome, debit: None });
                }
            }
        }
    }

    fn next_step(
        &self,
        key: Key,
        limit: &Arc<Limit>,
        synced: SyncSettings,
        cost: u64,
        waited: bool,
    ) -> NextStep {
        let now = self.clients.clock.now();
        let mut shard = self.clients.shard(key).write();
        let fresh = || SyncedClient::new(limit, synced, &self.queue);
        let client = shard.entry(key).or_insert_with(fresh);
        client.synced = synced;
        if !Arc::ptr_eq(&client.limit, limit) {
            if client.limit != *limit {
                // Usage that was admitted under the old limit is reported under the new one.
                client.view.invalidate();
            }
            client.limit = Arc::clone(limit);
        }
        let (outcome, debit) = match client.view.take(now, limit, synced, cost) {
            SyncDecision::Admitted(outcome, debit) => (outcome, Some(debit)),
            SyncDecision::Denied(outcome) => (outcome, None),
            SyncDecision::AskStore => {
                let own_request = waited || cost > synced.max_ahead.of(limit);
                let (pending, id) = (client.view.is_pending(), self.clients.new_id());
                return match pending {
                    false => {
                        NextStep::Request(id, client.view.request(now, id, synced.every, cost))
                    }
                    true if own_request => {
                        NextStep::Request(id, exact_request(id, synced.every, cost))
                    }
                    true => NextStep::Join(client.tracker.in_flight()),
                };
            }
        };
        client.schedule(key);
        NextStep::Decided(outcome, debit)
    }

    /// Returns the outcome that a charge would have, and takes nothing. A cost of 0 counts as 1.
    ///
    /// # Errors
    /// The store failed or timed out.
    pub(crate) async fn peek<S: Store>(
        &self,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        synced: SyncSettings,
        cost: u64,
    ) -> Result<Outcome, StoreError> {
        let by_view = {
            let mut shard = self.clients.shard(key).write();
            let client = shard.get_mut(&key).filter(|client| client.limit == *limit);
            let now = self.clients.clock.now();
            client.and_then(|client| client.view.peek(now, limit, synced.every, cost))
        };
        if let Some(outcome) = by_view {
            return Ok(outcome);
        }
        let id = self.clients.new_id();
        let lease_request = exact_request(id, synced.every, 0);
        let grant = self.send(store, key, limit, id, lease_request).await?;
        let outcome = grant.snapshot.map(|mut now| limit.peek(&mut now.state, now.at, cost));
        Ok(outcome.unwrap_or(grant.outcome))
    }

    /// Removes a debit from the unsynced usage, unless it may have been reported.
    pub(crate) fn roll_back(&self, key: Key, debit: &UnsyncedDebit) {
        let now = self.clients.clock.now();
        if let Some(client) = self.clients.shard(key).write().get_mut(&key) {
            client.view.roll_back(now, &client.limit, debit);
        }
    }

    /// Drops the snapshot of a client: its next check goes to the store. Unsynced usage stays.
    pub(crate) fn invalidate(&self, key: Key) {
        if let Some(client) = self.clients.shard(key).write().get_mut(&key) {
            client.view.invalidate();
        }
    }

    /// Removes a client and its unsynced usage.
    pub(crate) fn remove(&self, key: Key) {
        let removed = self.clients.shard(key).write().remove(&key);
        if let Some(client) = removed {
            client.tracker.close();
        }
    }

    /// Sends a request for one client, and wakes the checks that wait for it.
    async fn send<S: Store>(
        &self,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        id: LeaseId,
        lease_request: LeaseRequest,
    ) -> Result<LeaseGrant, StoreError> {
        self.clients.send(store, self.outgoing(key, limit, id, lease_request)).await
    }

    fn outgoing(
        &self,
        key: Key,
        limit: &Arc<Limit>,
        id: LeaseId,
        lease_request: LeaseRequest,
    ) -> OutgoingRequest<SyncInFlight> {
        let (limit, sent_at) = (Arc::clone(limit), self.clients.clock.now());
        let request = SyncInFlight { limit: Arc::clone(&limit), id, sent_at };
        OutgoingRequest { key, limit, lease_request, request }
    }

    /// Returns a request that reports all unsynced usage of a client.
    fn sync_request(&self, key: Key, client: &mut SyncedClient) -> OutgoingRequest<SyncInFlight> {
        let id = self.clients.new_id();
        let lease_request =
            client.view.request(self.clients.clock.now(), id, client.synced.every, 0);
        self.outgoing(key, &client.limit, id, lease_request)
    }

    /// Starts the task that syncs clients in the background.
    fn start_background_sync<S: Store>(self: &Arc<Self>, store: &Arc<S>) {
        let (manager, store) = (Arc::downgrade(self), Arc::downgrade(store));
        let (clock, queue) = (self.clients.clock.clone(), Arc::clone(&self.queue));
        self.background.start(|| sync_loop(manager, store, clock, queue));
    }

    /// Returns sync requests for at most [`MAX_CLIENTS_PER_SYNC`] due clients. Idle clients are removed.
    fn take_due(&self) -> Vec<OutgoingRequest<SyncInFlight>> {
        let now = self.clients.clock.now();
        let mut requests = Vec::new();
        for (at, key) in self.queue.take_due(now, MAX_CLIENTS_PER_SYNC) {
            let mut shard = self.clients.shard(key).write();
            let Some(client) = shard.get_mut(&key).filter(|client| client.wake_at == at) else {
                continue;
            };
            client.wake_at = NEVER;
            let every = client.synced.every;
            if client.view.is_due(now, every) {
                requests.push(self.sync_request(key, client));
            } else if client.view.is_expired(now, every) {
                shard.remove(&key);
            } else if !client.view.is_pending() {
                client.schedule(key);
            }
        }
        requests
    }

    /// Syncs all due clients.
    pub(crate) async fn sync_due<S: Store>(&self, store: &Arc<S>) {
        while self.queue.next_due().is_some_and(|next| next <= self.clients.clock.now()) {
            let requests = self.take_due();
            if !requests.is_empty() {
                // A client is queued again after a failed sync.
                let _ = self.clients.send_all(store, requests).await;
            }
        }
    }

    /// Returns the time at which the next client is due.
    pub(crate) fn next_sync_at(&self) -> Option<Timestamp> {
        self.queue.next_due()
    }

    /// Reports all unsynced usage now. Clients without unsynced usage are removed: their next checks go to the
    /// store.
    pub(crate) async fn flush<S: Store>(&self, store: &Arc<S>) {
        for shard in self.clients.shards() {
            let keys: Vec<Key> = shard.read().keys().copied().collect();
            for keys in keys.chunks(MAX_CLIENTS_PER_SYNC) {
                for key in keys {
                    self.wait_until_idle(store, *key).await;
                }
                let requests = self.final_syncs(shard, keys);
                if !requests.is_empty() {
                    self.clients.send_all(store, requests).await;
                }
            }
        }
    }

    /// Returns sync requests for clients with unsynced usage. The others are removed.
    fn final_syncs(
        &self,
        shard: &ClientShard<SyncedClient>,
        keys: &[Key],
    ) -> Vec<OutgoingRequest<SyncInFlight>> {
        let (mut requests, mut shard) = (Vec::new(), shard.write());
        for key in keys {
            let Some(client) = shard.get_mut(key).filter(|client| !client.view.is_pending()) else {
                continue;
            };
            if client.view.unsynced() > 0 {
                requests.push(self.sync_request(*key, client));
            } else {
                shard.remove(key);
            }
        }
        requests
    }

    /// Waits until no request for a client is in flight, but for at most [`MAX_WAITS_PER_FLUSH`] requests.
    async fn wait_until_idle<S: Store>(&self, store: &Arc<S>, key: Key) {
        let deadline = store.timeout().map(|timeout| Instant::now() + timeout);
        for _ in 0..MAX_WAITS_PER_FLUSH {
            let pending = {
                let shard = self.clients.shard(key).read();
                let client = shard.get(&key).filter(|client| client.view.is_pending());
                client.map(|client| client.tracker.in_flight())
            };
            let Some(request) = pending else { return };
            // The next sync reports the usage of a failed or late request again.
            let _ = by_deadline(store, deadline, self.clients.wait(key, request)).await;
        }
    }
}

impl Drop for SyncManager {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl std::fmt::Debug for SyncManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SyncManager").field("clients", &self.clients.len()).finish_non_exhaustive()
    }
}

async fn sync_loop<S: Store>(
    manager: Weak<SyncManager>,
    store: Weak<S>,
    clock: Clock,
    queue: Arc<SyncQueue>,
) {
    let permits = Arc::new(Semaphore::new(MAX_SYNCS_IN_FLIGHT));
    loop {
        queue.wait_until_due(&clock).await;
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let (Some(manager), Some(store)) = (manager.upgrade(), store.upgrade()) else { return };
        let requests = manager.take_due();
        if !requests.is_empty() {
            tokio::spawn(async move {
                // A client is queued again after a failed sync.
                let _ = manager.clients.send_all(&store, requests).await;
                drop(permit);
            });
        }
    }
}
