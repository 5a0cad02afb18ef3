//! The queue of requests for one server.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::future::join_all;
use parking_lot::Mutex;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::connection::{CallError, RedisConnection};
use super::node::Node;
use super::redirect::Redirect;
use super::script::ScriptCall;
use super::script_batch::{EncodedBatch, ScriptBatch, ScriptRequest};
use super::servers::Servers;
use super::shared::RedisShared;
use super::slots::slot_of;
use tidegate_limiter::store::StoreError;

/// Requests that may be queued for one server; more would only wait longer than their timeout.
const MAX_QUEUED: usize = 16_384;

/// The queue of requests of one kind for one server.
///
/// While fewer than [`ScriptBatch::MAX_IN_FLIGHT`] calls are in flight, a request is sent at once. The others are
/// queued and travel together in the next call: without traffic a request never waits for others. In a cluster the
/// requests of one slot travel together, and the calls of several slots are sent at the same time.
pub(crate) struct ScriptQueue<B: ScriptBatch> {
    state: Mutex<QueueState<B::Request>>,
}

struct QueueState<R> {
    queued: VecDeque<R>,
    in_flight: usize,
}

/// The calls that are sent next.
enum Batches<B> {
    One(B),
    /// In a cluster, one for each slot.
    PerSlot(Vec<B>),
}

impl<B: ScriptBatch> ScriptQueue<B> {
    pub(crate) fn new() -> Arc<Self> {
        let state = QueueState { queued: VecDeque::new(), in_flight: 0 };
        Arc::new(Self { state: Mutex::new(state) })
    }

    /// Sends requests with the next call to a server. A request fails at once while the breaker is open.
    pub(crate) fn submit(
        self: &Arc<Self>,
        node: &Arc<Node>,
        requests: impl IntoIterator<Item = B::Request>,
    ) {
        let mut requests = requests.into_iter();
        if !node.is_up() {
            let error = node.unavailable();
            requests.for_each(|request| request.fail(error.clone()));
            return;
        }
        {
            let mut state = self.state.lock();
            let room = MAX_QUEUED.saturating_sub(state.queued.len());
            state.queued.extend(requests.by_ref().take(room));
            self.start(node, &mut state);
        }
        for request in requests {
            let reason = "too many requests are waiting".into();
            request.fail(StoreError::Unavailable { store: Arc::clone(node.name()), reason });
        }
    }

    /// Sends what is queued in the background, unless enough calls are in flight.
    fn start(self: &Arc<Self>, node: &Arc<Node>, state: &mut QueueState<B::Request>) {
        if state.in_flight < B::MAX_IN_FLIGHT {
            state.in_flight += 1;
            node.shared().spawn(Arc::clone(self).run(Arc::clone(node)));
        }
    }

    /// Reports a failure to the callers of all queued requests.
    pub(crate) fn fail_queued(&self, error: &StoreError) {
        let queued = std::mem::take(&mut self.state.lock().queued);
        queued.into_iter().for_each(|request| request.fail(error.clone()));
    }

    /// Sends batches until the queue is empty.
    async fn run(self: Arc<Self>, node: Arc<Node>) {
        while let Some(batches) = self.next_batches(node.shared()) {
            match batches {
                Batches::One(batch) => self.send(&node, batch).await,
                Batches::PerSlot(batches) => {
                    join_all(batches.into_iter().map(|batch| self.send(&node, batch))).await;
                }
            }
        }
    }

    /// Takes what is queued, as far as it fits one call for each slot. Without any, ends the task that asks.
    fn next_batches(&self, shared: &RedisShared) -> Option<Batches<B>> {
        let mut state = self.state.lock();
        let batches = match shared.config.servers() {
            Servers::Cluster(_) => state.batches_by_slot(shared),
            Servers::Single(_) | Servers::Sentinel { .. } | Servers::Shards(_) => state.batch(),
        };
        if batches.is_none() {
            state.in_flight -= 1;
        }
        batches
    }

    /// Sends one call, and completes its requests.
    async fn send(self: &Arc<Self>, node: &Arc<Node>, batch: B) {
        if batch.is_empty() {
            return;
        }
        let connection = match node.connection() {
            Ok(connection) => connection,
            Err(error) => return batch.fail(&error),
        };
        let shared = node.shared();
        B::calls(&shared.counters).fetch_add(1, Ordering::Relaxed);
        match call(node, &connection, &batch, false).await {
            Err(CallError::Redirect(redirect)) => self.follow_in_background(node, batch, redirect),
            reply => self.complete(node, node, batch, reply),
        }
    }

