//! Connecting to a server, and connecting again: the half-open state of the breaker.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::ErrorKind;
use tidegate_core::Key;

use super::{Node, refund_argument};
use crate::connection::RedisConnection;
use crate::held_slots::HeldSlot;
use crate::location::ServerLocation;
use crate::open_error::{OpenError, describe_error};
use crate::rendezvous::RendezvousHash;
use crate::reply_guard::SlotReleaser;
use crate::script::ScriptCall;
use crate::servers::Servers;
use crate::slots::slot_of;
use tidegate_limiter::store::Refund;

/// The first and the longest pause between two probes.
const PROBE_BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// Slots that one script call renews at most. Each call runs for well under a millisecond.
const RENEWALS_PER_CALL: usize = 128;

impl Node {
    /// Follows the sentinels, if there are any, and connects in the background if there is no connection.
    pub(crate) fn keep_open(&self) {
        let (location, this) = (self.master.location(), Weak::clone(&self.this));
        let watch = location.watch(&self.shared.runtime, &self.shared.config, move |report| {
            if let Some(node) = this.upgrade() {
                node.master_reported(report);
            }
        });
        if let Some(watch) = watch {
            let _ = self.master_watch.set(watch);
        }
        if !self.is_up() {
            self.open_in_background();
        }
    }

    /// Connects in the background, as often as it takes.
    pub(crate) fn open_in_background(&self) {
        if !self.reconnecting.swap(true, Ordering::AcqRel) {
            self.shared.spawn(probe(Weak::clone(&self.this)));
        }
    }

    /// Connects, loads the scripts, checks that the server answers in time, and renews the slots in flight that this
    /// process holds there.
    ///
    /// # Errors
    /// The server can't be used.
    pub(crate) async fn open(&self) -> Result<(), OpenError> {
        let opened = self.try_open().await;
        if let Err(error) = &opened {
            // The error of a call names the server as well.
            let text = error.to_string();
            let reason = text.strip_prefix(&format!("{}: ", self.name));
            *self.last_error.lock() = reason.unwrap_or(&text).into();
        }
        opened
    }

    async fn try_open(&self) -> Result<(), OpenError> {
        let config = &self.shared.config;
        let new = self.master.open(config).await?;
        let failed = |error: redis::RedisError| {
            OpenError::connect(new.connection().address(), describe_error(&error))
        };
        // Loading and renewing are part of connecting, and have as much time.
        let patient = new.connection().with_timeout(config.connect_timeout());
        for script in self.shared.scripts.all() {
            let mut load = redis::cmd("SCRIPT");
            load.arg("LOAD").arg(&script.source);
            let _: String = patient.query(&load).await.map_err(failed)?;
        }
        // The charge script without keys, within the timeout of a charge.
        let empty = [Vec::new(), Vec::new()];
        let script = &self.shared.scripts.charge;
        let probe = ScriptCall { script, keys: &[], arguments: &empty };
        let _: Vec<u8> = new.connection().query(&probe.by_hash()).await.map_err(failed)?;
        let held = self.shared.held.all();
        self.renew_held(&patient, &held).await?;
        {
            let _consistent = self.last_error.lock();
            let connection = self.master.replace(new)?;
            if self.stats.record_connection(connection.address()) {
                self.shared.counters.failovers.fetch_add(1, Ordering::Relaxed);
            }
            self.failures.store(0, Ordering::Relaxed);
            self.up.send_replace(true);
        }
        self.release_dropped(held);
        Ok(())
    }

