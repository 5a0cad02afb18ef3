//! The one connection to a server: opened, replaced and given up as its location changes.

use std::sync::Arc;

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;

use super::config::RedisConfig;
use super::connection::RedisConnection;
use super::location::ServerLocation;
use super::open_error::OpenError;
use super::sentinel::MasterReport;

/// The connection to the server at a location.
///
/// A connection to a Sentinel master of an earlier failover is never put in use after a later one was reported.
#[derive(Debug)]
pub(crate) struct MasterConnection {
    location: ServerLocation,
    current: ArcSwapOption<RedisConnection>,
    /// The configuration epoch of the latest failover that is known. Locked while a connection is put in use, so that
    /// none of an earlier epoch is after a report.
    epoch: Mutex<u64>,
}

/// A connection that is not in use yet.
#[derive(Debug)]
pub(crate) struct NewConnection {
    connection: Arc<RedisConnection>,
    epoch: u64,
    /// The epoch that was known when it was opened.
    seen: u64,
}

impl NewConnection {
    /// Returns the connection, for calls before it is in use.
    pub(crate) fn connection(&self) -> &RedisConnection {
        &self.connection
    }
}

impl MasterConnection {
    pub(crate) fn new(location: ServerLocation) -> Self {
        Self { location, current: ArcSwapOption::empty(), epoch: Mutex::new(0) }
    }

    /// Returns the location of the server.
    pub(crate) fn location(&self) -> &ServerLocation {
        &self.location
    }

    /// Returns whether a connection is in use.
    pub(crate) fn is_open(&self) -> bool {
        self.current.load().is_some()
    }

    /// Returns the connection in use.
    pub(crate) fn get(&self) -> Option<Arc<RedisConnection>> {
        self.current.load_full()
    }

    /// Returns whether this connection is the one in use.
    pub(crate) fn is_current(&self, connection: &Arc<RedisConnection>) -> bool {
        self.current.load().as_ref().is_some_and(|current| Arc::ptr_eq(current, connection))
    }

    /// Finds the server.
    ///
    /// # Errors
    /// As [`ServerLocation::find`].
    pub(crate) async fn find(&self, config: &RedisConfig) -> Result<MasterReport, OpenError> {
        let seen = *self.epoch.lock();
        self.location.find(config, seen).await
    }

    /// Finds the server and connects to it. The connection is not in use until [`replace`](Self::replace).
    ///
    /// # Errors
    /// The server can't be found, or can't be used.
    pub(crate) async fn open(&self, config: &RedisConfig) -> Result<NewConnection, OpenError> {
        let seen = *self.epoch.lock();
        let MasterReport { address, epoch } = self.location.find(config, seen).await?;
        let connection = Arc::new(RedisConnection::open(config, &address).await?);
        Ok(NewConnection { connection, epoch, seen })
    }

    /// Puts a connection in use.
    ///
    /// # Errors
    /// A later failover was reported since it was opened.
    pub(crate) fn replace(&self, new: NewConnection) -> Result<Arc<RedisConnection>, OpenError> {
        let NewConnection { connection, epoch, seen } = new;
        let mut known = self.epoch.lock();
        if *known > seen && *known > epoch {
            let reason = "another server became the master meanwhile";
            return Err(OpenError::connect(connection.address(), reason));
        }
        // The epoch may be an earlier one, of sentinels that were set up anew.
        *known = epoch;
        self.current.store(Some(Arc::clone(&connection)));
        Ok(connection)
    }

    /// Puts a connection in use that a redirect of a cluster led to.
    pub(crate) fn redirect(&self, connection: &Arc<RedisConnection>) {
        self.current.store(Some(Arc::clone(connection)));
    }

    /// Stops using a connection. Returns whether it was in use.
    pub(crate) fn remove(&self, connection: &Arc<RedisConnection>) -> bool {
        let used = Some(Arc::clone(connection));
        let before = self.current.compare_and_swap(&used, None);
        before.as_ref().is_some_and(|before| Arc::ptr_eq(before, connection))
    }

    /// Notes the master that a sentinel reports. Returns whether it is of a later failover than known so far.
    pub(crate) fn note_report(&self, report: &MasterReport) -> bool {
        let mut epoch = self.epoch.lock();
        let is_later = report.epoch > *epoch;
        *epoch = report.epoch.max(*epoch);
        is_later
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::address::Address;

    #[test]
    fn only_a_report_of_a_later_failover_counts() {
        let address = Address::tcp("a", 1).unwrap();
        let master = MasterConnection::new(ServerLocation::Fixed(address.clone()));
        let report = |epoch| MasterReport { address: address.clone(), epoch };
        assert!(!master.note_report(&report(0)));
        assert!(master.note_report(&report(2)));
        assert!(!master.note_report(&report(1)));
        assert!(!master.note_report(&report(2)));
        assert!(master.note_report(&report(3)));
    }
}
