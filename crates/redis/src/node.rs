//! One Redis server: its queues, its calls, and the breaker that keeps calls away while it fails.

mod reconnect;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use redis::{ErrorKind, FromRedisValue, RedisError, ServerErrorKind};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};

use super::charge_batch::ChargeBatch;
use super::cluster::Cluster;
use super::connection::{CallError, RedisConnection, classify_error};
use super::lease_call::{LeaseBatch, LeaseCall};
use super::location::ServerLocation;
use super::master_connection::MasterConnection;
use super::node_stats::NodeStats;
use super::pending_charge::PendingCharge;
use super::redirect::{Redirect, RedirectFollower};
use super::reply_guard::SlotReleaser;
use super::report::{ServerReport, ServerUse};
use super::script::ScriptCall;
use super::script_queue::ScriptQueue;
use super::sentinel::{MasterReport, MasterWatch};
use super::shared::RedisShared;
use super::state_codec;
use tidegate_limiter::store::{Refund, StoreError};

/// Failed calls in a row after which the breaker opens.
const BREAKER_THRESHOLD: u32 = 5;

/// One Redis server.
#[derive(Debug)]
pub(crate) struct Node {
    this: Weak<Self>,
    name: Arc<str>,
    shared: Arc<RedisShared>,
    /// The cluster that the server belongs to, if any.
    cluster: Weak<Cluster>,
    /// Without a connection the breaker is open.
    master: MasterConnection,
    master_watch: OnceLock<MasterWatch>,
    /// Failed calls in a row.
    failures: AtomicU32,
    /// `true` while a background task tries to connect.
    reconnecting: AtomicBool,
    /// The reason why there is no connection. Locked while a connection is put in use or removed, so that `up`, the
    /// counters and a report agree with it.
    last_error: Mutex<Arc<str>>,
    up: watch::Sender<bool>,
    charges: Arc<ScriptQueue<ChargeBatch>>,
    leases: Arc<ScriptQueue<LeaseBatch>>,
    stats: NodeStats,
}

/// The server that a redirected call is sent to next.
#[derive(Debug)]
pub(crate) struct RedirectTarget {
    pub(crate) node: Arc<Node>,
    pub(crate) connection: Arc<RedisConnection>,
    /// `true` if `ASKING` has to precede the call.
    pub(crate) asking: bool,
}