    /// Follows a redirect without delaying other calls: a slot that migrates may take as long as the timeout.
    fn follow_in_background(self: &Arc<Self>, node: &Arc<Node>, batch: B, redirect: Redirect) {
        let (queue, node) = (Arc::clone(self), Arc::clone(node));
        let shared = Arc::clone(node.shared());
        shared.spawn(async move { queue.follow(&node, batch, redirect).await });
    }

    /// Follows redirects until a server has completed the requests.
    async fn follow(self: &Arc<Self>, node: &Arc<Node>, mut batch: B, mut redirect: Redirect) {
        let mut follower = node.follower();
        let mut server = Arc::clone(node);
        loop {
            if redirect == Redirect::TryAgain && !batch.is_uniform() {
                join_all(batch.split().map(|batch| self.send(node, batch))).await;
                return;
            }
            let target = match server.redirected(&redirect, &mut follower).await {
                Ok(target) => target,
                Err(error) => return batch.fail(&error),
            };
            batch = batch.without_abandoned();
            if batch.is_empty() {
                return;
            }
            server = target.node;
            match call(&server, &target.connection, &batch, target.asking).await {
                Err(CallError::Redirect(next)) => redirect = next,
                reply => return self.complete(node, &server, batch, reply),
            }
        }
    }

    /// Completes the requests of a call to `server`. Those that have to be sent again go to `node`, the owner of this queue.
    fn complete(
        self: &Arc<Self>,
        node: &Arc<Node>,
        server: &Node,
        batch: B,
        reply: Result<Vec<u8>, CallError>,
    ) {
        match reply {
            Ok(reply) => {
                let again = batch.complete(server.name(), &server.releaser(), &reply);
                if !again.is_empty() {
                    node.shared().other_limits.note();
                    let mut state = self.state.lock();
                    again.into_iter().rev().for_each(|request| state.queued.push_front(request));
                    self.start(node, &mut state);
                }
            }
            Err(CallError::Store(error)) => batch.fail(&error),
            // Redirects are followed before.
            Err(CallError::Redirect(_)) => batch.fail(&server.unavailable()),
        }
    }
}

async fn call<B: ScriptBatch>(
    node: &Node,
    connection: &Arc<RedisConnection>,
    batch: &B,
    asking: bool,
) -> Result<Vec<u8>, CallError> {
    let EncodedBatch { script, keys, arguments } = batch.encode(node.shared());
    node.send(connection, ScriptCall { script, keys: &keys, arguments: &arguments }, asking).await
}

impl<R: ScriptRequest> QueueState<R> {
    /// Takes a request that a caller waits for.
    fn pop(&mut self) -> Option<R> {
        while let Some(request) = self.queued.pop_front() {
            if !request.is_abandoned() {
                return Some(request);
            }
        }
        None
    }

    fn batch<B: ScriptBatch<Request = R>>(&mut self) -> Option<Batches<B>> {
        let mut batch = B::default();
        while let Some(request) = self.pop() {
            if let Err(request) = batch.push(request) {
                self.queued.push_front(request);
                break;
            }
        }
        (!batch.is_empty()).then_some(Batches::One(batch))
    }

    fn batches_by_slot<B: ScriptBatch<Request = R>>(
        &mut self,
        shared: &RedisShared,
    ) -> Option<Batches<B>> {
        let mut batches: BTreeMap<u16, B> = BTreeMap::new();
        while let Some(request) = self.pop() {
            let key = request.key();
            let slot = key.map_or(0, |key| slot_of(shared.counter_key(key).as_bytes()));
            if let Err(request) = batches.entry(slot).or_default().push(request) {
                self.queued.push_front(request);
                break;
            }
        }
        (!batches.is_empty()).then(|| Batches::PerSlot(batches.into_values().collect()))
    }
}

impl<B: ScriptBatch> fmt::Debug for ScriptQueue<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        f.debug_struct("ScriptQueue")
            .field("queued", &state.queued.len())
            .field("in_flight", &state.in_flight)
            .finish()
    }
}

/// Returns the reply to a request, or a timeout once its deadline has passed.
pub(crate) async fn wait_for_reply<R, T>(
    shared: &RedisShared,
    reply: oneshot::Receiver<R>,
    deadline: Instant,
    open: impl FnOnce(R) -> Result<T, StoreError>,
) -> Result<T, StoreError> {
    let result = match timeout_at(deadline, reply).await {
        Ok(Ok(reply)) => open(reply),
        Ok(Err(_)) => Err(StoreError::Interrupted {
            store: "redis".into(),
            reason: "the call was given up".into(),
        }),
        Err(_) => {
            Err(StoreError::Timeout { store: "redis".into(), after: shared.config.timeout() })
        }
    };
    // The call that carries the request has the same timeout, and may report it first.
    if let Err(StoreError::Timeout { .. }) = result {
        shared.counters.late.fetch_add(1, Ordering::Relaxed);
    }
    result
}
