//! The connection of a document: to whoever keeps it now, opened when it is needed.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{ErrorKind, FromRedisValue, RedisError};
use tokio::time::timeout;

use super::super::address::Address;
use super::super::config::RedisConfig;
use super::super::connect::{self, OpenError};
use super::super::node::{describe, unusable};
use super::super::redirect::Redirect;
use super::super::sentinel;
use super::super::servers::Servers;
use super::super::slots::{SlotMap, slot_of};
use super::super::subscription::Subscription;
use super::task::{Task, channel};
use crate::store::StoreError;

/// How long a command may take, and as long getting a connection for it: a text can be long.
const PATIENCE: Duration = Duration::from_secs(5);
/// How often a cluster may send us elsewhere.
const HOPS: usize = 16;
/// How long to wait for a cluster that is in between.
const MOVING: Duration = Duration::from_millis(50);

/// The way to a document.
pub(super) struct Line {
    config: RedisConfig,
    key: String,
    name: Arc<str>,
    /// Held while a connection is opened: whoever else needs one waits for it.
    link: tokio::sync::Mutex<Option<Arc<Link>>>,
    /// Masters of the cluster as they last were, to be asked where they are now.
    masters: Mutex<Vec<Address>>,
}

struct Link {
    connection: MultiplexedConnection,
    address: Address,
}

impl Line {
    pub(super) fn new(config: RedisConfig, name: &str) -> Self {
        // The braces keep all that belongs to it in one slot of a cluster.
        let key = format!("{}:{{document:{name}}}", config.prefix());
        let name = match config.servers() {
            Servers::Single(address) => format!("redis {address}"),
            Servers::Sentinel { master, .. } => format!("redis {master}"),
            Servers::Shards(addresses) => format!("redis {}", addresses[0]),
            Servers::Cluster(_) => "redis cluster".to_owned(),
        };
        let patience = config.timeout().max(PATIENCE);
        let config = config.clone().with_timeout(patience).unwrap_or(config);
        let (link, masters) = (tokio::sync::Mutex::default(), Mutex::default());
        Self { config, key, name: name.into(), link, masters }
    }

    pub(super) fn key(&self) -> &str {
        &self.key
    }

    pub(super) fn corrupt(&self, reason: &str) -> StoreError {
        StoreError::Corrupt { store: Arc::clone(&self.name), reason: reason.into() }
    }

    /// Nothing was done.
    pub(super) fn unavailable(&self, reason: &str) -> StoreError {
        // Who tells of it names the server already.
        let reason = reason
            .strip_prefix(&*self.name)
            .map_or(reason, |reason| reason.strip_prefix(": ").unwrap_or(reason));
        StoreError::Unavailable { store: Arc::clone(&self.name), reason: reason.into() }
    }

    /// Opens a connection, if there is none that answers.
    pub(super) async fn open(&self) -> Result<(), OpenError> {
        self.link().await.map(drop)
    }

    /// Has a task done once. Only what proves that nothing was done sends it elsewhere.
    #[allow(clippy::disallowed_methods, reason = "a cluster in between is nothing to wait for")]
    pub(super) async fn run<T: FromRedisValue>(&self, task: Task) -> Result<T, StoreError> {
        let mut link = self.link_in_time().await?;
        let mut asking = false;
        for _ in 0..HOPS {
            let error = match send(&link, &task, asking).await {
                Ok(reply) => return Ok(reply),
                Err(error) => error,
            };
            let opened = match Redirect::read(&error, &link.address) {
                None => return Err(self.blame(&link, &error)),
                Some(Redirect::Moved { to, .. }) => {
                    asking = false;
                    self.forget(&link);
                    self.open_at(&to).await.inspect(|link| self.keep(link))
                }
                Some(Redirect::Ask { to, .. }) => {
                    asking = true;
                    self.open_at(&to).await
                }
                Some(Redirect::TryAgain | Redirect::ClusterDown) => {
                    asking = false;
                    tokio::time::sleep(MOVING).await;
                    self.forget(&link);
                    self.link().await
                }
            };
            link = opened.map_err(|error| self.unavailable(&error.to_string()))?;
        }
        Err(self.unavailable("it is sent from node to node of the cluster"))
    }

    /// Subscribes to new versions at the server that keeps the document; in a cluster any node would do.
    pub(super) async fn subscribe(&self) -> Result<Subscription, OpenError> {
        let (config, place) = (&self.config, self.place().await?);
        let (login, database, channel) = (config.login(), config.database(), channel(&self.key));
        Subscription::open(config, &place, login, database, channel).await
    }

