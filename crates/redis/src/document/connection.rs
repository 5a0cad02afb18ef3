//! The connection of a document: an instance of its own, opened when it is needed.

use std::pin::pin;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::{Either, select};
use redis::FromRedisValue;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::time::timeout;

use super::task::{DocumentCommand, channel};
use crate::address::Address;
use crate::config::RedisConfig;
use crate::connection::{CallError, RedisConnection, classify_error};
use crate::location::ServerLocation;
use crate::master_connection::MasterConnection;
use crate::open_error::OpenError;
use crate::redirect::{Redirect, RedirectFollower};
use crate::sentinel::{MasterReport, MasterWatch};
use crate::servers::Servers;
use crate::slots::slot_of;
use crate::subscription::Subscription;
use tidegate_limiter::store::StoreError;

/// The shortest timeout of a call, and the timeout of connecting for it: a text can be long.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The connection to the server that stores a document.
pub(crate) struct DocumentConnection {
    config: RedisConfig,
    key: String,
    name: Arc<str>,
    master: MasterConnection,
    /// Locked while a connection is opened, so that concurrent calls share it.
    opening: tokio::sync::Mutex<()>,
    /// The master of the latest failover that the sentinels reported.
    reported: watch::Sender<Option<Address>>,
    _master_watch: Option<MasterWatch>,
}

/// A subscription to new versions of a document.
pub(crate) struct VersionSubscription {
    subscription: Subscription,
    /// The server that is subscribed to.
    address: Address,
    reported: watch::Receiver<Option<Address>>,
}

impl DocumentConnection {
    pub(crate) fn new(runtime: &Handle, config: RedisConfig, name: &str) -> Arc<Self> {
        // The braces keep all keys of the document in one slot of a cluster.
        let key = format!("{}:{{document:{name}}}", config.prefix());
        let location = match config.servers() {
            Servers::Single(address) => ServerLocation::Fixed(address.clone()),
            Servers::Shards(addresses) => ServerLocation::Fixed(addresses[0].clone()),
            Servers::Sentinel { sentinels, master } => {
                ServerLocation::Sentinel { sentinels: sentinels.clone(), master: master.clone() }
            }
            Servers::Cluster(seeds) => ServerLocation::SlotOwner {
                slot: slot_of(key.as_bytes()),
                seeds: seeds.clone(),
                masters: parking_lot::Mutex::default(),
            },
        };
        let patience = config.timeout().max(CALL_TIMEOUT);
        let config = config.clone().with_timeout(patience).unwrap_or(config);
        Arc::new_cyclic(|this: &Weak<Self>| {
            let this = Weak::clone(this);
            let watch = location.watch(runtime, &config, move |report| {
                if let Some(connection) = this.upgrade() {
                    connection.master_reported(report);
                }
            });
            Self {
                key,
                name: location.to_string().into(),
                master: MasterConnection::new(location),
                opening: tokio::sync::Mutex::default(),
                reported: watch::Sender::new(None),
                _master_watch: watch,
                config,
            }
        })
    }

    pub(crate) fn key(&self) -> &str {
        &self.key
    }

    pub(crate) fn corrupt(&self, reason: &str) -> StoreError {
        StoreError::Corrupt { store: Arc::clone(&self.name), reason: reason.into() }
    }

    /// Returns the failure of a call that was not done.
    pub(crate) fn unavailable(&self, reason: &str) -> StoreError {
        // The error names the server already.
        let reason = reason
            .strip_prefix(&*self.name)
            .map_or(reason, |reason| reason.strip_prefix(": ").unwrap_or(reason));
        StoreError::Unavailable { store: Arc::clone(&self.name), reason: reason.into() }
    }

    /// Connects, if there is no connection that answers.
    pub(crate) async fn open(&self) -> Result<(), OpenError> {
        self.connection().await.map(drop)
    }

