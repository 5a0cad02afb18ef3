//! One Redis server: what waits for it, what is under way, and whether it can be asked at all.
//!
//! Requests that arrive while calls are under way wait, and travel together in the next: without
//! traffic nobody waits for company. A server that fails is not asked again until a probe in the
//! background was answered in time.

mod call;
mod held;
mod lane;
mod probe;
mod tally;

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, RedisError};
use tokio::sync::watch;

use self::lane::Lane;
use self::tally::Tally;
use super::address::Address;
use super::cluster::Cluster;
use super::connect::OpenError;
use super::redirect::Redirect;
use super::sentinel::MasterReport;
use super::shared::Shared;
use crate::store::StoreError;

pub(super) use self::held::HeldSlots;

/// Failed calls in a row after which a server is not asked any more.
const PATIENCE: u32 = 5;
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
    tally: Tally,
    /// The latest failover that is known of, by the sentinels' configuration epoch. Locked while a link is
    /// stored, so that none of an earlier epoch is stored after a report.
    epoch: Mutex<u64>,
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
            tally: Tally::default(),
            epoch: Mutex::new(0),
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

    /// Returns a future that ends when this is dropped.
    pub(super) fn dropped(&self) -> impl Future<Output = ()> + Send + use<> {
        let mut up = self.up.subscribe();
        async move { while up.changed().await.is_ok() {} }
    }

    /// Stops using the connection at once if a sentinel reports a later failover, to another server.
    pub(super) fn master_reported(&self, report: &MasterReport) {
        let link = {
            let mut epoch = self.epoch.lock();
            if report.epoch <= *epoch {
                return;
            }
            *epoch = report.epoch;
            self.link()
        };
        if let Some(link) = link.filter(|link| link.address != report.address) {
            self.give_up(&link, &format!("the sentinels made {} the master", report.address));
        }
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

    /// What an error means for who asked, and for the server's standing.
    fn blame(&self, link: &Arc<Link>, error: &RedisError) -> Failure {
        if let Some(redirect) = Redirect::read(error, &link.address) {
            return Failure::Redirect(redirect);
        }
        let store = Arc::clone(&self.name);
        if error.is_timeout() {
            self.tally.timeouts.fetch_add(1, Ordering::Relaxed);
            if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= PATIENCE {
                self.give_up(link, "it does not answer in time");
            }
            return Failure::Store(StoreError::Timeout {
                store,
                after: self.shared.config.timeout(),
            });
        }
        self.tally.failures.fetch_add(1, Ordering::Relaxed);
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
        self.tally.opened.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(store = %self.name, reason, "breaker open, rules follow on_store_failure");
        let waiting = std::mem::take(&mut self.lane.lock().waiting);
        let error = self.unavailable();
        waiting.into_iter().for_each(|errand| errand.tell(Err(error.clone())));
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.look_again();
        }
        self.open_in_background();
    }
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
