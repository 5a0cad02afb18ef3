//! The clients that a node decides without the store, and their requests in flight.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use parking_lot::RwLock;
use tidegate_core::{Key, LeaseGrant, LeaseId, LeaseRequest, Limit, Timestamp};
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use crate::clock::Clock;
use crate::sharded_map::ShardedMap;
use crate::store::{Store, StoreError};

/// The clients of one shard of a [`ClientMap`].
pub(crate) type ClientShard<C> = RwLock<HashMap<Key, C>>;

/// The store's reply to a request for one client.
pub(crate) type Reply = Result<LeaseGrant, StoreError>;

/// A client with tracked requests to the store.
pub(crate) trait TrackedClient {
    /// The data of a request that is needed when its reply arrives.
    type Request;

    fn tracker(&self) -> &RequestTracker;

    /// Applies the reply to a request; `None` if the request was dropped before the reply arrived.
    fn complete(
        &mut self,
        key: Key,
        request: &Self::Request,
        now: Timestamp,
        reply: Option<&Reply>,
    );
}

/// Counts the finished requests of a client, and wakes the checks that wait for one.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestTracker {
    finished: Arc<Notify>,
    count: u64,
    /// The error of the last request.
    error: Option<StoreError>,
}

impl RequestTracker {
    /// Counts a request as finished, keeps its error, and wakes the waiting checks.
    pub(crate) fn finish(&mut self, reply: Option<&Reply>) {
        self.count += 1;
        self.error = reply.and_then(|reply| reply.as_ref().err().cloned());
        self.finished.notify_waiters();
    }

    /// Wakes the waiting checks of a client that is removed.
    pub(crate) fn close(&self) {
        self.finished.notify_waiters();
    }

    /// Returns a tracker for the client that replaces this one. Checks that wait on this tracker wait on the new
    /// one.
    pub(crate) fn restarted(&self) -> Self {
        Self { finished: Arc::clone(&self.finished), ..Self::default() }
    }

    /// Returns the request in flight, to wait for it.
    pub(crate) fn in_flight(&self) -> InFlightRequest {
        InFlightRequest { finished: Arc::clone(&self.finished), count: self.count }
    }
}

/// A request in flight that another check has sent.
pub(crate) struct InFlightRequest {
    finished: Arc<Notify>,
    /// The number of finished requests when the wait began.
    count: u64,
}

/// A request for one client, ready to be sent.
pub(crate) struct OutgoingRequest<R> {
    pub(crate) key: Key,
    pub(crate) limit: Arc<Limit>,
    pub(crate) lease_request: LeaseRequest,
    pub(crate) request: R,
}

/// Clients by key.
#[derive(Debug)]
pub(crate) struct ClientMap<C> {
    node: u64,
    next_id: AtomicU32,
    pub(crate) clock: Clock,
    clients: ShardedMap<HashMap<Key, C>>,
}

impl<C: TrackedClient> ClientMap<C> {
    pub(crate) fn new(clock: &Clock) -> Self {
        Self {
            node: RandomState::new().hash_one(0),
            next_id: AtomicU32::new(0),
            // A cached clock lags, and would use leases and snapshots that have expired.
            clock: clock.uncached(),
            clients: ShardedMap::default(),
        }
    }

    pub(crate) fn shard(&self, key: Key) -> &ClientShard<C> {
        self.clients.shard(key)
    }

    pub(crate) fn shards(&self) -> &[ClientShard<C>] {
        self.clients.shards()
    }

    pub(crate) fn len(&self) -> usize {
        self.shards().iter().map(|shard| shard.read().len()).sum()
    }

    /// Returns an id that is unique in the fleet.
    pub(crate) fn new_id(&self) -> LeaseId {
        LeaseId { node: self.node, number: self.next_id.fetch_add(1, Ordering::Relaxed) }
    }

    /// Waits for a request that another check has sent. Returns its error: all checks that wait fail with it.
    pub(crate) async fn wait(&self, key: Key, request: InFlightRequest) -> Option<StoreError> {
        let InFlightRequest { finished: notify, count } = request;
        let notified = notify.notified();
        let is_finished = |client: &C| {
            let tracker = client.tracker();
            tracker.count != count || !Arc::ptr_eq(&tracker.finished, &notify)
        };
        // The request may have finished before this wait, or the client may have been removed.
        let finished = self.shard(key).read().get(&key).is_none_or(is_finished);
        if !finished {
            notified.await;
        }
        let shard = self.shard(key).read();
        let tracker = shard.get(&key)?.tracker();
        if tracker.count == count + 1 { tracker.error.clone() } else { None }
    }