impl Node {
    pub(crate) fn new(
        shared: &Arc<RedisShared>,
        location: ServerLocation,
        cluster: Weak<Cluster>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            name: location.to_string().into(),
            shared: Arc::clone(shared),
            cluster,
            master: MasterConnection::new(location),
            master_watch: OnceLock::new(),
            failures: AtomicU32::new(0),
            reconnecting: AtomicBool::new(false),
            last_error: Mutex::new("not connected yet".into()),
            up: watch::Sender::new(false),
            charges: ScriptQueue::new(),
            leases: ScriptQueue::new(),
            stats: NodeStats::default(),
        })
    }

    /// Returns the name of the server in errors, logs and metrics.
    pub(crate) fn name(&self) -> &Arc<str> {
        &self.name
    }

    /// Returns what every part of the store uses.
    pub(crate) fn shared(&self) -> &Arc<RedisShared> {
        &self.shared
    }

    /// Returns a handle that releases slots on this server.
    pub(crate) fn releaser(&self) -> Weak<dyn SlotReleaser> {
        Weak::<Self>::clone(&self.this)
    }

    /// Sends a charge with the next call.
    pub(crate) fn submit_charge(self: &Arc<Self>, charge: PendingCharge) {
        self.charges.submit(self, [charge]);
    }

    /// Sends lease requests with the next call.
    pub(crate) fn submit_leases(self: &Arc<Self>, calls: Vec<LeaseCall>) {
        self.leases.submit(self, calls);
    }

    /// Returns whether there is a connection.
    pub(crate) fn is_up(&self) -> bool {
        self.master.is_open()
    }

    /// Returns once there is a connection.
    pub(crate) async fn wait_until_up(&self) {
        // The sender lives as long as this does.
        let _ = self.up.subscribe().wait_for(|up| *up).await;
    }

    /// Returns the connection.
    ///
    /// # Errors
    /// The breaker is open.
    pub(crate) fn connection(&self) -> Result<Arc<RedisConnection>, StoreError> {
        self.master.get().ok_or_else(|| self.unavailable())
    }

    /// Returns the failure of every call while there is no connection.
    pub(crate) fn unavailable(&self) -> StoreError {
        let reason = Arc::clone(&self.last_error.lock());
        StoreError::Unavailable { store: Arc::clone(&self.name), reason }
    }

    /// Refunds charges that are all stored in one group. Returns how many gave anything back.
    pub(crate) async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        self.amend(refunds, false).await
    }

    /// Renews slots in flight that are all stored in one group. Returns how many are held.
    pub(crate) async fn renew(&self, slots: &[Refund]) -> Result<usize, StoreError> {
        self.amend(slots, true).await
    }

    async fn amend(&self, refunds: &[Refund], renews: bool) -> Result<usize, StoreError> {
        let keys: Vec<String> =
            refunds.iter().map(|refund| self.shared.counter_key(refund.key)).collect();
        let arguments: Vec<Vec<u8>> =
            refunds.iter().map(|refund| refund_argument(refund, renews)).collect();
        let script = &self.shared.scripts.refund;
        let call = ScriptCall { script, keys: &keys, arguments: &arguments };
        let reply: Vec<u8> = self.call(call).await?;
        Ok(reply.iter().filter(|given| **given == 1).count())
    }

    /// Calls a script outside of the queues, and follows the redirects of a cluster.
    ///
    /// # Errors
    /// The call failed. It is not sent again.
    pub(crate) async fn call<T: FromRedisValue>(
        &self,
        call: ScriptCall<'_>,
    ) -> Result<T, StoreError> {
        match self.send(&self.connection()?, call, false).await {
            Ok(reply) => Ok(reply),
            Err(CallError::Store(error)) => Err(error),
            Err(CallError::Redirect(redirect)) => self.follow(redirect, call).await,
        }
    }

    async fn follow<T: FromRedisValue>(
        &self,
        mut redirect: Redirect,
        call: ScriptCall<'_>,
    ) -> Result<T, StoreError> {
        let mut follower = self.follower();
        let mut target = self.redirected(&redirect, &mut follower).await?;
        loop {
            let RedirectTarget { node, connection, asking } = target;
            redirect = match node.send(&connection, call, asking).await {
                Ok(reply) => return Ok(reply),
                Err(CallError::Store(error)) => return Err(error),
                Err(CallError::Redirect(redirect)) => redirect,
            };
            target = node.redirected(&redirect, &mut follower).await?;
        }
    }

    /// Returns a follower for a call that has just been redirected.
    pub(crate) fn follower(&self) -> RedirectFollower {
        RedirectFollower::new(self.shared.config.timeout())
    }

    /// Returns the server that a call is redirected to, once it is to be sent there.
    ///
    /// # Errors
    /// The call is not to be sent again.
    pub(crate) async fn redirected(
        &self,
        redirect: &Redirect,
        follower: &mut RedirectFollower,
    ) -> Result<RedirectTarget, StoreError> {
        let (Some(this), Some(cluster)) = (self.this.upgrade(), self.cluster.upgrade()) else {
            return Err(self.unavailable());
        };
        let (node, asking) = match redirect {
            Redirect::Moved { slot, to } => (cluster.moved(*slot, to), false),
            Redirect::Ask { to, .. } => (cluster.node_at(to), true),
            Redirect::TryAgain => (this, false),
            Redirect::ClusterDown => {
                cluster.refresh_slots();
                (this, false)
            }
        };
        drop(cluster);
        follower.wait(redirect).await.map_err(|reason| StoreError::Unavailable {
            store: Arc::clone(&self.name),
            reason: reason.into(),
        })?;
        if !node.is_up() {
            // A server that has just become a master is being connected to.
            let _ = timeout_at(follower.deadline(), node.wait_until_up()).await;
        }
        let connection = node.connection()?;
        Ok(RedirectTarget { node, connection, asking })
    }

    /// Sends a call once: by the hash of its script, and with the source if the server does not have the script. That
    /// is the one error after which a call is sent to the same server again, since nothing can have been done.
    pub(crate) async fn send<T: FromRedisValue>(
        &self,
        connection: &Arc<RedisConnection>,
        call: ScriptCall<'_>,
        asking: bool,
    ) -> Result<T, CallError> {
        let sent = Instant::now();
        let mut reply = connection.query_asking(&call.by_hash(), asking).await;
        if let Err(error) = &reply
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            reply = connection.query_asking(&call.by_source(), asking).await;
        }
        self.stats.record_call(sent.elapsed());
        match reply {
            Ok(reply) => {
                self.failures.store(0, Ordering::Relaxed);
                Ok(reply)
            }
            Err(error) => Err(self.record_error(connection, &error)),
        }
    }

    /// Classifies an error, counts it, and opens the breaker if it is one too many.
    fn record_error(&self, connection: &Arc<RedisConnection>, error: &RedisError) -> CallError {
        let timeout = self.shared.config.timeout();
        let classified = classify_error(error, connection.address(), &self.name, timeout);
        let CallError::Store(cause) = &classified else { return classified };
        let (counter, reason) = match cause {
            StoreError::Timeout { .. } => (&self.stats.timeouts, "it does not answer in time"),
            StoreError::Unavailable { reason, .. }
            | StoreError::Interrupted { reason, .. }
            | StoreError::Corrupt { reason, .. } => (&self.stats.failures, &**reason),
            _ => (&self.stats.failures, "the call failed"),
        };
        counter.fetch_add(1, Ordering::Relaxed);
        let is_lost = matches!(cause, StoreError::Interrupted { .. });
        let is_demoted = error.code() == Some("READONLY");
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if is_lost || is_demoted || failures >= BREAKER_THRESHOLD {
            self.open_breaker(connection, reason);
        }
        classified
    }

    /// Stops using the connection at once if a sentinel reports a later failover, to another server.
    fn master_reported(&self, report: &MasterReport) {
        if self.master.note_report(report)
            && let Some(connection) = self.master.get()
            && *connection.address() != report.address
        {
            let reason = format!("the sentinels made {} the master", report.address);
            self.open_breaker(&connection, &reason);
        }
    }

    /// Fails every call until a probe in the background has connected again.
    fn open_breaker(&self, connection: &Arc<RedisConnection>, reason: &str) {
        if !self.master.is_current(connection) {
            return;
        }
        {
            // A call that finds no connection returns this reason.
            let mut last_error = self.last_error.lock();
            *last_error = reason.into();
            if !self.master.remove(connection) {
                return;
            }
            self.shared.counters.opened.fetch_add(1, Ordering::Relaxed);
            self.stats.opened.fetch_add(1, Ordering::Relaxed);
            self.up.send_replace(false);
        }
        tracing::warn!(store = %self.name, reason, "breaker open, rules follow on_store_failure");
        let error = self.unavailable();
        self.charges.fail_queued(&error);
        self.leases.fail_queued(&error);
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.refresh_slots();
        }
        self.open_in_background();
    }

    /// Returns how the server has done so far.
    pub(crate) fn report(&self) -> ServerReport {
        let _consistent = self.last_error.lock();
        self.stats.report(&self.name, self.is_up())
    }

    /// Reads from the server how much memory it uses. Without an answer the last sample stays.
    pub(crate) async fn sample_memory(&self) {
        let Some(connection) = self.master.get() else { return };
        let mut info = redis::cmd("INFO");
        info.arg("memory").arg("stats").arg("keyspace");
        let reply: Result<Vec<u8>, _> = connection.query(&info).await;
        match reply {
            Ok(reply) => {
                if let Some(usage) = ServerUse::read(&String::from_utf8_lossy(&reply)) {
                    self.stats.record_usage(usage);
                }
            }
            Err(error) => {
                tracing::debug!(store = %self.name, %error, "server does not report its memory");
            }
        }
    }
}

impl SlotReleaser for Node {
    fn release(&self, slots: Vec<Refund>) {
        let Some(node) = self.this.upgrade() else { return };
        self.shared.spawn(async move {
            // Sent once; a slot that is not released expires after its hold.
            let _ = node.refund(&slots).await;
        });
    }
}

/// One argument of the refund script. `renews` is for slots in flight.
fn refund_argument(refund: &Refund, renews: bool) -> Vec<u8> {
    let tag = state_codec::LimitTag::of(&refund.limit);
    let shared = tag.shared();
    let mut argument = vec![tag.algorithm(), u8::try_from(shared.len()).unwrap_or(0)];
    argument.extend_from_slice(shared);
    state_codec::put_terms(&mut argument, &refund.limit.terms(refund.cost));
    if let Some(refund_token) = &refund.refund_token {
        state_codec::put_refund_token(&mut argument, refund_token);
        if refund.limit.is_concurrency() {
            argument.push(u8::from(renews));
            argument.extend_from_slice(tag.bytes());
        }
    }
    argument
}
