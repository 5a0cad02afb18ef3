//! One Redis server: what waits for it, what is under way, and whether it can be asked at all.
//!
//! Requests that arrive while calls are under way wait, and travel together in the next: without
//! traffic nobody waits for company. A server that fails is not asked again until a probe in the
//! background was answered in time.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, FromRedisValue, RedisError, ServerErrorKind};
use tokio::sync::watch;

use super::address::Address;
use super::batch::{Batch, Errand};
use super::cluster::Cluster;
use super::connect::{self, OpenError};
use super::redirect::Redirect;
use super::script::Script;
use super::shared::Shared;
use super::slots::slot_of;
use super::{sentinel, state};
use crate::store::{Refund, StoreError};

/// Calls under way at once: while one is decided, the next is written.
const FLIGHTS: usize = 4;
/// Most requests that may wait for a server; more would only wait longer than they have.
const WAITING: usize = 16_384;
/// Failed calls in a row after which a server is not asked any more.
const PATIENCE: u32 = 5;
/// The first and the longest pause between probes.
const PROBES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long to wait while the keys of one call are on their way to another node.
const MOVING: Duration = Duration::from_millis(1);

/// Where to find the server.
#[derive(Clone, Debug)]
pub(super) enum Where {
    At(Address),
    /// Wherever the sentinels say the master is.
    BySentinel {
        sentinels: Vec<Address>,
        master: String,
    },
}

/// One Redis server.
#[derive(Debug)]
pub(super) struct Node {
    this: Weak<Self>,
    name: Arc<str>,
    place: Where,
    shared: Arc<Shared>,
    /// The cluster it belongs to, if it does.
    cluster: Weak<Cluster>,
    /// The connection; none while the server is not to be asked.
    link: ArcSwapOption<Link>,
    /// Failed calls in a row.
    failures: AtomicU32,
    /// Whether somebody is trying to get a connection.
    opening: AtomicBool,
    /// Why the last try failed.
    trouble: Mutex<Arc<str>>,
    up: watch::Sender<bool>,
    lane: Mutex<Lane>,
}

pub(super) struct Link {
    connection: MultiplexedConnection,
    address: Address,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Link").field(&self.address).finish()
    }
}

#[derive(Debug, Default)]
struct Lane {
    waiting: VecDeque<Errand>,
    flights: usize,
}

/// Why a call was not answered.
enum Failure {
    /// Another node would have; nothing was done.
    Redirect(Redirect),
    Store(StoreError),
}