    /// Renews the slots that guards of this process hold on the server. Checks are sent to the server only afterwards,
    /// so this process takes no slot there while it holds some that do not count.
    ///
    /// # Errors
    /// The server did not answer in time. A call that it refuses is logged: guards renew again later.
    async fn renew_held(
        &self,
        connection: &RedisConnection,
        held: &[HeldSlot],
    ) -> Result<(), OpenError> {
        // Keys of one call have to be in one slot of a cluster; slots of one key are read and written once.
        let mut groups: BTreeMap<(u16, Key), Vec<&Refund>> = BTreeMap::new();
        let is_own = self.own_keys();
        for slots in held.iter().map(|held| &held.slots).filter(|slots| is_own(slots.key)) {
            let group = match self.shared.config.servers() {
                Servers::Cluster(_) => slot_of(self.shared.counter_key(slots.key).as_bytes()),
                Servers::Single(_) | Servers::Sentinel { .. } | Servers::Shards(_) => 0,
            };
            groups.entry((group, slots.key)).or_default().push(slots);
        }
        let groups: Vec<(u16, &Refund)> = groups
            .into_iter()
            .flat_map(|((group, _), slots)| slots.into_iter().map(move |slots| (group, slots)))
            .collect();
        for group in groups.chunk_by(|one, other| one.0 == other.0) {
            for call in group.chunks(RENEWALS_PER_CALL) {
                let keys: Vec<String> =
                    call.iter().map(|(_, slots)| self.shared.counter_key(slots.key)).collect();
                let arguments: Vec<Vec<u8>> =
                    call.iter().map(|(_, slots)| refund_argument(slots, true)).collect();
                let script = &self.shared.scripts.refund;
                let call = ScriptCall { script, keys: &keys, arguments: &arguments };
                let renewed: Result<Vec<u8>, _> = connection.query(&call.by_hash()).await;
                match renewed {
                    Ok(_) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::Server(_)) => {
                        let (store, error) = (&self.name, describe_error(&error));
                        tracing::warn!(%store, error, "slots in flight not renewed at reconnect");
                    }
                    Err(error) => {
                        let reason = describe_error(&error);
                        return Err(OpenError::connect(connection.address(), reason));
                    }
                }
            }
        }
        Ok(())
    }

    /// Releases the slots of guards that were dropped while their slots were renewed: their own release found no
    /// connection.
    fn release_dropped(&self, held: Vec<HeldSlot>) {
        let (is_own, dropped) = (self.own_keys(), self.shared.held.dropped(held));
        for slots in dropped.into_iter().filter(|slots| is_own(slots.key)) {
            self.release(vec![slots]);
        }
    }

    /// Returns a filter of the keys that are stored on this server.
    fn own_keys(&self) -> Box<dyn Fn(Key) -> bool + Send + Sync + '_> {
        match (self.shared.config.servers(), self.master.location()) {
            (Servers::Shards(addresses), ServerLocation::Fixed(own)) => {
                let hash = RendezvousHash::new(addresses);
                Box::new(move |key| addresses.get(hash.shard_of(key.as_u128())) == Some(own))
            }
            (Servers::Cluster(_), _) => {
                let cluster = self.cluster.upgrade();
                Box::new(move |key| {
                    let slot = slot_of(self.shared.counter_key(key).as_bytes());
                    let owner = cluster.as_ref().and_then(|cluster| cluster.node_of(slot));
                    owner.is_some_and(|owner| std::ptr::eq(&*owner, self))
                })
            }
            (Servers::Single(_) | Servers::Sentinel { .. } | Servers::Shards(_), _) => {
                Box::new(|_| true)
            }
        }
    }
}

/// Connects until a node has a connection or is dropped.
#[allow(clippy::disallowed_methods, reason = "probes have their own pace")]
async fn probe(node: Weak<Node>) {
    let (mut pause, longest) = PROBE_BACKOFF;
    let mut attempt = 0u32;
    loop {
        let Some(node) = node.upgrade() else { return };
        match node.open().await {
            Ok(()) => {
                tracing::info!(store = %node.name, attempt, "breaker closed, the server answers");
                // If the breaker opened again before this line, it left the reconnecting to this task.
                node.reconnecting.swap(false, Ordering::AcqRel);
                if node.is_up() || node.reconnecting.swap(true, Ordering::AcqRel) {
                    return;
                }
                (pause, attempt) = (PROBE_BACKOFF.0, 0);
                continue;
            }
            Err(error) if attempt == 0 => {
                tracing::warn!(%error, "cannot connect to Redis, retrying");
            }
            Err(error) => tracing::debug!(%error, attempt, "cannot connect to Redis, retrying"),
        }
        attempt = attempt.saturating_add(1);
        drop(node);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest);
    }
}
