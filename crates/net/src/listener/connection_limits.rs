//! Limits of the open connections of a listener: of their number, and of the connections of one client address.
//!
//! A listener that is full closes its connection that was idle for the longest time. It never closes a connection of
//! another listener.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use ipnet::IpNet;
use parking_lot::Mutex;
use tidegate_core::Timestamp;
use tidegate_core::address::client_network;

use crate::listener::connection_counts::{OpenConnection, RefusalReason};
use crate::listener::timeouts::ConnectionWatcher;
use crate::listener::{Activity, ConnectionCounts};
use crate::log_interval::LogInterval;

/// One of so many connections may be in the process of closing beside the maximum.
const CLOSING_SHARE: usize = 16;

/// The maximum number of connections of one client address.
#[derive(Clone, Debug)]
pub struct ClientLimit {
    /// Most connections of one address, or of one IPv6 prefix, at a listener.
    pub connections: usize,
    /// Length in bits of the IPv6 prefix that counts as one address.
    pub ipv6_prefix: u8,
    /// Addresses without this limit, beside loopback: proxies, which have many clients.
    pub exempt: Arc<[IpNet]>,
}

/// The limits of one listener. Listeners of several threads at one address share them.
#[derive(Debug)]
pub struct ConnectionLimits {
    listener: &'static str,
    max: usize,
    client_limit: Option<ClientLimit>,
    counts: Arc<ConnectionCounts>,
    /// Open connections that were evicted and have not ended yet. They do not count toward the maximum.
    closing: AtomicUsize,
    /// Open connections by client address. It has no entry for addresses without one.
    clients: Mutex<HashMap<IpAddr, usize>>,
    /// One for each socket of the listener.
    watchers: Mutex<Vec<Arc<Mutex<ConnectionWatcher>>>>,
    refusal_log: LogInterval,
    eviction_log: LogInterval,
}

/// A connection that counts toward the limits until this is dropped.
#[derive(Debug)]
pub(crate) struct AdmittedConnection {
    limits: Arc<ConnectionLimits>,
    client: Option<IpAddr>,
    activity: Arc<Activity>,
    _open: OpenConnection,
}

impl ConnectionLimits {
    /// Returns the limits of a listener with at most `max` connections.
    pub fn new(listener: &'static str, max: usize, client_limit: Option<ClientLimit>) -> Self {
        Self {
            listener,
            max,
            client_limit,
            counts: Arc::new(ConnectionCounts::new(max)),
            closing: AtomicUsize::new(0),
            clients: Mutex::default(),
            watchers: Mutex::default(),
            refusal_log: LogInterval::default(),
            eviction_log: LogInterval::default(),
        }
    }

    /// Returns these limits with a limit of connections to upstreams.
    #[must_use]
    pub fn with_max_upstream(self, max: usize) -> Self {
        Self { counts: Arc::new(ConnectionCounts::new(self.max).with_max_upstream(max)), ..self }
    }