impl Node {
    pub(super) fn new(shared: &Arc<Shared>, place: Where, cluster: Weak<Cluster>) -> Arc<Self> {
        let name = match &place {
            Where::At(address) => format!("redis {address}"),
            Where::BySentinel { master, .. } => format!("redis {master}"),
        };
        Arc::new_cyclic(|this| Self {
            this: Weak::clone(this),
            name: name.into(),
            place,
            shared: Arc::clone(shared),
            cluster,
            link: ArcSwapOption::empty(),
            failures: AtomicU32::new(0),
            opening: AtomicBool::new(false),
            trouble: Mutex::new("not connected yet".into()),
            up: watch::Sender::new(false),
            lane: Mutex::new(Lane::default()),
        })
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether the server can be asked.
    pub(super) fn is_up(&self) -> bool {
        self.link.load().is_some()
    }

    /// Returns once the server can be asked.
    pub(super) async fn wait_until_up(&self) {
        // The sender lives as long as this does.
        let _ = self.up.subscribe().wait_for(|up| *up).await;
    }

    pub(super) fn link(&self) -> Option<Arc<Link>> {
        self.link.load_full()
    }

    fn unavailable(&self) -> StoreError {
        StoreError::Unavailable {
            store: Arc::clone(&self.name),
            reason: Arc::clone(&self.trouble.lock()),
        }
    }

    /// Takes a request along with the next call.
    pub(super) fn submit(&self, errand: Errand) {
        if !self.is_up() {
            errand.tell(Err(self.unavailable()));
            return;
        }
        let mut lane = self.lane.lock();
        if lane.waiting.len() >= WAITING {
            drop(lane);
            let reason = "too many requests are waiting".into();
            errand.tell(Err(StoreError::Unavailable { store: Arc::clone(&self.name), reason }));
            return;
        }
        lane.waiting.push_back(errand);
        if lane.flights < FLIGHTS
            && let Some(node) = self.this.upgrade()
        {
            lane.flights += 1;
            self.shared.spawn(node.fly());
        }
    }

    /// Makes calls as long as somebody waits.
    async fn fly(self: Arc<Self>) {
        while let Some(batches) = self.load_up() {
            match batches {
                Load::One(batch) => self.send(batch).await,
                Load::Many(batches) => {
                    join_all(batches.into_iter().map(|batch| self.send(batch))).await;
                }
            }
        }
    }

    /// What waits, as far as it fits one call for each slot. Ends the flight when nothing does.
    fn load_up(&self) -> Option<Load> {
        let clustered = matches!(self.shared.config.servers(), super::Servers::Cluster(_));
        let mut lane = self.lane.lock();
        let load = if clustered { self.load_by_slot(&mut lane) } else { load_all(&mut lane) };
        if load.is_none() {
            lane.flights -= 1;
        }
        load
    }

    fn load_by_slot(&self, lane: &mut Lane) -> Option<Load> {
        let mut batches: BTreeMap<u16, Batch> = BTreeMap::new();
        while let Some(errand) = lane.waiting.pop_front() {
            if errand.is_abandoned() {
                continue;
            }
            let slot = match errand.items().first() {
                Some(item) => slot_of(self.shared.spell(item.key).as_bytes()),
                None => 0,
            };
            if let Err(errand) = batches.entry(slot).or_default().push(errand) {
                lane.waiting.push_front(errand);
                break;
            }
        }
        (!batches.is_empty()).then(|| Load::Many(batches.into_values().collect()))
    }

    /// Makes one call, and tells everybody who waits for it.
    async fn send(&self, batch: Batch) {
        if batch.is_empty() {
            return;
        }
        let Some(link) = self.link.load_full() else {
            batch.fail(&self.unavailable());
            return;
        };
        self.shared.counters.calls.fetch_add(1, Ordering::Relaxed);
        let reply = self.charge(&link, &batch, false).await;
        self.settle(batch, reply).await;
    }

    async fn charge(
        &self,
        link: &Arc<Link>,
        batch: &Batch,
        asking: bool,
    ) -> Result<Vec<u8>, Failure> {
        let keys: Vec<String> = batch.keys().iter().map(|key| self.shared.spell(*key)).collect();
        self.call(link, &self.shared.scripts.charge, &keys, &batch.arguments(), asking).await
    }

    async fn settle(&self, batch: Batch, reply: Result<Vec<u8>, Failure>) {
        match reply {
            Ok(reply) => {
                let again = batch.tell(&self.name, &reply);
                if !again.is_empty() {
                    self.requeue(again);
                }
            }
            Err(Failure::Store(error)) => batch.fail(&error),
            Err(Failure::Redirect(redirect)) => Box::pin(self.redirect(batch, redirect)).await,
        }
    }

    /// Sends requests again, before others. This flight is still under way and will see them.
    fn requeue(&self, errands: Vec<Errand>) {
        let mut lane = self.lane.lock();
        for errand in errands.into_iter().rev() {
            lane.waiting.push_front(errand);
        }
    }

    /// Goes where a node of the cluster sends us. Nothing was done so far.
    #[allow(
        clippy::disallowed_methods,
        reason = "keys on their way are nothing to wait for otherwise"
    )]
    async fn redirect(&self, batch: Batch, redirect: Redirect) {
        let Some(cluster) = self.cluster.upgrade() else {
            batch.fail(&self.unavailable());
            return;
        };
        match redirect {
            Redirect::Moved { slot, to } => {
                let node = cluster.moved(slot, &to);
                if std::ptr::eq(Arc::as_ptr(&node), self) || !node.is_up() {
                    // It says so of itself, or is not there yet: ask again in a moment.
                    tokio::time::sleep(MOVING).await;
                }
                batch.into_errands().filter(|errand| !errand.is_abandoned()).for_each(|errand| {
                    node.submit(errand);
                });
            }
            Redirect::Ask { to, .. } => {
                let node = cluster.node_at(&to);
                let Some(link) = node.link.load_full() else {
                    tokio::time::sleep(MOVING).await;
                    self.requeue(batch.into_errands().collect());
                    return;
                };
                let reply = node.charge(&link, &batch, true).await;
                self.settle(batch, reply).await;
            }
            // Keys of one call are in two places. Requests that need not meet go by themselves.
            Redirect::TryAgain if !batch.is_of_one_kind() => {
                join_all(batch.apart().map(|batch| self.send(batch))).await;
            }
            Redirect::TryAgain => {
                tokio::time::sleep(MOVING).await;
                self.requeue(batch.into_errands().collect());
            }
            Redirect::ClusterDown => {
                cluster.look_again();
                batch.fail(&StoreError::Unavailable {
                    store: Arc::clone(&self.name),
                    reason: "the cluster is down".into(),
                });
            }
        }
    }

    /// Takes charges back, all of them kept in one place. How many gave anything back.
    pub(super) async fn refund(&self, refunds: &[Refund]) -> Result<usize, StoreError> {
        let keys: Vec<String> =
            refunds.iter().map(|refund| self.shared.spell(refund.key)).collect();
        let arguments: Vec<Vec<u8>> = refunds.iter().map(refund_argument).collect();
        let script = &self.shared.scripts.refund;
        let reply: Vec<u8> = self.call_anywhere(script, &keys, &arguments).await?;
        Ok(reply.iter().filter(|given| **given == 1).count())
    }

    /// Calls a script that is not part of the traffic, wherever a cluster keeps its key.
    #[allow(
        clippy::disallowed_methods,
        reason = "keys on their way are nothing to wait for otherwise"
    )]
    pub(super) async fn call_anywhere<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        arguments: &[Vec<u8>],
    ) -> Result<T, StoreError> {
        const HOPS: usize = 16;
        let (mut node, mut asking) = (self.this.upgrade(), false);
        for _ in 0..HOPS {
            let Some(at) = node else { break };
            let link = at.link.load_full().ok_or_else(|| at.unavailable())?;
            let redirect = match at.call(&link, script, keys, arguments, asking).await {
                Ok(reply) => return Ok(reply),
                Err(Failure::Store(error)) => return Err(error),
                Err(Failure::Redirect(redirect)) => redirect,
            };
            let cluster = self.cluster.upgrade();
            node = cluster.map(|cluster| match &redirect {
                Redirect::Moved { slot, to } => cluster.moved(*slot, to),
                Redirect::Ask { to, .. } => cluster.node_at(to),
                Redirect::TryAgain | Redirect::ClusterDown => at,
            });
            asking = matches!(redirect, Redirect::Ask { .. });
            if !asking {
                tokio::time::sleep(MOVING).await;
            }
        }
        Err(self.unavailable())
    }

    /// Calls a script once, by its hash, or with its text when the server does not know it: that is
    /// the one failure after which nothing can have been done.
    async fn call<T: FromRedisValue>(
        &self,
        link: &Arc<Link>,
        script: &Script,
        keys: &[String],
        arguments: &[Vec<u8>],
        asking: bool,
    ) -> Result<T, Failure> {
        let mut reply = eval(link, "EVALSHA", &script.hash, keys, arguments, asking).await;
        if let Err(error) = &reply
            && error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
        {
            reply = eval(link, "EVAL", &script.source, keys, arguments, asking).await;
        }
        match reply {
            Ok(reply) => {
                self.failures.store(0, Ordering::Relaxed);
                Ok(reply)
            }
            Err(error) => Err(self.blame(link, &error)),
        }
    }

    /// What an error means for who asked, and for the server's standing.
    fn blame(&self, link: &Arc<Link>, error: &RedisError) -> Failure {
        if let Some(redirect) = Redirect::read(error, &link.address) {
            return Failure::Redirect(redirect);
        }
        let store = Arc::clone(&self.name);
        if error.is_timeout() {
            if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE {
                self.give_up(link, "it does not answer in time");
            }
            return Failure::Store(StoreError::Timeout {
                store,
                after: self.shared.config.timeout(),
            });
        }
        let reason: Arc<str> = describe(error).into();
        if matches!(error.kind(), ErrorKind::Server(_) | ErrorKind::Extension) {
            // It said no, so nothing was done. One that was a master and is none says so at once.
            let demoted = error.code() == Some("READONLY");
            if demoted || self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE {
                self.give_up(link, &reason);
            }
            return Failure::Store(StoreError::Unavailable { store, reason });
        }
        self.give_up(link, &reason);
        Failure::Store(StoreError::Interrupted { store, reason })
    }

    /// Asks the server nothing more until a probe was answered.
    fn give_up(&self, link: &Arc<Link>, reason: &str) {
        let held = self.link.load_full();
        if !held.is_some_and(|held| Arc::ptr_eq(&held, link)) {
            return;
        }
        *self.trouble.lock() = reason.into();
        // Another link in between is from a probe that just succeeded; its turn will come.
        self.link.store(None);
        self.up.send_replace(false);
        self.shared.counters.opened.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(store = %self.name, reason, "breaker open, rules follow on_store_failure");
        let waiting = std::mem::take(&mut self.lane.lock().waiting);
        let error = self.unavailable();
        waiting.into_iter().for_each(|errand| errand.tell(Err(error.clone())));
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.look_again();
        }
        self.open_in_background();
    }

    /// Tries until there is a connection, in the background.
    pub(super) fn open_in_background(&self) {
        if self.opening.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = Weak::clone(&self.this);
        self.shared.spawn(async move { probe(this).await });
    }

    /// Opens a connection, loads the scripts, and sees whether the server answers in time.
    pub(super) async fn open(&self) -> Result<(), OpenError> {
        let opened = self.try_open().await;
        match &opened {
            Ok(()) => {
                self.failures.store(0, Ordering::Relaxed);
                self.up.send_replace(true);
            }
            Err(error) => *self.trouble.lock() = error.to_string().into(),
        }
        opened
    }

    async fn try_open(&self) -> Result<(), OpenError> {
        let config = &self.shared.config;
        let address = match &self.place {
            Where::At(address) => address.clone(),
            Where::BySentinel { sentinels, master } => {
                sentinel::master(config, sentinels, master).await?
            }
        };
        let connection = connect::open(config, &address).await?;
        let link = Arc::new(Link { connection, address });
        for script in self.shared.scripts.all() {
            // Loading is part of connecting, and has that long.
            let mut connection = link.connection.clone();
            connection.set_response_timeout(config.connect_timeout());
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(&script.source);
            let loaded: Result<String, _> = load.query_async(&mut connection).await;
            loaded.map_err(|error| unusable(&link.address, describe(&error)))?;
        }
        // The real script on no keys: what a check would meet, within the time that a check has.
        let script = &self.shared.scripts.charge;
        let empty = [Vec::new(), Vec::new()];
        let probed: Result<Vec<u8>, _> =
            eval(&link, "EVALSHA", &script.hash, &[], &empty, false).await;
        probed.map_err(|error| unusable(&link.address, describe(&error)))?;
        self.link.store(Some(link));
        Ok(())
    }
}

