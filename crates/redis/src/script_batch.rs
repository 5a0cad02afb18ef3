//! Requests of one kind that can share a script call.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Weak};

use tidegate_core::Key;

use super::reply_guard::SlotReleaser;
use super::script::Script;
use super::shared::{RedisCounters, RedisShared};
use tidegate_limiter::store::StoreError;

/// A request that a caller waits for.
pub(crate) trait ScriptRequest: Send + 'static {
    /// Returns the first key of the request, if it has any. In a cluster all of its keys are in one slot.
    fn key(&self) -> Option<Key>;

    /// Returns whether the caller no longer waits.
    fn is_abandoned(&self) -> bool;

    /// Reports a failure to the caller.
    fn fail(self, error: StoreError);
}

/// A script with its keys and arguments.
pub(crate) struct EncodedBatch<'s> {
    pub(crate) script: &'s Script,
    pub(crate) keys: Vec<String>,
    pub(crate) arguments: Vec<Vec<u8>>,
}

/// Requests that travel in one script call.
pub(crate) trait ScriptBatch: Default + Send + Sync + 'static {
    type Request: ScriptRequest;

    /// Calls in flight to one server at once: while one is decided, the next is written.
    const MAX_IN_FLIGHT: usize;

    /// Returns the counter of calls.
    fn calls(counters: &RedisCounters) -> &AtomicU64;

    /// Adds a request, or returns it when there is no room.
    #[allow(clippy::result_large_err, reason = "the request is moved on, not kept")]
    fn push(&mut self, request: Self::Request) -> Result<(), Self::Request>;

    fn is_empty(&self) -> bool;

    /// Returns whether all requests are the same, so that they need the same keys.
    fn is_uniform(&self) -> bool;

    /// Returns the script that decides the requests, with its keys and arguments.
    fn encode<'s>(&self, shared: &'s RedisShared) -> EncodedBatch<'s>;

    /// Reports to each caller what the reply of the server means. Returns the requests that have to be sent again:
    /// nothing was done for them.
    fn complete(
        self,
        store: &Arc<str>,
        releaser: &Weak<dyn SlotReleaser>,
        reply: &[u8],
    ) -> Vec<Self::Request>;

    /// Returns the requests.
    fn into_requests(self) -> impl Iterator<Item = Self::Request> + Send;

    /// Returns the requests in batches of their own, identical ones together.
    fn split(self) -> impl Iterator<Item = Self> + Send;

    /// Reports the same failure to every caller.
    fn fail(self, error: &StoreError) {
        self.into_requests().for_each(|request| request.fail(error.clone()));
    }

    /// Returns the batch without requests that no caller waits for.
    fn without_abandoned(self) -> Self {
        let mut batch = Self::default();
        for request in self.into_requests().filter(|request| !request.is_abandoned()) {
            // They fitted one batch before.
            let _ = batch.push(request);
        }
        batch
    }
}
