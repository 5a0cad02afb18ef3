//! Getting a connection, and getting one again.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::super::connect::{self, OpenError};
use super::super::sentinel::{self, MasterReport};
use super::call::eval;
use super::{Link, Node, Where, describe, unusable};

/// The first and the longest pause between probes.
const PROBES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

impl Node {
    /// Tries until there is a connection, in the background.
    pub(in super::super) fn open_in_background(&self) {
        if self.opening.swap(true, Ordering::AcqRel) {
            return;
        }
        let this = Weak::clone(&self.this);
        self.shared.spawn(async move { probe(this).await });
    }

    /// Opens a connection, loads the scripts, sees whether the server answers in time, and renews the slots
    /// in flight that this process holds there.
    pub(in super::super) async fn open(&self) -> Result<(), OpenError> {
        let opened = self.try_open().await;
        match &opened {
            Ok(()) => {
                self.failures.store(0, Ordering::Relaxed);
                self.up.send_replace(true);
            }
            Err(error) => {
                // Whoever tells of the trouble names the server as well.
                let text = error.to_string();
                let reason = text.strip_prefix(&format!("{}: ", self.name));
                *self.trouble.lock() = reason.unwrap_or(&text).into();
            }
        }
        opened
    }

    async fn try_open(&self) -> Result<(), OpenError> {
        let config = &self.shared.config;
        let seen = *self.epoch.lock();
        let MasterReport { address, epoch } = match &self.place {
            Where::At(address) => MasterReport { address: address.clone(), epoch: 0 },
            Where::BySentinel { sentinels, master } => {
                sentinel::master(config, sentinels, master, seen).await?
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
        let held = self.shared.held.all();
        self.renew_held(&link, &held).await?;
        let mut known = self.epoch.lock();
        if *known > seen && *known > epoch {
            return Err(unusable(&link.address, "another server became the master meanwhile"));
        }
        // It may be an earlier one: of sentinels that were set up anew.
        *known = epoch;
        if self.tally.note_connection(&link.address) {
            self.shared.counters.failovers.fetch_add(1, Ordering::Relaxed);
        }
        self.link.store(Some(link));
        drop(known);
        self.release_dropped(held);
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