    /// Returns the name of the listener.
    pub fn listener(&self) -> &'static str {
        self.listener
    }

    /// Returns the counters of the listener.
    pub fn counts(&self) -> &Arc<ConnectionCounts> {
        &self.counts
    }

    /// Returns the most connections that close beside `max` open ones. Each still has its file descriptor.
    pub fn max_closing(max: usize) -> usize {
        max.div_ceil(CLOSING_SHARE)
    }

    /// Adds the connections of one socket.
    pub(crate) fn add_watcher(&self, watcher: &Arc<Mutex<ConnectionWatcher>>) {
        self.watchers.lock().push(Arc::clone(watcher));
    }

    /// Admits a new connection, and closes an idle one if there are too many. `None` if the new one has to be closed.
    pub(crate) fn admit(
        self: &Arc<Self>,
        address: IpAddr,
        activity: &Arc<Activity>,
        now: Timestamp,
    ) -> Option<AdmittedConnection> {
        let client = match self.add_client(address) {
            Ok(client) => client,
            Err(max) => {
                self.refuse(RefusalReason::Client, address, max, now);
                return None;
            }
        };
        let admitted = AdmittedConnection {
            limits: Arc::clone(self),
            client,
            activity: Arc::clone(activity),
            _open: self.counts.accept(),
        };
        let open = usize::try_from(self.counts.open()).unwrap_or(usize::MAX);
        let is_full = open.saturating_sub(self.closing.load(Ordering::Relaxed)) > self.max;
        if is_full && !self.evict(now) {
            self.refuse(RefusalReason::Full, address, self.max, now);
            return None;
        }
        Some(admitted)
    }

    /// Closes the connection that was idle for the longest time. Returns `false` if none is idle, or too many are still
    /// closing.
    pub(crate) fn evict(&self, now: Timestamp) -> bool {
        let watchers = self.watchers.lock();
        if self.closing.load(Ordering::Relaxed) >= Self::max_closing(self.max)
            && !watchers.iter().any(|watcher| watcher.lock().abort_evicted())
        {
            return false;
        }
        let idle =
            watchers.iter().filter_map(|watcher| Some((watcher.lock().idle_age()?, watcher)));
        let Some((_, watcher)) = idle.max_by_key(|(age, _)| *age) else { return false };
        // The count first: the connection may end before the call returns.
        self.closing.fetch_add(1, Ordering::Relaxed);
        if !watcher.lock().evict_idle() {
            self.closing.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        self.counts.count_evicted();
        if let Some(suppressed) = self.eviction_log.permit(now) {
            tracing::warn!(
                listener = self.listener,
                max = self.max,
                suppressed,
                "listener has its maximum of connections, the one that was idle for the longest time is closed"
            );
        }
        true
    }

    /// Counts a connection that can't be accepted, and closes an idle one to free its file descriptor.
    pub(crate) fn on_accept_error(&self, error: &io::Error, now: Timestamp) {
        self.counts.count_refused(RefusalReason::Files);
        let evicted = self.evict(now);
        if let Some(suppressed) = self.refusal_log.permit(now) {
            tracing::warn!(
                listener = self.listener,
                %error,
                evicted,
                suppressed,
                "cannot accept a connection, retrying"
            );
        }
    }

    fn refuse(&self, reason: RefusalReason, address: IpAddr, max: usize, now: Timestamp) {
        self.counts.count_refused(reason);
        if let Some(suppressed) = self.refusal_log.permit(now) {
            tracing::warn!(
                listener = self.listener,
                reason = reason.label(),
                %address,
                max,
                suppressed,
                "connection refused"
            );
        }
    }

    /// Counts a connection of a client, unless its address has no limit. Returns the entry to release at its end.
    ///
    /// # Errors
    /// The client has its maximum of connections, which is returned.
    fn add_client(&self, address: IpAddr) -> Result<Option<IpAddr>, usize> {
        let Some(limit) = &self.client_limit else { return Ok(None) };
        let address = address.to_canonical();
        if address.is_loopback() || limit.exempt.iter().any(|network| network.contains(&address)) {
            return Ok(None);
        }
        let client = client_network(address, limit.ipv6_prefix);
        let mut clients = self.clients.lock();
        let open = clients.entry(client).or_default();
        if *open >= limit.connections {
            return Err(limit.connections);
        }
        *open += 1;
        Ok(Some(client))
    }

    fn remove_client(&self, client: IpAddr) {
        if let Entry::Occupied(mut entry) = self.clients.lock().entry(client) {
            *entry.get_mut() -= 1;
            if *entry.get() == 0 {
                entry.remove();
            }
        }
    }
}

