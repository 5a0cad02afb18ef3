//! Connection counters of a listener.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Counts the connections of a listener: open now, accepted in all, and the most at once.
#[derive(Debug, Default)]
pub struct ConnectionCounts {
    open: AtomicU64,
    accepted: AtomicU64,
    most: AtomicUsize,
}

/// A connection while it is open.
#[derive(Debug)]
pub struct Open(Arc<ConnectionCounts>);

impl ConnectionCounts {
    /// Adds to the most connections at once; a listener with several sockets calls it for each.
    pub fn at_most(&self, most: usize) {
        self.most.fetch_add(most, Ordering::Relaxed);
    }

    /// Counts a connection as open until the returned guard is dropped.
    pub fn accept(self: &Arc<Self>) -> Open {
        self.accepted.fetch_add(1, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        Open(Arc::clone(self))
    }

    /// Returns the number of open connections.
    pub fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Returns the number of connections that were accepted.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::Relaxed)
    }

    /// Returns the most connections at once.
    pub fn most(&self) -> usize {
        self.most.load(Ordering::Relaxed)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connection_counts_while_it_is_open() {
        let door = Arc::new(ConnectionCounts::default());
        let (one, other) = (door.accept(), door.accept());
        assert_eq!((door.open(), door.accepted()), (2, 2));
        drop(one);
        assert_eq!((door.open(), door.accepted()), (1, 2));
        drop(other);
        assert_eq!((door.open(), door.accepted()), (0, 2));
    }
}