    /// Sends one request, and applies its reply.
    pub(crate) async fn send<S: Store>(
        &self,
        store: &Arc<S>,
        request: OutgoingRequest<C::Request>,
    ) -> Reply {
        let mut replies = self.send_all(store, vec![request]).await;
        replies.pop().unwrap_or_else(|| Err(no_reply()))
    }

    /// Sends requests in one call, and applies their replies.
    pub(crate) async fn send_all<S: Store>(
        &self,
        store: &Arc<S>,
        requests: Vec<OutgoingRequest<C::Request>>,
    ) -> Vec<Reply> {
        let (mut guards, mut lease_requests) = (Vec::new(), Vec::new());
        for OutgoingRequest { key, limit, lease_request, request } in requests {
            guards.push(InFlightGuard { clients: self, key, request, finished: false });
            lease_requests.push((key, limit, lease_request));
        }
        let replies = store.lease(&lease_requests).await;
        for (guard, reply) in guards.into_iter().zip(&replies) {
            guard.complete(reply);
        }
        replies
    }
}

/// A request in flight. A guard that is dropped without a reply fails the request and wakes the waiting checks.
struct InFlightGuard<'a, C: TrackedClient> {
    clients: &'a ClientMap<C>,
    key: Key,
    request: C::Request,
    finished: bool,
}

impl<C: TrackedClient> InFlightGuard<'_, C> {
    fn complete(mut self, reply: &Reply) {
        self.finish(Some(reply));
    }

    fn finish(&mut self, reply: Option<&Reply>) {
        self.finished = true;
        let now = self.clients.clock.now();
        if let Some(client) = self.clients.shard(self.key).write().get_mut(&self.key) {
            client.complete(self.key, &self.request, now, reply);
        }
    }
}

impl<C: TrackedClient> Drop for InFlightGuard<'_, C> {
    fn drop(&mut self) {
        if !self.finished {
            self.finish(None);
        }
    }
}

/// A background task that runs once at a time. It ends with its runtime, and can then be started in another.
#[derive(Debug, Default)]
pub(crate) struct BackgroundTask {
    running: Arc<AtomicBool>,
}

impl BackgroundTask {
    /// Spawns the task, unless it is running or there is no runtime.
    pub(crate) fn start<F: Future<Output = ()> + Send + 'static>(&self, task: impl FnOnce() -> F) {
        if self.running.load(Ordering::Relaxed) {
            return;
        }
        let Ok(runtime) = Handle::try_current() else { return };
        if self.running.swap(true, Ordering::Relaxed) {
            return;
        }
        let (guard, task) = (RunningGuard(Arc::clone(&self.running)), task());
        runtime.spawn(async move {
            let _guard = guard;
            task.await;
        });
    }
}

struct RunningGuard(Arc<AtomicBool>);

impl Drop for RunningGuard {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Waits for a future until a deadline, if there is one.
pub(crate) async fn by_deadline<S: Store, T>(
    store: &Arc<S>,
    deadline: Option<Instant>,
    future: impl Future<Output = T>,
) -> Result<T, StoreError> {
    let Some(deadline) = deadline else { return Ok(future.await) };
    let after = store.timeout().unwrap_or_default();
    let timed_out = |_| StoreError::Timeout { store: "store".into(), after };
    timeout_at(deadline, future).await.map_err(timed_out)
}

/// Returns the error for a store that returned fewer replies than requests.
pub(crate) fn no_reply() -> StoreError {
    let reason = "it returned no reply".into();
    StoreError::Unavailable { store: "store".into(), reason }
}

#[cfg(test)]
mod tests {
    use tokio::runtime::Builder;

    use super::*;

    #[test]
    fn background_task_restarts_in_another_runtime() {
        let (task, started) = (BackgroundTask::default(), Arc::new(AtomicU32::new(0)));
        let start = || {
            task.start(|| {
                started.fetch_add(1, Ordering::Relaxed);
                std::future::pending()
            });
        };
        start();
        assert_eq!(started.load(Ordering::Relaxed), 0, "there is no runtime");
        for runs in 1..=3 {
            let runtime = Builder::new_current_thread().build().unwrap();
            runtime.block_on(async { (start(), start()) });
            assert_eq!(started.load(Ordering::Relaxed), runs);
        }
    }
}