impl Drop for AdmittedConnection {
    fn drop(&mut self) {
        if let Some(client) = self.client {
            self.limits.remove_client(client);
        }
        if self.activity.end() {
            self.limits.closing.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::{ConnectionTimeouts, Phase};

    const NOW: Timestamp = Timestamp::from_secs(1_780_000_000);

    struct Fixture {
        limits: Arc<ConnectionLimits>,
        watcher: Arc<Mutex<ConnectionWatcher>>,
        now: Timestamp,
        tasks: Vec<tokio::task::JoinHandle<()>>,
    }

    impl Fixture {
        fn new(max: usize, client_limit: Option<ClientLimit>) -> Self {
            let limits = Arc::new(ConnectionLimits::new("test", max, client_limit));
            let watcher = ConnectionWatcher::new(ConnectionTimeouts::default(), NOW);
            let watcher = Arc::new(Mutex::new(watcher));
            limits.add_watcher(&watcher);
            Self { limits, watcher, now: NOW, tasks: Vec::new() }
        }

        fn admit(&self, address: &str) -> Option<AdmittedConnection> {
            let activity = self.watcher.lock().activity();
            self.limits.admit(address.parse().unwrap(), &activity, self.now)
        }

        /// Opens a connection that ends when it is closed.
        fn open(&mut self) -> Option<Arc<Activity>> {
            let activity = self.watcher.lock().activity();
            let admitted = self.limits.admit([127, 0, 0, 1].into(), &activity, self.now)?;
            let served = Arc::clone(&activity);
            let task = tokio::spawn(async move {
                served.closed().await;
                drop(admitted);
            });
            self.watcher.lock().watch(Arc::clone(&activity), task.abort_handle());
            self.tasks.push(task);
            Some(activity)
        }

        fn sweep(&mut self) {
            self.now = self.now + crate::listener::SWEEP_INTERVAL;
            self.watcher.lock().sweep(self.now);
        }
    }

    fn client_limit(connections: usize, exempt: &[&str]) -> Option<ClientLimit> {
        let exempt = exempt.iter().map(|network| network.parse().unwrap()).collect();
        Some(ClientLimit { connections, ipv6_prefix: 64, exempt })
    }

    #[tokio::test]
    async fn full_listener_closes_the_connection_that_was_idle_for_the_longest_time() {
        let mut fixture = Fixture::new(3, None);
        let [busy, older, newer] = [(); 3].map(|()| fixture.open().unwrap());
        busy.set_phase(Phase::Request);
        older.set_phase(Phase::Idle);
        fixture.sweep();
        newer.set_phase(Phase::Idle);
        fixture.sweep();
        assert!(fixture.open().is_some());
        assert_eq!(
            [&busy, &older, &newer].map(|activity| activity.is_closing()),
            [false, true, false]
        );
        fixture.tasks.remove(1).await.unwrap();
        assert!(fixture.open().is_some());
        assert!(newer.is_closing() && !busy.is_closing());
        assert_eq!(
            (fixture.limits.counts.evicted(), fixture.limits.counts.refused(RefusalReason::Full)),
            (2, 0)
        );
    }

    #[tokio::test]
    async fn connection_is_refused_if_all_others_are_busy() {
        let mut fixture = Fixture::new(2, None);
        let busy = [(); 2].map(|()| fixture.open().unwrap());
        busy.iter().for_each(|activity| activity.set_phase(Phase::Request));
        fixture.sweep();
        assert!(fixture.open().is_none());
        assert_eq!(fixture.limits.counts.refused(RefusalReason::Full), 1);
        assert_eq!(fixture.limits.counts.open(), 2);
        busy[1].set_phase(Phase::Idle);
        assert!(fixture.open().is_some());
    }

    #[tokio::test]
    async fn connection_without_a_request_is_evicted_only_after_a_second() {
        let mut fixture = Fixture::new(1, None);
        let silent = fixture.open().unwrap();
        assert!(fixture.open().is_none());
        fixture.sweep();
        fixture.sweep();
        assert!(fixture.open().is_some());
        assert!(silent.is_closing());
    }

    #[tokio::test]
    async fn evicted_connection_that_does_not_end_is_aborted() {
        let mut fixture = Fixture::new(1, None);
        let activity = fixture.watcher.lock().activity();
        let admitted = fixture.limits.admit([127, 0, 0, 1].into(), &activity, NOW).unwrap();
        let stuck = tokio::spawn(async move {
            let _admitted = admitted;
            std::future::pending::<()>().await;
        });
        fixture.watcher.lock().watch(Arc::clone(&activity), stuck.abort_handle());
        activity.set_phase(Phase::Idle);
        assert!(fixture.open().is_some());
        assert_eq!(fixture.limits.closing.load(Ordering::Relaxed), 1);
        fixture.sweep();
        fixture.sweep();
        assert!(stuck.await.unwrap_err().is_cancelled());
        assert_eq!(fixture.limits.closing.load(Ordering::Relaxed), 0);
        assert_eq!(fixture.limits.counts.open(), 1);
    }

    #[test]
    fn client_has_at_most_its_number_of_connections() {
        let fixture = Fixture::new(100, client_limit(2, &["10.0.0.0/8"]));
        for (same, other) in [
            (["192.0.2.1", "::ffff:192.0.2.1", "192.0.2.1"], "192.0.2.2"),
            (["2001:db8::1", "2001:db8::2", "2001:db8::ffff"], "2001:db8:0:1::1"),
        ] {
            let open = [fixture.admit(same[0]), fixture.admit(same[1])];
            assert!(open.iter().all(Option::is_some));
            assert!(fixture.admit(same[2]).is_none(), "{same:?}");
            assert!(fixture.admit(other).is_some());
            drop(open);
            assert!(fixture.admit(same[2]).is_some());
        }
        assert_eq!(fixture.limits.counts.refused(RefusalReason::Client), 2);
        for exempt in ["127.0.0.1", "::1", "10.1.2.3", "::ffff:10.1.2.3"] {
            let open: Vec<_> = (0..10).map(|_| fixture.admit(exempt)).collect();
            assert!(open.iter().all(Option::is_some), "{exempt}");
        }
        assert!(fixture.limits.clients.lock().is_empty(), "memory of closed connections");
    }
}
