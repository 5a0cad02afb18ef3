//! The clients that a node decides about without the store, and the requests about them in flight.

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

/// The clients of one part of a map.
pub(crate) type ClientShard<C> = RwLock<HashMap<Key, C>>;

/// A reply of the store to a request about one client.
pub(crate) type Reply = Result<LeaseGrant, StoreError>;

/// A client, and the requests about it.
pub(crate) trait TrackedClient {
    /// The part of a request that is needed when its reply arrives.
    type Request;

    fn tracker(&self) -> &RequestTracker;

    /// Applies the reply to a request; `None` if the request was dropped before it arrived.
    fn complete(
        &mut self,
        key: Key,
        request: &Self::Request,
        now: Timestamp,
        reply: Option<&Reply>,
    );
}

/// Counts the requests about a client that are over, and wakes the checks that wait for one.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestTracker {
    finished: Arc<Notify>,
    count: u64,
    /// The error of the last request.
    error: Option<StoreError>,
}

impl RequestTracker {
    /// Ends a request.
    pub(crate) fn finish(&mut self, reply: Option<&Reply>) {
        self.count += 1;
        self.error = reply.and_then(|reply| reply.as_ref().err().cloned());
        self.finished.notify_waiters();
    }

    /// Wakes the waiting checks of a client that is removed.
    pub(crate) fn close(&self) {
        self.finished.notify_waiters();
    }

    /// Returns a tracker for a client that takes the place of this one: waiting checks wait on.
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
    /// The number of requests that were over when it was seen.
    count: u64,
}

/// A request about one client, ready to be sent.
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
            // A clock that lags would use what has expired.
            clock: clock.afresh(),
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

    /// Returns an id that no other request of any node has.
    pub(crate) fn new_id(&self) -> LeaseId {
        LeaseId { node: self.node, number: self.next_id.fetch_add(1, Ordering::Relaxed) }
    }

    /// Waits for a request that another check has sent. Its failure fails all checks that wait.
    pub(crate) async fn wait(&self, key: Key, request: InFlightRequest) -> Option<StoreError> {
        let InFlightRequest { finished, count } = request;
        let notified = finished.notified();
        let is_over = |client: &C| {
            let tracker = client.tracker();
            tracker.count != count || !Arc::ptr_eq(&tracker.finished, &finished)
        };
        // It may have ended since it was seen, or the client may have been removed.
        let over = self.shard(key).read().get(&key).is_none_or(is_over);
        if !over {
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

/// A request in flight. Dropped without a reply, it is lost, and no check goes on waiting for it.
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

/// A task in the background, of which one runs at a time. It ends with its runtime, and can then be
/// started in another.
#[derive(Debug, Default)]
pub(crate) struct BackgroundTask {
    running: Arc<AtomicBool>,
}

impl BackgroundTask {
    /// Spawns the task, unless it runs already or there is no runtime.
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
    let late = |_| StoreError::Timeout { store: "store".into(), after };
    timeout_at(deadline, future).await.map_err(late)
}

/// The error of a store that returned no reply.
pub(crate) fn no_reply() -> StoreError {
    let reason = "it answered nothing".into();
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