    /// Where the document is kept now.
    pub(super) async fn place(&self) -> Result<Address, OpenError> {
        match self.config.servers() {
            Servers::Single(address) => Ok(address.clone()),
            Servers::Shards(addresses) => Ok(addresses[0].clone()),
            Servers::Sentinel { sentinels, master } => {
                let found = sentinel::master(&self.config, sentinels, master, 0).await?;
                Ok(found.address)
            }
            Servers::Cluster(seeds) => {
                let mut last = unusable(&seeds[0], "no node of the cluster answers");
                let known = self.masters.lock().clone();
                for address in known.iter().chain(seeds) {
                    match self.ask(address).await {
                        Ok(place) => return Ok(place),
                        Err(error) => last = error,
                    }
                }
                Err(last)
            }
        }
    }

    /// Where a node of the cluster says that the document is kept.
    async fn ask(&self, address: &Address) -> Result<Address, OpenError> {
        let (mut connection, _) = connect::open_any(&self.config, address).await?;
        let reply = redis::cmd("CLUSTER").arg("SLOTS").query_async(&mut connection).await;
        let reply = reply.map_err(|error| unusable(address, describe(&error)))?;
        let map = SlotMap::read(&reply, address).map_err(|reason| unusable(address, reason))?;
        let slot = slot_of(self.key.as_bytes());
        let Some(place) = map.master_of(slot) else {
            return Err(unusable(address, format!("no node is known to serve slot {slot}")));
        };
        *self.masters.lock() = map.masters().cloned().collect();
        Ok(place.clone())
    }

    async fn open_at(&self, address: &Address) -> Result<Arc<Link>, OpenError> {
        let connection = connect::open(&self.config, address).await?;
        Ok(Arc::new(Link { connection, address: address.clone() }))
    }

    async fn link_in_time(&self) -> Result<Arc<Link>, StoreError> {
        match timeout(PATIENCE, self.link()).await {
            Ok(link) => link.map_err(|error| self.unavailable(&error.to_string())),
            Err(_) => {
                let after = PATIENCE.as_secs();
                Err(self.unavailable(&format!("no connection within {after}s")))
            }
        }
    }

    /// A connection that has just answered: what is sent on it once is not sent into the void because
    /// the server went away since the last time.
    async fn link(&self) -> Result<Arc<Link>, OpenError> {
        let mut held = self.link.lock().await;
        if let Some(link) = held.take()
            && link.answers(self.config.connect_timeout()).await
        {
            *held = Some(Arc::clone(&link));
            return Ok(link);
        }
        let link = self.open_at(&self.place().await?).await?;
        *held = Some(Arc::clone(&link));
        Ok(link)
    }

    fn keep(&self, link: &Arc<Link>) {
        // Whoever holds the lock is about to find one.
        if let Ok(mut held) = self.link.try_lock() {
            *held = Some(Arc::clone(link));
        }
    }

    fn forget(&self, link: &Arc<Link>) {
        if let Ok(mut held) = self.link.try_lock() {
            held.take_if(|held| Arc::ptr_eq(held, link));
        }
    }

    /// What an error means for who asked. The connection is not used again.
    fn blame(&self, link: &Arc<Link>, error: &RedisError) -> StoreError {
        self.forget(link);
        let store: Arc<str> = format!("redis {}", link.address).into();
        if error.is_timeout() {
            return StoreError::Timeout { store, after: self.config.timeout() };
        }
        let reason: Arc<str> = describe(error).into();
        match (error.kind(), error.code()) {
            (_, Some("CORRUPT" | "WRONGTYPE"))
            | (ErrorKind::Parse | ErrorKind::UnexpectedReturnType, _) => {
                StoreError::Corrupt { store, reason }
            }
            // It said no, so nothing was done.
            (ErrorKind::Server(_) | ErrorKind::Extension, _) => {
                StoreError::Unavailable { store, reason }
            }
            _ => StoreError::Interrupted { store, reason },
        }
    }
}

impl Link {
    async fn answers(&self, patience: Duration) -> bool {
        let mut connection = self.connection.clone();
        let ping = redis::cmd("PING");
        let pong = timeout(patience, ping.query_async::<redis::Value>(&mut connection)).await;
        pong.is_ok_and(|pong| pong.is_ok())
    }
}

async fn send<T: FromRedisValue>(link: &Link, task: &Task, asking: bool) -> Result<T, RedisError> {
    let mut connection = link.connection.clone();
    if !asking {
        return task.command().query_async(&mut connection).await;
    }
    let mut both = redis::pipe();
    both.cmd("ASKING").ignore().add_command(task.command().clone());
    let (reply,) = both.query_async(&mut connection).await?;
    Ok(reply)
}

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("name", &self.name).field("key", &self.key).finish()
    }
}