/// Tries until a node has a connection or is gone.
#[allow(clippy::disallowed_methods, reason = "probes have their own pace")]
async fn probe(node: Weak<Node>) {
    let (mut pause, longest) = PROBES;
    let mut tries = 0u32;
    loop {
        let Some(node) = node.upgrade() else { return };
        match node.open().await {
            Ok(()) => {
                tracing::info!(store = %node.name, tries, "breaker closed, the server answers");
                // Who gave the server up again before this saw that somebody tries already, and left
                // it to us.
                node.opening.swap(false, Ordering::AcqRel);
                if node.is_up() || node.opening.swap(true, Ordering::AcqRel) {
                    return;
                }
                (pause, tries) = (PROBES.0, 0);
                continue;
            }
            Err(error) if tries == 0 => tracing::warn!(%error, "no connection, trying on"),
            Err(error) => tracing::debug!(%error, "no connection, trying on"),
        }
        tries = tries.saturating_add(1);
        drop(node);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}

enum Load {
    One(Batch),
    Many(Vec<Batch>),
}

fn load_all(lane: &mut Lane) -> Option<Load> {
    let mut batch = Batch::default();
    while let Some(errand) = lane.waiting.pop_front() {
        if errand.is_abandoned() {
            continue;
        }
        if let Err(errand) = batch.push(errand) {
            lane.waiting.push_front(errand);
            break;
        }
    }
    (!batch.is_empty()).then_some(Load::One(batch))
}

async fn eval<T: FromRedisValue>(
    link: &Link,
    command: &str,
    script: &str,
    keys: &[String],
    arguments: &[Vec<u8>],
    asking: bool,
) -> Result<T, RedisError> {
    let mut eval = redis::cmd(command);
    eval.arg(script).arg(keys.len()).arg(keys).arg(arguments);
    let mut connection = link.connection.clone();
    if !asking {
        return eval.query_async(&mut connection).await;
    }
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(eval);
    let (reply,) = both.query_async(&mut connection).await?;
    Ok(reply)
}

fn refund_argument(refund: &Refund) -> Vec<u8> {
    let tag = state::Tag::of(&refund.limit);
    let honoured = tag.honoured();
    let mut argument = vec![tag.algorithm(), u8::try_from(honoured.len()).unwrap_or(0)];
    argument.extend_from_slice(honoured);
    state::put_terms(&mut argument, &refund.limit.terms(refund.cost));
    state::put_slip(&mut argument, &refund.slip);
    argument
}

pub(super) fn unusable(address: &Address, reason: impl Into<String>) -> OpenError {
    OpenError::Connect { address: address.clone(), reason: reason.into() }
}

/// An error in few words: the server's own, or the network's.
pub(super) fn describe(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        (Some(code), None) => code.to_owned(),
        _ => error.to_string(),
    }
}

impl Link {
    pub(super) fn connection(&self) -> MultiplexedConnection {
        self.connection.clone()
    }

    pub(super) fn address(&self) -> &Address {
        &self.address
    }
}
