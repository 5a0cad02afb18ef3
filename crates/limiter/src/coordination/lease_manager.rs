//! The leases of all clients of one node, and the requests that take and release them.

use std::sync::{Arc, Weak};
use std::time::Duration;

use smallvec::SmallVec;
use tidegate_core::lease::{LeaseId, LeaseRequest};
use tidegate_core::{Key, Limit, Outcome, Span, Timestamp, Verdict};
use tokio::runtime::Handle;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::client_map::{
    BackgroundTask, ClientMap, ClientShard, InFlightRequest, OutgoingRequest, Reply,
    RequestTracker, TrackedClient, by_deadline, no_reply,
};
use super::lease::{self, ClientLeases, LeaseDebit, LeaseDecision, SWEEP_INTERVAL};
use crate::clock::Clock;
use crate::store::{Store, StoreError};

/// Most clients for which one store call releases leases.
const MAX_RELEASES_PER_CALL: usize = 64;

/// The leases of all clients of leased rules.
pub(crate) struct LeaseManager {
    clients: ClientMap<LeasedClient>,
    sweeper: BackgroundTask,
}

/// A client of a leased rule.
struct LeasedClient {
    leases: ClientLeases,
    limit: Arc<Limit>,
    /// The total cost of the checks that wait for the request in flight.
    waiting_cost: u64,
    /// The outcome of the last request; `None` if it failed.
    last_outcome: Option<Outcome>,
    tracker: RequestTracker,
}

/// A lease request in flight.
struct LeaseRequestInFlight {
    id: LeaseId,
    /// Set if it releases the client's leases. A failed release is not retried.
    releases: bool,
}

impl LeasedClient {
    fn new(limit: &Arc<Limit>, min_rate: u64, closing_time: Span) -> Self {
        Self {
            leases: ClientLeases::new(min_rate, closing_time),
            limit: Arc::clone(limit),
            waiting_cost: 0,
            last_outcome: None,
            tracker: RequestTracker::default(),
        }
    }

    /// Returns the outcome of a check that was admitted from leases, with `left` leased tokens remaining.
    fn admitted(&self, left: u64) -> Outcome {
        let limit = self.limit.capacity();
        let stored = self.last_outcome.map_or(0, |last| last.remaining);
        let reset_after = self.last_outcome.map_or(Span::ZERO, |last| last.reset_after);
        let remaining = left.saturating_add(stored).min(limit);
        let verdict = Verdict::Allow { delay: Span::ZERO, refund_token: None };
        Outcome { limit, remaining, reset_after, verdict }
    }
}

impl TrackedClient for LeasedClient {
    type Request = LeaseRequestInFlight;

    fn tracker(&self) -> &RequestTracker {
        &self.tracker
    }

    fn complete(
        &mut self,
        _: Key,
        request: &LeaseRequestInFlight,
        _: Timestamp,
        reply: Option<&Reply>,
    ) {
        match reply {
            Some(Ok(grant)) => self.leases.on_grant(request.id, &self.limit, grant),
            Some(Err(_)) | None if request.releases => self.leases.abandon(request.id),
            Some(Err(_)) | None => self.leases.on_failure(request.id),
        }
        self.last_outcome = match reply {
            Some(Ok(grant)) => Some(grant.outcome),
            Some(Err(_)) | None => None,
        };
        self.tracker.finish(reply);
    }
}

/// The next step of a check.
enum NextStep {
    /// The check is decided, by this debit if it was admitted.
    Decided(Outcome, Option<LeaseDebit>),
    /// The check waits for the request of another check.
    Join(InFlightRequest),
    /// The check sends a request.
    Request(LeaseRequest),
}

/// The outcome of a charge to a leased rule.
pub(crate) struct LeasedOutcome {
    pub(crate) outcome: Outcome,
    /// The debit from leases of this node. It is rolled back if another rule denies the request.
    pub(crate) debit: Option<LeaseDebit>,
}