    /// Sends a task once. Only a redirect, which proves that nothing was done, has it sent again.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        task: DocumentCommand,
    ) -> Result<T, StoreError> {
        let mut connection = self.connection_in_time().await?;
        let (mut follower, mut asking) = (None, false);
        loop {
            let error = match connection.query_asking(task.command(), asking).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let store = format!("redis {}", connection.address()).into();
            let timeout = self.config.timeout();
            let redirect = match classify_error(&error, connection.address(), &store, timeout) {
                CallError::Redirect(redirect) => redirect,
                CallError::Store(error) => {
                    self.master.remove(&connection);
                    return Err(error);
                }
            };
            let follower = follower.get_or_insert_with(|| RedirectFollower::new(timeout));
            let waited = follower.wait(&redirect).await;
            waited.map_err(|reason| self.unavailable(reason))?;
            asking = matches!(redirect, Redirect::Ask { .. });
            if let Redirect::Moved { to, .. } | Redirect::Ask { to, .. } = &redirect {
                let opened = RedisConnection::open(&self.config, to).await;
                let opened = opened.map_err(|error| self.unavailable(&error.to_string()))?;
                connection = Arc::new(opened);
            }
            if let Redirect::Moved { .. } = redirect {
                self.master.redirect(&connection);
            }
        }
    }

    /// Subscribes to new versions at the server that stores the document.
    pub(crate) async fn subscribe(&self) -> Result<VersionSubscription, OpenError> {
        // Before the server is searched for: a later report counts.
        let reported = self.reported.subscribe();
        let (config, MasterReport { address, .. }) =
            (&self.config, self.master.find(&self.config).await?);
        let (login, database, channel) = (config.login(), config.database(), channel(&self.key));
        let subscription = Subscription::open(config, &address, login, database, channel).await?;
        Ok(VersionSubscription { subscription, address, reported })
    }

    async fn connection_in_time(&self) -> Result<Arc<RedisConnection>, StoreError> {
        match timeout(CALL_TIMEOUT, self.connection()).await {
            Ok(connection) => connection.map_err(|error| self.unavailable(&error.to_string())),
            Err(_) => {
                let after = CALL_TIMEOUT.as_secs();
                Err(self.unavailable(&format!("no connection within {after}s")))
            }
        }
    }

    /// Returns a connection that has just answered: a task is sent once, and would be lost on a connection that was
    /// closed since the last one.
    async fn connection(&self) -> Result<Arc<RedisConnection>, OpenError> {
        let _opening = self.opening.lock().await;
        if let Some(connection) = self.master.get() {
            let ping = redis::cmd("PING");
            let pong = connection.query::<redis::Value>(&ping);
            if matches!(timeout(self.config.connect_timeout(), pong).await, Ok(Ok(_))) {
                return Ok(connection);
            }
            self.master.remove(&connection);
        }
        self.master.replace(self.master.open(&self.config).await?)
    }

    /// Stops using the connection if a sentinel reports a later failover, to another server.
    fn master_reported(&self, report: &MasterReport) {
        if !self.master.note_report(report) {
            return;
        }
        self.reported.send_replace(Some(report.address.clone()));
        if let Some(connection) = self.master.get()
            && *connection.address() != report.address
        {
            self.master.remove(&connection);
        }
    }
}

impl VersionSubscription {
    /// Returns once a version was published.
    ///
    /// # Errors
    /// The subscription ended: the reason.
    pub(crate) async fn next(&mut self) -> Result<(), &'static str> {
        let switched = switched(&mut self.reported, &self.address);
        match select(pin!(self.subscription.next()), pin!(switched)).await {
            Either::Left((message, _)) => message.map(drop),
            Either::Right(_) => Err("the sentinels made another server the master"),
        }
    }
}

/// Returns once the sentinels report another master than this one.
async fn switched(reported: &mut watch::Receiver<Option<Address>>, address: &Address) {
    while reported.changed().await.is_ok() {
        if reported.borrow_and_update().as_ref().is_some_and(|reported| reported != address) {
            return;
        }
    }
}

impl std::fmt::Debug for DocumentConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DocumentConnection")
            .field("name", &self.name)
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}