impl LeaseManager {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self { clients: ClientMap::new(clock), sweeper: BackgroundTask::default() }
    }

    /// Returns the number of clients with leases on this node, and the number of their unused tokens.
    pub(crate) fn held(&self) -> (usize, u64) {
        let now = self.clients.clock.now();
        let (mut clients, mut tokens) = (0, 0_u64);
        for shard in self.clients.shards() {
            let left = |client: &LeasedClient| client.leases.left(now);
            for left in shard.read().values().map(left).filter(|left| *left > 0) {
                (clients, tokens) = (clients + 1, tokens.saturating_add(left));
            }
        }
        (clients, tokens)
    }

    /// Charges a client from its leases. If they have too few tokens, one request to the store serves all checks that
    /// wait. No lease is taken below `min_rate` requests per second.
    ///
    /// # Errors
    /// The store failed or timed out. No lease is charged then.
    pub(crate) async fn charge<S: Store>(
        self: &Arc<Self>,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        cost: u64,
        min_rate: u64,
    ) -> Result<LeasedOutcome, StoreError> {
        // One deadline covers the requests of other checks, one after another, and this check's own.
        let mut deadline = None;
        loop {
            let (step, refill) = self.next_step(store, key, limit, cost, min_rate);
            if refill && let Some(lease_request) = self.refill_early(store, key, limit) {
                // A failure is returned to the check that needs the tokens.
                let _ = Box::pin(self.request(store, key, limit, lease_request)).await;
            }
            match step {
                NextStep::Decided(outcome, debit) => return Ok(LeasedOutcome { outcome, debit }),
                NextStep::Join(request) => {
                    let timeout = store.timeout();
                    deadline = deadline.or_else(|| Some(Instant::now() + timeout?));
                    let waiting = self.clients.wait(key, request);
                    if let Some(error) = by_deadline(store, deadline, waiting).await? {
                        return Err(error);
                    }
                }
                NextStep::Request(lease_request) => {
                    let requesting = self.request(store, key, limit, lease_request);
                    let outcome = by_deadline(store, deadline, requesting).await??;
                    return Ok(LeasedOutcome { outcome, debit: None });
                }
            }
        }
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
        cost: u64,
    ) -> Result<Outcome, StoreError> {
        let (now, cost) = (self.clients.clock.now(), cost.max(1));
        let left = {
            let shard = self.clients.shard(key).read();
            let client = shard.get(&key).filter(|client| client.limit == *limit);
            client.map_or(0, |client| client.leases.left(now))
        };
        let (id, ttl, fleet_size) = (self.clients.new_id(), lease::LEASE_TTL, store.share().of);
        let (unreported, reports) = (SmallVec::new(), SmallVec::new());
        let lease_request =
            LeaseRequest { cost: 0, requested: 0, id, unreported, reports, ttl, fleet_size };
        let mut replies = store.lease(&[(key, Arc::clone(limit), lease_request)]).await;
        let mut outcome = replies.pop().unwrap_or_else(|| Err(no_reply()))?.outcome;
        outcome.remaining = outcome.remaining.saturating_add(left).min(outcome.limit);
        if cost <= outcome.remaining {
            outcome.verdict = Verdict::Allow { delay: Span::ZERO, refund_token: None };
        } else if outcome.is_allowed() {
            // The request has no cost, so the reply has no exact wait.
            let wait = (cost <= outcome.limit).then(|| outcome.reset_after.max(Span::MICROSECOND));
            outcome.verdict = Verdict::Deny { retry_after: wait };
        }
        Ok(outcome)
    }

    /// Puts tokens back into their lease, see [`ClientLeases::roll_back`].
    pub(crate) fn roll_back(&self, key: Key, debit: &LeaseDebit) {
        let now = self.clients.clock.now();
        if let Some(client) = self.clients.shard(key).write().get_mut(&key) {
            client.leases.roll_back(now, debit);
        }
    }

    /// Uncounts a request that the store admitted and another rule denied.
    pub(crate) fn revoke(&self, key: Key, cost: u64) {
        if let Some(client) = self.clients.shard(key).write().get_mut(&key) {
            client.leases.revoke(cost);
        }
    }

    /// Returns the next step of a check, and whether to refill the leases meanwhile.
    fn next_step<S: Store>(
        &self,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        cost: u64,
        min_rate: u64,
    ) -> (NextStep, bool) {
        let now = self.clients.clock.now();
        let mut shard = self.clients.shard(key).write();
        let fresh =
            || LeasedClient::new(limit, min_rate, lease::closing_time(store_timeout(store)));
        let client = shard.entry(key).or_insert_with(fresh);
        if !Arc::ptr_eq(&client.limit, limit) && client.limit != *limit {
            // Leases belong to the old limit: they are no longer used, and expire in the store.
            *client = LeasedClient { tracker: client.tracker.restarted(), ..fresh() };
        }
        if let LeaseDecision::Admitted { left, debit } = client.leases.take(now, cost) {
            let refill = client.leases.should_refill(now);
            return (NextStep::Decided(client.admitted(left), Some(debit)), refill);
        }
        if let Some((outcome, refill)) = client.leases.cached_denial(now, cost) {
            return (NextStep::Decided(outcome, None), refill);
        }
        if client.leases.is_pending() {
            client.waiting_cost = client.waiting_cost.saturating_add(cost);
            return (NextStep::Join(client.tracker.in_flight()), false);
        }
        let waiting = std::mem::take(&mut client.waiting_cost);
        let (id, fleet_size) = (self.clients.new_id(), store.share().of);
        (NextStep::Request(client.leases.request(now, cost, waiting, id, fleet_size)), false)
    }

    /// Sends a lease request, and wakes the checks that wait for it.
    async fn request<S: Store>(
        self: &Arc<Self>,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
        lease_request: LeaseRequest,
    ) -> Result<Outcome, StoreError> {
        // Before the reply, so that clients are also removed while the store fails.
        self.start_sweeper(store);
        let request = LeaseRequestInFlight { id: lease_request.id, releases: false };
        let request = OutgoingRequest { key, limit: Arc::clone(limit), lease_request, request };
        self.clients.send(store, request).await.map(|grant| grant.outcome)
    }

    /// Requests more tokens in the background before the leases are used up. Without a runtime, returns the request
    /// for the caller to send.
    fn refill_early<S: Store>(
        self: &Arc<Self>,
        store: &Arc<S>,
        key: Key,
        limit: &Arc<Limit>,
    ) -> Option<LeaseRequest> {
        let now = self.clients.clock.now();
        let lease_request = {
            let mut shard = self.clients.shard(key).write();
            let client = shard.get_mut(&key).filter(|client| !client.leases.is_pending())?;
            let waiting = std::mem::take(&mut client.waiting_cost);
            client.leases.request(now, 0, waiting, self.clients.new_id(), store.share().of)
        };
        let Ok(runtime) = Handle::try_current() else { return Some(lease_request) };
        let (manager, store, limit) = (Arc::clone(self), Arc::clone(store), Arc::clone(limit));
        runtime.spawn(async move {
            // A failure is returned to the check that needs the tokens.
            let _ = manager.request(&store, key, &limit, lease_request).await;
        });
        None
    }

    fn start_sweeper<S: Store>(self: &Arc<Self>, store: &Arc<S>) {
        let (manager, store) = (Arc::downgrade(self), Arc::downgrade(store));
        self.sweeper.start(|| sweep_loop(manager, store));
    }

    /// Releases the leases of idle clients, or of all clients. For active clients, closes and reports leases that end
    /// soon.
    pub(crate) async fn release_idle<S: Store>(&self, store: &Arc<S>, all: bool) {
        for shard in self.clients.shards() {
            if all {
                self.wait_for_in_flight(store, shard).await;
            }
            loop {
                let requests = self.releases(shard, store.share().of, all);
                if requests.is_empty() {
                    break;
                }
                // A lease that could not be released counts as spent when it expires.
                let _ = self.clients.send_all(store, requests).await;
            }
        }
    }

    /// Waits once for the requests in flight, so that their grants can be released.
    async fn wait_for_in_flight<S: Store>(
        &self,
        store: &Arc<S>,
        shard: &ClientShard<LeasedClient>,
    ) {
        let pending = |(key, client): (&Key, &LeasedClient)| {
            client.leases.is_pending().then(|| (*key, client.tracker.in_flight()))
        };
        let pending: Vec<_> = shard.read().iter().filter_map(pending).collect();
        let deadline = store.timeout().map(|timeout| Instant::now() + timeout);
        for (key, request) in pending {
            // A failed or late grant is not used, and expires in the store.
            let _ = by_deadline(store, deadline, self.clients.wait(key, request)).await;
        }
    }

    /// Returns requests that release or close leases, for at most [`MAX_RELEASES_PER_CALL`] clients.
    fn releases(
        &self,
        shard: &ClientShard<LeasedClient>,
        fleet_size: u64,
        all: bool,
    ) -> Vec<OutgoingRequest<LeaseRequestInFlight>> {
        let (now, mut requests) = (self.clients.clock.now(), Vec::new());
        shard.write().retain(|key, client| {
            if requests.len() == MAX_RELEASES_PER_CALL {
                return true;
            }
            let (id, releases) = (self.clients.new_id(), all || client.leases.is_idle(now));
            let lease_request = match releases {
                true => client.leases.release(now, id, fleet_size),
                false => client.leases.renew(now, id, fleet_size),
            };
            let keeps = !releases || lease_request.is_some() || !client.leases.is_empty();
            requests.extend(lease_request.map(|lease_request| OutgoingRequest {
                key: *key,
                limit: Arc::clone(&client.limit),
                request: LeaseRequestInFlight { id, releases },
                lease_request,
            }));
            keeps
        });
        requests
    }
}

impl std::fmt::Debug for LeaseManager {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LeaseManager").field("clients", &self.clients.len()).finish_non_exhaustive()
    }
}

/// Returns the timeout of a store; zero if it has none.
fn store_timeout<S: Store>(store: &Arc<S>) -> Span {
    let micros = store.timeout().unwrap_or_default().as_micros();
    Span::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
}

async fn sweep_loop<S: Store>(manager: Weak<LeaseManager>, store: Weak<S>) {
    let mut ticker = interval(Duration::from_micros(SWEEP_INTERVAL.as_micros()));
    ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticker.tick().await;
        let (Some(manager), Some(store)) = (manager.upgrade(), store.upgrade()) else { return };
        manager.release_idle(&store, false).await;
    }
}
